"""Every autoscaler of the comparison, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from autoscaling import hpa
from autoscaling.cortex import Cortex
from autoscaling.kpa import KnativePodAutoscaler
from autoscaling.perfect import PerfectReactive
from autoscaling.ray_serve import RayServe
from autoscaling.services import LoadTested
from batchedapi_core.simulation import CapacityController, Controller

OURS: Final = "batchedapi"
BOUND: Final = "perfect-reactive"
UNHEDGED: Final = "batchedapi-hedge-1"

_USUAL_SHARE: Final = 0.7
"""Target for utilization and concurrency: Knative's default, which people also choose."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table."""

    label: str  # with an asterisk: needs a load test of this model on this hardware
    make: Callable[[LoadTested], Controller]


ROSTER: Final[Mapping[str, Entry]] = MappingProxyType(
    {
        BOUND: Entry(
            "perfect-information reactive (a bound)",
            lambda known: PerfectReactive(known.planned_rate),
        ),
        OURS: Entry("**batchedapi**", lambda known: CapacityController(known.policy())),
        UNHEDGED: Entry(
            "batchedapi, autoscaling.hedge: 1",
            lambda known: CapacityController(replace(known.policy(), hedge=1.0)),
        ),
        "keda-arrivals-tested": Entry(
            "KEDA/HPA on rows/s\\*", lambda known: hpa.on_arrivals(known.planned_rate)
        ),
        "kpa-safe": Entry(
            "Knative KPA, safe\\* target", lambda known: KnativePodAutoscaler(known.safe_in_flight)
        ),
        "kpa-0.7": Entry(
            "Knative KPA, 0.7 x maxBatchSize",
            lambda known: KnativePodAutoscaler(known.in_flight(_USUAL_SHARE)),
        ),
        "keda-in-flight-safe": Entry(
            "KEDA/HPA on in-flight, safe\\* target",
            lambda known: hpa.on_in_flight(known.safe_in_flight),
        ),
        "keda-in-flight-0.7": Entry(
            "KEDA/HPA on in-flight, 0.7 x maxBatchSize",
            lambda known: hpa.on_in_flight(known.in_flight(_USUAL_SHARE)),
        ),
        "hpa-busy": Entry("HPA on CPU/GPU busy 70 %", lambda _: hpa.on_busy(_USUAL_SHARE)),
        "hpa-fill": Entry(
            "HPA on mean batch / max 70 %",
            lambda known: hpa.on_fill(_USUAL_SHARE, known.service.max_batch_size),
        ),
        "cortex": Entry(
            "Cortex, target = maxBatchSize", lambda known: Cortex(known.in_flight(1.0))
        ),
        "ray-serve-default": Entry("Ray Serve, target 2 (default)", lambda _: RayServe()),
        "ray-serve-0.7": Entry(
            "Ray Serve, 0.7 x maxBatchSize", lambda known: RayServe(known.in_flight(_USUAL_SHARE))
        ),
    }
)
