"""`%load_ext hloscope`: a cell magic that compiles the call in a cell's last line in place of running it."""

from __future__ import annotations

import ast
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hloscope.errors import UserError
from hloscope.notebook.analyze import analyze

if TYPE_CHECKING:
    from hloscope.report.model import Report

_ASKED = "_hloscope_asked"
_HELP = """%%hloscope [--topology NAME] [--valid-fraction F] [--output NAME] [--fresh] [--quiet]

Run the cell, but compile the call in its last line for a topology in place of making it, and show the report:

    %%hloscope --topology tpu7x:4x4x4 --output report
    train_step(state, batch)

The last line may also name an hs.Step, or a function marked with @hs.step, whose topology then counts where none is
given. Arguments are arrays or jax.ShapeDtypeStruct; --output keeps the report under a name.
"""


def load_ipython_extension(shell: Any) -> None:
    """Make the magic known to a shell; IPython calls this for `%load_ext hloscope`."""
    arguments: Any = import_module("IPython.core.magic_arguments")

    def hloscope(line: str, cell: str) -> Report:
        options = arguments.parse_argstring(magic, line)
        report = compile_cell(shell, cell, options)
        if options.output is not None:
            shell.user_ns[options.output] = report
        return report

    hloscope.__doc__ = _HELP
    magic = hloscope
    for decorate in (
        arguments.argument("--quiet", action="store_true", help="Tell no progress."),
        arguments.argument("--fresh", action="store_true", help="Compile even if it was compiled before."),
        arguments.argument("--output", metavar="NAME", help="Keep the report under this name."),
        arguments.argument(
            "--valid-fraction", type=float, metavar="F", help="Share of ragged rows with tokens."
        ),
        arguments.argument("--topology", metavar="NAME", help="What to compile for, e.g. tpu7x:4x4x4."),
        arguments.magic_arguments(),
    ):
        magic = decorate(magic)
    shell.register_magic_function(magic, magic_kind="cell", magic_name="hloscope")


def compile_cell(shell: Any, cell: str, options: Any) -> Report:
    """Run all of a cell but the call in its last line, which is compiled."""
    # The magic's own line counts too where the source of an instruction is told.
    source = "\n" + shell.transform_cell(cell)
    tree = ast.parse(source)
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        raise UserError("%%hloscope compiles the call in the cell's last line, e.g. train_step(state, batch)")
    *before, last = tree.body
    name = shell.compile.cache(source, shell.execution_count)
    run = shell.compile(ast.Module(body=before, type_ignores=[]), name, "exec")
    asked = ast.fix_missing_locations(ast.Expression(body=_unmade(last.value)))
    shell.user_ns[_ASKED] = _asked
    try:
        # What the user typed into the cell, as the shell would run it.
        exec(run, shell.user_ns)  # noqa: S102
        step, args, kwargs = eval(shell.compile(asked, name, "eval"), shell.user_ns)  # noqa: S307
    finally:
        del shell.user_ns[_ASKED]
    return analyze(
        step,
        *args,
        kwargs=kwargs,
        topology=options.topology,
        valid_fraction=options.valid_fraction,
        fresh=options.fresh,
        quiet=options.quiet,
    )


def _unmade(value: ast.expr) -> ast.expr:
    """The expression that gives a call's function and arguments, the call not made."""
    called = [value.func, *value.args] if isinstance(value, ast.Call) else [value]
    keywords = value.keywords if isinstance(value, ast.Call) else []
    function = ast.Name(_ASKED, ast.Load())
    return ast.copy_location(ast.Call(function, called, keywords), value)


def _asked(function: Any, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What was asked for. A class makes what is to be compiled, as hs.Step does."""
    if isinstance(function, type):
        return function(*args, **kwargs), (), {}
    return function, args, kwargs
