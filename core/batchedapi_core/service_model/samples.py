"""Learns t(n) from finished batches, in constant time and memory.

One running mean per power of two of the batch size, then a weighted straight line through them.
A size not seen lately keeps its mean: an hour of constant batches must not erase what is known
about the fixed cost, because the fixed cost is what a decision to wait is about.
"""

from collections.abc import Collection

from batchedapi_core.service_model.line import ServiceTime

MEMORY = 16.0  # batches: a mean forgets with this time constant
SETTLED = 4.0  # batches of one size class after which an outlier is recognised as one
OUTLIER = 3.0  # times the mean: a pause of the machine counts for at most this much
FLAT = 0.01  # squared relative spread of the sizes seen below which a slope would be noise
UNKNOWN_SLOPE = 0.5  # share of the time taken as per row while only one size was seen
WARM_UP = 0.25  # batches that one of a warm-up counts for: no client's rows, and nothing beside it


class ServiceTimeSamples:
    """What finished batches say about t(n); owned by one batcher.

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
        return self.seconds(min(size, self._largest))

    def observe(self, size: int, seconds: float, weight: float = 1.0) -> None:
        """Learn from a batch of `size` >= 1 that took `seconds` >= 0; costs a few microseconds.

        It counts for `weight` batches, > 0.
        """
        key = size.bit_length()
        size_class = self._classes.get(key)
        if size_class is None:
            size_class = self._classes[key] = _SizeClass()
        size_class.observe(size, seconds, weight)
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

    def observe(self, size: int, seconds: float, weight: float) -> None:
        if self.count >= SETTLED:
            seconds = min(seconds, OUTLIER * self.seconds)
        self.count = min(self.count + weight, MEMORY)
        share = weight / self.count
        self.size += (size - self.size) * share
        self.seconds += (seconds - self.seconds) * share


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
