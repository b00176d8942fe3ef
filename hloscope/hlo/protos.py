"""The protobuf messages, built at import from a descriptor (`hlo.binpb`, made from `hlo.proto`).

Generated code would tie users to one protobuf version (its runtime refuses older ones); a descriptor
works with every runtime. The pool is our own, so no other HLO proto in the process can collide with it.
Types for checkers are in `protos.pyi`; `make protos` writes both files.
"""

from __future__ import annotations

from pkgutil import get_data

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _load() -> dict[str, type]:
    pool = descriptor_pool.DescriptorPool()
    # Not by importlib.resources, which takes as long to import as all of this file does.
    files = descriptor_pb2.FileDescriptorSet.FromString(get_data("hloscope.hlo", "hlo.binpb") or b"")
    for file in files.file:
        pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles([f.name for f in files.file], pool)
    return {name.removeprefix("hloscope.hlo."): cls for name, cls in classes.items()}


globals().update(_load())
