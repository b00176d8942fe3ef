"""Running a file without `@hs.step` as a script, in the worker, and looking at what it compiles or calls.

Two doors, both public: every compile goes through `jax.stages.Lowered.compile`, and every jitted function that a
user makes comes from `jax.jit`. Both are replaced before the script runs, in this process alone. jax's own
functions do not go through `jax.jit`, so that what `jax.numpy` compiles on its way is not taken for the step.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import runpy
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A jitted function with what it was called with: arrays as `jax.ShapeDtypeStruct` with shardings."""

    name: str
    jitted: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bytes: int

    @property
    def updates(self) -> bool:
        """Whether it looks like a training step: it donates an argument, or gives one back in its shapes and takes
        more than that, a batch. Without the batch it may be an optimizer's `init`, whose moments look like the
        parameters."""
        import jax

        traced = self.jitted.trace(*self.args, **self.kwargs)
        if any(info.donated for info in jax.tree.leaves(traced.args_info)):
            return True
        made = Counter(_arrays(traced.out_info))
        taken = [arg for arg in (*self.args, *self.kwargs.values()) if _has_array(arg)]
        wanted = [Counter(_arrays(arg)) for arg in taken]
        return len(taken) > 1 and any(w and w <= made for w in wanted)


def _has_array(tree: Any) -> bool:
    import jax

    return any(getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(tree))


def _arrays(tree: Any) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and types of a pytree's floating-point arrays, scalars left out."""
    import jax

    leaves = [leaf for leaf in jax.tree.leaves(tree) if getattr(leaf, "shape", ())]
    return [
        (leaf.shape, str(leaf.dtype))
        for leaf in leaves
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """A `jax.stages.Lowered` that the script compiles. `call` is what it was lowered from, None if unknown."""

    lowered: Any
    call: Call | None
    options: dict[str, Any]
    compile: Callable[[dict[str, Any]], Any]


class Watcher(Protocol):
    """Who is told. `on_call` does not return if the call is taken as the step; `on_compile` gives the executable."""

    def on_call(self, call: Call) -> None: ...  # noqa: D102
    def on_compile(self, compiling: Compiling) -> Any: ...  # noqa: D102


def is_step_file(path: Path) -> bool:
    """Whether a file marks a step: it uses hloscope's `step`. One that cannot be parsed is none."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return False
    modules, names = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname or a.name for a in node.names if a.name == "hloscope"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hloscope":
            names |= {a.asname or a.name for a in node.names if a.name == "step"}
    attributes = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "step")
    used = any(isinstance(n.value, ast.Name) and n.value.id in modules for n in attributes)
    return used or bool(names)


def run(path: Path, arguments: Sequence[str], watcher: Watcher) -> dict[str, Any]:
    """Run a script as `python path arguments` would, watched; what it defined. Raises what it raises."""
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    _watch(watcher)
    return runpy.run_path(str(path), run_name="__main__")


def _watch(watcher: Watcher) -> None:
    jax: Any = importlib.import_module("jax")
    state = _State(watcher=watcher)
    own_jit, own_compile = jax.jit, jax.stages.Lowered.compile

    @functools.wraps(own_jit)
    def jit(*args: Any, **kwargs: Any) -> Any:
        made = own_jit(*args, **kwargs)
        # Without a function it makes a decorator, in jax 0.10 as a partial of its own.
        if hasattr(made, "lower"):
            return Watched(made, state)

        def decorate(function: Any) -> Any:
            return Watched(made(function), state)

        return decorate

    @functools.wraps(own_compile)
    def compile_watched(self: Any, compiler_options: Any = None, **kwargs: Any) -> Any:
        if state.busy or kwargs:
            return own_compile(self, compiler_options, **kwargs)
        call = next((call for lowered, call in state.lowered if lowered is self), None)
        with state.at_work(), state.one_by_one:
            return watcher.on_compile(
                Compiling(
                    lowered=self,
                    call=call,
                    options=dict(compiler_options or {}),
                    compile=functools.partial(own_compile, self),
                )
            )

    jax.jit = jit
    jax.stages.Lowered.compile = compile_watched


@dataclass(slots=True, kw_only=True)
class _State:
    """`busy` while a watched function runs or is traced in this thread: what is called within is a part of it. The
    watcher is told `one_by_one`, whatever threads there are."""

    watcher: Watcher
    lowered: list[tuple[Any, Call]] = field(default_factory=list[tuple[Any, Call]])
    one_by_one: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.local = field(default_factory=threading.local)

    @property
    def busy(self) -> bool:
        return getattr(self._thread, "busy", False)

    @contextlib.contextmanager
    def at_work(self) -> Generator[None, None, None]:
        self._thread.busy = True
        try:
            yield
        finally:
            self._thread.busy = False


class Watched:
    """A jitted function that tells of its calls, and is in all else the function that `jax.jit` made."""

    def __init__(self, jitted: Any, state: _State) -> None:
        functools.update_wrapper(self, jitted)
        self._jitted = jitted
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # A decorated method is bound like the jitted function would be.
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Tell of the call, and do it."""
        if self._state.busy or _is_traced((args, kwargs)):
            return self._jitted(*args, **kwargs)
        with self._state.at_work():
            with self._state.one_by_one:
                self._state.watcher.on_call(self._call(args, kwargs))
            return self._jitted(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.stages.Wrapped.lower`."""
        lowered = self._jitted.lower(*args, **kwargs)
        self._state.lowered.append((lowered, self._call(args, kwargs)))
        return lowered

    # Spelt out, since `jax.export` asks whether what it is given has them.

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.stages.Wrapped.trace`."""
        return self._jitted.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.stages.Wrapped.eval_shape`."""
        return self._jitted.eval_shape(*args, **kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        import jax

        shapes = jax.tree.map(shaped, (args, dict(kwargs)))
        sizes = (leaf for leaf in jax.tree.leaves(shapes) if isinstance(leaf, jax.ShapeDtypeStruct))
        name = getattr(self._jitted, "__name__", type(self._jitted).__name__)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in sizes)
        return Call(name=name, jitted=self._jitted, args=shapes[0], kwargs=shapes[1], bytes=size)


def shaped(leaf: Any) -> Any:
    """An array's shape, type and sharding: what is called may be large, and donated. Other leaves as they are."""
    import jax

    if isinstance(leaf, jax.Array):
        # What is not committed to its device goes wherever the program runs. Keys of random numbers tell neither.
        sharding = leaf.sharding if getattr(leaf, "committed", True) else None
        weak = getattr(leaf, "weak_type", False)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)
    if type(leaf).__module__ == "numpy" and hasattr(leaf, "dtype") and leaf.dtype.kind in "biufcV":
        return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
    return leaf


def _is_traced(tree: Any) -> bool:
    jax: Any = importlib.import_module("jax")
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
