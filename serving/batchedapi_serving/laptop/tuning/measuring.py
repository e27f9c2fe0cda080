"""Measures a replica: t(n) by size, and a ladder of loads up to its knee.

It is asked with the user's items; else with random numbers for a tensor method, or the example of
its /docs.
"""

import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from batchedapi_core import contract
from batchedapi_core.simulation import tuning
from batchedapi_serving.laptop.tuning.load import (
    HOST,
    LoadOutcome,
    OpenLoop,
    clients_allowed,
    closed_loop,
    run_loop,
)
from batchedapi_serving.laptop.tuning.replica import PageCounters, TunedReplica
from batchedapi_serving.predictor.spec import DTYPES

DIFFERENT: Final = 64
"""Rows that are drawn; a request has one of them, or some."""
MOST_NUMBERS: Final = 512
"""Numbers of a row up to which it is sent as JSON, beyond as npy where that can be."""
VARIABLE: Final = 8
"""Length of a dimension that a method leaves open."""
SEED: Final = 20_231


class NoRowsError(ValueError):
    """Nobody says what the method takes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the requests, and their form."""

    path: str
    rows: Sequence[Any]
    """JSON values, or arrays of one shape: those are sent as npy."""
    batched: bool
    """Else the method takes one request at a time, and a row is its whole payload."""
    source: str
    """Where the rows come from."""

    def singles(self) -> list[bytes]:
        """Requests of one row, each row once."""
        return [self._request([row]) for row in self.rows]

    def request(self, count: int) -> bytes:
        """One request of `count` rows, from all over what there is: files are often in order."""
        all_of = len(self.rows)
        places = [(2 * i + 1) * all_of // (2 * count) for i in range(count)]
        return self._request([self.rows[place] for place in places])

    def _request(self, rows: Sequence[Any]) -> bytes:
        if isinstance(rows[0], np.ndarray):
            buffer = io.BytesIO()
            np.save(buffer, np.stack(rows))
            kind, body = contract.NPY, buffer.getvalue()
        else:
            kind = contract.JSON
            body = json.dumps({"instances": list(rows)} if self.batched else rows[0]).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def rows_for(
    path: str, openapi: Mapping[str, Any], metadata: Mapping[str, Any], items: Sequence[Any] | None
) -> Rows:
    """Rows for the method at `path`.

    Args:
        path: Of its predictions.
        openapi: The replica's document.
        metadata: Of its model, as v2 has it; {} if there is none.
        items: The user's own rows, as JSON.

    Raises:
        NoRowsError: nobody says what it takes.
    """
    content = openapi["paths"].get(path, {}).get("post", {}).get("requestBody", {})
    media: Mapping[str, Any] = content.get("content", {}).get(contract.JSON, {})
    batched = bool(media.get("schema"))
    if items:
        return Rows(path, items, batched, "the items given")
    if batched and (drawn := _drawn(metadata.get("inputs", []))):
        return Rows(path, drawn, batched, "random numbers")
    if media.get("example") is not None and (batched or media["example"] != {}):
        return Rows(path, [media["example"]], batched, "the method's example")
    raise NoRowsError(
        f"nobody says what {path} takes: give @batched an example=, or use --items FILE"
    )


def _drawn(inputs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Random rows of tensors; none if one of them holds no numbers."""
    if not inputs or any(one["datatype"] not in DTYPES for one in inputs):
        return []
    chance = np.random.default_rng(SEED)
    rows: list[dict[str, np.ndarray[Any, Any]]] = [{} for _ in range(DIFFERENT)]
    for row in rows:
        for one in inputs:  # its shape is without the first dimension, which is the batch's
            shape = [VARIABLE if length < 0 else length for length in one["shape"][1:]]
            dtype = np.dtype(DTYPES[one["datatype"]])
            row[one["name"]] = (
                chance.standard_normal(shape).astype(dtype)
                if dtype.kind == "f"
                else chance.integers(0, 2, shape).astype(dtype)
            )  # 0 or 1: whatever they index, these exist
    if len(inputs) == 1:
        name = inputs[0]["name"]
        if rows[0][name].size > MOST_NUMBERS:
            return [row[name] for row in rows]
        return [row[name].tolist() for row in rows]
    return [{name: array.tolist() for name, array in row.items()} for row in rows]


FEWEST_RUNS: Final = 4
SECONDS_A_SIZE: Final = 0.4
FLAT: Final = 1.03
"""Times the rate at half the size: two doublings that bring less end the measuring."""
CLIMB: Final = (0.4, tuning.COMFORTABLE, 0.95, 1.05, 1.2, 1.4, 1.7, 2.1, 2.6, 3.2, 4.0)
"""Shares of the load that is expected to be held, one after the other until one is not."""
DESCEND: Final = (0.25, 0.12, 0.06, 0.03)
"""Where not even the first of these is held."""
NEAR: Final = 1.06
"""Times the load that is held: one that is not held so near is the knee."""
_SETTLE: Final = 0.3  # seconds between two loads
Tell = Callable[[str], None]


class MeasuringError(Exception):
    """The replica does not answer what it is asked."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Batch times of a replica while so many lanes are busy."""

    processes: int
    threads: int
    curve: tuning.Curve
    size_of_row: float
    """Share of `maxBatchSize` that the mean row of the largest size takes: one, or its cost."""
    outside: float
    """Seconds of a request of one row that are not its batch's: HTTP, decoding, encoding."""

    @property
    def lanes(self) -> tuning.LaneCurve:
        """As the search takes them."""
        return tuning.LaneCurve(self.processes, self.threads, self.curve)


@dataclass(frozen=True, slots=True)
class Step:
    """One load of a ladder."""

    answers: LoadOutcome
    counted: PageCounters
    """Increase of the replica's counters."""
    seconds: float
    """Between their two readings."""

    @property
    def mean_rows(self) -> float:
        """Mean rows of a batch; 0 without batches."""
        return self.counted.rows / self.counted.batches if self.counted.batches else 0.0

    def held(self, quantile: float) -> bool:
        """Whether enough was answered in time."""
        return self.answers.share_in_time >= quantile


@dataclass(frozen=True, slots=True)
class Ladder:
    """Loads that one setting was run at."""

    steps: tuple[Step, ...]
    quantile: float

    @property
    def knee(self) -> Step | None:
        """The highest load that was held; None: none was."""
        held = [step for step in self.steps if step.held(self.quantile)]
        return max(held, key=lambda step: step.answers.goodput, default=None)

    @property
    def goodput(self) -> float:
        """Requests/s in time, at the knee."""
        return self.knee.answers.goodput if self.knee else 0.0

    @property
    def bounded(self) -> bool:
        """Whether the replica was what ended it, not a generator that fell behind.

        The lowest load that was not held says so: higher ones do not bound what is between.
        """
        missed = [step for step in self.steps if not step.held(self.quantile)]
        lowest = min(missed, key=lambda step: step.answers.rate, default=None)
        return lowest is not None and not lowest.answers.late

    @property
    def comfortable(self) -> Step | None:
        """The load that is nearest to a comfortable share of the goodput; None: none is held."""
        loads = [step for step in self.steps if step.held(self.quantile)]
        rate = tuning.COMFORTABLE * self.goodput
        return min(loads, key=lambda step: abs(step.answers.rate - rate), default=None)


def measure_curve(
    replica: TunedReplica,
    rows: Rows,
    lanes: tuple[int, int],
    *,
    largest: int,
    target: float,
    tell: Tell,
) -> Measured:
    """Time batches of 1, 2, 4, ... rows while every lane has one.

    It ends with the first size that misses the target by itself, with one that is not answered,
    and where two doublings brought next to nothing.

    Raises:
        MeasuringError: not even one row is answered, or no batch was run for it.
    """
    processes, threads = lanes
    sizes: list[int] = []
    seconds: list[float] = []
    size_of_row = outside = 0.0
    for size in tuning.powers_of_two(largest if rows.batched else 1):
        tell(f"batches of {size} rows, {processes * threads} at once")
        request, clients = rows.request(size), processes * threads
        first = run_loop(closed_loop(replica.port, request, clients, runs=1, seconds=0.0))
        before = replica.counters()
        asked = run_loop(
            closed_loop(replica.port, request, clients, runs=FEWEST_RUNS, seconds=SECONDS_A_SIZE)
        )
        counted = replica.counters().since(before)
        if first.statuses or asked.statuses or not counted.batches:
            if sizes:
                break
            if statuses := first.statuses or asked.statuses:
                raise MeasuringError(
                    f"a request of one row was answered {', '.join(map(str, statuses))};"
                    " `batchedapi serve` and a request by hand show why, and --items FILE gives"
                    " others"
                )
            raise MeasuringError(
                "no batch was run: calls of an async method take no lane. Tune a manifest whose"
                " `predict` is the method that it submits to"
            )
        # Of rows that differ in length, and ride apart, the time of all their batches.
        took = counted.batch_seconds * size / counted.rows
        requests = counted.rows / size
        by_request = math.isclose(counted.size, requests)  # sizeUnit Requests: each counts as one
        size_of_row = 1.0 if by_request else counted.size / counted.rows
        sizes.append(size)
        seconds.append(took)
        if size == 1:
            outside = max(0.0, asked.latency - took)
        if counted.one_by_one or is_last(sizes, seconds, target):
            break
    curve = tuning.Curve(tuple(sizes), tuple(seconds))
    return Measured(processes, threads, curve, size_of_row, outside)


def is_last(sizes: Sequence[int], seconds: Sequence[float], target: float) -> bool:
    """Whether a batch misses the target by itself, or two doublings brought next to nothing."""
    if seconds[-1] > target:
        return True
    if len(sizes) < 3:  # noqa: PLR2004 - two doublings
        return False
    rates = [n / t for n, t in zip(sizes[-3:], seconds[-3:], strict=True)]
    return max(rates[1:]) < FLAT * rates[0]


class Climb:
    """One ladder; it is there with what is known at any time."""

    def __init__(
        self, replica: TunedReplica, rows: Rows, *, target: float, quantile: float, seconds: float
    ) -> None:
        """`target` and `seconds`, of one step, in seconds."""
        self._replica = replica
        self._target = target
        self._requests = rows.singles()
        self._seconds = seconds
        self._quantile = quantile
        self._steps: list[Step] = []

    @property
    def ladder(self) -> Ladder:
        """As far as it got."""
        steps = sorted(self._steps, key=lambda step: step.answers.rate)
        return Ladder(tuple(steps), self._quantile)

    def climb(self, expected: float, tell: Tell) -> None:
        """Load by load until one is not held, and then between the two.

        Args:
            expected: Requests/s, > 0, that are expected to be held.
            tell: Is told of each load.
        """
        low = high = 0.0
        for share in CLIMB:
            if self.holds(share * expected, tell):
                low = share * expected
            else:
                high = share * expected
                break
        if not low:
            for share in DESCEND:
                if self.holds(share * expected, tell):
                    low = share * expected
                    break
                high = share * expected
        while low and high > NEAR * low:
            middle = (low + high) / 2
            if self.holds(middle, tell):
                low = middle
            else:
                high = middle

    def holds(self, rate: float, tell: Tell) -> bool:
        """One load of the ladder, of `rate` requests/s, and whether it is held."""
        tell(f"{rate:,.0f} requests/s")
        step = self.load(rate)
        if not step.held(self._quantile) and (step.answers.late or not self._steps):
            # Once more: it was another program's turn, or the first calls of a model.
            step = self.load(rate)
        self._steps.append(step)
        return step.held(self._quantile)

    def load(self, rate: float) -> Step:
        """One load of `rate` requests/s, which is not of the ladder."""
        load = OpenLoop(
            self._replica.port,
            self._requests,
            self._target,
            allowed=clients_allowed(),
            seed=len(self._steps),
        )
        readings: list[tuple[PageCounters, float]] = []

        def read() -> None:
            readings.append((self._replica.counters(), time.monotonic()))

        time.sleep(_SETTLE)
        answers = run_loop(load.run(rate, self._seconds, read))
        read()
        (before, began), (after, ended) = readings
        return Step(answers, after.since(before), ended - began)
