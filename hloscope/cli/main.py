"""The `hloscope` command.

typer only reads the command line: each command here returns what is to run, and `main` runs it, so that
errors, interrupts and closed pipes are ours to answer. Commands are imported when they run: asking for help
waits for nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Annotated, NoReturn, cast

import typer

import hloscope
from hloscope.cli.formats import Format
from hloscope.cli.options import (
    After,
    All,
    Arguments,
    AsMarkdown,
    BaselineFile,
    Before,
    Budgets,
    CheckFormat,
    CheckOutput,
    ChipFigures,
    Code,
    Command,
    ConfigFile,
    DryRun,
    DumpFolder,
    Explain,
    FailOn,
    FailOnRegression,
    FiguresOut,
    Fresh,
    GraphFormat,
    GraphOut,
    HloOut,
    Hops,
    Html,
    Ignore,
    InstructionName,
    Json,
    Kernels,
    KernelTarget,
    ModuleName,
    Modules,
    NewBaseline,
    NewCode,
    ObjectiveName,
    PlanFile,
    ProtoOut,
    Quiet,
    RuleName,
    Save,
    Select,
    StepFile,
    Target,
    Timeout,
    Times,
    Tolerance,
    TopologyName,
    Trade,
    UnsafeFixes,
    ValidFraction,
    Verify,
    VerifyOn,
    XprofFolder,
)
from hloscope.errors import CompileError, HloscopeError, UserError

# What typer raises for a wrong command line has had several names; BadParameter is one in all of them.
_UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])
_INTERRUPTED = 130

app = typer.Typer(
    name="hloscope",
    help="See what the compiler does with a JAX training step, from a machine without the chip.",
    epilog=(
        "Exit codes: 0 done; 1 a finding reached --fail-on or a budget was exceeded; 2 the input is wrong; "
        "3 the compile failed."
    ),
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class _Ended(BaseException):
    """SIGTERM or SIGHUP: what is under way cleans up after itself, then the process dies of it."""


def _end(number: int, _: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise _Ended(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Every error that is raised on purpose ends here."""
    if arguments is None:
        _open_streams()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _end)
    try:
        return _run(arguments)
    except _Ended as ended:
        (number,) = ended.args
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return 128 + number
    except CompileError as error:
        # Where the compiler left a dump, the report says more than its log.
        return _fail(error, "" if error.dump_dir else error.log_tail)
    except HloscopeError as error:
        return _fail(error)
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # No room, no right, a name too long: the system's own line is the clear one.
        where = f"{error.filename}: " if error.filename else ""
        return _fail(UserError(f"{where}{error.strerror or error}"))


def _open_streams() -> None:
    """Give standard streams that the caller closed a place that takes everything: the exit code still tells.

    Otherwise the next file that is opened would get such a stream's number, and the compiler's log with it.
    """
    while (taken := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(taken, True)
    os.close(taken)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with _without_algebra_threads():
            command: object = app(
                args=None if arguments is None else list(arguments),
                prog_name="hloscope",
                standalone_mode=False,
            )
    except _UsageError as error:
        return _misused(error)
    if command == _INTERRUPTED:  # typer's own answer to Ctrl-C while it reads the command line
        raise KeyboardInterrupt
    # Help and the version have been printed, and leave an exit code.
    code: object = command() if callable(command) else command
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _without_algebra_threads() -> Generator[None]:
    """While a command is imported, and numpy with it: nothing here uses the threads of its linear algebra.

    To start them takes 0.08 s, of about one for a module of 19,000 instructions. What is started afterwards, a worker
    with a user's step or a user's command, gets the environment as it was.
    """
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def _misused(error: BaseException) -> int:
    message = str(getattr(error, "format_message", lambda: error)())
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "hloscope")
    _say(f"error: {message.rstrip('.')} (see {command} --help)")
    return 2


