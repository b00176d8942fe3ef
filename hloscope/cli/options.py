"""The options of the commands, with their help."""

from __future__ import annotations

from typing import Annotated

import typer

from hloscope.cli import completions
from hloscope.cli.formats import Format

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="Step file, *.hlo.pb or dump folder.", show_default=False)
]
_EITHER = "Step file, *.hlo.pb, dump folder or JSON report."
Before = Annotated[str, typer.Argument(metavar="A", help=_EITHER, show_default=False)]
After = Annotated[str, typer.Argument(metavar="B", help=_EITHER, show_default=False)]
FailOnRegression = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        metavar="regression",
        help="Exit 1 if B needs more memory, moves more bytes, takes longer, or has new warnings.",
    ),
]
Tolerance = Annotated[
    str, typer.Option("--tolerance", metavar="SHARE", help="Growth that is no regression, e.g. 2% or 0.02.")
]
TopologyName = Annotated[
    str | None,
    typer.Option(
        "--topology",
        metavar="NAME",
        help="Compile for this, or: what the dump was compiled for. See: hloscope topologies.",
        autocompletion=completions.topologies,
    ),
]
ModuleName = Annotated[
    str | None, typer.Option("--module", metavar="NAME", help="Which module of a dump folder.")
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the JSON report; - for standard output.")
]
Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Write the report as a page to look at in a browser."),
]
ValidFraction = Annotated[
    float | None,
    typer.Option(
        "--valid-fraction", metavar="F", help="Share of a ragged buffer's rows that hold tokens, 0 to 1."
    ),
]
ChipFigures = Annotated[
    str | None,
    typer.Option("--chip-figures", metavar="FILE", help="Your figures of a chip, TOML: docs/costs.md."),
]
FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="LEVEL",
        help="Exit 1 on a finding of info, warning, error (or above), or of a code; never. Repeatable.",
    ),
]
Budgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="NAME=LIMIT",
        help=(
            "Exit 1 above this, e.g. temp=92GiB. Names: temp, arena, total, peak, argument, output, alias, "
            "generated_code; time=2s, exposed=5ms; executions.FAMILY; findings, info, warning, error or a code, "
            "counted. Repeatable."
        ),
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="CODES", help="Only these rules, e.g. HS1,HS201. Repeatable."),
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="CODES", help="Not these rules. Repeatable.")
]
BaselineFile = Annotated[
    str | None, typer.Option("--baseline", metavar="FILE", help="Accept the findings of this file.")
]
NewBaseline = Annotated[
    str | None,
    typer.Option("--write-baseline", metavar="FILE", help="Accept all findings there are, from now on."),
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings; else the nearest hloscope.toml or [tool.hloscope] of a pyproject.toml.",
    ),
]
CheckFormat = Annotated[
    Format, typer.Option("--format", metavar="FORMAT", help="text, json, sarif, junit or github.")
]
CheckOutput = Annotated[
    str | None,
    typer.Option("--output", metavar="FILE", help="Write the format there, and text to the terminal."),
]
KernelTarget = Annotated[
    str,
    typer.Argument(
        metavar="FILE:FUNCTION", help="Step file whose step calls the kernel.", show_default=False
    ),
]
Kernels = Annotated[bool, typer.Option("--kernels", help="Show the Pallas kernels of the step.")]
Times = Annotated[
    str,
    typer.Option(
        "--times",
        metavar="FILE",
        help="CSV with the columns name,seconds, or a trace: *.xplane.pb.",
        show_default=False,
    ),
]
FiguresOut = Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The figures file to write.")]
All = Annotated[bool, typer.Option("--all", help="Cut no table short.")]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Compile even if an unchanged step was compiled before.")
]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="Give up a compile after this long.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not tell the stages of a compile.")]
PlanFile = Annotated[
    str | None, typer.Option("--plan", metavar="FILE", help="Compile with this plan of apply-rules applied.")
]
StepFile = Annotated[
    str,
    typer.Argument(
        metavar="STEP", help="Step file: train_step.py or train_step.py:name.", show_default=False
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Compile the step as it is, and tell what would be tried.")
]
ObjectiveName = Annotated[
    str,
    typer.Option(
        "--objective", metavar="temp|time", help="What decides between alternatives: temp memory, or time."
    ),
]
Trade = Annotated[
    str | None,
    typer.Option(
        "--tolerance",
        metavar="SHARE",
        help="What memory may grow by where time is wanted, and the reverse, e.g. 10%. "
        "Else 2%, or a tenth of the share that is saved.",
    ),
]
UnsafeFixes = Annotated[
    bool, typer.Option("--unsafe-fixes", help="Try also what may change the result: other rule sets.")
]
Save = Annotated[str | None, typer.Option("--save", metavar="FILE", help="Write what was kept as a plan.")]
Explain = Annotated[bool, typer.Option("--explain", help="Tell the proofs, and where one broke.")]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify", help="Run the step and its changed form on the host, small, and compare every result."
    ),
]
VerifyOn = Annotated[
    str, typer.Option("--verify-on", metavar="NAME", help="Host devices to build the small step for.")
]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="The page as it stands in the docs.")]
Code = Annotated[
    str,
    typer.Argument(
        metavar="CODE",
        help="A rule's code, e.g. HS201.",
        show_default=False,
        autocompletion=completions.rule_codes,
    ),
]
XprofFolder = Annotated[
    str | None, typer.Option("--xprof", metavar="DIR", help="A folder for: xprof --logdir DIR.")
]
HloOut = Annotated[str | None, typer.Option("--hlo", metavar="FILE", help="The module as HLO text.")]
ProtoOut = Annotated[
    str | None,
    typer.Option("--proto", metavar="FILE", help="The module and its buffer assignment as an HloProto."),
]
InstructionName = Annotated[
    str, typer.Argument(metavar="INSTRUCTION", help="Its name, e.g. fusion.12.", show_default=False)
]
Hops = Annotated[int, typer.Option("--hops", metavar="N", help="How many steps around.")]
GraphFormat = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="FORMAT", help="tree, dot or svg; else what FILE's name tells, or tree."
    ),
]
GraphOut = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Write .dot or .svg here.")
]
Command = Annotated[
    list[str],
    typer.Argument(metavar="-- CMD ...", help="The command and its arguments.", show_default=False),
]
DumpFolder = Annotated[
    str | None,
    typer.Option("--dir", metavar="DIR", help="Dump into this folder; by default into one in the cache."),
]
Modules = Annotated[
    str | None,
    typer.Option("--module", metavar="REGEX", help="Only modules whose names this is found in."),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGS ...]", help="A script's arguments.", show_default=False),
]
RuleName = Annotated[
    str, typer.Argument(metavar="NAME", help="What is bad, e.g. large-copy.", show_default=False)
]
NewCode = Annotated[
    str, typer.Option("--code", metavar="CODE", help="Its code, e.g. ACME101.", show_default=False)
]
