"""Running the user's file in the worker, finding the step in it, and pointing at the line where it fails."""

from __future__ import annotations

import importlib.util
import site
import sys
import sysconfig
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import hloscope
from hloscope.capture.messages import one_line
from hloscope.capture.step import Step, StepSpec, step_spec
from hloscope.capture.topology import Topology
from hloscope.errors import UserError
from hloscope.plan import Plan

_PACKAGE = str(Path(hloscope.__file__).parent)


class _AsItIsNow(SourceFileLoader):
    """Compiles the source each time: cached bytecode counts as fresh while size and second of change are the same,
    so that an edit of one digit right after a run would go unseen."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load(path: Path) -> ModuleType:
    """Run a step file as a module named like it, its folder first on the path as for a script."""
    sys.path.insert(0, str(path.parent))
    name = path.stem
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        name = "hloscope_step_file"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file")
    if type(spec.loader) is SourceFileLoader:
        spec.loader = _AsItIsNow(name, str(path))
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a class's module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise UserError(f"the file ended itself: SystemExit({error.code})") from error
    return module


def find(module: ModuleType, path: Path, name: str | None) -> tuple[StepSpec, Any]:
    """The builder asked for: the only one if `name` is None. `UserError` that lists what there is."""
    builders = _builders(module)
    names = ", ".join(sorted(spec.name for spec, _ in builders))
    if not builders:
        raise UserError(f"{path}: no function in it is marked @hs.step (import hloscope as hs)")
    if name is not None:
        builders = [(spec, builder) for spec, builder in builders if spec.name == name]
        if not builders:
            raise UserError(f"{path}: no step is named {name!r}; it has {names}")
        if len(builders) > 1:
            raise UserError(f"{path}: {len(builders)} steps are named {name!r}; give them different names")
    # Steps imported from elsewhere are for use in this file's own, unless it has none.
    if own := [pair for pair in builders if getattr(pair[1], "__module__", None) == module.__name__]:
        builders = own
    if len(builders) > 1:
        raise UserError(f"{path} has several steps: {names}; choose one as {path}:NAME")
    return builders[0]


def _builders(module: ModuleType) -> list[tuple[StepSpec, Any]]:
    found: dict[int, tuple[StepSpec, Any]] = {}
    for value in vars(module).values():
        if spec := step_spec(value):
            found[id(value)] = (spec, value)
    return list(found.values())


def build(spec: StepSpec, builder: Any, topology: Topology, plan: Plan | None = None) -> Step:
    """Call the builder, its logical rules changed by `plan`. `UserError` if what it returns is not a `Step`."""
    plan = plan or Plan()
    rules = plan.rules(spec.rules or {})
    try:
        built = builder(topology) if spec.rules is None else builder(topology, rules)
    except SystemExit as error:
        raise UserError(f"{spec.name} ended itself: SystemExit({error.code})") from error
    if not isinstance(built, Step):
        raise UserError(f"{spec.name} must return an hs.Step, it returned {type(built).__name__}")
    return built


def describe(error: BaseException) -> str:
    """One line for a person: what went wrong, and the line of the user's own code where it did."""
    if isinstance(error, ModuleNotFoundError) and error.name in ("jax", "jaxlib"):
        return f"{error.name} is not installed; pip install 'jax[tpu]' to compile"
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}:{error.lineno})" if error.filename else ""
        return f"{type(error).__name__}: {error.msg}{where}"
    place = own_place(error)
    where = f" ({place})" if place else ""
    text = one_line(str(error))
    if isinstance(error, UserError):
        return f"{text}{where}"
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def own_place(error: BaseException) -> str | None:
    """`file:line` of the innermost frame in the user's own code: not installed, Python's or hloscope's."""
    seen: BaseException | None = error
    while seen is not None:
        for frame in reversed(traceback.extract_tb(seen.__traceback__)):
            if _is_own(frame.filename):
                return f"{frame.filename}:{frame.lineno}"
        seen = seen.__cause__ or seen.__context__
    return None


def _is_own(filename: str) -> bool:
    folders = [_PACKAGE, *site.getsitepackages(), site.getusersitepackages()]
    folders += [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return not filename.startswith("<") and not any(filename.startswith(f"{folder}/") for folder in folders)
