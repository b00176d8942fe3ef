"""Checking JSON values against a dataclass's annotations: a manifest may have been edited by hand."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints


def check_fields(kind: type, values: Mapping[str, Any]) -> None:
    """`ValueError` if `values` are not what the fields of `kind` are annotated with."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in values and not _fits(values[field.name], hints[field.name]):
            raise ValueError(f"its {field.name} cannot be {str(values[field.name])[:60]!r}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(_fits(v, inner[0]) for v in cast("list[Any]", value))
    if origin is dict:
        items = cast("dict[Any, Any]", value).items() if isinstance(value, dict) else [(0, 0)]
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in items)
    return _is(value, hint)


def _is(value: Any, hint: Any) -> bool:
    if hint is Path or dataclasses.is_dataclass(hint):
        # Made from the JSON value beforehand.
        return isinstance(value, cast(type, hint))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)