def _fail(error: HloscopeError, log_tail: str = "") -> int:
    from hloscope.report.escape import printable

    for text in log_tail.splitlines():
        _say(f"  | {printable(text)}")
    _say(f"error: {printable(str(error))}")
    # Of a text that does not parse: the line, and a mark below the place.
    shown = str(getattr(error, "excerpt", "")).splitlines()
    if shown and shown[0].strip():
        for text in shown:
            _say(f"  {printable(text)}")
    return error.exit_code


def _say(text: str) -> None:
    from hloscope.report.escape import fit_encoding, inert

    print(fit_encoding(inert(text), sys.stderr.encoding or "ascii"), file=sys.stderr)


def _version(asked: bool) -> None:
    if asked:
        print(f"hloscope {hloscope.__version__}")
        raise typer.Exit


@app.callback()
def hloscope_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """See what the compiler does with a JAX training step, from a machine without the chip."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def analyze(
    target: Target,
    arguments: Arguments = None,
    topology: TopologyName = None,
    module: ModuleName = None,
    json: Json = None,
    html: Html = None,
    valid_fraction: ValidFraction = None,
    chip_figures: ChipFigures = None,
    fail_on: FailOn = None,
    budget: Budgets = None,
    select: Select = None,
    ignore: Ignore = None,
    baseline: BaselineFile = None,
    write_baseline: NewBaseline = None,
    config: ConfigFile = None,
    everything: All = False,
    kernels: Kernels = False,
    fresh: Fresh = False,
    timeout: Timeout = None,
    plan: PlanFile = None,
    quiet: Quiet = False,
) -> Callable[[], int]:
    """Tell what a compiled step needs, what fills its memory, and what is wasted.

    TARGET is a step file (train_step.py, or train_step.py:name if it has several), a script, a *.hlo.pb (gzip or
    not), HLO text, a profile (*.xplane.pb), or a folder that XLA dumped or a profiler logged into. A script, which
    marks no step, runs with the arguments after --: the step is what it compiles for TPUs, or the first training step
    that it calls, compiled for --topology.
    """
    from hloscope.cli import analyze as command

    request = command.Request(
        target=target,
        topology=topology,
        module=module,
        valid_fraction=valid_fraction,
        chip_figures=chip_figures,
        fail_on=tuple(fail_on or ()),
        budgets=tuple(budget or ()),
        select=tuple(select or ()),
        ignore=tuple(ignore or ()),
        baseline=baseline,
        write_baseline=write_baseline,
        config=config,
        fresh=fresh,
        timeout=timeout,
        plan=plan,
        quiet=quiet,
        arguments=tuple(arguments or ()),
    )
    return partial(
        command.run, request, command.Form(json=json, html=html, everything=everything, kernels=kernels)
    )


@app.command()
def apply_rules(
    target: StepFile,
    topology: TopologyName = None,
    dry_run: DryRun = False,
    select: Select = None,
    ignore: Ignore = None,
    objective: ObjectiveName = "temp",
    tolerance: Trade = None,
    unsafe_fixes: UnsafeFixes = False,
    save: Save = None,
    explain: Explain = False,
    verify: Verify = False,
    verify_on: VerifyOn = "cpu:8",
    json: Json = None,
    html: Html = None,
    valid_fraction: ValidFraction = None,
    chip_figures: ChipFigures = None,
    fresh: Fresh = False,
    timeout: Timeout = None,
    quiet: Quiet = False,
) -> Callable[[], int]:
    """Change a step where a finding asks for it, compile it again, and keep what helped.

    Each change is compiled alone and measured, then those that helped together. The step's file stays as it is:
    what was kept is a plan, for analyze --plan and for hloscope.apply in a trainer.
    """
    from hloscope.cli import apply_rules as command

    return partial(
        command.run,
        command.Request(
            target=target,
            topology=topology,
            dry_run=dry_run,
            select=tuple(select or ()),
            ignore=tuple(ignore or ()),
            objective=objective,
            tolerance=tolerance,
            unsafe_fixes=unsafe_fixes,
            save=save,
            explain=explain,
            verify=verify,
            verify_on=verify_on,
            json=json,
            html=html,
            valid_fraction=valid_fraction,
            chip_figures=chip_figures,
            fresh=fresh,
            timeout=timeout,
            quiet=quiet,
        ),
    )


@app.command()
def check(
    target: Target,
    topology: TopologyName = None,
    module: ModuleName = None,
    format: CheckFormat = Format.TEXT,
    output: CheckOutput = None,
    html: Html = None,
    valid_fraction: ValidFraction = None,
    chip_figures: ChipFigures = None,
    fail_on: FailOn = None,
    budget: Budgets = None,
    select: Select = None,
    ignore: Ignore = None,
    baseline: BaselineFile = None,
    write_baseline: NewBaseline = None,
    config: ConfigFile = None,
    everything: All = False,
    fresh: Fresh = False,
    timeout: Timeout = None,
    quiet: Quiet = False,
) -> Callable[[], int]:
    """Hold a step against budgets and a baseline, for CI: exit 1 if it fails.

    Settings are those of the project (pyproject.toml, hloscope.toml) where the command line says nothing.
    Without --fail-on, warnings fail, unless a budget counts findings.
    """
    from hloscope.cli import check as command

    request = command.Request(
        target=target,
        topology=topology,
        module=module,
        valid_fraction=valid_fraction,
        chip_figures=chip_figures,
        fail_on=tuple(fail_on or ()),
        budgets=tuple(budget or ()),
        select=tuple(select or ()),
        ignore=tuple(ignore or ()),
        baseline=baseline,
        write_baseline=write_baseline,
        config=config,
        fresh=fresh,
        timeout=timeout,
        quiet=quiet,
    )
    form = command.Form(format=format, output=output, html=html, everything=everything)
    return partial(command.run, request, form)


@app.command(context_settings={"allow_interspersed_args": False})
def capture(
    command: Command,
    folder: DumpFolder = None,
    module: Modules = None,
    json: Json = None,
    valid_fraction: ValidFraction = None,
    select: Select = None,
    ignore: Ignore = None,
    everything: All = False,
) -> Callable[[], int]:
    """Run a command, and report on every module that it compiles.

    hloscope capture -- python train.py --steps 3

    The command runs as it would without hloscope, with the compiler's dump flags set in XLA_FLAGS: its input,
    output, signals and exit code are passed through. The report comes on standard error when it has ended.
    """
    from hloscope.cli import capture as own

    return partial(
        own.run,
        own.Request(
            command=tuple(command),
            folder=folder,
            module=module,
            json=json,
            valid_fraction=valid_fraction,
            select=tuple(select or ()),
            ignore=tuple(ignore or ()),
            everything=everything,
        ),
    )


@app.command()
def diff(
    before: Before,
    after: After,
    topology: TopologyName = None,
    module: ModuleName = None,
    valid_fraction: ValidFraction = None,
    chip_figures: ChipFigures = None,
    select: Select = None,
    ignore: Ignore = None,
    config: ConfigFile = None,
    json: Json = None,
    html: Html = None,
    fail_on: FailOnRegression = None,
    tolerance: Tolerance = "1%",
    everything: All = False,
    fresh: Fresh = False,
    timeout: Timeout = None,
    quiet: Quiet = False,
) -> Callable[[], int]:
    """Tell what differs between two compiled steps: memory, census, collectives, findings, versions, flags.

    Both are step files, dumps or JSON reports of earlier runs. Work is matched by what it is and where it stands
    in the program, not by its name in the module. Options of rules and analyses, and the project's settings, are for
    what is analyzed here: a JSON report is taken as it is.
    """
    from hloscope.cli import diff as command

    request = command.Request(
        before=before,
        after=after,
        topology=topology,
        module=module,
        valid_fraction=valid_fraction,
        chip_figures=chip_figures,
        select=tuple(select or ()),
        ignore=tuple(ignore or ()),
        config=config,
        json=json,
        html=html,
        fail_on=fail_on,
        tolerance=tolerance,
        everything=everything,
        fresh=fresh,
        timeout=timeout,
        quiet=quiet,
    )
    return partial(command.run, request)


@app.command()
def export(
    target: Target,
    xprof: XprofFolder = None,
    hlo: HloOut = None,
    proto: ProtoOut = None,
    topology: TopologyName = None,
    module: ModuleName = None,
) -> Callable[[], int]:
    """Write a step's module for other tools: a folder that XProf opens, HLO text, an HloProto.

    Names that end in .gz are packed. Text is the compiler's own where the target has it.
    """
    from hloscope.cli import export as command

    request = command.Request(
        target=target, xprof=xprof, hlo=hlo, proto=proto, topology=topology, module=module
    )
    return partial(command.run, request)


@app.command()
def graph(
    target: Target,
    instruction: InstructionName,
    hops: Hops = 2,
    format: GraphFormat = None,
    output: GraphOut = None,
    topology: TopologyName = None,
    module: ModuleName = None,
    everything: All = False,
) -> Callable[[], int]:
    """Draw what an instruction reads, what reads it and what it calls, some steps around.

    A tree on the terminal, DOT, or SVG where Graphviz is installed.
    """
    from hloscope.cli import graph as command

    request = command.Request(
        target=target,
        instruction=instruction,
        hops=hops,
        format=format,
        output=output,
        topology=topology,
        module=module,
        everything=everything,
    )
    return partial(command.run, request)


@app.command()
def kernel(
    target: KernelTarget,
    topology: TopologyName = None,
    json: Json = None,
    valid_fraction: ValidFraction = None,
    chip_figures: ChipFigures = None,
    fresh: Fresh = False,
    timeout: Timeout = None,
    quiet: Quiet = False,
) -> Callable[[], int]:
    """Tell what bounds a Pallas kernel, or XLA's fusion of the same work, from its machine code.

    That is memory, matrix unit, vector unit or issue. FILE:FUNCTION is a step file (@hs.step) whose step is the call of
    the kernel, or the work in plain jax. Arguments without a sharding are put on one device.
    """
    from hloscope.cli import kernel as command

    return partial(
        command.run,
        command.Request(
            target=target,
            topology=topology,
            json=json,
            valid_fraction=valid_fraction,
            figures=chip_figures,
            fresh=fresh,
            timeout=timeout,
            quiet=quiet,
        ),
    )


@app.command()
def calibrate(
    target: Target,
    times: Times,
    output: FiguresOut = "chip_figures.toml",
    topology: TopologyName = None,
    module: ModuleName = None,
    quiet: Quiet = False,
) -> Callable[[], int]:
    """Make a chip's figures from measured times, for --chip-figures.

    A CSV names instructions (seconds of one execution) or families of the census, alone or with their phase
    (seconds of a whole step). Of a profiler's trace (*.xplane.pb) each operation's median time is taken.
    """
    from hloscope.cli import calibrate as command

    request = command.Request(
        target=target, times=times, output=output, topology=topology, module=module, quiet=quiet
    )
    return partial(command.run, request)


@app.command()
def explain(code: Code, markdown: AsMarkdown = False) -> Callable[[], None]:
    """Tell what a rule looks for, why it matters, and what to do."""
    from hloscope.cli.explain import explain as command

    return partial(command, code, markdown=markdown)


@app.command()
def rules() -> Callable[[], None]:
    """List every rule, with its severity and options as they are set here."""
    from hloscope.cli.rules import rules as command

    return command


@app.command()
def new_rule(name: RuleName, code: NewCode) -> Callable[[], int]:
    """Write a rule that works, and its test, to start from."""
    from hloscope.cli.new_rule import new_rule as command

    return partial(command, name, code)


@app.command()
def topologies() -> Callable[[], None]:
    """Tell what --topology takes."""
    from hloscope.cli.topologies import topologies as command

    return command


if __name__ == "__main__":
    sys.exit(main())
