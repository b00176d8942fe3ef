"""Jaxprs, taken apart and put together again. All that is private in jax is used here, and nowhere else.

A jaxpr that went through `flatten` has every variable once in the whole program, and no calls that only wrap
their body: whoever looks at it can key what they find by variable.
"""

# jax annotates none of this.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any

import jax
from jax._src import config as private_config
from jax._src import core as private_core
from jax._src import source_info_util
from jax.extend import core

Var = Any
Atom = Any
Equation = Any
Jaxpr = Any

# Calls that say no more than their body.
_WRAPPERS = frozenset(
    {
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "eval_jaxpr",
        "jit",
        "pjit",
    }
)
# Where a jaxpr is a scope of its own, and the parameters that hold it.
SCOPES: Mapping[str, tuple[str, ...]] = {
    "checkpoint": ("jaxpr",),
    "closed_call": ("call_jaxpr",),
    "cond": ("branches",),
    "core_call": ("call_jaxpr",),
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),
    "remat": ("jaxpr",),
    "remat2": ("jaxpr",),
    "scan": ("jaxpr",),
    "shard_map": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
}


def is_literal(atom: Atom) -> bool:
    """Whether an operand stands in the equation itself."""
    return isinstance(atom, core.Literal)


def is_dropped(variable: Var) -> bool:
    """Whether nobody can read a result."""
    return isinstance(variable, private_core.DropVar)


def fresh(variable: Var) -> Var:
    """A new variable of the same type."""
    return type(variable)(variable.aval)


def new_variable(aval: Any) -> Var:
    """A new variable."""
    return private_core.Var(aval)


def has_side_effects(equation: Equation) -> bool:
    """Whether an equation does more than compute: not a collective, which only names the axes it works over."""
    return any(not isinstance(effect, private_core.NamedAxisEffect) for effect in equation.effects)


def same_type(left: Any, right: Any) -> bool:
    """Whether two types are one. Where neither is sharded by name, the mesh that they are told for does not count.

    What a kernel or a custom gradient returns may have been typed without a mesh, in the midst of values that have one.
    """
    if left == right:
        return True
    unsharded = all(all(entry is None for entry in each.sharding.spec) for each in (left, right))
    return unsharded and left.update(sharding=right.sharding) == right


