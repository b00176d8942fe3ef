"""A project's settings: where they are found, what they may say, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope import engine
from hloscope.config import Config, find_config, read_config
from hloscope.errors import UserError
from hloscope.rule import Severity, rule

FULL = """
select = ["HS1", "HS2"]
ignore = ["HS103"]
fail-on = ["error", "HS201"]
baseline = "known.toml"

[budgets]
temp = "92GiB"
HS101 = 4
[budgets.executions]
"activation backward" = 60

[rules.HS101]
severity = "Error"
[rules.hs102]
small-bytes = "1MiB"
least = 3
"""


@pytest.fixture(autouse=True)
def rule_with_options(monkeypatch):
    @rule(code="HS102", name="with-options", severity=Severity.INFO)
    def with_options(analyses, *, small_bytes: int = 1, least: int = 2):
        """Nothing."""
        return ()

    rules = (*(r for r in engine.load_rules() if r.code != "HS102"), with_options)
    monkeypatch.setattr(engine, "load_rules", lambda: rules)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_everything_that_can_be_said(tmp_path):
    path = write(tmp_path / "hloscope.toml", FULL)
    config = find_config(tmp_path)
    assert (config.path, config.select, config.ignore) == (path, ("HS1", "HS2"), ("HS103",))
    assert config.fail_on == ("error", "HS201")
    assert config.baseline == tmp_path / "known.toml"
    assert config.budgets == {"temp": "92GiB", "HS101": "4", "executions.activation backward": "60"}
    assert config.rules["HS101"].severity is Severity.ERROR
    assert config.rules["HS102"].options == {"small_bytes": 1 << 20, "least": 3}
    assert config.rules["HS102"].severity is None


def test_the_nearest_file_upwards_and_the_own_one_first(tmp_path):
    here = tmp_path / "a" / "b"
    write(here / "pyproject.toml", "[project]\nname = 'no settings of ours'")
    assert here / "pyproject.toml" != find_config(here).path
    above = write(tmp_path / "a" / "pyproject.toml", "[tool.hloscope]\nselect = ['HS2']")
    assert find_config(here).path == above
    assert find_config(tmp_path / "elsewhere", here).path == above, (
        "the second folder, where the first has none"
    )
    own = write(tmp_path / "a" / "hloscope.toml", "")
    assert find_config(here) == Config(path=own)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("selct = []", "there is no 'selct'; did you mean 'select'"),
        ("colour = 1", "there is no 'colour'; it takes select, ignore"),
        ("select = 'HS1'", "select takes a list, e.g. select ="),
        ("select = [1]", "select takes a text, not 1"),
        ("baseline = 3", "baseline takes a text"),
        ("budgets = 3", "budgets is a table, not 3"),
        ("budgets.temp = true", "budgets.temp takes a limit such as"),
        ("rules.HS999 = {}", "rules.HS999: there is no rule 'HS999'"),
        ("rules.HS101 = 'error'", "rules.HS101 is a table"),
        ("rules.HS101.severty = 'error'", "rules.HS101: there is no 'severty'; did you mean 'severity'"),
        ("rules.HS101.severity = 'fatal'", "severity takes info, warning, error, not 'fatal'"),
        ("rules.HS102.smal_bytes = 1", "did you mean 'small_bytes'"),
        ("rules.HS102.least = 'x'", "rules.HS102.least: 'x' is no whole number"),
        ("select = [", "is no TOML: "),
        ("[tool.hloscope]\nselect = ['HS1']", "only a pyproject.toml has [tool.hloscope]"),
        (f"select = {'[' * 5000}", "nested too deeply"),
        (f"budgets.{'.'.join('a' * 3000)} = 1", "nested too deeply"),
        (f"budgets.temp = {'9' * 5000}", "is no TOML: Exceeds the limit"),
        (f"budgets.temp = 0x{'f' * 5000}", "more than 64 bits"),
    ],
)
def test_what_is_refused(text, message, tmp_path):
    path = write(tmp_path / "hloscope.toml", text)
    with pytest.raises(UserError) as error:
        find_config(tmp_path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_that_lead_nowhere_are_not_passed_over(tmp_path):
    (tmp_path / "hloscope.toml").symlink_to("hloscope.toml")
    with pytest.raises(UserError, match="cannot read the settings"):
        find_config(tmp_path)
    (tmp_path / "hloscope.toml").unlink()
    (tmp_path / "hloscope.toml").mkdir()
    with pytest.raises(UserError, match="cannot read the settings"):
        find_config(tmp_path)


def test_a_mark_before_the_text_is_read_over(tmp_path):
    write(tmp_path / "hloscope.toml", "\ufeffselect = ['HS2']")
    assert find_config(tmp_path).select == ("HS2",)


def test_a_file_that_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no\.toml: it is not there"):
        read_config(tmp_path / "no.toml")
    bare = write(tmp_path / "pyproject.toml", "[tool]\nhloscope = 3")
    with pytest.raises(UserError, match=r"tool\.hloscope is a table, not 3"):
        read_config(bare)
    for text in ("tool = 3", "[[tool]]"):
        bare.write_text(text)
        with pytest.raises(UserError, match="tool is a table, not "):
            read_config(bare)
    bare.write_text("")
    with pytest.raises(UserError, match=r"has no \[tool.hloscope\]"):
        read_config(bare)
    bare.write_bytes(b"\xff")
    with pytest.raises(UserError, match="is no TOML"):
        read_config(bare)
