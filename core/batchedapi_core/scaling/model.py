"""What was learned about batches: decayed sums, and the largest batches seen."""

from collections.abc import Iterable
from dataclasses import dataclass

from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import PodChange
from batchedapi_core.service_model.fit import BatchSums, fit
from batchedapi_core.service_model.line import ServiceTime


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """Service time of one revision, learned while it serves."""

    revision: str = ""
    sums: BatchSums = BatchSums()  # noqa: RUF009 - a frozen value without fields to share
    largest_mean_batch: float = 1.0  # rows: the largest row-weighted mean of any interval
    updated: float | None = None  # seconds; None: not yet by this process

    def learned(
        self, policy: ScalingPolicy, changes: Iterable[PodChange], now: float
    ) -> "LearnedModel":
        """Forget a little, add what warm pods did."""
        sums = self.sums
        largest = self.largest_mean_batch
        if self.updated is not None:
            sums = sums.scaled(0.5 ** (max(0.0, now - self.updated) / policy.model_half_life))
        for change in changes:
            if change.tells_service_time:
                sums = sums.plus(change.sums)
                mean = min(change.sums.row_weighted_mean(), float(policy.max_batch_size))
                largest = max(largest, mean)
        return LearnedModel(self.revision, sums, largest, now)

    @property
    def known(self) -> bool:
        """Whether enough was seen for a service time."""
        return fit(self.sums) is not None

    def service(self, policy: ScalingPolicy) -> ServiceTime | None:
        """t(n), or None while too little was seen."""
        return fit(self.sums, policy.ridge)
