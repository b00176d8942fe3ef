"""Where rules come from: the files of `hloscope_rules`, and entry points of other distributions."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import Distribution, EntryPoint, distributions
from types import ModuleType

from hloscope.errors import UserError
from hloscope.guests import guest
from hloscope.rule import CODE, OWN_PREFIX, Rule

GROUP = "hloscope.rules"
_REMEDY = "mend or uninstall it"


def own_rules() -> Iterator[Rule]:
    """hloscope's own rules: one file each, found by being there."""
    import hloscope_rules

    for info in pkgutil.iter_modules(hloscope_rules.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{hloscope_rules.__name__}.{info.name}")
            yield from _rules_of(module)


def plugin_rules() -> Iterator[Rule]:
    """The rules of installed plug-ins: of each entry point in `GROUP`, which names a rule or a module of rules.

    Raises UserError for one that cannot be loaded or holds no rule: what is not checked must not look clean.
    """
    known: list[Rule] = []
    for point in sorted(installed_points(), key=lambda p: (p.name, p.value)):
        plugin = point.dist.name if point.dist else point.name
        with guest(f"the plug-in {plugin} cannot be loaded ({point.value})", _REMEDY):
            loaded = point.load()
        # A module of rules may import one of hloscope's, or one that another point names.
        known = known or list(own_rules())
        rules = tuple(_rules_of(loaded))
        if not rules:
            raise UserError(f"the plug-in {plugin} has no rule in {point.value}; {_REMEDY}")
        for rule in rules:
            if any(rule is other for other in known):
                continue
            known.append(rule)
            if not CODE.fullmatch(rule.code) or rule.code.startswith(OWN_PREFIX):
                raise UserError(
                    f"the plug-in {plugin} has a rule {rule.code!r}: codes are capitals and three digits, ACME101; "
                    f"{OWN_PREFIX} is hloscope's"
                )
            yield replace(rule, plugin=plugin)


def installed_points() -> Iterator[EntryPoint]:
    """The entry points of `GROUP`: as `importlib.metadata.entry_points` finds them, which reads the names and
    points of every distribution that is installed, and takes longer than all rules on a small module."""
    seen: set[tuple[str, str]] = set()  # of a distribution that is installed twice, the first counts
    for distribution in distributions():
        # A distribution's name costs a hundred times what its entry points do: only those that count are asked.
        with guest(partial(_unread, distribution), _REMEDY):
            text = distribution.read_text("entry_points.txt") or ""
            points = distribution.entry_points.select(group=GROUP) if GROUP in text else ()
        for point in points:
            if (distribution.name, point.name) not in seen:
                seen.add((distribution.name, point.name))
                yield point


def _unread(distribution: Distribution) -> str:
    return f"the entry points of the distribution {distribution.name} cannot be read"


def _rules_of(found: object) -> Iterator[Rule]:
    values = vars(found).values() if isinstance(found, ModuleType) else (found,)
    yield from (value for value in values if isinstance(value, Rule))
