"""How long a collective is on the wire: a model of rings and routes on the torus of chips.

Bytes that go over the links follow from the algorithm, links and hops from where the group's devices stand, speeds
from `devices.toml`. Whoever has no place on a known torus gets no time. docs/collectives.md has the formulas and
what they were checked against.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from hloscope.analysis.wire_rings import Box, find_box
from hloscope.analysis.wire_routes import route
from hloscope.analysis.wire_strategy import rings_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from hloscope.analysis.wire_place import Torus
    from hloscope.hlo import Instruction, ReplicaGroups

    Devices = npt.NDArray[np.int64]

# Payload that crosses the wire, in shares of (n - 1) / n of it: an all-reduce is a reduce-scatter and an all-gather.
_PASSES = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "collective-broadcast": 1}
_EXCHANGES = ("all-to-all", "ragged-all-to-all")

# Groups of one module come in few forms, each asked for by many collectives.
_known: WeakKeyDictionary[Torus, dict[object, _Path | None]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCost:
    """One execution of a collective on one device. Bytes, seconds.

    `bytes` are those that the device sends, by the algorithm. `links` are the links of a chip that work at the
    same time, shared ones as their share; `hops` the steps that the latency counts, beside what it takes to begin.
    `bound_by` is the largest term: "ici", "die-to-die", "dcn" or "latency". `source` says where the places of the
    devices come from.
    """

    bytes: int
    seconds: float
    latency_seconds: float
    transfer_seconds: float
    bound_by: str
    algorithm: str
    links: float
    hops: int
    wraps: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path:
    """What does not depend on the payload: the bytes that the busiest link of each kind carries per byte of it."""

    algorithm: str
    sent: float
    ici: float
    die_to_die: float
    dcn: float
    links: float
    hops: int
    wraps: bool
    starts: int = 1  # how often it begins anew: once, or for each phase of a SparseCore
    on_sparsecore: bool = False


def wire_cost(opcode: str, payload: int, collective: Instruction, torus: Torus) -> WireCost | None:
    """One execution of a collective; None where its way is not known.

    `payload` is the larger of operand and result, in bytes on one device; `opcode` the collective's without
    `-start` ("reduce-scatter" for an all-reduce of which only slices are kept). A ragged all-to-all counts as if
    its buffers were full and evenly spread, since how full they are is not in the module.
    """
    known = _known.setdefault(torus, {})
    key = _key(opcode, collective)
    if key not in known:
        known[key] = _started(_path(opcode, collective, torus), opcode, collective)
    path = known[key]
    return None if path is None else _cost(path, payload, torus)


def _cost(path: _Path, payload: int, torus: Torus) -> WireCost | None:
    ici = torus.ici
    terms = {"ici": payload * path.ici / (ici.link_bytes_per_second * ici.efficiency)}
    for name, speed in (
        ("die-to-die", ici.die_to_die_bytes_per_second),
        ("dcn", ici.dcn_bytes_per_second),
    ):
        carried = payload * (path.die_to_die if name == "die-to-die" else path.dcn)
        if carried and speed is None:
            return None
        terms[name] = carried / speed if speed else 0.0
    # Cores pass on what comes in over the links; another slice is reached before or after.
    transfer = max(terms["ici"], terms["die-to-die"]) + terms["dcn"]
    start = ici.sparsecore_start_seconds if path.on_sparsecore else ici.start_seconds
    latency = path.hops * ici.hop_seconds + path.starts * start
    terms["latency"] = latency
    return WireCost(
        bytes=round(payload * path.sent),
        seconds=latency + transfer,
        latency_seconds=latency,
        transfer_seconds=transfer,
        bound_by=max(terms, key=lambda name: terms[name]),
        algorithm=path.algorithm,
        links=path.links,
        hops=path.hops,
        wraps=path.wraps,
        source=torus.source,
    )


def _key(opcode: str, collective: Instruction) -> object:
    """What decides the way: the pairs, or the groups and the rings."""
    if pairs := collective.source_target_pairs:
        return pairs, on_sparsecore(collective)
    groups = collective.replica_groups
    text = None if groups is None else groups.text
    return opcode, text, on_sparsecore(collective), rings_of(collective.proto.backend_config)


def on_sparsecore(collective: Instruction) -> bool:
    """Whether a SparseCore runs a collective, not the TensorCore."""
    thread = collective.computation.execution_thread or collective.execution_thread
    return b"DEVICE_TYPE_SPARSECORE" in collective.proto.backend_config or thread == "sparsecore"


def _started(path: _Path | None, opcode: str, collective: Instruction) -> _Path | None:
    """The way with what begins it: where nothing is sent, nothing begins."""
    if path is None:
        return None
    if not path.sent:
        return replace(path, starts=0)
    if not on_sparsecore(collective):
        return path
    rings = rings_of(collective.proto.backend_config)
    phases = 1 if rings is None else rings.phases
    return replace(path, starts=phases * _PASSES.get(opcode, 1), on_sparsecore=True)


def _path(opcode: str, collective: Instruction, torus: Torus) -> _Path | None:
    if opcode == "collective-permute":
        return _permute(collective, torus)
    groups = _members(collective.replica_groups, torus)
    if groups is None:
        return None
    if groups.shape[1] == 1:
        return _Path(algorithm="none", sent=0, ici=0, die_to_die=0, dcn=0, links=0, hops=0, wraps=False)
    if opcode in _EXCHANGES:
        return _exchange(groups, torus)
    if opcode not in _PASSES:
        return None
    rings = rings_of(collective.proto.backend_config)
    flat = None if rings is None else rings.flat_links
    paths = [_gather(_PASSES[opcode], members, flat, torus) for members in groups]
    known = [path for path in paths if path is not None]
    # The groups run at the same time, so the slowest counts.
    slow = max(known, key=lambda path: (path.ici, path.die_to_die, path.hops), default=None)
    return (
        slow
        if slow is not None and len(known) == len(paths)
        else _ring_of_routes(_PASSES[opcode], groups, torus)
    )


def _members(groups: ReplicaGroups | None, torus: Torus) -> Devices | None:
    """The device numbers of each group, [groups, size]; None where they are uneven or not on the torus."""
    if groups is None:
        return np.arange(torus.count).reshape(1, -1)
    members = groups.groups
    if members is None or not members.size or members.min() < 0 or members.max() >= torus.count:
        return None
    return members


def _gather(passes: int, members: Devices, flat: int | None, torus: Torus) -> _Path | None:
    """Each device gets all shards (or all get summed): over all axes of the group's box at the same time."""
    box = find_box(torus, members)
    if box is None or (flat is None and not box.rings and box.chips > 1):
        return None
    n, shards = len(members), len(members) // box.slices
    links = box.links if flat is None else flat / (torus.cores // box.cores)
    # Each chip gets what its own cores lack; on a flat ring each core passes on what it gets.
    arrives = (box.chips - 1) / box.chips if flat is None else (shards - 1) / shards
    return _Path(
        algorithm=_spelled(box, flat),
        sent=passes * (n - 1) / n,
        ici=passes * arrives / links if box.chips > 1 else 0.0,
        die_to_die=passes * (box.cores - 1) / box.cores,
        dcn=passes * (box.slices - 1) / box.slices / shards,
        links=links if box.chips > 1 else 0.0,
        hops=passes * (box.hops if flat is None else shards - 1),
        wraps=any(ring.wraps for ring in box.rings),
    )


def _spelled(box: Box, flat: int | None) -> str:
    cores = [f"{box.cores} cores"] if box.cores > 1 else []
    slices = [f"{box.slices} slices"] if box.slices > 1 else []
    if flat is not None:
        return " × ".join([f"one ring of {box.chips * box.cores}", *slices])
    return " × ".join([*map(str, box.rings), *cores, *slices])


def _exchange(groups: Devices, torus: Torus) -> _Path:
    """Each device sends another part to each other one, all at once, each by the shortest way."""
    n = groups.shape[1]
    first, second = np.indices((n, n)).reshape(2, -1)
    apart = first != second
    load = route(torus, groups[:, first[apart]].ravel(), groups[:, second[apart]].ravel())
    return _Path(
        algorithm=f"routes between {n}",
        sent=(n - 1) / n,
        ici=load.ici / n,
        die_to_die=load.die_to_die / n,
        dcn=load.dcn / n,
        links=load.links,
        hops=load.hops,
        wraps=any(torus.wraps),
    )


def _permute(collective: Instruction, torus: Torus) -> _Path | None:
    pairs = np.asarray(collective.source_target_pairs, dtype=np.int64)
    if not len(pairs) or pairs.min() < 0 or pairs.max() >= torus.count:
        return None
    load = route(torus, pairs[:, 0], pairs[:, 1])
    moves = bool((pairs[:, 0] != pairs[:, 1]).any())
    return _Path(
        algorithm="routes of the pairs",
        sent=float(moves),
        ici=load.ici,
        die_to_die=load.die_to_die,
        dcn=load.dcn,
        links=load.links,
        hops=load.hops,
        wraps=any(torus.wraps),
    )


def _ring_of_routes(passes: int, groups: Devices, torus: Torus) -> _Path:
    """A group that fills no box: a ring through its devices in their order, half of the data each way around."""
    n = groups.shape[1]
    following = np.roll(groups, -1, axis=1)
    load = route(
        torus, np.concatenate([groups, following]).ravel(), np.concatenate([following, groups]).ravel()
    )
    share = passes * (n - 1) / n / 2
    return _Path(
        algorithm=f"ring of {n} over routes",
        sent=passes * (n - 1) / n,
        ici=load.ici * share,
        die_to_die=load.die_to_die * share,
        dcn=load.dcn * share,
        links=load.links,
        hops=passes * (n - 1) * load.hops,
        wraps=any(torus.wraps),
    )
