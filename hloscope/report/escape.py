"""Texts that nobody vouches for, made fit to be printed: names come from dumps of whatever origin."""

from __future__ import annotations

import re

# One for one, so that columns stay where they are.
_ASCII = str.maketrans("·×→…−•▁▂▃▄▅▆▇█▓░─━═│", "|x>~-*.:-=+*#@=.--=|")

# Colours may stand before it.
_COMMAND = re.compile(r"^((?:\s|\x1b\[[\d;]*m)*)::")


def printable(text: str) -> str:
    """The text with every character that is not printed (control, formatting, line breaks) spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def inert(text: str) -> str:
    """Lines for a log that a CI runner reads: what GitHub's would take for a command of a workflow is spelled out.

    It obeys `::error::` and its like at the start of a line, blanks before it or not, and `##[error]` within one.
    """
    if "::" not in text and "##[" not in text:
        return text
    return "\n".join(_COMMAND.sub(r"\1\\x3a:", line) for line in text.split("\n")).replace("##[", "#\\x23[")


def fit_encoding(text: str, encoding: str) -> str:
    """The text as an encoding can write it: block characters become ASCII ones, the rest is spelled out."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text
