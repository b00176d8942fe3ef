"""Time and memory of whole `hloscope analyze` processes against the size of the module.

    python benchmarks/size.py                     # 10k, 100k and 1M instructions, as proto and as text
    python benchmarks/size.py --sizes 10000 --file real.hlo.pb

The floor is protobuf's bare parse of the same bytes (of the proto that the text was printed from).
"""

from __future__ import annotations

import argparse
import gzip
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from _process import analyze, best, machine
from generate_module import generate

from hloscope.hlo import Module, protos
from hloscope.hlo.text_print import print_text

HEAD = (
    f"{'module':>12} {'form':>5} {'MB':>7} {'seconds':>8} {'CPU s':>7} {'µs/instr':>9} {'RSS MB':>8} "
    f"{'floor s':>8} {'ratio':>6}"
)


def floor(data: bytes) -> tuple[float, int]:
    """Seconds of the bare parse, the quickest of three, and how many instructions there are."""
    times: list[float] = []
    whole = protos.HloProto()
    for _ in range(3):
        begin = time.perf_counter()
        whole = protos.HloProto.FromString(data)
        times.append(time.perf_counter() - begin)
    return min(times), sum(len(c.instructions) for c in whole.hlo_module.computations)


def prepare(source: int | Path, alive: float, form: str, path: Path) -> tuple[float, int]:
    """Write a module in one form, made of so many instructions or read from a file; its floor.

    In a process of its own: the system counts to a child what its parent held when it was started.
    """
    if isinstance(source, int):
        data = generate(source, alive=alive).SerializeToString()
    else:
        data = source.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    if form == "text":
        with path.open("w", encoding="utf-8") as file:
            file.writelines(print_text(Module(protos.HloProto.FromString(data).hlo_module)))
    else:
        path.write_bytes(data)
    return floor(data)


def measure(source: int | Path, alive: float, form: str, folder: Path, rounds: int) -> None:
    """Analyze a module in one form and print a line."""
    path = folder / ("module.txt" if form == "text" else "module.hlo.pb")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        parse, count = other.submit(prepare, source, alive, form, path).result()
    megabytes = path.stat().st_size / 1e6
    run = best(analyze(path), rounds)
    print(
        f"{count:12,} {form:>5} {megabytes:7.1f} {run.seconds:8.2f} {run.cpu_seconds:7.2f} "
        f"{run.cpu_seconds / count * 1e6:9.1f} {run.peak_bytes / 1e6:8.0f} {parse:8.3f} {run.seconds / parse:6.0f}",
        flush=True,
    )
    path.unlink()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--forms", nargs="*", default=["proto", "text"], choices=["proto", "text"])
    parser.add_argument(
        "--file", type=Path, nargs="*", default=[], help="real modules (*.hlo.pb, gzip or not)"
    )
    parser.add_argument("--alive", type=float, default=0.1, help="share of the buffers that are never freed")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    print(machine())
    print(HEAD)
    with TemporaryDirectory() as folder:
        for source in (*given.file, *given.sizes):
            for form in given.forms:
                measure(source, given.alive, form, Path(folder), given.rounds)


if __name__ == "__main__":
    main()
