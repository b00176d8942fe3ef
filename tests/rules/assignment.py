"""A buffer assignment for a small module: every value of the entry lives from where it is made to its last use.

Real ones share and reuse memory; this is just enough for rules that look at what is alive at the peak.
"""

from __future__ import annotations

import re

from hloscope.hlo import Module, protos

_VMEM = 1
_SCOPED = re.compile(rb'"memory_space": ?"1", ?"offset": ?"0", ?"size": ?"(\d+)"')
_PLUMBING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}


def assign(module: Module) -> protos.BufferAssignment:
    """The assignment: an allocation for each parameter, one heap for the arrays of the entry that lie in HBM."""
    assignment = protos.BufferAssignment()
    order = module.entry.instructions
    heap = assignment.buffer_allocations.add(index=0)
    trace = assignment.heap_simulator_traces.add()
    ends: dict[int, list[int]] = {}
    offset = 0
    for i in order:
        ends.setdefault(max((order.index(u) for u in i.users), default=len(order)), []).append(i.id)
    made: dict[int, int] = {}
    for position, i in enumerate(order):
        size = i.shape.padded_bytes
        assignment.logical_buffers.add(id=i.id, size=size).defined_at.instruction_id = i.id
        if i.opcode == "parameter":
            own = assignment.buffer_allocations.add(
                index=len(assignment.buffer_allocations), size=size, is_entry_computation_parameter=True
            )
            own.parameter_number = i.parameter_number or 0
            own.assigned.add(logical_buffer_id=i.id, size=size)
        elif i.opcode not in _PLUMBING and i.shape.is_array and i.shape.memory_space == 0:
            heap.assigned.add(logical_buffer_id=i.id, offset=offset, size=size)
            offset += size
            trace.events.add(kind=0, buffer_id=i.id)
            made[i.id] = size
        for dead in ends.get(position, []):
            if dead in made:
                trace.events.add(kind=1, buffer_id=dead)
    for last in ends.get(len(order), []):
        if last in made:
            trace.events.add(kind=1, buffer_id=last)
    heap.size = offset
    near = sum(i.shape.padded_bytes for i in order if i.shape.memory_space == _VMEM)
    reserved = max((int(n) for i in order for n in _SCOPED.findall(i.proto.backend_config)), default=0)
    if near + reserved:
        index = len(assignment.buffer_allocations)
        assignment.buffer_allocations.add(index=index, size=near + reserved, color=_VMEM)
    return assignment
