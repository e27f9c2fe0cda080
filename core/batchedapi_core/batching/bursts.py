"""Bursts: requests of strangers that come close together after a quiet time."""

from math import inf

GAIN = 1 / 8  # smoothing of size and length, per burst
MARGIN = 1.25  # on the observed length, so that the last of a usual burst is still awaited
LEAST_SPAN = 50e-6  # seconds between two requests of one burst as an event loop reads them
TRUST = 0.5  # bursts are guesses, returning clients are not


class Bursts:
    """How many more usually follow the first request of a burst, and how fast; O(1) an arrival."""

    __slots__ = ("_first", "_last", "_size", "_span", "_start", "seen", "window")

    def __init__(self) -> None:
        self.window = 0.0  # seconds; strangers within this time after an idle start are its burst
        self._size = 0.0  # learned: what follows the first request
        self._span = 0.0  # learned: seconds from the first to the last
        self._start = self._last = -inf  # seconds: the current burst
        self._first = 0  # size of its first request
        self.seen = 0  # size of all its requests so far

    def arrived(self, size: int, now: float, *, idle: bool) -> None:
        """A request of nobody who was awaited. `idle`: a lane was free and nothing was queued."""
        if now - self._start <= self.window:
            self.seen += size
            self._last = now
        elif idle:
            self._learn()
            self._start = self._last = now
            self._first = self.seen = size

    def _learn(self) -> None:
        """The current burst is over."""
        extra = self.seen - self._first
        self._size += (extra - self._size) * GAIN
        if extra:
            span = MARGIN * (self._last - self._start) + LEAST_SPAN
            self._span += (span - self._span) * GAIN

    @property
    def end(self) -> float:
        """When the current burst is expected to be over, in seconds; may be long past."""
        return self._start + self._span

    @property
    def expected(self) -> float:
        """Size that a burst is trusted to bring after its first request."""
        return TRUST * self._size
