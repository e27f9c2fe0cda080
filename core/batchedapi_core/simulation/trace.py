"""When requests arrive: drawn from a rate, or as they were recorded, each or by the minute."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from batchedapi_core.scaling.minutes import MINUTE, Minute
from batchedapi_core.scaling.policy import SECONDS_BETWEEN_LOOKS


class Arrivals(NamedTuple):
    """Requests of a span of time, in order of `times`."""

    times: npt.NDArray[np.float64]  # seconds
    rows: npt.NDArray[np.int64] | None  # of each; None: one row each


class Trace(Protocol):
    """Load over time."""

    @property
    def seconds(self) -> float:
        """How long it lasts."""

    def rate(self, t: float) -> float:
        """Rows per second at `t`; of a recording, the mean over that second."""

    def peak(self, start: float, stop: float) -> float:
        """Rows per second to plan for between two whole seconds."""

    def arrivals(self, start: float, rng: np.random.Generator) -> Arrivals:
        """Requests of the second that begins at `start`, none of them at or after its end."""


@dataclass(frozen=True, slots=True)
class PoissonTrace:
    """Requests of one row; within each second Poisson at the rate of its beginning."""

    rate_at: Callable[[float], float]  # rows/s at a time in seconds
    seconds: float

    def rate(self, t: float) -> float:
        """See Trace."""
        return self.rate_at(t)

    def peak(self, start: float, stop: float) -> float:
        """See Trace."""
        return max(self.rate_at(float(t)) for t in range(int(start), int(stop)))

    def arrivals(self, start: float, rng: np.random.Generator) -> Arrivals:
        """See Trace."""
        return Arrivals(_poisson(self.rate_at(start), start, start + 1.0, rng), None)


@dataclass(frozen=True, slots=True)
class StepTrace:
    """Requests of one row; Poisson inside each step, whose rate is constant."""

    starts: tuple[float, ...]  # seconds, ascending from 0
    rates: tuple[float, ...]  # rows/s, as many
    seconds: float  # the end of the last step

    def rate(self, t: float) -> float:
        """See Trace."""
        return self.rates[max(0, bisect_right(self.starts, t) - 1)]

    def peak(self, start: float, stop: float) -> float:
        """See Trace."""
        return max(rate for _, _, rate in self._pieces(start, stop))

    def arrivals(self, start: float, rng: np.random.Generator) -> Arrivals:
        """See Trace."""
        pieces = self._pieces(start, start + 1.0)
        drawn = [_poisson(rate, begin, end, rng) for begin, end, rate in pieces]
        return Arrivals(drawn[0] if len(drawn) == 1 else np.concatenate(drawn), None)

    def _pieces(self, start: float, stop: float) -> list[tuple[float, float, float]]:
        """(begin, end, rate) of the parts of a span."""
        first, last = bisect_right(self.starts, start), bisect_left(self.starts, stop)
        edges = (start, *self.starts[first:last], stop)
        return [(begin, end, self.rate(begin)) for begin, end in pairwise(edges)]


class RecordedTrace:
    """Requests as they came."""

    __slots__ = ("_cuts", "_rows", "_rows_before", "_times", "lengths", "seconds")

    def __init__(
        self, times: Sequence[float], rows: Sequence[int], lengths: Sequence[int] = ()
    ) -> None:
        """`times` in seconds from the beginning, >= 0 in any order, with the rows of each.

        `lengths` are those of rows that have some, in no order.
        """
        self.lengths = tuple(lengths)
        order = np.argsort(np.asarray(times, dtype=np.float64), kind="stable")
        self._times = np.asarray(times, dtype=np.float64)[order]
        self._rows = np.asarray(rows, dtype=np.int64)[order]
        self.seconds = float(int(self._times[-1]) + 1) if len(order) else 0.0
        edges = np.arange(self.seconds + 1.0)
        self._cuts: list[int] = np.searchsorted(self._times, edges).tolist()
        self._rows_before: tuple[int, ...] = (0, *accumulate(self._rows.tolist()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each request, in order of arrival."""
        return tuple(self._rows.tolist())

    def rate(self, t: float) -> float:
        """See Trace."""
        return self.peak(float(int(t)), int(t) + 1.0)

    def peak(self, start: float, stop: float) -> float:
        """See Trace; the mean, as the peak of a count over one second is noise."""
        last = len(self._cuts) - 1
        begin, end = self._cuts[min(int(start), last)], self._cuts[min(int(stop), last)]
        return (self._rows_before[end] - self._rows_before[begin]) / (stop - start)

    def arrivals(self, start: float, rng: np.random.Generator) -> Arrivals:  # noqa: ARG002 - nothing is drawn
        """See Trace."""
        last = len(self._cuts) - 1
        begin, end = self._cuts[min(int(start), last)], self._cuts[min(int(start) + 1, last)]
        return Arrivals(self._times[begin:end], self._rows[begin:end])


def replayed(minutes: Iterable[Minute]) -> StepTrace:
    """Demand as it was, minutes that nobody knows as the one before; chance is drawn anew.

    A minute with a peak beyond chance is one of two levels, high for as long as makes its mean if
    the other is that of its lower neighbour, and on the side of its higher one: a jump is where it
    was, up or down. What is shorter than a look is one.
    """
    means, peaks = [0.0], [0.0]
    for one in minutes:
        means.append(means[-1] if one.demand is None else one.demand)
        peaks.append(one.peak)
    means, peaks = means[1:], peaks[1:]
    starts, rates = list[float](), list[float]()
    for number, (mean, peak) in enumerate(zip(means, peaks, strict=True)):
        before, after = means[max(0, number - 1)], means[min(number + 1, len(means) - 1)]
        begin, low, share = MINUTE * number, min(before, after), 0.0
        if peak > mean + 2.0 * (mean / SECONDS_BETWEEN_LOOKS) ** 0.5:
            share = (mean - low) / (peak - low) if peak > low else 1.0
            share = min(max(share, SECONDS_BETWEEN_LOOKS / MINUTE), mean / peak)
            low = (mean - share * peak) / (1.0 - share)
        parts = [(share, peak), (1.0 - share, low if share else mean)]
        for part, rate in reversed(parts) if after > before else parts:
            if part > 0.0:
                starts.append(begin)
                rates.append(rate)
                begin += MINUTE * part
    return StepTrace(tuple(starts), tuple(rates), MINUTE * len(means))


def _poisson(
    rate: float, begin: float, end: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Sorted times of a Poisson process."""
    length = end - begin
    count = int(rng.poisson(rate * length))
    times = np.sort(rng.random(count)) * length + begin
    return np.minimum(times, np.nextafter(end, begin))  # rounding must not reach the next second
