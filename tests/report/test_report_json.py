from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import jsonschema
import numpy as np
import pytest

from hloscope.hlo import HloFile, SourceFrame
from hloscope.report.build import build_report
from hloscope.report.json import _value, to_json
from hloscope.report.target import Opened
from hloscope.rule import Severity

SCHEMA: dict[str, Any] = json.loads(resources.files("hloscope.report").joinpath("schema.json").read_text())
# What only apply-rules adds.
PLANNED = {"actions", "before", "after", "plan", "verification"}
DUMPS = ("dense", "oom", "qwen3_30b", "deepseek", "qwen35_397b")


def report_of(file: HloFile, **options: Any) -> dict[str, Any]:
    report = build_report(Opened(source=str(file.path), file=file), **options)
    return json.loads(json.dumps(to_json(report), allow_nan=False))


def check(report: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(report)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_field_is_described_and_none_is_let_in_by_chance() -> None:
    def walk(schema: dict[str, Any], path: str) -> None:
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            optional = PLANNED if schema is SCHEMA else set()
            assert sorted({*schema["required"], *optional}) == sorted(schema["properties"]), path
        for name, field in schema.get("properties", {}).items():
            assert "description" in field or "$ref" in field, f"{path}.{name}"
            walk(field, f"{path}.{name}")
            if isinstance(field.get("items"), dict):
                walk(field["items"], f"{path}.{name}[]")

    for name, definition in [("report", SCHEMA), *SCHEMA["$defs"].items()]:
        assert "description" in definition, name
        walk(definition, name)


@pytest.mark.parametrize("name", DUMPS)
def test_reports_of_real_modules_fit_the_schema(name: str, shared_dump: Callable[[str], HloFile]) -> None:
    check(report_of(shared_dump(name), topology="tpu7x:4x4x4", valid_fraction=0.56))


@pytest.mark.parametrize("name", ["dense", "oom"])
def test_the_contract(name: str, shared_dump: Callable[[str], HloFile]) -> None:
    report = report_of(shared_dump(name))
    check(report)
    assert report["schema_version"] == 1
    assert report["target"]["platform"] == "tpu"
    assert report["target"]["devices"] == 8
    # A dump does not tell these: null, not zero.
    assert report["target"]["chip"] is None
    assert report["memory"]["temp_bytes"] is None
    assert report["memory"]["generated_code_bytes"] is None
    assert all(f["seconds"] is None for f in report["census"])
    assert all(c["seconds"] is None and c["exposed_seconds"] is None for c in report["collectives"])
    assert report["census"]
    assert report["collectives"]


def test_figures_of_the_dense_module(shared_dump: Callable[[str], HloFile]) -> None:
    memory = report_of(shared_dump("dense"))["memory"]
    assert memory["argument_bytes"] == 280656896
    assert memory["output_bytes"] == 280642336
    assert memory["alias_bytes"] == 280636416
    assert memory["arena_bytes"] == 990543904
    assert memory["total_bytes"] == 1271377728
    assert sum(b["bytes"] for b in memory["buffers_at_peak"]) == memory["peak_bytes"]
    assert max(p["bytes"] for p in memory["live"]) == memory["peak_bytes"]


def test_ragged_buffers_of_the_deepseek_module(shared_dump: Callable[[str], HloFile]) -> None:
    file = shared_dump("deepseek")
    unknown, *_ = report_of(file)["ragged_buffers"]
    assert (unknown["rows"], unknown["groups"]) == (524288, 64)
    names = [f"gmm.{i}" for i in range(3, 9)] + [f"tgmm.{i}" for i in (1, 2, 3)]
    assert sorted(unknown["grouped_matmuls"]) == names
    assert len(unknown["full_buffer_instructions"]) == 4
    assert (unknown["valid_fraction"], unknown["valid_fraction_source"]) == (None, None)
    told, *_ = report_of(file, valid_fraction=0.5)["ragged_buffers"]
    assert (told["valid_fraction"], told["valid_fraction_source"]) == (0.5, "option")


def test_the_schema_refuses_what_is_wrong(shared_dump: Callable[[str], HloFile]) -> None:
    report = report_of(shared_dump("dense"))
    for damage in (
        {"extra": 1},
        {"schema_version": 2},
        {"memory": report["memory"] | {"temp_bytes": "1 GiB"}},
        {"memory": report["memory"] | {"peak_bytes": -1}},
        {"memory": {k: v for k, v in report["memory"].items() if k != "arena_bytes"}},
        {"target": report["target"] | {"valid_fraction": 0}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            check(report | damage)


def test_a_bare_module_without_buffer_assignment(shared_dump: Callable[[str], HloFile]) -> None:
    file = shared_dump("dense")
    bare = HloFile(path=file.path, module=file.module, buffer_assignment=None)
    report = report_of(bare)
    check(report)
    assert report["memory"]["arena_bytes"] is None
    assert report["memory"]["peak_bytes"] is None
    assert report["memory"]["total_bytes"] is None


def test_figures_of_rules_become_json_values(shared_dump: Callable[[str], HloFile]) -> None:
    instruction = next(iter(shared_dump("dense").module.entry.instructions))
    given = {
        1: (np.int64(3), np.float32(0.5), float("nan"), float("inf")),
        "set": {"x"},
        "instruction": instruction,
        "shape": instruction.shape,
        "source": SourceFrame("a.py", 3, "f"),
        "severity": Severity.INFO,
        "array": np.arange(2),
        "other": complex(1, 2),
    }
    assert _value(given) == {
        "1": [3, 0.5, None, None],
        "set": ["x"],
        "instruction": instruction.name,
        "shape": instruction.shape.short,
        "source": "a.py:3",
        "severity": "info",
        "array": [0, 1],
        "other": "(1+2j)",
    }
