"""Counters of pods under a steady load, with the noise of arrivals and of batches.

One lane a pod, batch by batch: rows arrive as a Poisson process (or in bursts), a batch leaves
full, at the end of the interval, or as soon as the lane is free, and takes a + b n with 5 % of
noise. The model is a slow one, so that half an hour takes a second.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from batchedapi_core.bottleneck import BottleneckEvidence, Kind, PodLoad
from batchedapi_core.service_model import BatchSums, ServiceTime

TICK = 5.0  # seconds between looks
WINDOW = 60.0
TARGET = 0.93  # share of the capacity that replicas are planned with
NOISE = 0.05  # of a batch's seconds, and of what was learned about them


@dataclass(frozen=True)
class Regime:
    """A load and a configuration."""

    name: str
    kind: Kind  # what it is an example of
    rates: tuple[float, ...]  # rows/s, of each pod
    fixed: float = 0.08  # seconds
    per_row: float = 0.005
    max_batch_size: int = 32
    batch_interval: float = 0.2  # seconds
    waits: bool = True  # for the interval; False: a free lane starts whatever is queued
    concurrency: int = 512  # rows in a pod
    burst: int = 1  # rows that come at once
    web_cpu: float | None = 0.3
    outside: float = 0.002  # seconds that a request spends neither queued nor in a batch


REGIMES = (
    Regime("few rows", Kind.IDLE, (4.0,) * 3, waits=False),
    Regime("interval", Kind.BATCH_INTERVAL, (70.0,) * 3),
    Regime("small batches", Kind.MAX_BATCH_SIZE, (90.0,) * 3, max_batch_size=8),
    Regime("slow model", Kind.COMPUTE, (130.0,) * 3, fixed=0.02, per_row=0.01, max_batch_size=64),
    Regime("bursts", Kind.ADMISSION, (25.0,) * 3, waits=False, concurrency=32, burst=50),
    Regime("decoding", Kind.PYTHON_CPU, (30.0,) * 3, waits=False, web_cpu=0.97, outside=0.6),
    Regime("few connections", Kind.SKEW, (110.0, 20.0, 20.0), waits=False),
)


@dataclass
class Counts:
    """One pod's counts in one tick."""

    received: float = 0.0
    rejected: float = 0.0
    full: float = 0.0
    interval: float = 0.0
    early: float = 0.0
    batches: float = 0.0
    rows: float = 0.0
    rows_squared: float = 0.0
    seconds: float = 0.0
    row_seconds: float = 0.0
    waited: float = 0.0  # seconds, summed over rows


class Pod:
    """One lane, and a queue of rows."""

    def __init__(self, rate: float, random: np.random.Generator) -> None:
        self._rate = rate
        self._random = random
        self._queued = 0
        self._now = self._tick_end = 0.0

    def tick(self, regime: Regime) -> Counts:
        """Run for five seconds more; a batch that outlasts them is of this tick."""
        counts = Counts()
        self._tick_end += TICK
        while self._now < self._tick_end:
            if not self._queued:
                self._now += self._random.exponential(regime.burst / self._rate)
                self._arrive(regime, counts, regime.burst)
                continue
            reason = self._wait(regime, counts)
            rows = min(self._queued, regime.max_batch_size)
            self._queued -= rows
            self._run(regime, counts, rows)
            setattr(counts, reason, getattr(counts, reason) + 1)
        return counts

    def _wait(self, regime: Regime, counts: Counts) -> str:
        if self._queued >= regime.max_batch_size:
            return "full"
        if not regime.waits:
            return "early"
        came = self._coming(regime, regime.batch_interval)
        missing = regime.max_batch_size - self._queued
        wait = regime.batch_interval * min(1.0, missing / max(1, came))
        counts.waited += self._queued * wait
        self._now += wait
        self._arrive(regime, counts, min(came, missing))
        return "full" if came >= missing else "interval"

    def _run(self, regime: Regime, counts: Counts, rows: int) -> None:
        noise = max(0.1, self._random.normal(1.0, NOISE))
        seconds = (regime.fixed + regime.per_row * rows) * noise
        counts.batches += 1
        counts.rows += rows
        counts.rows_squared += rows * rows
        counts.seconds += seconds
        counts.row_seconds += rows * seconds
        counts.waited += self._queued * seconds
        self._now += seconds
        self._arrive(regime, counts, self._coming(regime, seconds))

    def _coming(self, regime: Regime, seconds: float) -> int:
        return regime.burst * int(self._random.poisson(self._rate * seconds / regime.burst))

    def _arrive(self, regime: Regime, counts: Counts, rows: int) -> None:
        room = max(0, regime.concurrency - self._queued)
        counts.received += rows
        counts.rejected += max(0, rows - room)
        self._queued += min(rows, room)


class Fleet:
    """Pods of an API, and the counters of their last window."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._ticks: deque[list[Counts]] = deque(maxlen=round(WINDOW / TICK))

    def looks(self, regime: Regime, seconds: float) -> Iterator[BottleneckEvidence]:
        """The evidence of every tick while that load lasts; the window still has what was."""
        pods = [Pod(rate, self._random) for rate in regime.rates]
        for _ in range(round(seconds / TICK)):
            self._ticks.append([pod.tick(regime) for pod in pods])
            yield self._evidence(regime)

    def _evidence(self, regime: Regime) -> BottleneckEvidence:
        seconds = TICK * len(self._ticks)
        by_pod = [list(ticks) for ticks in zip(*self._ticks, strict=True)]
        everything = [one for ticks in by_pod for one in ticks]
        total: Counter[str] = Counter()  # of floats, too
        for one in everything:
            total.update(asdict(one))
        sums = BatchSums(
            total["batches"],
            total["rows"],
            total["rows_squared"],
            total["seconds"],
            total["row_seconds"],
        )
        wait = total["waited"] / max(1.0, sums.rows)
        batch = sums.row_seconds / max(1.0, sums.rows)
        return BottleneckEvidence(
            seconds=seconds,
            coverage=1.0,
            received=total["received"],
            rejected=(("queue_full", total["rejected"]),),
            released=tuple((name, total[name]) for name in ("full", "interval", "early")),
            sums=sums,
            sizes=sums.rows,
            lane_seconds=seconds * len(by_pod),
            max_batch_size=regime.max_batch_size,
            batch_interval=regime.batch_interval if regime.waits else 0.0,
            target_utilization=TARGET,
            pods=tuple(_load(f"pod-{i}", ticks, seconds) for i, ticks in enumerate(by_pod)),
            service=ServiceTime(self._near(regime.fixed), self._near(regime.per_row)),
            queue_wait=wait,
            request_seconds=wait + batch + self._near(regime.outside),
            web_cpu=None if regime.web_cpu is None else min(1.0, self._near(regime.web_cpu)),
            replica_concurrency=regime.concurrency,
        )

    def _near(self, figure: float) -> float:
        return figure * float(self._random.normal(1.0, NOISE))


def _load(name: str, ticks: list[Counts], seconds: float) -> PodLoad:
    received = sum(one.received for one in ticks)
    return PodLoad(name, received, seconds, sum(one.seconds for one in ticks))
