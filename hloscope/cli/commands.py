"""The commands: what each takes, its help, and where its work is.

click only reads the command line. A command imports its own room, makes its request of what was given, and returns
what is to run: asking for help waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from hloscope.cli import completions, options


class _InOrder(click.Group):
    """Lists its commands as they stand here: what people begin with comes first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    "hloscope",
    cls=_InOrder,
    invoke_without_command=True,
    epilog=(
        "Exit codes: 0 done; 1 a finding reached --fail-on or a budget was exceeded; 2 the input is wrong; "
        "3 the compile failed."
    ),
    context_settings={"show_default": True},
)
@options.version
@click.option(
    "--completion",
    type=click.Choice(completions.SHELLS),
    help='Print what makes a shell complete, e.g. for ~/.bashrc: eval "$(hloscope --completion bash)"',
)
@click.pass_context
def app(context: click.Context, completion: str | None) -> None:
    """See what the compiler does with a JAX training step, from a machine without the chip."""
    if completion is not None:
        print(completions.source(app, completion))
    elif context.invoked_subcommand is None:
        print(context.get_help())


# What commands that judge a step share.
_JUDGED = (
    options.valid_fraction,
    options.chip_figures,
    options.fail_on,
    options.budgets,
    options.select,
    options.ignore,
    options.baseline,
    options.write_baseline,
    options.config,
)


@app.command()
@options.takes(
    options.target,
    options.arguments,
    options.topology,
    options.module,
    options.json,
    options.html,
    *_JUDGED,
    options.everything,
    options.kernels,
    options.fresh,
    options.timeout,
    options.plan,
    options.quiet,
)
def analyze(
    json: str | None, html: str | None, everything: bool, kernels: bool, **given: Any
) -> Callable[[], int]:
    """Tell what a compiled step needs, what fills its memory, and what is wasted.

    TARGET is a step file (train_step.py, or train_step.py:name if it has several), a script, a *.hlo.pb (gzip or
    not), HLO text, or a folder that XLA dumped into. A script, which marks no step, runs with the arguments after --:
    the step is what it compiles for TPUs, or the first training step that it calls, compiled for --topology.
    """
    from hloscope.cli import analyze as own

    form = own.Form(json=json, html=html, everything=everything, kernels=kernels)
    return partial(own.run, own.Request(**given), form)


@app.command()
@options.takes(
    options.step_file,
    options.topology,
    options.dry_run,
    options.select,
    options.ignore,
    options.objective,
    options.unsafe_fixes,
    options.save,
    options.explain,
    options.verify,
    options.verify_on,
    options.json,
    options.html,
    options.valid_fraction,
    options.fresh,
    options.timeout,
    options.quiet,
)
def apply_rules(**given: Any) -> Callable[[], int]:
    """Change a step where a finding asks for it, compile it again, and keep what helped.

    Each change is compiled alone and measured, then those that helped together. The step's file stays as it is:
    what was kept is a plan, for analyze --plan and for hloscope.apply in a trainer.
    """
    from hloscope.cli import apply_rules as own

    return partial(own.run, own.Request(**given))


@app.command()
@options.takes(
    options.target,
    options.topology,
    options.module,
    options.check_format,
    options.check_output,
    options.html,
    *_JUDGED,
    options.everything,
    options.fresh,
    options.timeout,
    options.quiet,
)
def check(
    format: str, output: str | None, html: str | None, everything: bool, **given: Any
) -> Callable[[], int]:
    """Hold a step against budgets and a baseline, for CI: exit 1 if it fails.

    Settings are those of the project (pyproject.toml, hloscope.toml) where the command line says nothing.
    Without --fail-on, warnings fail, unless a budget counts findings.
    """
    from hloscope.cli import check as own
    from hloscope.cli.formats import Format

    form = own.Form(format=Format(format), output=output, html=html, everything=everything)
    return partial(own.run, own.Request(**given), form)


