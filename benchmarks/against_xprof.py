"""hloscope against XProf on the same modules, as whole processes in one run.

    python -m venv /tmp/xprof && /tmp/xprof/bin/pip install '.[bench]'
    python benchmarks/against_xprof.py --xprof /tmp/xprof/bin/xprof tests/data/deepseek3_671b.hlo.pb.gz

XProf is asked for the two things of hloscope's report that it knows: `get_peak_allocations` and `query_hlo_graph
--mode=opcode_stats`, on a folder that `hloscope export --xprof` wrote, past its cache. Rounds alternate between
the two tools, so that other work on the machine meets both; the quickest round of each counts.

Then the answers are compared, and the exit code is 1 where they differ: the peak heap, and the count of every
opcode. XProf's peak is taken from its memory viewer, as `get_peak_allocations` gives the sum of all allocations.
Its opcodes are counted in the text that its graph viewer prints of the whole module, as `query_hlo_graph` parses
that text line by line and misses most of it: how many it found is printed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _process import Run, analyze, machine, run

from hloscope.analysis.bundle import Analyses
from hloscope.cli.export import write_xprof
from hloscope.hlo import HloFile, protos, read_hlo

MEBIBYTE = 2**20
# XProf's text writes `%x#0` for an element of a tuple, and folds wrapping computations into their start.
NOT_IN_TEXT = frozenset({"get-tuple-element", "parameter"})
QUERIES = ("get_peak_allocations", "query_hlo_graph --mode=opcode_stats --limit=10000")


def answers(xprof: str, folder: Path, out: Path) -> tuple[list[Run], list[dict[str, Any]]]:
    """Both of XProf's commands on a profile: how long they took, what they said."""
    runs: list[Run] = []
    said: list[dict[str, Any]] = []
    for query in QUERIES:
        runs.append(run([xprof, *query.split(), str(folder), "--bypass_cache"], output=out))
        text = out.read_text()
        said.append(json.loads(text[text.index("{") :]))
    return runs, said


def differences(file: HloFile, profile: Path, xprof: str, folder: Path) -> list[str]:
    """What the two tools say differently of one module."""
    text = folder / "xprof.txt"
    view = [str(Path(xprof).parent / "python"), str(Path(__file__).with_name("_xprof_view.py"))]
    module = next(profile.glob("*.hlo_proto.pb")).name.removesuffix(".hlo_proto.pb")
    run([*view, str(profile), module, str(text)], output=folder / "view.json")
    theirs = json.loads((folder / "view.json").read_text())["peak_mib"]
    memory = Analyses.of_file(file).memory
    found: list[str] = []
    ours = None if memory.peak_bytes is None else memory.peak_bytes / MEBIBYTE
    if ours is None or abs(ours - theirs) > 1 / MEBIBYTE:
        found.append(f"peak: hloscope {ours} MiB, XProf {theirs} MiB")
    counts = read_hlo(text).module.opcode_counts
    for opcode in sorted(counts.keys() | file.module.opcode_counts.keys()):
        pair = (file.module.opcode_counts.get(opcode, 0), counts.get(opcode, 0))
        if pair[0] != pair[1] and opcode not in NOT_IN_TEXT:
            found.append(f"{opcode}: hloscope {pair[0]}, XProf {pair[1]}")
    return found


def floor(path: Path) -> float:
    """Seconds of protobuf's bare parse, the quickest of three."""
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    times: list[float] = []
    for _ in range(3):
        begin = time.perf_counter()
        protos.HloProto.FromString(data)
        times.append(time.perf_counter() - begin)
    return min(times)


def compare(path: Path, xprof: str, rounds: int, folder: Path) -> list[str]:
    """Time both tools on a module and print a line; what they say differently."""
    file = read_hlo(path)
    plain = folder / "module.hlo.pb"
    profile = write_xprof(file, folder).parent
    plain.write_bytes(next(profile.glob("*.hlo_proto.pb")).read_bytes())
    ours: list[Run] = []
    theirs: list[list[Run]] = []
    said: list[dict[str, Any]] = []
    for _ in range(rounds):
        ours.append(run(analyze(plain)))
        runs, said = answers(xprof, profile, folder / "answer.json")
        theirs.append(runs)
    mine = min(ours, key=lambda r: r.seconds)
    both = min(theirs, key=lambda runs: sum(r.seconds for r in runs))
    seconds, cpu = sum(r.seconds for r in both), sum(r.cpu_seconds for r in both)
    print(
        f"{re.sub(r'[.].*', '', path.name):24} {sum(file.module.opcode_counts.values()):7,} instructions\n"
        f"  hloscope analyze      {mine.seconds:6.2f} s  ({mine.cpu_seconds:.2f} s of CPU)\n"
        f"  get_peak_allocations  {both[0].seconds:6.2f} s  ({both[0].cpu_seconds:.2f} s of CPU)\n"
        f"  query_hlo_graph       {both[1].seconds:6.2f} s  ({both[1].cpu_seconds:.2f} s of CPU)\n"
        f"  hloscope takes {mine.seconds / seconds:.2f} of XProf's two by the clock, "
        f"{mine.cpu_seconds / cpu:.2f} of their CPU, and {mine.seconds / floor(path):.0f} times the bare parse",
        flush=True,
    )
    counted = sum(row["count"] for row in said[1]["rows"])
    print(f"  query_hlo_graph counted {counted:,} of the instructions")
    return differences(file, profile, xprof, folder)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "modules", type=Path, nargs="+", help="*.hlo.pb with a buffer assignment, gzip or not"
    )
    parser.add_argument("--xprof", default="xprof", help="XProf's command")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(machine())
    differing: list[str] = []
    for path in given.modules:
        with TemporaryDirectory() as folder:
            differing += compare(path, given.xprof, given.rounds, Path(folder))
    print("\n".join(differing) or "peak heap and opcode counts agree")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