def opened(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr without its constants: jax 0.12 has one class for both, 0.10 two."""
    return jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr


def constants(jaxpr: Jaxpr) -> list[Any]:
    """The values of its constant variables."""
    return list(getattr(jaxpr, "consts", ()))


def rebuilt(
    jaxpr: Jaxpr,
    *,
    equations: Sequence[Equation],
    inputs: Sequence[Var] | None = None,
    outputs: Sequence[Atom] | None = None,
    constant_variables: Sequence[Var] | None = None,
) -> Jaxpr:
    """A jaxpr with other contents; closed if it was, with the same constants."""
    inner = opened(jaxpr)
    changed: dict[str, Any] = {"eqns": list(equations)}
    if inputs is not None:
        changed["invars"] = list(inputs)
    if outputs is not None:
        changed["outvars"] = list(outputs)
    if constant_variables is not None:
        changed["constvars"] = list(constant_variables)
    if inner is jaxpr:
        if constants(jaxpr):
            changed["consts"] = constants(jaxpr)
        return jaxpr.replace(**changed)
    return jaxpr.replace(jaxpr=inner.replace(**changed), consts=jaxpr.consts)


def inner_jaxprs(equation: Equation) -> list[Jaxpr]:
    """The jaxprs that are scopes of an equation, in order."""
    found: list[Jaxpr] = []
    for name in SCOPES.get(equation.primitive.name, ()):
        value = equation.params[name]
        found += value if isinstance(value, (tuple, list)) else [value]
    return found


def with_inner_jaxprs(equation: Equation, jaxprs: Sequence[Jaxpr]) -> Equation:
    """The equation with other scopes, in the order of `inner_jaxprs`."""
    remaining = list(jaxprs)
    params = dict(equation.params)
    for name in SCOPES.get(equation.primitive.name, ()):
        value = params[name]
        if isinstance(value, (tuple, list)):
            params[name] = tuple(remaining[: len(value)])
            del remaining[: len(value)]
        else:
            params[name] = remaining.pop(0)
    return equation.replace(params=params)


def scan_counts(equation: Equation) -> tuple[int, int]:
    """How many constants and carried values a scan has."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = map(len, params["ft_in"].unpack())
    return consts, carried


def call_name(equation: Equation) -> str:
    """What an equation calls: the name of a jitted function or of a kernel, or the primitive's."""
    name = equation.params.get("name")
    named = isinstance(name, str) and equation.primitive.name != "name"
    return name if named else equation.primitive.name


def source_line(equation: Equation) -> str | None:
    """`file:line` of the user's code that made an equation."""
    for frame in source_info_util.user_frames(equation.source_info.traceback):
        return f"{frame.file_name}:{frame.start_line}"
    return None


def name_stack(equation: Equation) -> Any:
    """The named scopes and transformations of an equation, relative to its jaxpr; `str` writes them as XLA does."""
    return equation.source_info.name_stack


def with_name_stack(equation: Equation, stack: Any) -> Equation:
    """The equation with other named scopes."""
    return equation.replace(source_info=equation.source_info.replace(name_stack=stack))


def flatten(closed: Jaxpr, opaque: Collection[str] = ()) -> Jaxpr:
    """The same program with every variable new and once, and wrapping calls written out.

    Calls named in `opaque` stay as they are.
    """
    return _Flattener(frozenset(opaque)).body(closed)


class _Flattener:
    def __init__(self, opaque: frozenset[str]) -> None:
        self.opaque = opaque

    def body(self, jaxpr: Jaxpr) -> Jaxpr:
        inner = opened(jaxpr)
        names: dict[Var, Atom] = {var: fresh(var) for var in (*inner.constvars, *inner.invars)}
        equations = self.equations(inner, names)
        return rebuilt(
            jaxpr,
            equations=equations,
            inputs=[names[var] for var in inner.invars],
            outputs=[_renamed(atom, names) for atom in inner.outvars],
            constant_variables=[names[var] for var in inner.constvars],
        )

    def equations(self, jaxpr: Jaxpr, names: dict[Var, Atom]) -> list[Equation]:
        found: list[Equation] = []
        for equation in jaxpr.eqns:
            given = [_renamed(atom, names) for atom in equation.invars]
            body = None if call_name(equation) in self.opaque else _wrapped_body(equation)
            if body is not None:
                found += self.inlined(equation, body, given, names)
                continue
            results = [fresh(var) for var in equation.outvars]
            names.update(zip(equation.outvars, results, strict=True))
            copied = equation.replace(invars=given, outvars=results)
            if call_name(equation) not in self.opaque:
                copied = with_inner_jaxprs(copied, [self.body(inner) for inner in inner_jaxprs(copied)])
            found.append(copied)
        return found

    def inlined(
        self, call: Equation, body: Jaxpr, given: list[Atom], names: dict[Var, Atom]
    ) -> list[Equation]:
        inner_names: dict[Var, Atom] = dict(zip(body.invars, given, strict=True))
        found = [under(name_stack(call), each) for each in self.equations(body, inner_names)]
        for var, atom in zip(call.outvars, body.outvars, strict=True):
            names[var] = _renamed(atom, inner_names)
        return found


def under(stack: Any, equation: Equation) -> Equation:
    """An equation of an inner jaxpr, with the name stack that it has further out."""
    return with_name_stack(equation, stack + name_stack(equation))


def _renamed(atom: Atom, names: Mapping[Var, Atom]) -> Atom:
    return atom if is_literal(atom) else names[atom]


def _wrapped_body(equation: Equation) -> Jaxpr | None:
    """The body of a call that can be written out: without constants, side effects, shardings or donation."""
    params = equation.params
    if equation.primitive.name not in _WRAPPERS or any(params.get("donated_invars", ())):
        return None
    if has_side_effects(equation):
        return None
    given = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    given += (*params.get("in_layouts", ()), *params.get("out_layouts", ()))
    if any(value is not None and type(value).__name__ != "UnspecifiedValue" for value in given):
        return None
    body = params.get("jaxpr") or params.get("call_jaxpr")
    return None if constants(body) else opened(body)


@contextlib.contextmanager
def context_of(equation: Equation) -> Generator[None]:
    """Trace as the equation was traced: in its mesh, whose manual axes have names there."""
    mesh = equation.ctx.cur_abstract_mesh
    axes = [(name, mesh.shape[name]) for name in getattr(mesh, "manual_axes", ())]
    # Without this nothing is marked as varying, and a shard_map that is traced once more refuses what it gets.
    checked = any(_varies(atom) for atom in (*equation.invars, *equation.outvars))
    marking = private_config._check_vma(checked)  # pyright: ignore[reportPrivateUsage]
    with equation.ctx.manager, private_core.extend_axis_env_nd(axes), marking:
        yield


def _varies(atom: Atom) -> bool:
    kind = getattr(atom.aval, "manual_axis_type", None)
    return kind is not None and bool(kind.varying)


def traced_like(
    equation: Equation,
    function: Callable[..., Sequence[Any]],
    operands: Sequence[Atom],
    results: Sequence[Var],
) -> list[Equation]:
    """Equations that compute `results` by a function of these operands, traced where `equation` stands.

    Raises what the function raises.
    """
    kinds = [core_aval(atom) for atom in operands]

    def checked(*given: Any) -> list[Any]:
        return _exactly(function(*given), results)

    with context_of(equation):
        closed = jax.make_jaxpr(checked)(*kinds)
    if constants(closed):
        raise ValueError("the replacement has constants of its own")
    body = opened(flatten(closed))
    names: dict[Var, Atom] = dict(zip(body.invars, operands, strict=True))
    # A result that is made anew takes the place of the variable that it replaces.
    made = {var for each in body.eqns for var in each.outvars}
    for atom, result in zip(body.outvars, results, strict=True):
        if is_literal(atom) or atom not in made or atom in names:
            raise ValueError("the replacement returns what it was given, or one value twice")
        names[atom] = result
    return [_placed(each, names, equation) for each in body.eqns]


def _exactly(values: Sequence[Any], results: Sequence[Var]) -> list[Any]:
    for value, result in zip(values, results, strict=True):
        if (value.shape, value.dtype) != (result.aval.shape, result.aval.dtype):
            raise ValueError(f"the replacement makes {jax.typeof(value)} in the place of {result.aval}")
    return list(values)


def _placed(equation: Equation, names: Mapping[Var, Atom], like: Equation) -> Equation:
    """An equation of a traced function among those of a body, with the name and source of one of these."""
    source = like.source_info.replace(name_stack=name_stack(like) + name_stack(equation))
    return equation.replace(
        invars=[atom if is_literal(atom) else names.get(atom, atom) for atom in equation.invars],
        outvars=[names.get(var, var) for var in equation.outvars],
        source_info=source,
    )


def core_aval(atom: Atom) -> jax.ShapeDtypeStruct:
    """Shape, dtype and the mesh axes that a value varies over, to trace with."""
    aval = atom.aval
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, sharding=aval.sharding, manual_axis_type=aval.manual_axis_type
    )


