"""Each rule fires where it should on real modules, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from hloscope.analysis.bundle import Analyses
from hloscope.engine import run_rules
from hloscope.errors import UserError
from hloscope.hlo import HloFile
from hloscope.rule import Finding, Severity

# The six full-buffer fusions of one MoE layer, by name in the module, with what a person calls them.
DEEPSEEK_FULL_BUFFER = {
    "fusion.1584.kernel_args_2_": "activation forward",
    "fusion.1392.kernel_args_2_": "activation recompute",
    "fusion.1396": "activation backward",
    "fusion.1395": "unsort backward",
    "select_add_fusion.2": "backward",
    "broadcast_select_fusion.53": "forward",
}


def find(file: HloFile, code: str, **known: Any) -> tuple[Finding, ...]:
    analyses = Analyses(file.module, buffer_assignment=file.buffer_assignment, **known)
    return run_rules(analyses, select=[code])


def test_hs101_finds_the_six_of_a_deepseek_layer_and_no_other(shared_dump):
    findings = find(shared_dump("deepseek"), "HS101")
    found = {i.name: f.title for f in findings for i in f.instructions}
    assert set(found) == set(DEEPSEEK_FULL_BUFFER)
    for name, words in DEEPSEEK_FULL_BUFFER.items():
        assert words in found[name]
    assert all(f.executions == 58 for f in findings)
    assert all(f.saved_bytes is None for f in findings), "a dump does not tell how many rows are valid"


def test_hs101_finds_the_sixteen_of_the_397b_layers_in_four_families(shared_dump):
    findings = find(shared_dump("qwen35_397b"), "HS101")
    assert sorted((f.title.split(": ")[1], len(f.instructions), f.executions) for f in findings) == [
        ("activation backward 2 x bf16[163840,1024]", 4, 60),
        ("activation forward bf16[163840,1024]", 4, 60),
        ("activation recompute bf16[163840,1024]", 4, 60),
        ("unsort backward bf16[163840,4096]", 4, 60),
    ]


def test_hs101_finds_pallas_kernels_of_another_make(shared_dump):
    findings = find(shared_dump("qwen3_30b"), "HS101")
    assert {i.name for f in findings for i in f.instructions} == {
        "multiply_multiply_fusion.10.lhs_ref_value",
        "fusion.639.lhs_ref_value.lhs_ref",
        "fusion.644",
        "fusion.645",
    }


def test_hs103_finds_the_sums_and_slices_that_stand_alone(shared_dump):
    findings = find(shared_dump("qwen35_397b"), "HS103")
    found = sorted((i.opcode, i.shape.short) for f in findings for i in f.instructions)
    assert found == [("add", "bf16[163840,4096]")] * 4 + [("slice", "bf16[163840,4096]")] * 8
    sums = next(f for f in findings if all(i.opcode == "add" for i in f.instructions))
    assert (sums.executions, sums.bytes) == (60, 60 * 3 * 163840 * 4096 * 2)


@pytest.mark.parametrize("name", ["dense", "deepseek"])
def test_hs103_stays_silent_where_nothing_stands_alone(name, shared_dump):
    assert find(shared_dump(name), "HS103") == ()


@pytest.mark.parametrize("name", ["deepseek", "qwen35_397b", "qwen3_30b"])
def test_hs102_stays_silent_where_nothing_is_concatenated(name, shared_dump):
    assert find(shared_dump(name), "HS102") == ()


def test_a_dense_step_has_no_ragged_rows_and_no_transposed_gradient(shared_dump):
    assert run_rules(Analyses.of_file(shared_dump("dense")), select=["HS1", "HS201"]) == ()


def test_bytes_wasted_follow_the_valid_fraction(shared_dump):
    file = shared_dump("qwen35_397b")
    activation = next(
        f for f in find(file, "HS101", valid_fraction=0.5625) if "activation forward" in f.title
    )
    rows, columns, bf16 = 163840, 1024, 2
    # 60 times: gate and up are read, their product is written.
    assert activation.bytes == 60 * 3 * rows * columns * bf16
    assert activation.saved_bytes == round(activation.bytes * (1 - 0.5625))


def test_full_valid_rows_waste_nothing(shared_dump):
    assert find(shared_dump("qwen35_397b"), "HS101", valid_fraction=1.0) == ()


def test_hs201_names_the_three_expert_gradients_of_deepseek(shared_dump):
    findings = find(shared_dump("deepseek"), "HS201")
    assert sorted(v for f in findings for v in f.facts["values"]) == ["tgmm.1", "tgmm.2", "tgmm.3"]
    assert all(f.facts["mesh_axes"] == ["fsdp"] for f in findings)
    one_copy = 2 * 64 * 7168 * 2048 * 2  # read and written, bf16
    assert sorted(f.facts["copy_bytes"] for f in findings) == [one_copy, 2 * one_copy]


def test_hs201_names_the_four_wo_gradients_of_397b_and_not_the_eight_of_wi(shared_dump):
    (finding,) = find(shared_dump("qwen35_397b"), "HS201")
    assert sorted(finding.facts["values"]) == ["tgmm.11", "tgmm.2", "tgmm.5", "tgmm.8"]
    assert finding.places == 4
    assert finding.facts["shape"] == "bf16[64,1024,4096]"
    assert finding.executions == 60
    copies = [i for i in finding.instructions if i.opcode == "copy"]
    assert sum(i.shape.padded_bytes == 536_870_912 for i in copies) == len(copies) == 8


@pytest.mark.parametrize("name", ["dense", "qwen3_30b", "oom"])
def test_hs201_stays_silent_where_no_gradient_is_transposed(name, shared_dump):
    assert find(shared_dump(name), "HS201") == ()


def test_dearest_cause_first_in_it_the_dearest_finding_and_fingerprints_differ(shared_dump):
    findings = run_rules(Analyses(shared_dump("deepseek").module, valid_fraction=0.56))
    wasted: dict[str, list[int]] = {}
    for finding in findings:
        wasted.setdefault(finding.code, []).append(finding.saved_bytes or 0)
    assert [f.code for f in findings] == [code for code, each in wasted.items() for _ in each]
    assert all(each == sorted(each, reverse=True) for each in wasted.values())
    warnings = [sum(wasted[f.code]) for f in findings if f.severity is Severity.WARNING]
    assert warnings == sorted(warnings, reverse=True)
    assert len({f.fingerprint for f in findings}) == len(findings)


def test_fingerprints_outlive_renumbering(shared_dump):
    file = shared_dump("qwen3_30b")
    before = {f.fingerprint for f in run_rules(Analyses(file.module))}
    renamed = type(file.module.proto)()
    renamed.CopyFrom(file.module.proto)
    for computation in renamed.computations:
        for instruction in computation.instructions:
            instruction.name = instruction.name.replace(".", ".9")
            instruction.metadata.stack_frame_id = 0
    after = {f.fingerprint for f in run_rules(Analyses(type(file.module)(renamed)))}
    assert after == before


def test_select_takes_prefixes_and_refuses_what_matches_nothing(shared_dump):
    analyses = Analyses.of_file(shared_dump("deepseek"))
    assert {f.code for f in run_rules(analyses, select=["hs20"])} == {"HS201", "HS203", "HS205", "HS209"}
    assert {f.code for f in run_rules(analyses, select=["HS20"], ignore=["HS201", "hs203"])} == {
        "HS205",
        "HS209",
    }
    with pytest.raises(UserError, match="no rule begins with 'HS9'"):
        run_rules(analyses, select=["HS9"])