@app.command(context_settings={"allow_interspersed_args": False})
@options.takes(
    options.command,
    options.dump_folder,
    options.modules,
    options.json,
    options.valid_fraction,
    options.select,
    options.ignore,
    options.everything,
)
def capture(**given: Any) -> Callable[[], int]:
    """Run a command, and report on every module that it compiles.

    hloscope capture -- python train.py --steps 3

    The command runs as it would without hloscope, with the compiler's dump flags set in XLA_FLAGS: its input,
    output, signals and exit code are passed through. The report comes on standard error when it has ended.
    """
    from hloscope.cli import capture as own

    return partial(own.run, own.Request(**given))


@app.command()
@options.takes(
    options.before,
    options.after,
    options.topology,
    options.module,
    options.json,
    options.html,
    options.fail_on_regression,
    options.tolerance,
    options.everything,
    options.fresh,
    options.timeout,
    options.quiet,
)
def diff(**given: Any) -> Callable[[], int]:
    """Tell what differs between two compiled steps: memory, census, collectives, findings, versions, flags.

    Both are step files, dumps or JSON reports of earlier runs. Work is matched by what it is and where it stands
    in the program, not by its name in the module.
    """
    from hloscope.cli import diff as own

    return partial(own.run, own.Request(**given))


@app.command()
@options.takes(options.target, options.xprof, options.hlo, options.proto, options.topology, options.module)
def export(**given: Any) -> Callable[[], int]:
    """Write a step's module for other tools: a folder that XProf opens, HLO text, an HloProto.

    Names that end in .gz are packed. Text is the compiler's own where the target has it.
    """
    from hloscope.cli import export as own

    return partial(own.run, own.Request(**given))


@app.command()
@options.takes(
    options.target,
    options.instruction,
    options.hops,
    options.graph_format,
    options.graph_out,
    options.topology,
    options.module,
    options.everything,
)
def graph(**given: Any) -> Callable[[], int]:
    """Draw what an instruction reads, what reads it and what it calls, some steps around.

    A tree on the terminal, DOT, or SVG where Graphviz is installed.
    """
    from hloscope.cli import graph as own

    return partial(own.run, own.Request(**given))


@app.command()
@options.takes(
    options.kernel_target,
    options.topology,
    options.json,
    options.valid_fraction,
    options.chip_figures,
    options.fresh,
    options.timeout,
    options.quiet,
)
def kernel(chip_figures: str | None, **given: Any) -> Callable[[], int]:
    """Tell what bounds a Pallas kernel: memory, matrix unit, vector unit or issue, from its machine code.

    FILE:FUNCTION is a step file (@hs.step) whose step is the call of the kernel. Arguments without a sharding are
    put on one device.
    """
    from hloscope.cli import kernel as own

    return partial(own.run, own.Request(figures=chip_figures, **given))


@app.command()
@options.takes(
    options.target, options.times, options.figures_out, options.topology, options.module, options.quiet
)
def calibrate(**given: Any) -> Callable[[], int]:
    """Make a chip's figures from measured times, for --chip-figures.

    A CSV names instructions (seconds of one execution) or families of the census, alone or with their phase
    (seconds of a whole step). Of a profiler's trace (*.xplane.pb) each operation's median time is taken.
    """
    from hloscope.cli import calibrate as own

    return partial(own.run, own.Request(**given))


@app.command()
@options.takes(options.code, options.markdown)
def explain(code: str, markdown: bool) -> Callable[[], None]:
    """Tell what a rule looks for, why it matters, and what to do."""
    from hloscope.cli.explain import explain as own

    return partial(own, code, markdown=markdown)


@app.command()
def rules() -> Callable[[], None]:
    """List every rule, with its severity and options as they are set here."""
    from hloscope.cli.rules import rules as own

    return own


@app.command()
@options.takes(options.rule_name, options.new_code)
def new_rule(name: str, code: str) -> Callable[[], int]:
    """Write a rule that works, and its test, to start from."""
    from hloscope.cli.new_rule import new_rule as own

    return partial(own, name, code)


@app.command()
def topologies() -> Callable[[], None]:
    """Tell what --topology takes."""
    from hloscope.cli.topologies import topologies as own

    return own
