"""How long a batch of rows of different lengths takes, and how that is learned.

Rows that are padded take the time of the longest, so t(n) becomes

    t(n, L) = fixed + per_row * n + per_padded * n * L + per_own * (sum of the n lengths)

None of the four is negative. A model that skips the padding has per_own, one that computes it has
per_padded, and where neither matters t(n, L) is t(n).

Batches are learned as t(n) is: a running mean for each class of rows and longest rows, and one fit
through the means. The fit minimises relative errors, as a service time's noise is
a share of it. Rows of one length tell none of the last three terms apart. So a weak prior says that
each of the four takes a quarter of the time; what batches say outweighs it after a few.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from batchedapi_core.service_model import OUTLIER

FEATURES: Final = 4  # batches, rows, padded lengths, own lengths
PRIOR: Final = 0.02
"""Batches that the prior counts for."""
CLASS: Final = 2
"""Bits of rows, and of the longest, that one class has: lengths of 16 to 63 are alike. Finer ones
are each seen more rarely, and a change of the service time takes longer to be learned."""
REMEMBERED: Final = 4.0
"""Batches: a class forgets with this time constant. A fit through all of them needs no more."""
STALE: Final = 16.0
"""Batches after which a class that was not seen counts half. An hour of short rows must not erase
what is known of long ones, so it counts for at least FAINT batches."""
FAINT: Final = 0.1
SWEEPS: Final = 16
"""Of coordinate descent after each batch. It starts from the last fit, so few are enough."""
PADDING_MATTERS: Final = 0.02
"""Share of a batch's time above which its padding costs something."""


@dataclass(frozen=True, slots=True)
class ServiceSurface:
    """t(n, L), as the module says; lengths are in the unit of their rows."""

    fixed: float  # seconds
    per_row: float  # seconds
    per_padded: float  # seconds for each unit of n * L
    per_own: float  # seconds for each unit of the lengths' sum

    def seconds(self, rows: float, longest: float, own: float) -> float:
        """Seconds of a batch of `rows` rows, the longest so long, all together `own` long."""
        padded = self.per_padded * longest
        return self.fixed + (self.per_row + padded) * rows + self.per_own * own


