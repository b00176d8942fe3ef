"""What links carry when messages go from device to device: along x, then y, then z, the shorter way around."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from hloscope.analysis.wire_place import Torus

    Devices = npt.NDArray[np.int64]
    Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The most that any one link carries, in messages, and the longest way in hops."""

    ici: float
    die_to_die: float
    dcn: float  # messages that the busiest device sends to other slices
    hops: int
    links: int  # how many of its links to other chips the busiest chip uses


def route(torus: Torus, sources: Devices, targets: Devices) -> Load:
    """Send a message from each source to its target (device numbers), all at the same time.

    Where both ways around are as long, half of the message takes each. A message that also changes cores passes
    between the cores of the chip that it comes from.
    """
    crossing = torus.slices[sources] != torus.slices[targets]
    dcn = _busiest(sources[crossing])
    sources, targets = sources[~crossing], targets[~crossing]
    at, to = torus.places[sources].copy(), torus.places[targets]
    base = torus.slices[sources] - torus.slices.min()
    chips = math.prod(torus.shape) * (int(np.ptp(torus.slices)) + 1)
    between_cores = at[:, 3] != to[:, 3]
    hops = between_cores.astype(np.int64)
    most, used = 0.0, np.zeros(chips, dtype=np.int64)
    for axis in range(3):
        steps = np.zeros(len(at), dtype=np.int64)
        for direction, lengths, share in _ways(torus, axis, at, to):
            loads = _loads(torus, axis, direction, at, base, lengths, share, chips)
            most, used = max(most, float(loads.max(initial=0))), used + (loads > 0)
            steps = np.maximum(steps, lengths)
        hops, at[:, axis] = hops + steps, to[:, axis]
    return Load(
        ici=most,
        die_to_die=_busiest(sources[between_cores]),
        dcn=dcn,
        hops=int(hops.max(initial=0)),
        links=int(used.max(initial=0)),
    )


def _busiest(devices: Devices) -> float:
    return float(np.bincount(devices).max()) if len(devices) else 0.0


def _ways(torus: Torus, axis: int, at: Devices, to: Devices) -> Iterator[tuple[int, Devices, Shares]]:
    """Per direction along an axis (+1, -1): the steps of each message, and the share of it that goes there."""
    size, apart = torus.shape[axis], to[:, axis] - at[:, axis]
    if not torus.wraps[axis]:
        yield 1, np.maximum(apart, 0), np.ones(len(at))
        yield -1, np.maximum(-apart, 0), np.ones(len(at))
        return
    ahead = apart % size
    back = (size - ahead) % size
    share = np.where(ahead == back, 0.5, 1.0)
    yield 1, np.where(ahead <= back, ahead, 0), share
    yield -1, np.where(back <= ahead, back, 0), share


def _loads(
    torus: Torus,
    axis: int,
    direction: int,
    at: Devices,
    base: Devices,
    lengths: Devices,
    share: Shares,
    chips: int,
) -> npt.NDArray[np.float64]:
    """What leaves each chip along an axis in one direction."""
    x, y, z = torus.shape
    loads = np.zeros(chips)
    for step in range(int(lengths.max(initial=0))):
        going = lengths > step
        spot = at[going, :3]
        spot[:, axis] = (spot[:, axis] + direction * step) % torus.shape[axis]
        chip = ((base[going] * z + spot[:, 2]) * y + spot[:, 1]) * x + spot[:, 0]
        loads += np.bincount(chip, weights=share[going], minlength=chips)
    return loads
