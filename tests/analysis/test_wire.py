"""The model of collectives on the wire: textbook formulas, symmetries, and what the compiler itself says."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hlo_builder import HloBuilder, group_lists, pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.analysis.collective_sizes import size_classes
from hloscope.analysis.collectives import find_collectives, wire_costs
from hloscope.analysis.wire import WireCost, wire_cost
from hloscope.analysis.wire_place import Torus, find_torus, numbered, topology_shape
from hloscope.analysis.wire_routes import route
from hloscope.analysis.wire_strategy import Rings, rings_of, told_wraps
from hloscope.capture import capture_step, topology_names
from hloscope.capture.launch import worker_environment
from hloscope.devices import chips
from hloscope.hlo import HloFile, Instruction, Module, read_hlo

STEPS = Path(__file__).parents[1] / "steps"
MB = 10**6
HOP = 1e-6


def speed_of(topology: str) -> float:
    """Bytes a second over one link, one way."""
    ici = chips()[topology.split(":")[0]].ici
    return ici.link_bytes_per_second * ici.efficiency


def start_of(topology: str) -> float:
    """What a collective takes beside hops and bytes."""
    return chips()[topology.split(":")[0]].ici.start_seconds


def module_on(devices: int, ids: Sequence[int] | None = None, **groups: Any) -> Module:
    hlo = HloBuilder()
    entry = hlo.entry()
    opcode = "collective-permute" if "source_target_pairs" in groups else "all-reduce"
    entry.add(opcode, "bf16[64,128]", entry.parameter("bf16[64,128]"), **groups)
    hlo.devices(ids if ids is not None else range(devices))
    return hlo.module()


def torus_of(topology: str, module: Module | None = None, **known: Any) -> Torus:
    chip = chips()[topology.split(":")[0]]
    devices = math.prod(topology_shape(topology) or ()) * chip.devices_per_chip
    found = find_torus(module or module_on(devices), chip=chip, topology=topology, **known)
    assert found is not None
    return found


def cost(opcode: str, payload: int, topology: str, *groups: Sequence[int], **more: Any) -> WireCost | None:
    torus = torus_of(topology)
    spelt = more or group_lists(*groups)
    return wire_cost(opcode, payload, collective(module_on(torus.count, **spelt)), torus)


def collective(module: Module) -> Instruction:
    return module.entry.root


def known(found: WireCost | None) -> WireCost:
    assert found is not None
    return found


WHOLE = {"v6e:16x16": range(256), "v5p:4x4x4": range(64), "tpu7x:4x4x8": range(256), "v6e:4x4": range(16)}


@pytest.mark.parametrize(
    ("topology", "links", "hops"),
    [
        ("v6e:16x16", 4, 16),  # two rings of 16
        ("v5p:4x4x4", 6, 6),  # three rings of 4
        ("tpu7x:4x4x8", 6, 9),  # rings of 4, 4 and 8, and the other core
        ("v6e:4x4", 2, 6),  # lines: no end of an axis below 16 is joined
    ],
)
def test_textbook_all_gather_over_a_whole_slice(topology: str, links: int, hops: int) -> None:
    found = known(cost("all-gather", 512 * MB, topology, WHOLE[topology]))
    n = len(WHOLE[topology])
    chips_ = n // chips()[topology.split(":")[0]].devices_per_chip
    assert found.bytes == pytest.approx(512 * MB * (n - 1) / n)
    assert found.transfer_seconds == pytest.approx(
        512 * MB * (chips_ - 1) / chips_ / (links * speed_of(topology))
    )
    assert (found.links, found.hops, found.bound_by) == (links, hops, "ici")
    assert found.latency_seconds == pytest.approx(hops * HOP + start_of(topology))
    assert found.seconds == found.latency_seconds + found.transfer_seconds


@pytest.mark.parametrize("topology", WHOLE)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(topology: str) -> None:
    one, two = (
        known(cost(opcode, 64 * MB, topology, WHOLE[topology])) for opcode in ("reduce-scatter", "all-reduce")
    )
    assert known(cost("all-gather", 64 * MB, topology, WHOLE[topology])) == one
    assert two.seconds == pytest.approx(2 * one.seconds - start_of(topology))
    assert two.bytes == pytest.approx(2 * one.bytes, abs=2)


def test_all_to_all_on_a_ring_costs_a_quarter_of_an_all_gather_of_all() -> None:
    """Each direction of a ring of n carries n/8 of what a device holds, against (n - 1)/2n for gathering n times it."""
    row = [range(16 * y, 16 * y + 16) for y in range(16)]
    found = known(cost("all-to-all", 64 * MB, "v6e:16x16", *row))
    assert found.transfer_seconds == pytest.approx(64 * MB * 16 / 8 / speed_of("v6e"))
    assert found.bytes == 60 * MB


def test_a_permute_takes_the_links_of_its_way() -> None:
    ring = [(i, (i + 1) % 4 + i // 4 * 4) for i in range(3)]
    step = known(cost("collective-permute", 9 * MB, "v6e:4x4", **pairs(*ring)))
    assert (step.hops, step.links) == (1, 1)
    assert step.transfer_seconds == pytest.approx(9 * MB / speed_of("v6e"))
    # On a line the last one's message goes back over all the others' links, the other way.
    around = known(cost("collective-permute", 9 * MB, "v6e:4x4", **pairs(*ring, (3, 0))))
    assert (around.hops, around.transfer_seconds) == (3, step.transfer_seconds)


def test_both_cores_of_a_chip_share_its_links() -> None:
    """tpu7x: groups along x that hold one core of each chip cross the same links at the same time."""
    apart = [[8 * row + 2 * x + core for x in range(4)] for row in range(16) for core in range(2)]
    together = [[8 * row + i for i in range(8)] for row in range(16)]
    one, both = (known(cost("all-gather", 80 * MB, "tpu7x:4x4x4", *g)) for g in (apart, together))
    assert (one.links, both.links) == (1.0, 2.0)
    assert one.transfer_seconds == pytest.approx(2 * both.transfer_seconds)
    assert (one.algorithm, both.algorithm) == ("x ring of 4", "x ring of 4 × 2 cores")


def test_two_cores_alone_use_the_link_between_them() -> None:
    found = known(cost("all-gather", 600 * MB, "tpu7x:2x2x1", *[(2 * i, 2 * i + 1) for i in range(4)]))
    assert found.bound_by == "die-to-die"
    assert found.transfer_seconds == pytest.approx(300 * MB / 600e9)


def test_interleaved_groups_share_links() -> None:
    near = known(
        cost(
            "all-gather",
            8 * MB,
            "v5p:4x4x4",
            *[(4 * i + j, 4 * i + j + 1) for i in range(16) for j in (0, 2)],
        )
    )
    far = known(
        cost(
            "all-gather",
            8 * MB,
            "v5p:4x4x4",
            *[(4 * i + j, 4 * i + j + 2) for i in range(16) for j in (0, 1)],
        )
    )
    assert near.links == far.links == 1.0  # a line of two, or two directions shared by two groups
    assert far.hops == 2 * near.hops


def test_uneven_groups_go_by_routes_and_a_lone_device_sends_nothing() -> None:
    uneven = known(
        cost("all-gather", 8 * MB, "v6e:4x4", (0, 1, 3), (2, 6, 7), (4, 5, 8), (9, 10, 11), (12, 13, 14))
    )
    assert "routes" in uneven.algorithm
    alone = known(cost("all-gather", 8 * MB, "v6e:4x4", *[(i,) for i in range(16)]))
    assert (alone.bytes, alone.seconds) == (0, 0.0)


def test_between_slices_there_is_no_time_unless_the_figure_is_given() -> None:
    ids = [100_000 + i for i in range(4)] + [200_000 + i for i in range(4)]
    module = module_on(8, ids, **group_lists(range(8)))
    torus = find_torus(module, chip=chips()["v6e"], topology="v6e:2x2")
    assert torus is not None
    assert wire_cost("all-reduce", MB, collective(module), torus) is None
    inside = module_on(8, ids, **group_lists(range(4), range(4, 8)))
    assert wire_cost("all-reduce", MB, collective(inside), torus) is not None


@pytest.mark.parametrize(
    ("topology", "chip"),
    [
        (None, "v6e"),
        ("v6e:4x4", None),
        ("v6e:2x2", "v6e"),
        ("v6e", "v6e"),
        ("v6e:2x2x4", "v6e"),
        ("v5p:4x4x8_twisted", "v5p"),
    ],
)
def test_without_a_place_there_is_no_torus(topology: str | None, chip: str | None) -> None:
    assert find_torus(module_on(16), chip=chips()[chip] if chip else None, topology=topology) is None
    hlo = HloBuilder()
    hlo.entry().parameter("f32[]")
    assert find_torus(hlo.module(), chip=chips()["v6e"], topology="v6e:4x4") is None, "it names no devices"


@settings(max_examples=60, deadline=None)
@given(
    shape=st.permutations([4, 4, 8]),
    taken=st.sets(st.sampled_from([0, 1, 2]), min_size=1),
    payload=st.integers(0, 10**10),
    more=st.integers(0, 10**10),
    opcode=st.sampled_from(["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]),
)
def test_axes_are_alike_and_more_bytes_take_longer(
    shape: list[int], taken: set[int], payload: int, more: int, opcode: str
) -> None:
    """The same sizes in another order of axes take the same time; time grows with bytes and bytes with the payload."""

    def of(sizes: list[int], axes: list[int], bytes_: int) -> WireCost:
        torus = torus_of(f"v5p:{'x'.join(map(str, sizes))}")
        numbers = np.arange(torus.count).reshape(sizes[::-1])  # z, y, x
        inner = [2 - axis for axis in sorted(axes)]
        outer = [i for i in range(3) if i not in inner]
        width = math.prod(sizes[axis] for axis in axes)
        groups = numbers.transpose([*outer, *inner]).reshape(-1, width)
        module = module_on(torus.count, **group_lists(*groups.tolist()))
        return known(wire_cost(opcode, bytes_, collective(module), torus))

    axes = sorted(taken)
    found = of(shape, axes, payload)
    order = sorted(range(3), key=lambda axis: shape[axis])
    sorted_shape = [shape[axis] for axis in order]
    other = of(sorted_shape, [order.index(axis) for axis in axes], payload)
    assert found.seconds == pytest.approx(other.seconds)
    assert found.bytes == other.bytes
    assert of(shape, axes, payload + more).seconds >= found.seconds


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), min_size=1, max_size=40))
def test_routes_carry_every_message_the_whole_way(moves: list[tuple[int, int]]) -> None:
    torus = torus_of("v5p:4x4x4")
    sources, targets = np.asarray(moves, dtype=np.int64).T
    load = route(torus, sources, targets)
    apart = np.abs(torus.places[sources, :3] - torus.places[targets, :3])
    shortest = np.minimum(apart, 4 - apart).sum(axis=1)
    assert load.hops == shortest.max()
    assert load.ici <= len(moves)
    assert (load.ici > 0) == bool(shortest.max())


# What the compiler says.


@pytest.mark.parametrize(("name", "topology"), [("deepseek", "tpu7x:4x8x8"), ("qwen35_397b", "tpu7x:4x4x8")])
def test_the_axes_found_are_those_that_the_compiler_names(
    name: str, topology: str, shared_dump: Callable[[str], HloFile]
) -> None:
    """SparseCore collectives carry their rings: the same axes and sizes, found here from the groups alone."""
    module = shared_dump(name).module
    torus = find_torus(module, chip=chips()["tpu7x"], topology=topology)
    assert torus is not None
    assert (
        told_wraps(module) == {"x": True, "y": True, "z": True} == dict(zip("xyz", torus.wraps, strict=True))
    )
    checked = 0
    for found in find_collectives(module, torus=torus).collectives:
        config = str(found.instructions[0].backend_config)
        if found.opcode != "all-gather" or "explicit_strategy_ring_dim" not in config or found.wire is None:
            continue
        rings = found.wire.algorithm.removesuffix(" × 2 cores").split(" × ")
        for ring in rings:
            assert f"ICI_RING_DIM_{ring[0].upper()}_TORUS" in config, found
        assert config.count("'phase_rings'") == 2 * len(rings), "one color for each link of each axis"
        checked += 1
    assert checked >= 10


def test_one_ring_through_all_is_slower_than_rings_along_axes(shared_dump: Callable[[str], HloFile]) -> None:
    module = shared_dump("qwen35_397b").module
    torus = find_torus(module, chip=chips()["tpu7x"], topology="tpu7x:4x4x8")
    found = find_collectives(module, torus=torus).collectives
    assert all(c.wire is not None and c.seconds is not None for c in found)
    flat = [c.wire for c in found if c.wire and c.wire.algorithm == "one ring of 256"]
    assert flat
    assert {wire.links for wire in flat} == {2.0}


@pytest.mark.parametrize(
    "config",
    [
        b"",
        b"{",
        b'{"color_strategies": 3}',
        b'{"color_strategies": [{"phase_rings": 1}]}',
        b'"color_strategies"',
    ],
)
def test_a_damaged_strategy_is_none(config: bytes) -> None:
    assert rings_of(config) is None


def sparsecore_config(*colors: Sequence[dict[str, str]]) -> dict[str, Any]:
    """The configuration of a collective that a SparseCore runs: for each color its phases."""
    rings = {"color_strategies": [{"phase_rings": list(phases)} for phases in colors]}
    return {"device_type": "DEVICE_TYPE_SPARSECORE", "ici_strategy_config": rings}


def test_phases_of_a_sparsecore_begin_one_after_another() -> None:
    x, y, flat = (
        {"ring_dim": "ICI_RING_DIM_X_MESH"},
        {"ring_dim": "ICI_RING_DIM_Y_MESH"},
        {"ring_type": "CW"},
    )
    assert rings_of(json.dumps(sparsecore_config([x, y], [y, x])).encode()) == Rings(
        phases=2, flat_links=None
    )
    assert rings_of(json.dumps(sparsecore_config([flat], [flat])).encode()) == Rings(phases=1, flat_links=2)
    start = chips()["tpu7x"].ici.sparsecore_start_seconds
    groups = {**group_lists(range(8)), "config": sparsecore_config([x, y], [y, x])}
    gathered, reduced = (
        known(cost(opcode, MB, "tpu7x:2x2x1", **groups)) for opcode in ("all-gather", "all-reduce")
    )
    assert gathered.latency_seconds == pytest.approx(2 * start + gathered.hops * HOP)
    assert reduced.latency_seconds == pytest.approx(4 * start + reduced.hops * HOP)


# What others measured, and nothing was fitted on (benchmarks/published_measurements.toml has the sources).


@pytest.mark.parametrize(("rows", "measured"), [(64, 22.6), (1024, 155.3), (16384, 2252.5)])
def test_a_measured_all_gather(rows: int, measured: float) -> None:
    """f32[rows, 8, 128] of each of four devices, one of each chip of a plane, around one ring both ways."""
    groups = group_lists(*[[8 * z + 2 * i + core for i in range(4)] for z in range(2) for core in range(2)])
    config = sparsecore_config([{"ring_type": "CW"}], [{"ring_type": "CCW"}])
    found = cost("all-gather", 4 * rows * 4096, "tpu7x:2x2x2", **groups, config=config)
    assert known(found).seconds == pytest.approx(measured * 1e-6, rel=0.03)


@pytest.mark.parametrize(("rows", "measured"), [(4096, 188.0), (8192, 368.8)])
def test_a_measured_all_to_all(rows: int, measured: float) -> None:
    """f32[rows, 8, 128] between the eight devices of each plane of a 2x2x4."""
    planes = [range(8 * z, 8 * z + 8) for z in range(4)]
    found = cost("all-to-all", rows * 4096, "tpu7x:2x2x4", *planes)
    assert known(found).seconds == pytest.approx(measured * 1e-6, rel=0.05)


def test_without_a_torus_nothing_has_a_time(shared_dump: Callable[[str], HloFile]) -> None:
    found = find_collectives(shared_dump("dense").module).collectives
    assert all(c.wire is None and c.seconds is None for c in found)
    assert all(c.seconds is None and c.latency_seconds is None for c in size_classes(found))


def test_size_classes_hold_every_collective_once(shared_dump: Callable[[str], HloFile]) -> None:
    module = shared_dump("dense").module
    torus = find_torus(module, chip=chips()["v6e"], topology="v6e:2x4")
    found = find_collectives(module, torus=torus).collectives
    classes = size_classes(found)
    assert sum(c.count for c in classes) == sum(c.count for c in found)
    assert sum(c.seconds or 0 for c in classes) == pytest.approx(sum(c.seconds or 0 for c in found))
    assert all(c.from_bytes < (c.to_bytes or math.inf) for c in classes)
    fusion = next(i for c in found if c.form == "fusion" for i in c.instructions)
    assert [cost is not None for cost in wire_costs(fusion, torus)].count(True) >= 1
    assert wire_costs(module.entry.parameters[0], torus) == []


@pytest.mark.parametrize(
    ("topology", "wraps"),
    [
        ("v6e:16x16", [True, True, False]),
        ("v6e:8x16", [False, True, False]),
        ("v6e:4x4", [False] * 3),
        ("tpu7x:4x4x4", [True] * 3),
        ("tpu7x:2x4x4", [False] * 3),
        ("v5p:4x4x12", [True] * 3),
        ("cpu:8", None),
        ("v5p:4x4x8_twisted", None),
    ],
)
def test_which_axes_have_joined_ends(topology: str, wraps: list[bool] | None) -> None:
    assert topology_names.wraps(topology) == wraps


_ASK = """
import json, sys
from hloscope.capture import Topology
print(json.dumps({name: Topology(name).coordinates for name in sys.argv[1:]}))
"""


@pytest.mark.tpu_compile
def test_devices_are_numbered_as_libtpu_numbers_them() -> None:
    names = ["v4:2x2x4", "v5e:4x8", "v5p:4x4x4", "v6e:4x4", "v6e:16x16", "tpu7x:2x2x2", "tpu7x:4x4x4"]
    asked = subprocess.run(
        [sys.executable, "-c", _ASK, *names],
        capture_output=True,
        text=True,
        check=True,
        env=worker_environment(),
    )
    for name, theirs in json.loads(asked.stdout.splitlines()[-1]).items():
        shape = topology_shape(name)
        assert shape is not None
        assert numbered(shape, chips()[name.split(":")[0]].devices_per_chip).tolist() == theirs, name


@pytest.mark.tpu_compile
def test_a_slice_of_whole_cubes_is_compiled_with_its_ends_joined() -> None:
    """The compiler's own rings: around each axis of a 4x4x4, and through a mesh where no end is joined."""
    for name, ends in (("gathered", "TORUS"), ("gathered_small", "MESH")):
        artifact = capture_step(str(STEPS / f"gathered.py:{name}"))
        module = read_hlo(artifact.hlo_path).module
        assert artifact.wraps == [ends == "TORUS"] * 3
        assert set(told_wraps(module).values()) == {ends == "TORUS"}
        torus = find_torus(
            module,
            chip=chips()["tpu7x"],
            topology=None,
            coordinates=artifact.device_coordinates,
            wraps=artifact.wraps,
        )
        (found,) = find_collectives(module, torus=torus).collectives
        assert found.wire is not None
        assert found.wire.wraps == (ends == "TORUS")
        assert found.wire.source == "the compiler's coordinates"
