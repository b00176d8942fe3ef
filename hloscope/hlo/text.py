"""HLO text: what XLA dumps beside, or in place of, a module's message.

The text becomes the message that XLA would have written, so that one model serves both. What text does not
hold is not in it: instruction ids (new ones are given), the data of large constants, the devices' hardware
ids, the buffer assignment. Printers of every age are read; what only a newer one says is left out.
"""

from __future__ import annotations

from hloscope.hlo import protos
from hloscope.hlo.text_computation import ComputationReader
from hloscope.hlo.text_header import read_header
from hloscope.hlo.text_order import order_computations
from hloscope.hlo.text_scan import Scanner


def parse_text(data: bytes, origin: str) -> protos.HloModuleProto:
    """The module that HLO text describes.

    Raises UserError with the line and column of what cannot be; `origin` names the file in it.
    """
    scanner = Scanner(data.decode("utf-8-sig", "replace"), origin)
    module = protos.HloModuleProto()
    is_scheduled = read_header(scanner, module)
    reader = ComputationReader(scanner, module)
    while scanner.blanks() < len(scanner.text):
        reader.read()
    missing = reader.names.missing()
    if missing is not None:
        name, at = missing
        raise scanner.error(f"there is no computation %{name}", at)
    if not module.computations:
        raise scanner.error("the module has no computations: the file is truncated")
    if reader.entry is None and module.HasField("host_program_shape"):
        # Whoever writes the entry's layout marks the entry. In text without either it is the last computation.
        raise scanner.error("no computation is marked ENTRY: the file is truncated")
    entry = reader.entry or module.computations[-1].id
    try:
        order_computations(module)
    except ValueError as error:
        raise scanner.error(str(error), 0) from error
    _complete(reader, entry, is_scheduled=is_scheduled)
    return module


def _complete(reader: ComputationReader, entry: int, *, is_scheduled: bool) -> None:
    """Set what follows from the rest: the entry, fusion bodies, threads, the schedule."""
    module = reader.module
    module.entry_computation_id = entry
    for computation in module.computations:
        if computation.id == entry:
            module.entry_computation_name = computation.name
            module.name = module.name or f"module_{computation.name}"
        if computation.id in reader.threads and not computation.execution_thread:
            computation.execution_thread = reader.threads[computation.id]
        if computation.id in reader.fusion_bodies:
            computation.is_fusion_computation = True
        elif is_scheduled:
            sequence = module.schedule.sequences[computation.id]
            sequence.instruction_ids.extend(i.id for i in computation.instructions)
