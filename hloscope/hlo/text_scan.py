"""The lowest layer of the HLO text reader: places in a text, brackets, strings, and errors that show a line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hloscope.errors import UserError

STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_QUOTED = r"'[^'\\]*+(?:\\.[^'\\]*+)*+'"
# A comment that is not closed takes the rest of the text with it, at once.
_COMMENT = r"/\*(?:.*?\*/|.*+)|//[^\n]*+"
# XLA's own comment. Every other one is blanked before reading.
INDEX = r"/\*index=\d++\*/"
_BLANKS = re.compile(r"\s*+", re.ASCII)
# What may stand inside of brackets and matters: strings hide brackets; a lone quote is an error.
_INSIDE = re.compile(rf"{STRING}|{_QUOTED}|[(){{}}\[\]\"']", re.DOTALL)
# So does a string.
_COMMENTS = re.compile(rf"{STRING}?+|{_QUOTED}?+|{_COMMENT}", re.DOTALL)
_RARE_COMMENT = re.compile(r"/\*(?!index=\d++\*/)|//", re.ASCII)
# One stretch of a value that is neither a string nor a word, e.g. `[2,4]<=[8]`.
_PART = re.compile(rf"{STRING}|{_QUOTED}|[({{\[]|[^\s,(){{}}\[\]\"']++|[^\S\n]++", re.DOTALL | re.ASCII)
_ATTRIBUTE = re.compile(r"\s*+,\s*+([\w\-.]++)\s*+=\s*+", re.ASCII)
# The common values in one step: a string, braces up to two deep, mesh axes (with commas of their own), a word.
_VALUE = re.compile(
    rf"{STRING}|\{{(?:[^{{}}\"']++|\{{[^{{}}\"']*+\}})*+\}}"
    r"|(?:maximal_)?mesh\[[^\[\]]*+\](?:\s*+,\s*+device_ids=\((?:[^()]|\([^()]*+\))*+\))?\s*+\{[^{}]*+\}"
    r"|[^\s,{}\"'()\[\]]++(?=[\s,}]|$)",
    re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_SPLIT = re.compile(rf"{STRING}|{_QUOTED}|[(){{}}\[\],]", re.DOTALL)
_INDEX = re.compile(INDEX, re.ASCII)
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_INTEGER = re.compile(r"\s*+(-?[0-9]{1,20})\s*+")
_LIST = re.compile(r"\s*+(?:-?[0-9]{1,20}\s*+(?:,\s*+-?[0-9]{1,20}\s*+)*+,?\s*+)?+")
_LISTS = re.compile(r"\{\s*+(?:\{[^{}]*+\}\s*+(?:,\s*+\{[^{}]*+\}\s*+)*+)?+\}")
_INNER_LIST = re.compile(r"\{([^{}]*)\}")
_WIDEST = 100
_NEAR = 40
_LONGEST = 300


def _group(depth: int) -> str:
    """A pattern of brackets that hold others, so many deep, and are all closed."""
    inside = rf"[^(){{}}\[\]\"']++|{STRING}|{_QUOTED}"
    inside += f"|{_group(depth - 1)}" if depth else ""
    return "|".join(rf"\{opens}(?:{inside})*+\{closes}" for opens, closes in _CLOSES.items())


# The common brackets in one step.
_GROUP = re.compile(_group(2), re.DOTALL)


class MalformedError(ValueError):
    """A value that is not what it should be; whoever knows its place in the file makes a UserError of it."""


class TextError(UserError):
    """HLO text that cannot be read. The message is one line; `excerpt` is the line in question, cut to what
    a terminal holds, with a caret below the place."""

    def __init__(self, message: str, *, excerpt: str) -> None:
        super().__init__(message)
        self.excerpt = excerpt


class Scanner:
    """A text and where reading has come to. `at` is an index into `text`."""

    __slots__ = ("at", "origin", "text")

    def __init__(self, text: str, origin: str) -> None:
        self.text = _without_comments(text)
        self.origin = origin
        self.at = 0

    def error(self, message: str, at: int | None = None) -> TextError:
        """An error at a place (by default the present one)."""
        at = min(self.at if at is None else at, len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        end = len(self.text) if end < 0 else end
        left = max(start, at - _WIDEST // 2)
        # A tab or control character would move the caret away from what it points at.
        shown = "".join(c if c.isprintable() else " " for c in self.text[left : min(end, left + _WIDEST)])
        before = "…" if left > start else ""
        near = shown[at - left :][:_NEAR].rstrip() or "the end of the line"
        number = self.text.count("\n", 0, start) + 1
        message = message if len(message) <= _LONGEST else message[:_LONGEST] + "…"
        # The last line of a whole module is the brace that closes its last computation.
        last = self.text[end:].isspace() or end == len(self.text)
        cut = "; the file may have been cut short" if last and not self.text.rstrip().endswith("}") else ""
        return TextError(
            f"{self.origin}, line {number}, column {at - start + 1}: {message}, at: {near}{cut}",
            excerpt=f"{before}{shown}\n{' ' * (len(before) + at - left)}^",
        )

    def blanks(self) -> int:
        """Go past white space; the place after it."""
        found = _BLANKS.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.at

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match here, and go past what matched."""
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def expect(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Match here, and go past it. Raises UserError, naming what was expected, where it does not match."""
        found = pattern.match(self.text, self.at)
        if found is None:
            self.blanks()
            raise self.error(
                f"expected {what}" if self.at < len(self.text) else f"the file ends before {what}"
            )
        self.at = found.end()
        return found

    def attributes(self) -> Iterator[tuple[str, str, int]]:
        """Every `, name=value` from here on, with the place of the value; the scanner goes past each."""
        text = self.text
        while found := _ATTRIBUTE.match(text, self.at):
            start = found.end()
            value = _VALUE.match(text, start)
            end = value.end() if value else self.value_end(start)
            if end == start:
                raise self.error(f"{found[1]} has no value", start)
            self.at = end
            yield found[1], text[start:end].rstrip(), start

    def group_end(self, at: int) -> int:
        """The place after the bracket that closes the one at `at`. Strings may hold any bracket."""
        try:
            return group_end(self.text, at)
        except MalformedError as error:
            raise self.error(str(error), at) from error

    def value_end(self, at: int) -> int:
        """The place after a value: up to a comma, a line's end or a bracket that was not opened in it."""
        end = at
        while True:
            found = _PART.match(self.text, end)
            if found is None:
                return end
            end = self.group_end(end) if found[0] in _CLOSES else found.end()


def group_end(text: str, at: int) -> int:
    """The place after the bracket that closes the one at `at`. Raises MalformedError where none does."""
    group = _GROUP.match(text, at)
    if group:
        return group.end()
    open_: list[str] = []
    for found in _INSIDE.finditer(text, at):
        token = found[0]
        if token in _CLOSES:
            open_.append(_CLOSES[token])
        elif token in (")", "]", "}"):
            if open_.pop() != token:
                raise MalformedError(f"a bracket opens here and does not match the {token!r} that closes it")
            if not open_:
                return found.end()
        elif len(token) == 1:
            raise MalformedError("a string in these brackets is not closed")
    raise MalformedError("the bracket that opens here is not closed")


def split(text: str) -> list[str]:
    """The parts of a list, at commas outside of brackets and strings, stripped; none of an empty text.

    Comments (`/*index=5*/` before every fifth part) are dropped.
    """
    if "/*" in text:
        text = _INDEX.sub("", text)
    parts: list[str] = []
    start = depth = 0
    for found in _SPLIT.finditer(text):
        token = found[0]
        if token == "," and depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
        elif len(token) == 1:
            depth += (token in "([{") - (token in ")]}")
    last = text[start:].strip()
    return [*parts, last] if parts or last else []


def inner(text: str) -> str:
    """What stands in a pair of braces. Raises MalformedError for anything else."""
    text = text.strip()
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        raise MalformedError("expected a list in braces")
    return text[1:-1]


def integer(text: str) -> int:
    """An integer. Raises MalformedError for anything else."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        raise MalformedError("expected an integer")
    return int(found[1])


def integers(text: str) -> list[int]:
    """Integers with commas between them. Raises MalformedError for anything else."""
    if _LIST.fullmatch(text) is None:
        raise MalformedError("expected integers with commas between them")
    return [int(part) for part in text.split(",") if part and not part.isspace()]


def integer_lists(text: str) -> list[list[int]]:
    """`{{0,1},{2,3}}` as lists of integers. Raises MalformedError for anything else."""
    if _LISTS.fullmatch(text) is None:
        raise MalformedError("expected lists of integers in braces")
    return [integers(part) for part in _INNER_LIST.findall(text[1:-1])]


def boolean(text: str) -> bool:
    """`true` or `false`. Raises MalformedError for anything else."""
    if text not in ("true", "false"):
        raise MalformedError("expected true or false")
    return text == "true"


def string(text: str) -> str:
    """What a quoted string means."""
    return string_bytes(text).decode("utf-8", "replace") if "\\" in text else _unquoted(text)


def string_bytes(text: str) -> bytes:
    """What a quoted string means, as bytes: octal and hexadecimal escapes are single bytes."""
    inside = _unquoted(text)
    if "\\" not in inside:
        return inside.encode()
    out: list[bytes] = []
    start = 0
    for found in _ESCAPE.finditer(inside):
        out.append(inside[start : found.start()].encode())
        octal, hexadecimal, plain = found.groups()
        if plain is None:
            out.append(bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)]))
        else:
            out.append(_ESCAPES.get(plain, plain).encode())
        start = found.end()
    out.append(inside[start:].encode())
    return b"".join(out)


def _unquoted(text: str) -> str:
    if len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
        raise MalformedError("expected a string in quotes")
    return text[1:-1]


def _without_comments(text: str) -> str:
    """The text with comments blanked, every place kept. XLA's own `/*index=5*/` need no such pass."""
    if _RARE_COMMENT.search(text) is None:
        return text
    return _COMMENTS.sub(lambda m: m[0] if m[0][0] != "/" else re.sub(r"[^\n]", " ", m[0]), text)
