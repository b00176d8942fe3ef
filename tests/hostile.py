"""A module whose every name was written by somebody who means harm."""

from __future__ import annotations

from pathlib import Path

from hloscope.hlo import HloFile, protos

_MARKUP = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&amp;</style>[red]markup[/red]"
)
EVIL = f"\x1b]0;owned\x07\x1b[2J{_MARKUP}\u202egnp\u2066\r\n\x9b31m\u200f"


def write_hostile(file: HloFile, path: Path) -> Path:
    """A copy of a module with a name of 10,000 characters on everything that a name can be put on."""
    proto = protos.HloProto.FromString(_file_bytes(file))
    module = proto.hlo_module
    module.name = EVIL + "x" * 10_000
    for computation in module.computations:
        computation.name = EVIL + computation.name
        for instruction in computation.instructions:
            instruction.name = f"{EVIL}{instruction.name}" + "y" * 10_000
            instruction.metadata.op_name = instruction.metadata.op_name + "/" + EVIL + "z" * 10_000
    names = module.stack_frame_index.file_names
    for i, name in enumerate(list(names)):
        names[i] = f"/{EVIL}/" + "w" * 10_000 + name + EVIL
    path.write_bytes(proto.SerializeToString())
    return path


def _file_bytes(file: HloFile) -> bytes:
    proto = protos.HloProto(hlo_module=file.module.proto)
    if file.buffer_assignment is not None:
        proto.buffer_assignment.CopyFrom(file.buffer_assignment)
    return proto.SerializeToString()
