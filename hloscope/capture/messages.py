"""Reading a worker's log: which lines are the compiler speaking to the user, and which are start-up noise."""

from __future__ import annotations

import re
from collections.abc import Iterable

# absl's prefix, `W1129 15:57:22.542416    5030 spmd_partitioner.cc:666] message`; before libtpu's logging is
# up the date is zero and the seconds count from the epoch.
_ABSL = re.compile(r"[WEF]\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ (?P<file>[\w.\-/]+):\d+\] ?(?P<text>.*)")
# Python's logging, in its default format or jax's: `WARNING:2026-11-29 15:57:22,516:jax._src.mesh:12: text`.
_PYTHON = re.compile(r"(?:WARNING|ERROR|CRITICAL):(?:\d{4}-\d\d-\d\d [\d:,.]+:)?(?P<text>.+)")

# Printed by every compile on a machine without a TPU, or about the compiler's own defaults. All else is kept.
_NOISE = tuple(
    map(
        re.compile,
        (
            r"unexpected worker hostname",
            r"could not determine TPU",
            r"Logging before InitGoogle",
            r"No hardware is found\. Using default TPU version",
            r"The log function has NOT been set for the LloModule",
            r"Enhanced global barrier requested but is not used",
            r"Collective matmul V1 is enabled\. Please consider migrating",
            r"Module contains sdy shardings or meshes in frontend_attributes",
            r"Failed to verify buffer assignment",
            r"Number of (?:unique slow barriers|times slow barrier appeared)",
            r"An NVIDIA GPU may be present on this machine",
            r"A Google TPU may be present on this machine",
            r"=== Source Location Trace: ===",
            r"learning/\S+/libtpu_init_utils\.cc:\d+",
        ),
    )
)
# Crash handlers print whole stacks, and the code generator speaks of its own loops and fusions, line by line.
_CRASH_FILES = {"thread.cc", "coredump_hook.cc", "client.cc", "process_state.cc"}
_CODEGEN_FILES = {
    "llo_loop.cc",
    "lowering_emitter.cc",
    "lowering_util.cc",
    "slow_operation_alarm.cc",
    "vectorizing_emitter.cc",
}
_NOISY_FILES = frozenset(_CRASH_FILES | _CODEGEN_FILES)

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_USED_OF = re.compile(r"Used (?P<used>[\d.]+[KMGTPB]?) of (?P<limit>[\d.]+[KMGTPB]?) hbm")
_REQUIRED = re.compile(
    r"total memory required for HLO temporaries \((?P<used>[\d.]+[KMGTPB]?)\) "
    r"exceeds available HBM \((?P<limit>[\d.]+[KMGTPB]?)\)"
)
_WRONG_FLAG = re.compile(
    r"Unknown flags? in XLA_FLAGS: .*|Couldn't interpret value .* for flag \S+|Failed to parse XLA_FLAGS.*"
    # libtpu's words, for its own flags in LIBTPU_INIT_ARGS
    r"|Unknown command line flag '.*'|Illegal value '.*' specified for flag '.*'"
)


def compiler_warnings(log: str) -> list[str]:
    """The warnings and errors in a log, each once, in order, without time, thread and line number."""
    found: dict[str, None] = {}
    for line in log.splitlines():
        message = _message(line)
        if message is not None and not _is_noise(line):
            found[message] = None
    return list(found)


def _message(line: str) -> str | None:
    if absl := _ABSL.match(line):
        return f"{absl['file']}: {absl['text']}".rstrip()
    if python := _PYTHON.match(line):
        return python["text"].rstrip()
    return None


def out_of_memory(*texts: str) -> tuple[str, str] | None:
    """Used and available device memory as the compiler puts it (`20.1G`, `15.75G`); None if no text does."""
    for text in texts:
        for pattern in (_USED_OF, _REQUIRED):
            if found := pattern.search(text):
                return found["used"], found["limit"]
    return None


def wrong_flags(log: str) -> str | None:
    """What XLA says of flags in XLA_FLAGS before it ends the process; None if they are not why it ended."""
    found = _WRONG_FLAG.search(log)
    return None if found is None else found[0].strip(" .")


def to_bytes(size: str) -> int:
    """`15.75G`, as the compiler writes sizes, in bytes: its units are powers of 1024."""
    return round(float(size.rstrip("".join(_UNITS))) * _UNITS[size[-1] if size[-1].isalpha() else ""])


def in_words(size: str) -> str:
    """`15.75G` as `15.75 GiB`."""
    return f"{size[:-1]} {size[-1]}iB" if size[-1] in "KMGTP" else size


def tail(log: str, lines: int = 40) -> str:
    """The end of a log, without what every start prints."""
    return "\n".join([line for line in log.splitlines() if not _is_noise(line)][-lines:])


def _is_noise(line: str) -> bool:
    logged = _ABSL.match(line)
    from_noisy_file = logged is not None and logged["file"] in _NOISY_FILES
    return from_noisy_file or any(noise.search(line) for noise in _NOISE)


def one_line(text: str, limit: int = 400) -> str:
    """The first lines of a message, as one line of at most `limit` characters."""
    return shorten(" ".join(part.strip() for part in text.strip().splitlines()[:3]), limit)


def shorten(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, showing that it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def unique(*groups: Iterable[str]) -> list[str]:
    """All strings of all groups, each once, in order."""
    return list(dict.fromkeys(text for group in groups for text in group))
