"""Arguments and options of the commands, with their help: each a decorator of click's.

What a command does with them is its own `Request`, whose fields have their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import hloscope
from hloscope.cli import completions
from hloscope.cli.formats import Format

version = click.version_option(
    hloscope.__version__, prog_name="hloscope", message="%(prog)s %(version)s", help="Print the version."
)
target = click.argument("target", metavar="TARGET", help="Step file, *.hlo.pb or dump folder.")
_EITHER = "Step file, *.hlo.pb, dump folder or JSON report."
before = click.argument("before", metavar="A", help=_EITHER)
after = click.argument("after", metavar="B", help=_EITHER)
fail_on_regression = click.option(
    "--fail-on",
    metavar="regression",
    help="Exit 1 if B needs more memory, moves more bytes, takes longer, or has new warnings.",
)
tolerance = click.option(
    "--tolerance", default="1%", metavar="SHARE", help="Growth that is no regression, e.g. 2% or 0.02."
)
topology = click.option(
    "--topology",
    metavar="NAME",
    help="Compile for this, or: what the dump was compiled for. See: hloscope topologies.",
    shell_complete=completions.topologies,
)
module = click.option("--module", metavar="NAME", help="Which module of a dump folder.")
json = click.option("--json", metavar="FILE", help="Write the JSON report; - for standard output.")
html = click.option("--html", metavar="FILE", help="Write the report as a page to look at in a browser.")
valid_fraction = click.option(
    "--valid-fraction",
    type=float,
    metavar="F",
    help="Share of a ragged buffer's rows that hold tokens, 0 to 1.",
)
chip_figures = click.option(
    "--chip-figures", metavar="FILE", help="Your figures of a chip, TOML: docs/costs.md."
)
fail_on = click.option(
    "--fail-on",
    multiple=True,
    metavar="LEVEL",
    help="Exit 1 on a finding of info, warning, error (or above), or of a code; never. Repeatable.",
)
budgets = click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="NAME=LIMIT",
    help=(
        "Exit 1 above this, e.g. temp=92GiB. Names: temp, arena, total, peak, argument, output, alias, "
        "generated_code; time=2s, exposed=5ms; executions.FAMILY; findings, info, warning, error or a code, "
        "counted. Repeatable."
    ),
)
select = click.option(
    "--select", multiple=True, metavar="CODES", help="Only these rules, e.g. HS1,HS201. Repeatable."
)
ignore = click.option("--ignore", multiple=True, metavar="CODES", help="Not these rules. Repeatable.")
baseline = click.option("--baseline", metavar="FILE", help="Accept the findings of this file.")
write_baseline = click.option(
    "--write-baseline", metavar="FILE", help="Accept all findings there are, from now on."
)
config = click.option(
    "--config",
    metavar="FILE",
    help="Settings; else the nearest hloscope.toml or [tool.hloscope] of a pyproject.toml.",
)
check_format = click.option(
    "--format",
    type=click.Choice([form.value for form in Format]),
    default=Format.TEXT.value,
    metavar="FORMAT",
    help="text, json, sarif, junit or github.",
)
check_output = click.option(
    "--output", metavar="FILE", help="Write the format there, and text to the terminal."
)
kernel_target = click.argument(
    "target", metavar="FILE:FUNCTION", help="Step file whose step calls the kernel."
)
kernels = click.option("--kernels", is_flag=True, help="Show the Pallas kernels of the step.")
times = click.option(
    "--times",
    required=True,
    metavar="FILE",
    help="CSV with the columns name,seconds, or a trace: *.xplane.pb.",
)
figures_out = click.option(
    "--output", "-o", default="chip_figures.toml", metavar="FILE", help="The figures file to write."
)
everything = click.option("--all", "everything", is_flag=True, help="Cut no table short.")
fresh = click.option("--fresh", is_flag=True, help="Compile even if an unchanged step was compiled before.")
timeout = click.option("--timeout", type=float, metavar="SECONDS", help="Give up a compile after this long.")
quiet = click.option("--quiet", is_flag=True, help="Do not tell the stages of a compile.")
plan = click.option("--plan", metavar="FILE", help="Compile with this plan of apply-rules applied.")
step_file = click.argument("target", metavar="STEP", help="Step file: train_step.py or train_step.py:name.")
dry_run = click.option(
    "--dry-run", is_flag=True, help="Compile the step as it is, and tell what would be tried."
)
objective = click.option(
    "--objective",
    default="temp",
    metavar="temp|time",
    help="What decides between alternatives: temp memory, or time.",
)
unsafe_fixes = click.option(
    "--unsafe-fixes", is_flag=True, help="Try also what may change the result: other rule sets."
)
save = click.option("--save", metavar="FILE", help="Write what was kept as a plan.")
explain = click.option("--explain", is_flag=True, help="Tell the proofs, and where one broke.")
verify = click.option(
    "--verify",
    is_flag=True,
    help="Run the step and its changed form on the host, small, and compare every result.",
)
verify_on = click.option(
    "--verify-on", default="cpu:8", metavar="NAME", help="Host devices to build the small step for."
)
markdown = click.option("--markdown", is_flag=True, help="The page as it stands in the docs.")
code = click.argument(
    "code", metavar="CODE", help="A rule's code, e.g. HS201.", shell_complete=completions.rule_codes
)
xprof = click.option("--xprof", metavar="DIR", help="A folder for: xprof --logdir DIR.")
hlo = click.option("--hlo", metavar="FILE", help="The module as HLO text.")
proto = click.option("--proto", metavar="FILE", help="The module and its buffer assignment as an HloProto.")
instruction = click.argument("instruction", metavar="INSTRUCTION", help="Its name, e.g. fusion.12.")
hops = click.option("--hops", type=int, default=2, metavar="N", help="How many steps around.")
graph_format = click.option(
    "--format", metavar="FORMAT", help="tree, dot or svg; else what FILE's name tells, or tree."
)
graph_out = click.option("--output", "-o", metavar="FILE", help="Write .dot or .svg here.")
command = click.argument(
    "command", nargs=-1, required=True, metavar="-- CMD ...", help="The command and its arguments."
)
dump_folder = click.option(
    "--dir", "folder", metavar="DIR", help="Dump into this folder; by default into one in the cache."
)
modules = click.option("--module", metavar="REGEX", help="Only modules whose names this is found in.")
arguments = click.argument("arguments", nargs=-1, metavar="[-- ARGS ...]", help="A script's arguments.")
rule_name = click.argument("name", metavar="NAME", help="What is bad, e.g. large-copy.")
new_code = click.option("--code", required=True, metavar="CODE", help="Its code, e.g. ACME101.")


def takes(
    *given: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for all of these, which `--help` lists in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(given):
            function = one(function)
        return function

    return decorate
