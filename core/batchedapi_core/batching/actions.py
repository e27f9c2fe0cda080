"""The three answers to "what now?", for the caller to act on."""

from collections.abc import Hashable
from typing import Final, NamedTuple, TypeAlias

FULL: Final = "full"
INTERVAL: Final = "interval"
EARLY: Final = "early"
SHAPE: Final = "shape"
DEADLINE: Final = "deadline"
DRAIN: Final = "drain"


class Release(NamedTuple):
    """Give a free lane a batch of at most `size`: `take(size, now, shape)`."""

    size: int
    reason: str  # one of contract.RELEASE_REASONS
    shape: Hashable = None  # of the requests


class WaitUntil(NamedTuple):
    """Ask again at `at`, or as soon as the queued size reaches `size`; 0: at every arrival.

    Do not ask in between: a wait once begun is mostly for everybody who is known, and giving up on
    the last two after waiting for sixty costs the wait and the rows.
    An arrival of another shape is the exception: it ends the wait.
    """

    at: float  # seconds, always later than the time of the question
    size: int = 0


class Idle(NamedTuple):
    """Ask again when something arrives or a lane becomes free."""


Action: TypeAlias = Release | WaitUntil | Idle
