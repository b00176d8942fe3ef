"""`hloscope new-rule NAME`: a rule that works, and its test, to start from."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from string import Template

from hloscope.engine import load_rules
from hloscope.errors import UserError
from hloscope.files import write_whole
from hloscope.plugins import GROUP
from hloscope.rule import CODE, OWN_PREFIX

_NAME = re.compile(r"[a-z]+(-[a-z]+)+", re.ASCII)
# Of hloscope's own checkout: rules and their tests have their places.
_OWN, _OWN_TESTS = Path("rules/hloscope_rules"), Path("tests/rules")


def new_rule(name: str, code: str) -> int:
    """Write the files into the current folder, say what they are, and return the exit code.

    Raises UserError for a name or a code that is no good or taken, and for files that are there already.
    """
    code = code.upper()
    own = _OWN.is_dir() and _OWN_TESTS.is_dir()
    _check(name, code, own=own)
    function = name.replace("-", "_")
    module = f"{code.lower()}_{function}"
    rule = (_OWN if own else Path()) / f"{module}.py"
    test = (_OWN_TESTS if own else Path()) / f"test_{module}.py"
    for path in (rule, test):
        if path.exists():
            raise UserError(f"there is a file {path} already")
    words = {"code": code, "name": name, "function": function}
    write_whole(rule, [_filled("rule.py.txt", words)])
    imports = _imports(module, function, own=own)
    write_whole(test, [_filled("test_rule.py.txt", words | {"imports": imports})])
    print(f"{rule}: the rule. As it is, it finds large copies: put your own detection and docs in.")
    print(f"{test}: its test. Run it: python -m pytest {test}")
    if own:
        print("make rule-docs writes its page in docs/rules")
    else:
        print(
            f'hloscope finds it by an entry point in your pyproject.toml, [project.entry-points."{GROUP}"]:'
        )
        print(f'{function} = "{module}"')
    return 0


def _check(name: str, code: str, *, own: bool) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is no rule name: small words for the bad pattern, joined by -, large-copy")
    if not CODE.fullmatch(code):
        raise UserError(f"{code!r} is no rule code: capitals and three digits, ACME101")
    for rule in load_rules():
        if code == rule.code or name == rule.name:
            raise UserError(f"there is a rule {rule.code} {rule.name} already")
    if code.startswith(OWN_PREFIX) and not own:
        raise UserError(f"{OWN_PREFIX} is for hloscope's own rules: take letters of yours, ACME101")


def _imports(module: str, function: str, *, own: bool) -> str:
    """The test's imports, sorted as a linter wants them: to others, hloscope is a third party."""
    tool = (
        "from hloscope.analysis.bundle import Analyses\n"
        "from hloscope.hlo import read_hlo\n"
        "from hloscope.rule import HEADINGS"
    )
    if own:
        return f"import pytest\n\n{tool}\nfrom hloscope_rules.{module} import {function}"
    return f"import pytest\n{tool}\n\nfrom {module} import {function}"


def _filled(template: str, words: dict[str, str]) -> bytes:
    text = resources.files("hloscope.cli").joinpath("templates", template).read_text(encoding="utf-8")
    return Template(text).substitute(words).encode()
