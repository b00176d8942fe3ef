"""Memory figures of real modules, held against what the compiler and XProf say of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from hloscope.analysis.memory import Memory, analyze_memory
from hloscope.capture.artifact import MemoryStats
from hloscope.hlo import HloFile, protos

Load = Callable[[str], HloFile]
Analyzed = Callable[[str], Memory]

MODULES = ("dense", "qwen3_30b", "deepseek", "oom", "qwen35_397b")
# Argument, output, alias: `memory_analysis()`. Arena: the buffer assignment. Total: the memory usage report.
COMPILER = {
    "dense": (280656896, 280642336, 280636416, 990543904, 1271377728),
    "qwen3_30b": (2336382976, 2336347936, 2336342016, 2854191136, 5190966592),
    "deepseek": (13139981824, 13139660288, 13139654144, 77705969696, 90847606464),
    "qwen35_397b": (9306155008, 9305997856, 9305991168, 52268367904, 61579672640),
    "oom": (687882240, 16794624, 16793600, 25530745344, 26218718720),
}
# Peak heap of XProf 2.24's memory viewer on the same files, in bytes, and the size of the flattened schedule.
XPROF_PEAK = {
    "dense": 1228393248,
    "qwen3_30b": 5082588448,
    "deepseek": 81110072320,
    "oom": 24895753216,
    "qwen35_397b": 60112566304,
}


def memory_of(file: HloFile, **more: Any) -> Memory:
    return analyze_memory(file.module, file.buffer_assignment, **more)


@pytest.fixture(scope="module")
def memory(shared_dump: Load) -> Callable[[str], Memory]:
    """The memory of a real module by its short name, analyzed once."""
    return cache(lambda name: memory_of(shared_dump(name)))


@pytest.mark.parametrize("name", MODULES)
def test_figures_are_the_compilers_to_the_byte(name: str, memory: Analyzed) -> None:
    m = memory(name)
    figures = (m.argument_bytes, m.output_bytes, m.alias_bytes, m.arena_bytes, m.total_bytes)
    assert figures == COMPILER[name]
    assert m.temp_bytes is None
    assert m.generated_code_bytes is None


@pytest.mark.parametrize("name", MODULES)
def test_peak_is_xprofs_and_the_sum_of_what_is_alive(name: str, memory: Analyzed) -> None:
    m = memory(name)
    assert m.peak_bytes == XPROF_PEAK[name]
    assert sum(b.bytes for b in m.buffers_at_peak) == m.peak_bytes
    assert sum(f.bytes for f in m.families_at_peak) == m.peak_bytes
    assert sum(f.count for f in m.families_at_peak) == len(m.buffers_at_peak)


@pytest.mark.parametrize("name", MODULES)
def test_buffers_at_the_peak_live_there_and_are_no_larger_unpadded(name: str, memory: Analyzed) -> None:
    m = memory(name)
    assert m.peak_position is not None
    for b in m.buffers_at_peak:
        assert b.first is not None
        assert b.last is not None
        assert b.first <= m.peak_position <= b.last, b.label
        assert b.unpadded_bytes is None or 0 <= b.unpadded_bytes <= b.bytes, b.label


@pytest.mark.parametrize("name", MODULES)
def test_the_live_curve_keeps_the_peak_and_every_high_point(name: str, memory: Analyzed) -> None:
    m = memory(name)
    assert m.curve_positions is not None
    assert m.curve_bytes is not None
    assert np.all(np.diff(m.curve_positions) > 0)
    assert int(m.curve_bytes.max()) == m.peak_bytes
    assert len(m.live) <= 2000
    exact = dict(zip(m.curve_positions.tolist(), m.curve_bytes.tolist(), strict=True))
    assert all(exact[p.position] == p.bytes for p in m.live)
    at_peak = next(p for p in m.live if p.bytes == m.peak_bytes)
    assert at_peak.position == m.peak_position
    assert m.peak_instruction is not None
    # The thirty highest points are all within three neighbours of a point that was kept as high.
    kept = np.array([p.position for p in m.live])
    for index in np.argsort(m.curve_bytes)[-30:]:
        near = kept[np.argsort(np.abs(kept - m.curve_positions[index]))[:6]]
        assert max(exact[p] for p in near.tolist()) >= m.curve_bytes[index]


def test_fragmentation_is_the_arena_that_nothing_fills(memory: Analyzed) -> None:
    m = memory("deepseek")
    # 77705969696 - 67969855488, the peak of the heap trace.
    assert m.fragmentation_bytes == 9736114208


def test_other_memory_spaces_have_names_and_the_reports_sizes(memory: Analyzed) -> None:
    m = memory("deepseek")
    assert m.spaces == {"vmem": 67043328, "sflag": 208, "smem": 51712, "space 7": 0, "space 8": 44}


def test_a_person_recognises_the_families(memory: Analyzed) -> None:
    m = memory("deepseek")
    lines = {(f.label, f.shape, f.phases): (f.count, f.bytes) for f in m.families_at_peak}
    row = 524288 * 7168 * 2
    assert lines["gmm", "bf16[524288,7168]", ("backward",)] == (2, 2 * row)
    assert lines["ragged-sort-fwd ragged gather", "bf16[524288,7168]", ("recompute",)] == (1, row)
    assert lines["ffn act mul", "bf16[524288,2048]", ("backward",)] == (2, 2 * 524288 * 2048 * 2)
    logits = lines["apply output head convert element type", "bf16[4,4096,129280]", ("backward",)]
    assert logits == (1, 4 * 4096 * 129280 * 2)
    gradients = lines["tgmm, stacked by a loop", "bf16[58,64,56,2048]", ("backward",)]
    assert gradients == (2, 2 * 58 * 64 * 56 * 2048 * 2)


def test_arguments_fold_by_role(memory: Analyzed) -> None:
    m = memory("qwen35_397b")
    arguments = {f.label: f.count for f in m.families_at_peak if f.phases == ("argument",)}
    assert arguments["params"] == arguments["optimizer mu"] == arguments["optimizer nu"] == 70
    assert arguments["data"] == 5


def test_layers_of_one_kind_are_one_family(memory: Analyzed) -> None:
    m = memory("qwen35_397b")
    gathered = [f for f in m.families_at_peak if f.label == "ragged-sort-fwd ragged gather slice"]
    assert [(f.shape, f.count) for f in gathered] == [("bf16[163840,4096]", 4)]
    assert gathered[0].source is not None
    assert gathered[0].source.file.endswith("ragged_gather.py")


def test_parameters_take_the_names_that_the_capture_knows(shared_dump: Load) -> None:
    file = shared_dump("oom")
    names = ["params['router']", "params['wi']", "params['wo']", "batch"]
    m = memory_of(file, parameter_names=names)
    assert {b.label for b in m.buffers_at_peak if b.kind == "argument"} == set(names)
    own = memory_of(file)
    assert {b.label for b in own.buffers_at_peak if b.kind == "argument"} == {"p[0]", "p[1]", "p[2]", "x"}


def test_the_compilers_figures_win_and_disagreement_shows(shared_dump: Load) -> None:
    argument, output, alias, _, total = COMPILER["dense"]
    stats = MemoryStats(
        argument_bytes=argument,
        output_bytes=output,
        alias_bytes=alias,
        total_bytes=total,
        temp_bytes=1033397664,
        generated_code_bytes=7,
        peak_bytes=XPROF_PEAK["dense"],
    )
    m = memory_of(shared_dump("dense"), stats=stats, hbm_limit_bytes=32 * 2**30)
    assert m.disagreements == ()
    assert (m.temp_bytes, m.generated_code_bytes, m.hbm_limit_bytes) == (1033397664, 7, 32 * 2**30)
    other = memory_of(shared_dump("dense"), stats=MemoryStats(argument_bytes=5, peak_bytes=6))
    assert (other.argument_bytes, other.output_bytes) == (5, output)
    # The peak stays the sum of the buffers that are listed beside it.
    assert (other.peak_bytes, other.compiler_peak_bytes) == (XPROF_PEAK["dense"], 6)
    assert len(other.disagreements) == 2
    assert other.disagreements[0].startswith("argument_bytes: the compiler says 5, its buffer assignment 28")


@pytest.mark.parametrize("name", MODULES)
def test_without_a_buffer_assignment_only_exact_figures_are_claimed(name: str, shared_dump: Load) -> None:
    m = analyze_memory(shared_dump(name).module, None)
    assert (m.argument_bytes, m.alias_bytes) == (COMPILER[name][0], COMPILER[name][2])
    rest = (
        m.output_bytes,
        m.arena_bytes,
        m.total_bytes,
        m.peak_bytes,
        m.peak_position,
        m.fragmentation_bytes,
    )
    assert rest == (None,) * 6
    assert m.live == ()
    told = analyze_memory(shared_dump(name).module, None, stats=MemoryStats(peak_bytes=11, total_bytes=12))
    assert (told.peak_bytes, told.total_bytes) == (11, 12)


def test_a_peak_above_all_of_hbm_is_not_taken(shared_dump: Load) -> None:
    file = shared_dump("dense")
    assert file.buffer_assignment is not None
    buffers = type(file.buffer_assignment)()
    buffers.CopyFrom(file.buffer_assignment)
    del buffers.heap_simulator_traces[:]
    within, above = (
        analyze_memory(file.module, buffers, stats=MemoryStats(total_bytes=1000, peak_bytes=peak))
        for peak in (900, 1100)
    )
    assert within.peak_bytes == 900
    assert (above.peak_bytes, above.compiler_peak_bytes) == (None, 1100)
    assert "peak_bytes: the compiler says 1100, VMEM in it, of 1000 in all" in above.disagreements


def test_a_heap_without_its_trace_has_no_peak(shared_dump: Load) -> None:
    file = shared_dump("oom")
    proto = protos.BufferAssignment()
    proto.CopyFrom(file.buffer_assignment)
    del proto.heap_simulator_traces[:]
    m = analyze_memory(file.module, proto)
    assert m.arena_bytes == COMPILER["oom"][3]
    assert (m.peak_bytes, m.fragmentation_bytes, m.buffers_at_peak) == (None, None, ())
