"""Evidence of a small service, for decisions that need no history."""

from batchedapi_core.scaling.decision import Evidence
from batchedapi_core.scaling.forecast import Recurrence
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.service_model import ServiceTime

POLICY = ScalingPolicy(min_replicas=1, max_replicas=10, max_batch_size=8, batch_interval=0.010)
FULL = 8 / 0.0116  # rows/s of one replica in full batches


def evidence_of(
    rate: float | None = 0.0,
    *,
    ready: int = 3,
    current: int = 3,
    coverage: float = 1.0,
    service: ServiceTime | None = ServiceTime(0.010, 0.0002),  # noqa: B008 - a frozen value
    held: int = 0,
    largest_recent: int | None = None,
    settled: bool = True,
    queue_rows: float = 0.0,
    waiting_rows: float = 0.0,
    lowest: int | None = None,
    settled_up: bool = True,
    trend: float = 0.0,
    imbalance: float = 1.0,
    in_flight: float | None = None,
    margin_share: float = 0.0,
    highest: float = 0.0,
    recurring: tuple[Recurrence, ...] = (),
    slowdown: float = 1.0,
    trust: float = 1.0,
) -> Evidence:
    """A steady load of `rate` rows/s on a service whose full batches were seen."""
    return Evidence(
        ready=ready,
        current=current,
        coverage=coverage,
        arrival_now=rate,
        arrival_window=rate,
        level=rate,
        interval=None if rate is None else 2.0,
        queue_rows=queue_rows,
        waiting_rows=waiting_rows,
        service=service,
        mean_batch=None if rate is None else 7.1,
        fill=None if rate is None else 7.1 / 8,
        full_share=None if rate is None else 0.62,
        busy=None if rate is None else 0.7,
        held=held,
        shrunk_from=(current if largest_recent is None else largest_recent,),
        grown_from=(current, current),
        settled=settled,
        lowest=lowest,
        settled_up=settled_up,
        trend=trend,
        imbalance=imbalance,
        in_flight=in_flight,
        margin_share=margin_share,
        highest=highest,
        recurring=recurring,
        slowdown=slowdown,
        trust=trust,
    )


def worth(replicas: float) -> float:
    """Rows per second that need exactly `replicas` at 93 %."""
    return replicas * 0.93 * FULL
