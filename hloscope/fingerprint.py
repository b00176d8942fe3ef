"""Names for findings that outlive what a compiler gives out anew: numbers, copies, fusions, op name spellings."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hloscope.analysis.memory_names import is_path, split_name
from hloscope.analysis.place import Phase, phase_of, provenance
from hloscope.hlo import work_of
from hloscope.rule import Finding


def stamp(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings with their fingerprints. Those that cannot be told apart are numbered by their titles: one of
    them is known as long as there are no more of them than there were."""
    all_found = list(findings)
    identities = [identity_of(f) for f in all_found]
    numbers: dict[int, int] = {}
    seen: Counter[str] = Counter()
    for index in sorted(range(len(all_found)), key=lambda i: all_found[i].title):
        numbers[index] = seen[identities[index]]
        seen[identities[index]] += 1
    return tuple(
        replace(finding, fingerprint=_digest(f"{identity}\n{numbers[index]}"))
        for index, (finding, identity) in enumerate(zip(all_found, identities, strict=True))
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def identity_of(finding: Finding) -> str:
    """What stays of a finding from one compiler to the next: the rule, the phase, the scopes of the program, and
    the element count of its largest array, which no reshape, transpose or fused result changes.

    The first instruction stands for the finding. Its name, the family's name, the operation at the end of the op
    name (the root of a fusion) and layouts are the compiler's choice; lines move with every edit.
    """
    if not finding.instructions:
        return finding.code
    first = provenance(finding.instructions[0])
    # The tuple of an asynchronous start is the compiler's affair, and in some versions empty.
    leaves = (leaf for i in finding.instructions for leaf in work_of(i).shape.parts)
    elements = max((leaf.elements for leaf in leaves if leaf.is_array), default=0)
    return "\n".join((finding.code, phase_of(first).value, scopes_of(first.op_name), str(elements)))


def phase_at(finding: Finding) -> str:
    """The part of the step of the instruction that stands for a finding; `unknown` without one."""
    first = finding.instructions[:1]
    return phase_of(first[0]).value if first else Phase.UNKNOWN.value


def op_name_at(finding: Finding) -> str:
    """The op name of the instruction that stands for a finding; empty without one."""
    first = finding.instructions[:1]
    return provenance(first[0]).op_name if first else ""


def scopes_of(op_name: str) -> str:
    """The program's own scopes in an op name, without the operation at its end; a parameter's path is a scope."""
    return op_name if is_path(op_name) else "/".join(split_name(op_name)[0])
