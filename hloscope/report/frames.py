"""Rows of the JSON report as data frames of pandas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hloscope.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Sequence[Mapping[str, Any]], name: str) -> pd.DataFrame:
    """A frame of rows of that list of the JSON report, with its columns even if there are none; unknown is NA.

    Raises UserError where pandas is not installed.
    """
    if find_spec("pandas") is None:
        raise UserError("data frames need pandas, which is not installed: pip install 'hloscope[notebook]'")
    pandas: Any = import_module("pandas")
    return pandas.DataFrame(list(rows), columns=_columns(name)).convert_dtypes()


@cache
def _columns(name: str) -> list[str]:
    """The fields of the list's rows, in the order of the schema."""
    schema = json.loads(files("hloscope.report").joinpath("schema.json").read_text("utf-8"))
    memory = schema["$defs"]["memory"]["properties"]
    listed = schema["properties"].get(name) or memory[name]
    row = listed["items"]
    return list((schema["$defs"][row["$ref"].rpartition("/")[2]] if "$ref" in row else row)["properties"])
