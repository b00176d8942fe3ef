"""Rules stay silent on small modules that come close to what they look for."""

from __future__ import annotations

import textwrap

import pytest
from expectations import check, example_of, module_of
from near_misses import NEAR_MISSES

from hloscope.analysis.bundle import Analyses
from hloscope.devices import chips
from hloscope.engine import run_rules

CASES = [(code, why) for code, cases in NEAR_MISSES.items() for why in cases]


@pytest.mark.parametrize(("code", "why"), CASES, ids=[f"{code}: {why}" for code, why in CASES])
def test_silent(code, why):
    assert check(NEAR_MISSES[code][why], code) == ()


def test_hs205_tells_how_many_of_which_size():
    (finding,) = check(example_of("HS205"), "HS205")
    assert finding.details == ("in a step: 64 of 4.0 KiB",)
    assert finding.executions == 64


def test_hs207_tells_what_the_compiler_warned_of():
    warning = (
        "spmd_partitioner.cc: [SPMD] Involuntary full rematerialization. The compiler cannot go from sharding"
        " {devices=[4,1]<=[4]} to {devices=[1,4]<=[4]} efficiently for HLO operation %copy.1 = f32[8,16]{1,0}"
        ' copy(f32[8,16]{1,0} %x), sharding={devices=[4,1]<=[4]}, metadata={op_name="jit(step)/reshape"}.'
    )
    module = module_of(
        'x = f32[8,16] parameter(0)\nROOT y = f32[8,16] negate(x), metadata={op_name="jit(step)/reshape"}'
    )
    (finding,) = run_rules(Analyses(module, compiler_warnings=[warning, "another warning"]), select=["HS207"])
    assert finding.title == "the compiler replicated f32[8,16] to reshard it"
    assert [i.name for i in finding.instructions] == ["y"]


def test_hs207_tells_what_arrives_each_time_though_nobody_knows_how_often():
    text = """
    body {
      state = (s32[], bf16[512,4096], bf16[4096,512]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      shard = bf16[512,4096] get-tuple-element(state), index=1
      zero = s32[] constant(0)
      all = bf16[4096,4096] all-gather(shard), replica_groups=[1,8]<=[8], dimensions={0}  // expect: HS207
      part = bf16[4096,512] dynamic-slice(all, zero, i), dynamic_slice_sizes={4096,512}
      ROOT out = (s32[], bf16[512,4096], bf16[4096,512]) tuple(i, shard, part)
    }
    condition {
      state = (s32[], bf16[512,4096], bf16[4096,512]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      many = s32[] constant(6)
      ROOT less = pred[] compare(i, many), direction=LT
    }
    start = (s32[], bf16[512,4096], bf16[4096,512]) parameter(0)
    ROOT loop = (s32[], bf16[512,4096], bf16[4096,512]) while(start), condition=condition, body=body
    """
    module = module_of(textwrap.dedent(text))
    (finding,) = run_rules(Analyses(module), select=["HS207"])
    assert (finding.executions, finding.bytes) == (None, None)
    assert finding.details == (
        "32.0 MiB arrive on every device each time; nobody reads more than 12.5 % of it",
    )


def test_hs203_counts_the_part_that_nobody_reads():
    (finding,) = check(example_of("HS203"), "HS203")
    whole = 4096 * 1024 * 4
    assert (finding.bytes, finding.saved_bytes) == (whole, whole * 7 // 8)


def test_hs204_is_a_remark_on_reductions():
    text = example_of("HS204").replace(
        "all-gather(shard), replica_groups=[1,8]<=[8], dimensions={0}",
        "all-reduce(shard), replica_groups=[1,8]<=[8], to_apply=add",
    )
    add = "add {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b)\n}\n"
    (finding,) = check(add + text.replace("[512,", "[4096,"), "HS204")
    assert finding.severity.value == "info"


def test_hs204_tells_the_wide_part_of_collectives_that_were_put_together():
    text = """
HloModule together, is_scheduled=true, num_partitions=8
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
ENTRY main {
  narrow = bf16[1024,1024] parameter(0)
  wide = f32[2048,1024] parameter(1)
  widened = f32[1024,1024] convert(narrow)
  both = (f32[2048,1024], f32[1024,1024]) all-reduce(wide, widened), replica_groups=[1,8]<=[8], to_apply=add  // expect: HS204
  second = f32[1024,1024] get-tuple-element(both), index=1
  first = f32[2048,1024] get-tuple-element(both), index=0
  ROOT out = (f32[2048,1024], f32[1024,1024]) tuple(first, second)
}
"""  # noqa: E501 - HLO has one instruction a line
    (finding,) = check(text, "HS204")
    assert finding.title == "all-reduce of f32[1024,1024] over groups of 8, widened before it"
    assert (finding.bytes, finding.saved_bytes) == (4 << 20, 2 << 20)
    whole = Analyses(module_of(text), chip=chips()["v6e"], topology="v6e:2x4").costs.of(
        finding.instructions[0]
    )
    assert whole.seconds is not None
    # What a collective takes to begin stays.
    assert 0 < whole.latency_seconds < whole.seconds
    assert finding.saved_seconds == pytest.approx((whole.seconds - whole.latency_seconds) * 2 / 12)


def test_hs206_says_nothing_without_a_chip_or_its_topology():
    (finding,) = check(example_of("HS206"), "HS206")
    assert finding.saved_seconds == finding.facts["exposed_seconds"] > 0
    module = module_of(example_of("HS206"))
    for known in ({}, {"chip": chips()["v6e"]}):
        assert run_rules(Analyses(module, **known), select=["HS206"]) == ()


def test_hs206_counts_the_wait_at_the_end_of_an_asynchronous_one():
    text = NEAR_MISSES["HS206"]["work beside it takes longer"].replace("65536", "128")
    marked = text.replace("dimensions={0}\n", "dimensions={0}  // expect: HS206\n")
    (synchronous,) = check(example_of("HS206"), "HS206")
    (waited_for,) = check(textwrap.dedent(marked), "HS206")
    assert "synchronous" in synchronous.details[1]
    assert "synchronous" not in waited_for.details[1]
    assert synchronous.details[1].endswith("on the wire, all exposed, synchronous")
    # The same gather, with one product of 128 rows beside it.
    assert 0 < waited_for.saved_seconds < synchronous.saved_seconds  # pyright: ignore
