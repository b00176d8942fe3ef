"""The pages in docs/rules are made from the docstrings."""

from __future__ import annotations

import os
from pathlib import Path

from hloscope.cli.main import main
from hloscope.plugins import own_rules
from hloscope.report.rule_page import rule_index, rule_page

PAGES = Path(__file__).parents[2] / "docs" / "rules"


def test_pages_are_those_of_the_docstrings():
    """`make rule-docs` (UPDATE_GOLDEN=1) writes them anew."""
    rules = sorted(own_rules(), key=lambda r: r.code)
    wanted = {f"{r.code}.md": rule_page(r) for r in rules} | {"README.md": rule_index(rules)}
    if os.environ.get("UPDATE_GOLDEN"):
        PAGES.mkdir(exist_ok=True)
        for old in PAGES.glob("*.md"):
            old.unlink()
        for name, text in wanted.items():
            (PAGES / name).write_text(text, encoding="utf-8")
    there = {p.name: p.read_text(encoding="utf-8") for p in PAGES.glob("*.md")}
    assert there == wanted, "docs/rules is out of date: make rule-docs"


def test_explain_prints_the_page(capsys):
    assert main(["explain", "hs201", "--markdown"]) == 0
    assert capsys.readouterr().out == (PAGES / "HS201.md").read_text(encoding="utf-8")
