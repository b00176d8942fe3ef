"""What a project has decided: `[tool.hloscope]` of its pyproject.toml, or its hloscope.toml."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hloscope.engine import RuleSettings, get_rule
from hloscope.errors import UserError
from hloscope.files import read_toml
from hloscope.rule import OptionValue, Rule, Severity

_OWN, _SHARED = "hloscope.toml", "pyproject.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of a project; empty where it has none. `path` is the file that they were read from.

    `budgets` are by name, as they were written: `92GiB`, `4`; what is nested is joined with a dot.
    """

    path: Path | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: tuple[str, ...] = ()
    rules: Mapping[str, RuleSettings] = field(default_factory=dict[str, RuleSettings])
    budgets: Mapping[str, str] = field(default_factory=dict[str, str])
    baseline: Path | None = None


def find_config(*folders: Path) -> Config:
    """The settings nearest to the first folder that has any, in it or above it.

    A hloscope.toml goes before a pyproject.toml beside it; one without `[tool.hloscope]` is passed over.
    Raises UserError for a file that is not TOML or that says what hloscope does not know.
    """
    for folder in folders:
        for place in (folder, *folder.parents):
            for name in (_OWN, _SHARED):
                table = _table(place / name)
                if table is not None:
                    return _config(place / name, table)
    return Config()


def read_config(path: Path) -> Config:
    """The settings of a file. Raises UserError if there is none in it, or it is wrong."""
    table = _table(path)
    if table is None:
        what = "has no [tool.hloscope]" if path.exists() else "is not there"
        raise UserError(f"the settings {path}: it {what}")
    return _config(path, table)


def _table(path: Path) -> dict[str, Any] | None:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    content = read_toml(path, f"the settings {path}")
    if path.name != _SHARED:
        if "tool" in content:
            raise UserError(f"{path}: only a {_SHARED} has [tool.hloscope]; here its keys stand at the top")
        return content
    tools = _subtable(path, "tool", content.get("tool", {}))
    if "hloscope" in tools:
        return _subtable(path, "tool.hloscope", tools["hloscope"])
    near = difflib.get_close_matches("hloscope", tools, n=1, cutoff=0.85)
    if near:
        raise UserError(f"{path}: there is a [tool.{near[0]}]; did you mean [tool.hloscope]?")
    return None


def _config(path: Path, table: Mapping[str, Any]) -> Config:
    known = ("select", "ignore", "fail-on", "rules", "budgets", "baseline")
    _check_names(f"{path}", table, known)
    baseline = _text(path, "baseline", table["baseline"]) if "baseline" in table else None
    return Config(
        path=path,
        select=_some(path, "select", table, '["HS2"]'),
        ignore=_texts(path, "ignore", table),
        fail_on=_some(path, "fail-on", table, '["warning"] or ["never"]'),
        rules=dict(_rules(path, _subtable(path, "rules", table.get("rules", {})))),
        budgets=dict(_budgets(path, "", _subtable(path, "budgets", table.get("budgets", {})))),
        baseline=None if baseline is None else path.parent / baseline,
    )


def _check_names(where: str, table: Iterable[str], known: Iterable[str]) -> None:
    """Raises UserError for a name that is not known, with the one that may have been meant."""
    known = tuple(known)
    for name in table:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known) or 'none'}"
        raise UserError(f"{where}: there is no {name!r}; {hint}")


def _check_doubles(where: str, table: Iterable[str], spelled: Callable[[str], str]) -> None:
    """Raises UserError for two names that are one, of which only the last would count."""
    seen: dict[str, str] = {}
    for name in table:
        other = seen.setdefault(spelled(name), name)
        if other != name:
            raise UserError(f"{where}: {other!r} and {name!r} are one: leave one of them out")


def _joined(name: str) -> str:
    return name.replace("-", "_")


def _text(path: Path, name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{path}: {name} takes a text, not {value!r}")
    return value


def _texts(path: Path, name: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    value: object = table.get(name, [])
    if not isinstance(value, list):
        raise UserError(f'{path}: {name} takes a list, e.g. {name} = ["HS2"], not {value!r}')
    return tuple(_text(path, name, v) for v in cast("list[object]", value))


def _some(path: Path, name: str, table: Mapping[str, Any], example: str) -> tuple[str, ...]:
    """Texts, where a list of none could be meant as all or as nothing: UserError."""
    texts = _texts(path, name, table)
    if name in table and not texts:
        raise UserError(f"{path}: {name} is empty: write {example}, or leave it out")
    return texts


def _subtable(path: Path, name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path}: {name} is a table, not {value!r}")
    return cast("dict[str, Any]", value)


def _rules(path: Path, table: Mapping[str, Any]) -> Iterator[tuple[str, RuleSettings]]:
    _check_doubles(f"{path}: rules", table, str.upper)
    for code, value in table.items():
        try:
            rule = get_rule(code)
        except UserError as error:
            raise UserError(f"{path}: rules.{code}: {error}") from error
        yield rule.code, _settings(f"{path}: rules.{code}", rule, _subtable(path, f"rules.{code}", value))


def _settings(where: str, rule: Rule, table: Mapping[str, Any]) -> RuleSettings:
    options = {o.name: o for o in rule.options}
    # Both spellings of a name of several words are at home in TOML files.
    _check_doubles(where, table, _joined)
    given = {_joined(name): value for name, value in table.items()}
    _check_names(where, given, ("severity", *options))
    severity = _severity(where, given.pop("severity")) if "severity" in given else None
    values: dict[str, OptionValue] = {}
    for name, value in given.items():
        try:
            values[name] = options[name].parse(value)
        except UserError as error:
            raise UserError(f"{where}.{name}: {error}") from error
    return RuleSettings(severity=severity, options=values)


def _severity(where: str, value: object) -> Severity:
    levels = {s.value: s for s in Severity}
    if not isinstance(value, str) or value.lower() not in levels:
        raise UserError(f"{where}.severity takes {', '.join(levels)}, not {value!r}")
    return levels[value.lower()]


def _budgets(path: Path, above: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _budgets(path, f"{above}{name}.", cast("dict[str, Any]", value))
        elif isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield f"{above}{name}", str(value)
        else:
            raise UserError(
                f'{path}: budgets.{above}{name} takes a limit such as "92GiB" or 4, not {value!r}'
            )
