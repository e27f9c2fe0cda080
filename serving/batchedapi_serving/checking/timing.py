"""t(n): how long batches of each size take."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

from batchedapi_core import contract
from batchedapi_core.service_model import BatchSums, ServiceTime, fit
from batchedapi_serving.checking.asking import Sample
from batchedapi_serving.checking.equality import Asked, by_shape
from batchedapi_serving.checking.report import Timing

FEWEST_RUNS: Final = 3
MOST_RUNS: Final = 50
SECONDS_A_SIZE: Final = 0.5
"""After which a size that was run FEWEST_RUNS times is done with."""


def time_batches(
    method: Asked,
    samples: Sequence[Sample],
    max_batch_size: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[tuple[Timing, ...], ServiceTime | None]:
    """Run batches of 1, 2, 4, ... the maximum, of the samples over and over.

    Returns:
        The table, and the line through all batches (least squares, without pessimism).

    Raises:
        FailedError: a batch was not answered.
    """
    group = [samples[i] for i in by_shape(samples)[0]]
    largest = max(1, max_batch_size // max(sample.cost for sample in group))
    timings, sums = [], BatchSums()
    for rows in contract.batch_size_buckets(largest):
        batch = [group[i % len(group)] for i in range(rows)]
        method.ask(batch)  # the first of a size may compile or allocate
        seconds: list[float] = []
        while len(seconds) < FEWEST_RUNS or (
            len(seconds) < MOST_RUNS and sum(seconds) < SECONDS_A_SIZE
        ):
            began = clock()
            method.ask(batch)
            seconds.append(clock() - began)
        median = statistics.median(seconds)
        timings.append(Timing(rows, median, len(seconds)))
        # Each size counts alike, however often it was run: its median, three times.
        of_size = BatchSums(1.0, rows, rows**2, median, rows * median)
        sums = sums.plus(of_size.scaled(float(FEWEST_RUNS)))
    return tuple(timings), fit(sums, ridge=0.0) if len(timings) > 1 else None
