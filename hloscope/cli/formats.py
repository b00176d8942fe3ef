"""The forms that a verdict can be written in."""

from __future__ import annotations

from enum import Enum


class Format(Enum):
    """What `--format` takes."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    JUNIT = "junit"
    GITHUB = "github"
