"""Learn t(n) = fixed + per_row * n from five sums over batches.

No batch is kept: the sums of n, n^2, t and n*t over batches are all that least squares needs, they
add up over lanes, pods and time, and a replica exports each of them as a counter.
"""

from dataclasses import dataclass

from batchedapi_core.service_model.line import ServiceTime

FEWEST_BATCHES = 3.0
"""Below, two unknowns would be read from two points or fewer."""
LEAST_ROWS = 0.999
"""Of a batch: one, less what rounding may take. Sums with fewer are of no batches."""
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


def fit(sums: BatchSums, ridge: float = DEFAULT_RIDGE) -> ServiceTime | None:
    """Least squares through the batches, pessimistic about what was never seen.

    `ridge` counts as that many more batches in the denominator of the fixed share. While all
    batches have one size the denominator holds nothing else, so the fixed share comes out near
    zero: a gain from batching that was not observed is not counted on. The price per row then
    makes up for it, so that the line always meets the total time exactly.

    Returns:
        None while fewer than three batches or no time were seen, or batches without rows.
    """
    if sums.batches < FEWEST_BATCHES or not sums.possible() or sums.seconds <= 0:
        return None
    # Cauchy-Schwarz: no batches have a smaller sum of squares. Rounding and broken exporters do.
    rows_squared = max(sums.rows_squared, sums.rows**2 / sums.batches)
    spread = (sums.batches + ridge) * rows_squared - sums.rows**2
    slack = sums.seconds * rows_squared - sums.row_seconds * sums.rows
    fixed = slack / spread if spread > 0 else 0.0
    fixed = min(max(fixed, 0.0), sums.seconds / sums.batches)
    per_row = max((sums.seconds - fixed * sums.batches) / sums.rows, LEAST_PER_ROW)
    return ServiceTime(fixed, per_row)
