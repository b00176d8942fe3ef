"""Fingerprints stay when names, numbers, lines, fusions and spellings of op names change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hlo_builder import HloBuilder

from hloscope.analysis.bundle import Analyses
from hloscope.engine import run_rules
from hloscope.fingerprint import identity_of, scopes_of, stamp
from hloscope.rule import Finding, Severity


def finding(shape: str, op_name: str, title: str = "t") -> Finding:
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter(shape)
    entry.add("negate", shape, x, op_name=op_name)
    return Finding(
        code="HS101",
        severity=Severity.WARNING,
        title=title,
        instructions=(hlo.module().entry.root,),
        places=1,
        source=None,
        executions=None,
        bytes=None,
        saved_bytes=None,
        saved_seconds=None,
        fix="none",
        advice="",
    )


def test_the_same_work_spelt_otherwise():
    base = identity_of(finding("bf16[64,128]", "jit(step)/jvp()/layer/mlp/mul", "mul forward"))
    same = [
        finding("bf16[64,128]", "jit(step)/jvp()/layer/mlp/select_n", "select forward"),
        finding("bf16[128,64]{0,1}", "jit(step)/jvp()/while/body/closed_call/layer/mlp/mul"),
        finding("(bf16[4,16,128], f32[64])", "jit(other)/jvp()/layer/jit(mlp)/mul"),
        finding("bf16[64,128]", "jit(step)/jvp()/layer_3/mlp/mul"),
    ]
    assert {identity_of(f) for f in same} == {base}


@pytest.mark.parametrize(
    ("shape", "op_name"),
    [
        ("bf16[64,256]", "jit(step)/jvp()/layer/mlp/mul"),
        ("bf16[64,128]", "jit(step)/transpose(jvp())/layer/mlp/mul"),
        ("bf16[64,128]", "jit(step)/jvp()/layer/attention/mul"),
    ],
)
def test_other_work(shape, op_name):
    base = identity_of(finding("bf16[64,128]", "jit(step)/jvp()/layer/mlp/mul"))
    assert identity_of(finding(shape, op_name)) != base


def test_parameters_are_told_apart_by_their_paths():
    assert scopes_of("params['w']") == "params['w']"
    assert identity_of(finding("f32[8]", "params['w']")) != identity_of(finding("f32[8]", "params['v']"))


def test_of_findings_that_cannot_be_told_apart_as_many_are_known_as_there_were():
    one = finding("f32[8]", "jit(step)/mul")
    two, three = stamp([one, one]), stamp([one, one, one])
    assert [f.fingerprint for f in three[:2]] == [f.fingerprint for f in two]
    assert len({f.fingerprint for f in three}) == 3


def test_a_finding_without_an_instruction_is_its_rule():
    assert identity_of(replace(finding("f32[8]", "a/b"), instructions=())) == "HS101"


def test_a_newer_compiler_knows_the_findings_of_the_older_one(shared_dump):
    older, newer = (
        {f.fingerprint: f for f in run_rules(Analyses.of_file(shared_dump(name)), select=["HS101", "HS102"])}
        for name in ("moe_jax010", "moe_jax012")
    )
    # Scopes of jax's own differ: closed_call here, eval_jaxpr there. The older one makes one copy more.
    paths = [{f.instructions[0].op_name for f in each.values()} for each in (older, newer)]
    assert paths[0] != paths[1]
    assert newer.keys() < older.keys()
    assert len(newer) == 6
    assert [f.title for k, f in older.items() if k not in newer] == [
        "full-buffer pass that only concatenates or copies: copy backward bf16[32768,2048]"
    ]
    assert all(older[k].title == f.title for k, f in newer.items())


def test_asynchronous_starts_of_two_compilers_are_the_same_work(shared_dump):
    older, newer = (
        {f.fingerprint: f for f in run_rules(Analyses.of_file(shared_dump(name)), select=["HS104"])}
        for name in ("moe_jax010", "moe_jax012")
    )
    shapes = [{f.instructions[0].shape.short for f in each.values()} for each in (older, newer)]
    assert shapes[0] != shapes[1]
    assert older.keys() == newer.keys()
    assert len(newer) == 5


@pytest.mark.parametrize("name", ["deepseek", "qwen35_397b", "qwen3_30b", "oom"])
def test_real_modules_with_new_numbers_and_without_lines(name, shared_dump):
    file = shared_dump(name)
    renamed = type(file.module.proto)()
    renamed.CopyFrom(file.module.proto)
    for computation in renamed.computations:
        for instruction in computation.instructions:
            instruction.name = f"{instruction.name.split('.')[0]}.{instruction.id + 7}"
            instruction.metadata.stack_frame_id = 0
    before = run_rules(Analyses.of_file(file))
    after = run_rules(Analyses(type(file.module)(renamed), buffer_assignment=file.buffer_assignment))
    assert before
    assert {f.fingerprint for f in before} == {f.fingerprint for f in after}
    assert len({f.fingerprint for f in before}) == len(before)
