"""The books of a simulation: what was answered when, refused, and paid for."""

from collections.abc import Sequence

import numpy as np

from batchedapi_core.simulation.outcome import Floats, Outcome, ReplicaChoice, Second
from batchedapi_core.simulation.replica import Replica


class Tally:
    """Filled second by second; `outcome` reads it at the end."""

    def __init__(self, target: float | None) -> None:
        """`target` in seconds; None: only a refused request is a miss."""
        self._target = target
        self._rejected = self._late = self._paid = 0
        self._answered = 0  # requests
        self._booked = (0, 0)  # answered, missed: until the last second
        self._latencies: list[Floats] = []
        self._batch_rows = np.zeros(0, dtype=np.int64)  # batches by rows
        self._batches = (0, 0)  # since the last second: batches, rows
        self._timeline: list[Second] = []
        self.replicas: list[ReplicaChoice] = []
        self.scale_events = 0

    def turned_away(self, requests: int) -> None:
        """They found no replica that is ready."""
        self._rejected += requests

    def collect(self, replicas: Sequence[Replica]) -> None:
        """Take over what was answered and refused since the last time."""
        ends: list[float] = []
        requests: list[int] = []
        arrived: list[float] = []
        rows: list[int] = []
        for replica in replicas:
            answers = replica.answers
            self._rejected += answers.refused
            ends += answers.ends
            requests += answers.requests
            arrived += answers.arrived
            rows += answers.rows
            answers.clear()
        if not ends:
            return
        latencies = np.repeat(np.asarray(ends), np.asarray(requests)) - np.asarray(arrived)
        if self._target is not None:
            self._late += int((latencies > self._target).sum())
        self._latencies.append(latencies)
        self._answered += len(latencies)
        self._count_batches(rows)

    def _count_batches(self, rows: list[int]) -> None:
        counts = np.bincount(rows, minlength=len(self._batch_rows))
        counts[: len(self._batch_rows)] += self._batch_rows
        self._batch_rows = counts
        batches, total = self._batches
        self._batches = batches + len(rows), total + sum(rows)

    def second(self, start: float, rate: float, ready: int, *, live: int, paid: int) -> None:
        """A second from `start` is over, in which `paid` replicas were not yet drained."""
        self._paid += paid
        answered, missed = self._booked
        self._booked = (self._answered, self._late + self._rejected)
        booked = (self._booked[0] - answered, self._booked[1] - missed)
        self._timeline.append(Second(start, rate, ready, live, *self._batches, *booked))
        self._batches = (0, 0)

    def outcome(self) -> Outcome:
        """The books as they are."""
        empty = np.zeros(0)
        latencies = np.concatenate([empty, *self._latencies])
        batches = int(self._batch_rows.sum())
        rows = int((self._batch_rows * np.arange(len(self._batch_rows))).sum())
        return Outcome(
            seconds=float(len(self._timeline)),
            requests=len(latencies) + self._rejected,
            rejected=self._rejected,
            missed=self._late + self._rejected,
            cost=float(self._paid),
            scale_events=self.scale_events,
            mean_rows=rows / batches if batches else 0.0,
            batch_rows={n: int(k) for n, k in enumerate(self._batch_rows) if k},
            replicas=tuple(self.replicas),
            timeline=tuple(self._timeline),
            latencies=latencies,
        )