class SurfaceSamples:
    """Samples of t(n, L) from finished batches; owned by one batcher.

    Attributes:
        surface: The newest fit; all zero before the first batch.
        padding_matters: Whether rows of like lengths are faster together than others.
        batches: All that were observed.
        late: Means of clients' batches of late; a warm-up's are not like them.
    """

    __slots__ = (
        "_classes",
        "_largest",
        "_shares",
        "batches",
        "late",
        "padding_matters",
        "surface",
    )

    def __init__(self) -> None:
        self.surface = ServiceSurface(0.0, 0.0, 0.0, 0.0)
        self.padding_matters = False
        self.late = _Class()
        self.batches = 0.0
        self._classes: dict[tuple[int, int], _Class] = {}  # by size of rows and longest
        self._largest = 0.0  # mean padded lengths of the class that has most
        self._shares = [1.0 / FEATURES] * FEATURES  # of the mean batch's time, by feature

    @property
    def known(self) -> bool:
        """Whether a batch was seen."""
        return bool(self._classes)

    def at_least(self, rows: float, longest: float, own: float) -> float:
        """Seconds that such a batch takes at the least, for whoever refuses on it.

        Beyond the largest padded batch that was seen nothing is sure but that time does not fall.
        """
        seconds = self.surface.seconds(rows, longest, own)
        padded = rows * longest
        return seconds if padded <= self._largest else seconds * self._largest / padded

    def backlog(self, rows: float, own: float) -> float:
        """Seconds that so many rows, together `own` long, take in batches as of late.

        Raises:
            ZeroDivisionError: `late` has none.
        """
        late, surface = self.late, self.surface
        per_own = surface.per_own + surface.per_padded * late.padded / late.own
        return (surface.fixed / late.rows + surface.per_row) * rows + per_own * own

    def observe(
        self, rows: int, longest: int, own: int, seconds: float, weight: float = 1.0
    ) -> None:
        """Learn from a batch that took `seconds` >= 0.

        It counts for `weight` batches, > 0; less than one: of a warm-up.
        """
        key = rows.bit_length() // CLASS, longest.bit_length() // CLASS
        of = self._classes.get(key)
        if of is None:
            of = self._classes[key] = _Class()
        if of.count >= REMEMBERED:
            seconds = min(seconds, OUTLIER * of.seconds)
        self.batches += 1.0
        of.seen = self.batches
        before, explained = of.seconds, self._explained(of)
        of.learn(rows, longest, own, seconds, weight)
        if of.count >= REMEMBERED and before > 0.0 and explained > 0.0:
            self._follow(of, of.seconds / before * explained / self._explained(of))
        self._largest = max([each.padded for each in self._classes.values()])
        if weight >= 1.0:
            self.late.learn(rows, longest, own, seconds, weight)
        self._fit()

    def _explained(self, of: "_Class") -> float:
        surface = self.surface
        padded, own = surface.per_padded * of.padded, surface.per_own * of.own
        return surface.fixed + surface.per_row * of.rows + padded + own

    def _follow(self, seen: "_Class", change: float) -> None:
        """Change the other classes as one has changed, by its share of those seen of late.

        Batches that do not come teach nothing. Those that seemed cheap before the model became
        slower would seem cheap for ever.
        """
        classes = self._classes.values()
        of_late = [of.count >= REMEMBERED and self.batches - of.seen <= STALE for of in classes]
        factor = change ** (1.0 / sum(of_late))
        for of in classes:
            if of is not seen:
                of.seconds *= factor

    def _fit(self) -> None:
        """Least squares of (shares of the time that the features explain) - 1."""
        products, sums = [[0.0] * FEATURES for _ in range(FEATURES)], [0.0] * FEATURES
        weights = 0.0
        for of in self._classes.values():
            if of.seconds <= 0.0:
                continue
            age = (self.batches - of.seen) / STALE
            weight = max(of.count * 0.5**age, min(of.count, FAINT))
            row = (1.0 / of.seconds, of.rows / of.seconds, of.padded / of.seconds,
                   of.own / of.seconds)  # fmt: skip
            weights += weight
            for i in range(FEATURES):
                scaled = weight * row[i]
                sums[i] += scaled
                for j in range(i + 1):
                    products[i][j] += scaled * row[j]
        if weights <= 0.0:
            return
        units = [total / weights for total in sums]  # of a feature, for each second
        for i in range(FEATURES):
            for j in range(i + 1):
                products[i][j] /= units[i] * units[j]
                products[j][i] = products[i][j]
        self._descend(products, weights)
        shares = self._shares
        self.surface = ServiceSurface(
            shares[0] / units[0], shares[1] / units[1], shares[2] / units[2], shares[3] / units[3]
        )
        self.padding_matters = shares[2] > PADDING_MATTERS

    def _descend(self, products: Sequence[Sequence[float]], weight: float) -> None:
        """Minimise by one share after the other, none below zero.

        Source: Franc, Hlavac, Navara: Sequential Coordinate-Wise Algorithm for the Non-negative
        Least Squares Problem, CAIP 2005.
        """
        shares = self._shares
        for _ in range(SWEEPS):
            for i, (batch, row, padded, own) in enumerate(products):
                explained = batch * shares[0] + row * shares[1] + padded * shares[2]
                explained += own * shares[3]
                free = weight + PRIOR / FEATURES - explained + products[i][i] * shares[i]
                shares[i] = max(0.0, free / (products[i][i] + PRIOR))


class _Class:
    """Means of batches of about as many rows, and about as long ones."""

    __slots__ = ("count", "own", "padded", "rows", "seconds", "seen")

    def __init__(self) -> None:
        self.count = self.rows = self.padded = self.own = self.seconds = self.seen = 0.0

    def learn(self, rows: int, longest: int, own: int, seconds: float, weight: float) -> None:
        """A batch more, that counts for `weight`."""
        self.count = min(self.count + weight, REMEMBERED)
        share = weight / self.count
        self.rows += (rows - self.rows) * share
        self.padded += (rows * longest - self.padded) * share
        self.own += (own - self.own) * share
        self.seconds += (seconds - self.seconds) * share
