"""Who takes a value."""

from __future__ import annotations

from hlo_builder import HloBuilder

from hloscope.analysis.uses import taker


def test_a_tuple_is_read_by_what_takes_it():
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter("f32[8]")
    inner = entry.add("tuple", "(f32[8])", x, name="inner")
    outer = entry.add("tuple", "((f32[8]))", inner, name="outer")
    entry.add("custom-call", "f32[8]", outer, name="reader")
    module = hlo.module()
    found = module.find("inner")
    assert found is not None
    assert taker(found).name == "reader"
