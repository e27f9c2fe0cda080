"""Replicas that are not alike: what one line through all batches and an even split leave out."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from batchedapi_core.simulation.fleet import Integers

SLOW_EVERY: Final = 5
BEND: Final = 0.5  # of the largest batch


def one_in_five_is_slow(replica: int, _seconds: float, _size: float) -> float:
    """Twice as slow: an older node, or a neighbour that takes its cores."""
    return 2.0 if replica % SLOW_EVERY == SLOW_EVERY - 1 else 1.0


def half_as_slow_again_in_half_an_hour(_replica: int, seconds: float, _size: float) -> float:
    """Inputs that grow, for every replica alike."""
    return 1.0 + 0.5 * seconds / 1800.0


def bent(_replica: int, _seconds: float, size: float) -> float:
    """A line for small batches; from half of the largest on each row takes more and more."""
    return 1.0 + max(0.0, size - BEND)


class StickyClients:
    """See Balancer; equal clients, each of which keeps its replica until it connects anew.

    Args:
        clients: That there are. The fewer, the less even.
        stay: Seconds until one connects anew, on average; it does at once if its replica goes.
    """

    def __init__(self, clients: int, stay: float) -> None:
        self._replica = np.full(clients, -1)  # number, of each client
        self._leaves = 1.0 / stay

    def __call__(self, ready: Sequence[int], requests: int, rng: np.random.Generator) -> Integers:
        """Every request of a client goes where its connection goes."""
        numbers = np.asarray(ready)
        anew = rng.random(len(self._replica)) < self._leaves
        anew |= ~np.isin(self._replica, numbers)
        self._replica[anew] = rng.choice(numbers, int(anew.sum()))
        client = rng.integers(0, len(self._replica), requests)
        return np.searchsorted(numbers, self._replica[client])
