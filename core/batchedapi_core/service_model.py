"""How long a batch of n rows takes, how that is learned, and how many rows/s a lane so sustains.

A row waits at most max(batch interval, the batch in progress) and then for its own batch. What the
target leaves after that, the slack, absorbs queueing noise: the tail of a queue whose marginal cost
is one row's price c. While a batch has room one more makes it larger and costs per_row; once it is
full, one more takes its share of a further batch, t(n) / n. With z = ln(1 / (1 - quantile)) / 2

    capacity = max over n of  n / t(n) * slack / (slack + z * c * m),
    slack = target - max(interval, t(n)) - t(n) * max(1, m / n) > 0

The rows of a request arrive at once. m is how many come with the mean row, sum of k^2 / sum of k
over requests of k rows: a queue of clumps has a tail longer by that factor (batch-Poisson arrivals
in heavy traffic), a request larger than the batch rides in m / n of them, a batch has room while
n + m fit, and where sizes differ a full one ends before the request that does not fit: on average
(m - mean) / 2 rows short of the largest.

Compared with simulated truth for random services (tests/bench/results/capacity.md), half of them
are within 6 % below and nothing above, 95 % at most a fifth above; docs/decisions/0003 has the
context. With per_row as the price throughout, batches of few rows would be taken for twice what
they are.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

# Inference of deep networks is close to deterministic, which is why two numbers suffice
# (Clockwork, OSDI'20); in the literature they are called a and b.


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """t(n) = fixed + per_row * n seconds for a batch of n rows."""

    fixed: float  # seconds
    per_row: float  # seconds

    def seconds(self, rows: float) -> float:
        """Seconds that one lane needs for a batch of `rows` rows."""
        return self.fixed + self.per_row * rows


@dataclass(frozen=True, slots=True)
class RequestRows:
    """How many rows come at once, each >= 1."""

    mean: float = 1.0  # of a request
    together: float = 1.0  # of the request that the mean row comes in


ONE_ROW: Final = RequestRows()
"""One row at a time."""


# No batch is kept: the sums of n, n^2, t and n*t over batches are all that least squares needs,
# they add up over lanes, pods and time, and a replica exports each of them as a counter.

FEWEST_BATCHES = 3.0
"""Below, two unknowns would be read from two points or fewer."""
LEAST_ROWS = 0.999
"""One batch, less what rounding may take. Sums with fewer are of no batches."""
LEAST_PER_ROW = 1e-7
"""Seconds. Keeps capacity finite when a clock too coarse saw batches of no duration."""
DEFAULT_RIDGE = 3.0
"""Batches by which the fixed share is pulled to zero; see `fit`."""


@dataclass(frozen=True, slots=True)
class BatchSums:
    """Sums over batches of n rows that took t seconds each."""

    batches: float = 0.0
    rows: float = 0.0  # sum of n
    rows_squared: float = 0.0  # sum of n^2
    seconds: float = 0.0  # sum of t
    row_seconds: float = 0.0  # sum of n * t

    def plus(self, other: "BatchSums") -> "BatchSums":
        """Sums over the batches of both."""
        return BatchSums(
            self.batches + other.batches,
            self.rows + other.rows,
            self.rows_squared + other.rows_squared,
            self.seconds + other.seconds,
            self.row_seconds + other.row_seconds,
        )

    def scaled(self, weight: float) -> "BatchSums":
        """The same batches counted `weight` times each: how old ones are forgotten."""
        return BatchSums(
            self.batches * weight,
            self.rows * weight,
            self.rows_squared * weight,
            self.seconds * weight,
            self.row_seconds * weight,
        )

    def with_moments(self) -> "BatchSums":
        """Fill in moments that a replica does not export, as if all its batches were alike.

        The histogram's own sums then carry the fit: it learns from how the mean differs between
        windows instead of from how batches differ within one.
        """
        if self.batches < 1 or (self.rows_squared > 0 and self.row_seconds > 0):
            return self
        mean = self.rows / self.batches
        return BatchSums(
            self.batches, self.rows, self.rows * mean, self.seconds, self.seconds * mean
        )

    def modelled(self, service: ServiceTime) -> float:
        """Seconds that these batches take by `service`."""
        return service.fixed * self.batches + service.per_row * self.rows

    def possible(self) -> bool:
        """Every batch has at least one row."""
        return self.rows >= LEAST_ROWS * self.batches

    def row_weighted_mean(self) -> float:
        """Size of the batch that the average row travelled in; 0 without rows."""
        return self.rows_squared / self.rows if self.rows > 0 else 0.0


def fit(
    sums: BatchSums, ridge: float = DEFAULT_RIDGE, known_fixed: float | None = None
) -> ServiceTime | None:
    """Least squares through the batches, pessimistic about what was never seen.

    `ridge` counts as that many more batches in the denominator of the fixed share. While all
    batches have one size the denominator holds nothing else, so the fixed share comes out near
    zero: a gain from batching that was not observed is not counted on. The price per row then
    makes up for it, so that the line always meets the total time exactly.

    `known_fixed` seconds are taken for the fixed share instead. Rows of different lengths need it:
    where batches of more rows have shorter ones, n alone explains nothing.

    Returns:
        None while fewer than three batches or no time were seen, or batches without rows.
    """
    if sums.batches < FEWEST_BATCHES or not sums.possible() or sums.seconds <= 0:
        return None
    # Cauchy-Schwarz: no batches have a smaller sum of squares. Rounding and broken exporters do.
    rows_squared = max(sums.rows_squared, sums.rows**2 / sums.batches)
    spread = (sums.batches + ridge) * rows_squared - sums.rows**2
    slack = sums.seconds * rows_squared - sums.row_seconds * sums.rows
    fitted = slack / spread if spread > 0 else 0.0
    fixed = fitted if known_fixed is None else known_fixed
    fixed = min(max(fixed, 0.0), sums.seconds / sums.batches)
    per_row = max((sums.seconds - fixed * sums.batches) / sums.rows, LEAST_PER_ROW)
    return ServiceTime(fixed, per_row)


# One running mean per power of two of the batch size, then a weighted straight line through them.
# A size not seen lately keeps its mean: an hour of constant batches must not erase what is known
# about the fixed cost, because the fixed cost is what a decision to wait is about.

MEMORY = 16.0  # batches: a mean forgets with this time constant
SETTLED = 4.0  # batches of one size class after which an outlier is recognised as one
OUTLIER = 3.0  # times the mean: a pause of the machine counts for at most this much
FLAT = 0.01  # squared relative spread of the sizes seen below which a slope would be noise
UNKNOWN_SLOPE = 0.5  # share of the time taken as per row while only one size was seen
WARM_UP = 0.25  # batches that one of a warm-up counts for: no client's rows, and nothing beside it


class ServiceTimeSamples:
    """Samples of t(n) from finished batches; owned by one batcher.

    Sizes are in the unit of the batch policy (rows, or requests), times in seconds.
    """

    __slots__ = ("_classes", "_largest", "line")

    def __init__(self) -> None:
        self._largest = 0.0  # mean of the largest size class
        self.line = ServiceTime(fixed=0.0, per_row=0.0)
        self._classes: dict[int, _SizeClass] = {}  # by bit length of the size: a few dozen at most

    @property
    def known(self) -> bool:
        """Whether a batch was seen; until then `seconds` is 0."""
        return bool(self._classes)

    def seconds(self, size: float) -> float:
        """Expected seconds of a batch of `size`; 0 while nothing is known."""
        line = self.line
        return line.fixed + line.per_row * size

    def at_least(self, size: float) -> float:
        """Seconds that a batch of `size` takes at the least, for whoever refuses on it.

        Beyond the sizes seen the slope is a guess, and all that is sure is that time does not fall.
        """
        line = self.line
        return line.fixed + line.per_row * min(size, self._largest)

    def observe(self, size: int, seconds: float, weight: float = 1.0) -> None:
        """Learn from a batch of `size` >= 1 that took `seconds` >= 0; costs a few microseconds.

        It counts for `weight` batches, > 0.
        """
        key = size.bit_length()
        size_class = self._classes.get(key)
        if size_class is None:
            size_class = self._classes[key] = _SizeClass()
        if size_class.count >= SETTLED:
            seconds = min(seconds, OUTLIER * size_class.seconds)
        size_class.count = min(size_class.count + weight, MEMORY)
        share = weight / size_class.count
        size_class.size += (size - size_class.size) * share
        size_class.seconds += (seconds - size_class.seconds) * share
        self._largest = self._classes[max(self._classes)].size
        self.line = _line_through(self._classes.values())

    def forget_above(self, size: int) -> None:
        """Batches of a larger power of two than `size` >= 1 are too long ago to go by.

        `size` is of a batch that was observed; the line changes with the next observation.
        """
        for key in [key for key in self._classes if key > size.bit_length()]:
            del self._classes[key]


class _SizeClass:
    """Mean size and mean seconds of batches with sizes in one power of two."""

    __slots__ = ("count", "seconds", "size")

    def __init__(self) -> None:
        self.count = self.size = self.seconds = 0.0


def _line_through(classes: Collection[_SizeClass]) -> ServiceTime:
    """Weighted least squares, with neither slope nor intercept negative."""
    weight = sum_n = sum_t = 0.0
    for c in classes:
        weight += c.count
        sum_n += c.count * c.size
        sum_t += c.count * c.seconds
    mean_n, mean_t = sum_n / weight, sum_t / weight
    squares = products = 0.0
    for c in classes:
        off = c.count * (c.size - mean_n)
        squares += off * (c.size - mean_n)
        products += off * (c.seconds - mean_t)
    steepest = mean_t / mean_n  # a line through the origin
    if squares > FLAT * weight * mean_n * mean_n:
        slope = min(max(products / squares, 0.0), steepest)
    else:
        slope = UNKNOWN_SLOPE * steepest
    return ServiceTime(fixed=max(0.0, mean_t - slope * mean_n), per_row=slope)


BEST_EFFORT = 0.5
"""Share of the throughput to plan with when no batch size meets the target."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rows/s that one lane sustains, and how."""

    rows_per_second: float
    batch_size: int  # rows, at which it does
    feasible: bool  # False: no batch size meets the latency target


