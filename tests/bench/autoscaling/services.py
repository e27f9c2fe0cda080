"""The three services that are scaled, and what is known of them before a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.simulation import NoisyService

MIN_REPLICAS: Final = 1
MAX_REPLICAS: Final = 40
UTILIZATION: Final = 0.8
"""Share of a replica's true capacity that load-tested targets use."""

SERVICES: Final[Mapping[str, NoisyService]] = MappingProxyType(
    {
        "cpu": NoisyService(0.001, 0.004, 8, 0.005, 0.250),
        "emb": NoisyService(0.025, 0.005, 32, 0.020, 0.500),
        "gpu": NoisyService(0.008, 0.00015, 32, 0.005, 0.100),
    }
)
"""Batching gains little (cpu), much (an embedding model) or nearly everything (gpu)."""


@dataclass(frozen=True, slots=True)
class LoadTested:
    """A service and what a load test of one replica would say of it."""

    service: NoisyService
    max_rate: float  # rows/s, the most at which 99 % are in time

    @property
    def planned_rate(self) -> float:
        """Rows/s to give one replica: the target of an autoscaler that was load-tested."""
        return UTILIZATION * self.max_rate

    @property
    def safe_in_flight(self) -> float:
        """Requests in flight at the planned rate while batches are small.

        The largest target without a limit cycle: above it, a fleet at low load is told to be
        smaller than that load needs (Little's law, with the latency of a batch of one row).
        """
        alone = self.service.batch_interval + self.service.fixed + self.service.per_row
        return self.planned_rate * alone

    def in_flight(self, share: float) -> float:
        """A share of the largest batch, as concurrency targets are usually chosen."""
        return share * self.service.max_batch_size

    def policy(self) -> ScalingPolicy:
        """Settings that a user would write for ours: nothing is measured beforehand."""
        return ScalingPolicy(
            min_replicas=MIN_REPLICAS,
            max_replicas=MAX_REPLICAS,
            max_batch_size=self.service.max_batch_size,
            batch_interval=self.service.batch_interval,
            latency_target=self.service.latency_target,
        )
