"""Texts that nobody vouches for, made fit to be printed: names come from dumps of whatever origin."""

from __future__ import annotations

# One for one, so that columns stay where they are.
_ASCII = str.maketrans("·×→…−•▁▂▃▄▅▆▇█▓░─━═│", "|x>~-*.:-=+*#@=.--=|")


def printable(text: str) -> str:
    """The text with every character that is not printed (control, formatting, line breaks) spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def fit_encoding(text: str, encoding: str) -> str:
    """The text as an encoding can write it: block characters become ASCII ones, the rest is spelled out."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text
