"""What to say about a topology name that libtpu refuses. libtpu decides; this only explains."""

from __future__ import annotations

import re

from hloscope.devices import chips

# Where the spelling differs from libtpu's: product names, GCE accelerator types, older spellings.
_ALIASES = {
    "v5": "v5p",
    "v5lite": "v5e",
    "v5 lite": "v5e",
    "v5litepod": "v5e",
    "v6": "v6e",
    "v6lite": "v6e",
    "v6 lite": "v6e",
    "trillium": "v6e",
    "7x": "tpu7x",
    "v7": "tpu7x",
    "v7x": "tpu7x",
    "tpu7": "tpu7x",
    "tpuv7x": "tpu7x",
    "ironwood": "tpu7x",
}
# A small shape of each chip that every libtpu since 0.0.42 was seen to take.
_EXAMPLES = {
    "v2": "v2:2x2",
    "v3": "v3:2x2",
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x4",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:4x4",
    "tpu7x": "tpu7x:4x4x4",
}
TWO_DIMENSIONAL = ("v2", "v3", "v5e", "v6e")
# Accelerator types of these chips (v5p-8) count TensorCores, two to a chip; the others count chips.
_COUNTED_IN_CORES = ("v2", "v3", "v4", "v5p", "tpu7x")
_MOST_CHIPS = 65536
_NAME = re.compile(
    r"(?P<head>[a-z0-9 ]*[a-z][a-z0-9 ]*?)\s*[:=_\-]\s*(?P<shape>[0-9x]+)"
    r"(?P<twist>_(?:un)?twisted)?$"
)
# 2xv5e:4x4, v5e:4x4x2slices, 2x v5e-16, v5e:4x4*2, v5e:4x4,v5e:4x4.
_SLICES = re.compile(r"^\d+\s*[x*]\s*(?:tpu|v)\d|\*\s*\d+$|slice|,")
_GPU = re.compile(
    r"(?:nvidia|amd|gpu|cuda|rocm|gfx\w*|sm_\w*|g?[abhl]\d{2,3}[a-z]*|t4|v100|mi\d{3}[a-z]*|rtx\w*)(?:[:=_\- ]|$)"
)


def chip_of(name: str) -> str:
    """The chip of a topology name in the spelling used here: `v5` is `v5p`, `TPU7x` is `tpu7x`."""
    head = re.split(r"[:=_\-]", name.strip().lower(), maxsplit=1)[0].strip()
    head = head.removeprefix("tpu ")
    return _ALIASES.get(head, head)


def wraps(name: str) -> list[bool] | None:
    """Which axes of the slice of this name have their ends joined; None for what has no figures, or is twisted."""
    found, chip = _NAME.match(name.strip().lower()), chips().get(chip_of(name))
    if found is None or chip is None or found["twist"] or "x" not in found["shape"]:
        return None
    sizes = found["shape"].split("x")
    # libtpu counts three dimensions on every chip.
    return [*chip.ici.wraps([int(size) for size in sizes]), False][:3] if all(sizes) else None


def zero_sized(name: str) -> bool:
    """Whether a dimension is zero, which libtpu 0.0.50 answers by dying of SIGFPE."""
    found = _NAME.match(name.strip().lower())
    return found is not None and any(part and int(part) == 0 for part in found["shape"].split("x"))


def refusal(name: str, reason: str) -> str:
    """One line on why `name` is no topology, with the spelling that was probably meant."""
    if _SLICES.search(name.strip().lower()):
        return (
            f"{name!r} has several slices: hloscope compiles for one slice; give its topology, e.g. v5e:4x4"
        )
    if _GPU.match(name.strip().lower()):
        return f"{name!r} is a GPU: hloscope compiles for TPUs only; it reads a dump of a compile for GPUs"
    suggestion = suggest(name)
    if suggestion is not None:
        return f"unknown topology {name!r}: did you mean {suggestion!r}? ({known_names()})"
    if chip_of(name) in _EXAMPLES:
        return f"libtpu does not take the topology {name!r}: {reason}. {known_names(chip_of(name))}"
    return f"unknown topology {name!r}: {known_names()}"


def known_names(chip: str | None = None) -> str:
    """The spellings that are understood, in words."""
    if chip is not None:
        return f"A shape that it takes: {_EXAMPLES[chip]}"
    return f"names are chip:shape as libtpu spells them, e.g. {', '.join(_EXAMPLES.values())}; or cpu:8"


def suggest(name: str) -> str | None:
    """The libtpu spelling of another way to write a topology; None if there is none, or it is the same."""
    found = _NAME.match(name.strip().lower())
    chip = chip_of(name)
    if chip not in _EXAMPLES:
        return None
    if found is None or not found["shape"]:
        return _EXAMPLES[chip]
    shape = found["shape"]
    if "x" not in shape:
        counted = _shape_of(chip, int(shape))
        return _EXAMPLES[chip] if counted is None else f"{chip}:{counted}"
    if not all(shape.split("x")):
        return _EXAMPLES[chip]
    respelled = f"{chip}:{shape}{found['twist'] or ''}"
    return None if respelled == name.strip().lower() else respelled


def _shape_of(chip: str, count: int) -> str | None:
    """The shape of an accelerator type's number: v5litepod-8 is 2x4, v5p-8 (cores) is 2x2x1; None if odd."""
    chips = count // 2 if chip in _COUNTED_IN_CORES else count
    if not 0 < chips <= _MOST_CHIPS or chips & (chips - 1):
        return None
    dimensions = [1, 1] if chip in TWO_DIMENSIONAL else [1, 1, 1]
    # Powers of two go to the last of the smallest dimensions, and 4 chips of a 3-d chip are one 2x2x1 host.
    for _ in range(chips.bit_length() - 1):
        smallest = min(dimensions)
        dimensions[len(dimensions) - 1 - dimensions[::-1].index(smallest)] *= 2
    ordered = sorted(dimensions)
    if chip not in TWO_DIMENSIONAL and chips in (2, 4):
        ordered.reverse()
    return "x".join(map(str, ordered))
