"""Fleets made by hand, for the tests of the autoscalers."""

from collections.abc import Callable, Iterable

from batchedapi_core.simulation import Controller, SimulatedFleet, SimulatedPod
from batchedapi_core.simulation.replica import ReplicaCounters


def pod(
    name: str,
    now: float,
    *,
    ready_at: float = 0.0,
    in_flight: float = 0.0,
    received: float = 0.0,
    busy: float = 0.0,
    batch_rows: float = 1.0,
) -> SimulatedPod:
    """One that has been running one batch a second since it was ready.

    Args:
        name: Tells it from others.
        now: Seconds.
        ready_at: Seconds; later than `now`: it is starting.
        in_flight: Requests.
        received: Rows so far.
        busy: Share of the time in which a batch runs.
        batch_rows: Rows of each batch.
    """
    lived = max(0.0, now - ready_at)
    return SimulatedPod(
        name=name,
        created=0.0,
        placed=0.0,
        ready_at=ready_at,
        ready=ready_at <= now,
        counters=ReplicaCounters(
            received=received,
            batches=lived,
            rows=lived * batch_rows,
            rows_squared=lived * batch_rows**2,
            batch_seconds=lived * busy,
            row_seconds=lived * busy * batch_rows,
        ),
        queue_rows=0.0,
        in_flight=in_flight,
    )


def fleet(now: float, pods: Iterable[SimulatedPod], *, rate: float = 0.0) -> SimulatedFleet:
    """A fleet of 1 to 40 replicas."""
    return SimulatedFleet(now, tuple(pods), 1, 40, rate)


def with_in_flight(now: float, total: float, replicas: int) -> SimulatedFleet:
    """So many requests in flight, on replicas that were always there."""
    return fleet(now, (pod(f"pod-{n}", now, in_flight=total / replicas) for n in range(replicas)))


def answers(
    controller: Controller, in_flight: Callable[[int], float], *, replicas: int, until: int
) -> dict[int, int]:
    """Its answers second by second, while nobody changes the replicas."""
    found = {
        now: controller(with_in_flight(float(now), in_flight(now), replicas))
        for now in range(1, until + 1)
    }
    return {now: desired for now, desired in found.items() if desired is not None}