def bind(equation: Equation, values: Sequence[Any]) -> list[Any]:
    """Apply an equation without scopes to values."""
    result = equation.primitive.bind(*values, **equation.params)
    return list(result) if equation.primitive.multiple_results else [result]


def bind_as(equation: Equation, values: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    """Apply it with other parameters, under its own named scopes and with its source."""
    stack = source_info_util.current_name_stack() + name_stack(equation)
    traceback = equation.source_info.traceback
    with source_info_util.user_context(traceback, name_stack=stack), equation.ctx.manager:
        result = equation.primitive.bind(*values, **params)
    return list(result) if equation.primitive.multiple_results else [result]


def bind_anywhere(equation: Equation, values: Sequence[Any]) -> list[Any]:
    """The same outside of a mesh, where marks of what varies over its axes mean nothing."""
    return list(values) if equation.primitive.name in ("pvary", "pcast") else bind(equation, values)


def jit_options(traced: Any) -> dict[str, Any]:
    """Donation and shardings that `jax.jit` was told for a function, from its trace."""
    args, kwargs = traced.args_info
    params = traced._params  # jax has no public name for the shardings of a traced function.
    given, named = jax.tree.unflatten(traced.in_tree, _told(params["in_shardings"]))
    results = jax.tree.unflatten(traced.out_tree, _told(params["out_shardings"]))
    options: dict[str, Any] = {
        "donate_argnums": tuple(index for index, arg in enumerate(args) if _donated(arg)),
        "donate_argnames": tuple(name for name, arg in kwargs.items() if _donated(arg)),
        "keep_unused": params["keep_unused"],
    }
    if jax.tree.leaves(named):
        raise ValueError("shardings of keyword arguments are not supported")
    if jax.tree.leaves(given):
        options["in_shardings"] = given
    if jax.tree.leaves(results):
        options["out_shardings"] = results
    return options


def donated_leaves(traced: Any) -> list[bool]:
    """Of each array that a traced function takes, in order, whether it is donated."""
    infos = jax.tree.leaves(traced.args_info, is_leaf=lambda each: hasattr(each, "donated"))
    return [bool(info.donated) for info in infos]


def _told(shardings: Sequence[Any]) -> list[Any]:
    return [each if isinstance(each, jax.sharding.Sharding) else None for each in shardings]


def _donated(argument: Any) -> bool:
    return any(
        info.donated for info in jax.tree.leaves(argument, is_leaf=lambda each: hasattr(each, "donated"))
    )


def as_function(closed: Jaxpr) -> Callable[..., list[Any]]:
    """The flat function of a closed jaxpr."""
    return core.jaxpr_as_fun(closed)
