"""Fuzzing: mutated modules through the readers, every analysis, every rule and the report.

    python -m tests.fuzz.fuzz 200000 --seed 7 --keep /tmp/found

Anything but a report or a UserError is a failure: another exception, more than 10 seconds of CPU, more memory than
4 GiB. The inputs that failed are kept, one for each place that failed. One seed always gives the same inputs.
"""

from __future__ import annotations

import argparse
import gzip
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hloscope.errors import UserError
from hloscope.report.build import load
from tests.fuzz import mutate
from tests.fuzz.seeds import RECORDS, seeds, texts

LONGEST_SECONDS = 10
# One report in so many is drawn.
DRAWN = 40
LARGEST_BYTES = 4 * 2**30
FORMS = (
    "message", "message", "message", "bytes", "text", "text", "text bytes", "gzip", "schedule", "buffers", "dump",
)  # fmt: skip
# Names in a dump folder: of the module, and of what the compiler writes beside it.
STEM = "module_0000.jit_step.cl_1."


class TooSlowError(Exception):
    """An input that took longer than any may."""


def make(draw: random.Random) -> tuple[str, bytes]:
    """A mutated input and its form."""
    form = draw.choice(FORMS)
    number = draw.randrange(len(seeds()))
    if form == "message":
        return form, mutate.message(seeds()[number], draw)
    if form in ("schedule", "buffers"):
        part = "hlo_module.schedule" if form == "schedule" else "buffer_assignment"
        return form, mutate.message(seeds()[number], draw, part)
    if form == "dump":
        return form, mutate.message(seeds()[number], draw) if draw.random() < 0.3 else whole(number)
    if form == "bytes":
        return form, mutate.octets(seeds()[number].SerializeToString(), draw)
    if form == "text":
        return form, mutate.tokens(texts()[number], draw)
    if form == "text bytes":
        return form, mutate.octets(texts()[number], draw)
    return form, mutate.octets(gzip.compress(texts()[number], 1, mtime=0), draw)


def whole(number: int) -> bytes:
    """A module as it is."""
    return seeds()[number].SerializeToString()


def lay(folder: Path, form: str, data: bytes, draw: random.Random) -> Path:
    """Put an input where it is read from: a file, or a dump folder with mutated records beside the module."""
    if form != "dump":
        path = folder / "input"
        path.write_bytes(data)
        return path
    dump = folder / "dump"
    shutil.rmtree(dump, ignore_errors=True)
    dump.mkdir()
    (dump / f"{STEM}{draw.choice(('after', 'before'))}_optimizations.hlo.pb").write_bytes(data)
    for name, text in RECORDS.items():
        if draw.random() < 0.6:
            mutated = draw.choice((mutate.tokens, mutate.octets))(text, draw)
            packed = draw.random() < 0.2
            content = mutate.octets(gzip.compress(mutated, 1, mtime=0), draw) if packed else mutated
            (dump / f"{STEM}{name}{'.gz' if packed else ''}").write_bytes(content)
    return dump


def consume(path: Path, *, drawn: bool) -> str:
    """Take an input all the way: `report`, or `refused` where a clear error said why not. `drawn` has the
    report drawn for the terminal, too, which takes ten times as long as all the rest."""
    try:
        report = load(path)
        report.to_dict()
        if drawn:
            report.to_text(width=100, everything=False)
    except UserError as error:
        if "\n" in str(error) or len(str(error)) > 2000:
            raise AssertionError(f"not one clear line: {str(error)[:200]!r}") from error
        return "refused"
    return "report"


@contextmanager
def bounded() -> Generator[None, None, None]:
    """At most so long, at most so much memory."""

    def stop(*_: object) -> None:
        raise TooSlowError

    # Time of this process, not of the clock: a busy machine is no fault of an input.
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def place_of(error: BaseException) -> str:
    """What failed, and the innermost line of ours at which it did."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/hloscope" in f.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
    return f"{type(error).__name__} at {where}"


def fuzz(count: int, seed: int, folder: Path, keep: Path | None) -> tuple[Counter[str], Counter[str]]:
    """Feed so many inputs; what became of them by form, and the failures by place."""
    outcomes: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    begin = time.monotonic()
    for number in range(count):
        draw = random.Random(f"{seed}.{number}")
        form, data = make(draw)
        path = lay(folder, form, data, draw)
        try:
            with bounded():
                outcomes[f"{form}: {consume(path, drawn=number % DRAWN == 0)}"] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            place = place_of(error)
            if keep is not None and not failures[place]:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / place.replace(" ", "_")).write_bytes(data)
                (keep / f"{place.replace(' ', '_')}.txt").write_text(
                    "".join(traceback.format_exception(error))
                )
            failures[place] += 1
        if number % 5000 == 4999:
            print(
                f"{number + 1:,} in {time.monotonic() - begin:.0f} s, {failures.total()} failed", flush=True
            )
    return outcomes, failures


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the inputs that failed")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_BYTES, LARGEST_BYTES))
    with TemporaryDirectory() as folder:
        outcomes, failures = fuzz(given.count, given.seed, Path(folder), given.keep)
    for what, number in sorted(outcomes.items()):
        print(f"{number:9,}  {what}")
    for place, number in failures.most_common():
        print(f"{number:9,}  FAILED {place}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