def lane_capacity(
    service: ServiceTime,
    *,
    largest_batch: int,
    batch_interval: float,
    latency_target: float | None,
    quantile: float,
    requests: RequestRows = ONE_ROW,
) -> Capacity:
    """Best rate of one lane with batches of at most `largest_batch` rows.

    Args:
        service: Seconds of a batch.
        largest_batch: Rows, >= 1.
        batch_interval: Seconds the oldest row waits for its batch to fill.
        latency_target: Seconds, for `quantile` of the rows; None plans for full batches.
        quantile: In (0, 1).
        requests: Rows that arrive at once.

    Returns:
        `feasible` is False when no size meets the target; the rate is then half of what full
        batches give.
    """
    together = requests.together
    short = (min(together, largest_batch) - min(requests.mean, largest_batch)) / 2
    full = round(largest_batch - short)
    throughput = full / service.seconds(full)
    if latency_target is None:
        return Capacity(throughput, full, feasible=True)
    noise = 0.5 * math.log(1.0 / (1.0 - quantile)) * together

    def rate(rows: int, price: float) -> float:
        seconds = service.seconds(rows)
        own = seconds * max(1.0, together / rows)
        slack = latency_target - max(batch_interval, seconds) - own
        return rows / seconds * slack / (slack + noise * price) if slack > 0 else slack

    best, most = full, rate(full, service.seconds(full) / full)
    with_room = math.floor(largest_batch - together)
    if with_room >= 1:
        size = _peak(lambda rows: rate(rows, service.per_row), with_room)
        found = rate(size, service.per_row)
        if found > most:
            best, most = size, found
    if most <= 0.0:
        return Capacity(BEST_EFFORT * throughput, full, feasible=False)
    return Capacity(most, best, feasible=True)


def _peak(rate: Callable[[int], float], largest: int) -> int:
    """Size with the highest rate, by bisection.

    The rate is log-concave while the slack is positive (n / t(n) is, and slack / (slack + c) is
    increasing and log-concave in a concave slack) and the slack elsewhere: it rises, then falls.
    """
    low, high = 1, largest
    while low < high:
        middle = (low + high) // 2
        if rate(middle) < rate(middle + 1):
            low = middle + 1
        else:
            high = middle
    return low


ALL_BUSY: Final = 0.98
"""Share of the lanes' time: between two batches there is a moment even with a queue."""


def as_planned(target: float, *, least: float, most: float) -> float:
    """Share up to which lanes are used as planned: halfway from the target to all there is.

    Args:
        target: Share of the capacity that replicas are planned with.
        least: No less than this, however low the target.
        most: What can be measured of lanes that are used up.
    """
    return max(least, min(most, (1.0 + target) / 2))
