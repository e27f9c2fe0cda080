"""Runs what was set up, beside the clairvoyant minimum, and judges what was asserted. No I/O.

The load is a trace: CSV of rates, or JSON lines of recorded requests.
"""

import dataclasses
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchedapi_core.manifest import UnitError, parse_duration
from batchedapi_core.simulation import (
    Balancer,
    CapacityController,
    NoisyService,
    Outcome,
    PinnedConnections,
    RecordedTrace,
    StepTrace,
    at_random,
    clairvoyant,
    max_rate,
    simulate,
)
from batchedapi_serving.laptop.simulating.settings import SettingLine, Setup

MOST_ROWS: Final = 10**8
"""Most rows of a trace: some minutes of simulation, some GiB of memory."""
LONGEST: Final = 30 * 86400.0
"""Longest trace, in seconds."""
SINGLE_STEP: Final = 600.0
"""Seconds that the only line of a CSV is taken to last."""


class TraceError(ValueError):
    """A file that is no trace; says the line, what was expected and what came."""


def parse_trace(text: str) -> StepTrace | RecordedTrace:
    """A trace from the text of a file; times count from the whole second of the first.

    Args:
        text: Lines `t,rate` (seconds, rows/s from then on, ascending), or JSON objects with `t`
            and `rows` in any order, and perhaps `lengths` of rows; other keys are ignored. Of a
            CSV the last step lasts as long as the one before it, unless its rate is 0: then the
            trace ends with it.

    Raises:
        TraceError: it is neither.
    """
    lines = [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise TraceError("expected lines of t,rate or of JSON, got an empty file")
    if lines[0][1].startswith("{"):
        requests = [_request(i, line) for i, line in lines]
        first = math.floor(min(t for t, _, _ in requests))
        times = [t - first for t, _, _ in requests]
        rows = [n for _, n, _ in requests]
        _check_extent(max(times), sum(rows))
        return RecordedTrace(times, rows, [n for _, _, lengths in requests for n in lengths])
    if [cell.strip() for cell in lines[0][1].split(",")] == ["t", "rate"]:
        lines = lines[1:]
    return _stepped(lines)


def _stepped(lines: Sequence[tuple[int, str]]) -> StepTrace:
    if not lines:
        raise TraceError("expected lines of t,rate below the heading, got none")
    times: list[float] = []
    rates: list[float] = []
    for i, line in lines:
        try:
            t, rate = (float(cell) for cell in line.split(","))
        except ValueError as error:
            raise TraceError(
                f"line {i}: expected t,rate (seconds, rows/s), got {line[:100]!r}"
            ) from error
        if not (math.isfinite(t) and t >= 0.0 and math.isfinite(rate) and rate >= 0.0):
            raise TraceError(f"line {i}: expected finite numbers >= 0, got {line[:100]!r}")
        if times and t <= times[-1]:
            raise TraceError(f"line {i}: expected t after {times[-1]:g}, got {t:g}")
        times.append(t)
        rates.append(rate)
    first = float(math.floor(times[0]))
    starts = [t - first for t in times]
    if len(starts) == 1:
        end = starts[0] + SINGLE_STEP
    elif rates[-1] == 0.0:
        end = starts[-1]
    else:
        end = 2 * starts[-1] - starts[-2]
    if end < 1.0:
        raise TraceError(f"expected a trace of a second or more, got {end:g} s")
    starts[0] = 0.0
    spans = zip([*starts[1:], end], starts, rates, strict=True)
    _check_extent(end, sum(rate * max(0.0, stop - start) for stop, start, rate in spans))
    return StepTrace(tuple(starts), tuple(rates), end)


def _check_extent(seconds: float, rows: float) -> None:
    if seconds >= LONGEST or rows > MOST_ROWS:
        raise TraceError(
            f"expected at most {LONGEST / 86400:g} days and {MOST_ROWS:g} rows, got"
            f" {seconds:g} s with {rows:g} rows; cut the trace, or thin it out"
        )


def _request(number: int, line: str) -> tuple[float, int, list[int]]:
    expected = f'line {number}: expected an object such as {{"t": 0.25, "rows": 1}}'
    try:
        value = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{expected}, got {line[:100]!r}") from error
    if not isinstance(value, dict):
        raise TraceError(f"{expected}, got {line[:100]!r}")
    t, rows = value.get("t"), value.get("rows")
    if isinstance(t, bool) or not isinstance(t, int | float) or not 0.0 <= t <= sys.float_info.max:
        raise TraceError(f"{expected} with finite seconds t >= 0, got t {t!r:.100}")
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
        raise TraceError(f"{expected} with a whole number of rows >= 1, got rows {rows!r:.100}")
    lengths = value.get("lengths") or []
    if not isinstance(lengths, list) or not all(type(n) is int and n >= 0 for n in lengths):
        raise TraceError(f"{expected} with lengths as [3, 17], got lengths {lengths!r:.100}")
    return float(t), rows, lengths


DURATIONS: Final = ("p50", "p90", "p99")
SHARES: Final = ("miss_fraction",)
NUMBERS: Final = ("cost_ratio", "mean_rows", "replicas")
QUANTITIES: Final = (*DURATIONS, *SHARES, *NUMBERS)

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM: Final = re.compile(r"\s*([a-z_0-9]+)\s*(<=|>=|<|>)\s*(\S+)\s*")


class AssertionFormError(ValueError):
    """A text that compares nothing we know."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """A quantity of the outcome and its bound: seconds, a share of 0..1, or a number."""

    text: str
    quantity: str
    comparison: str
    bound: float

    def holds(self, value: float) -> bool:
        """Whether it is true of `value`; never of nan."""
        return _COMPARISONS[self.comparison](value, self.bound)

    def failure(self, value: float) -> str:
        """Why it does not hold, as a sentence."""
        if math.isnan(value):
            return f"{self.text} does not hold: no request was answered"
        return f"{self.text} does not hold: {self.quantity} is {shown(self.quantity, value)}"


def shown(quantity: str, value: float) -> str:
    """A value in the unit that an assertion about it is written in."""
    if math.isnan(value):
        return "-"
    if quantity in DURATIONS:
        return f"{1e3 * value:.4g}ms"
    return f"{100 * value:.3g}%" if quantity in SHARES else f"{value:.4g}"


def parse_assertion(text: str) -> Assertion:
    """An assertion such as `p99<80ms`, `miss_fraction<=5%` or `replicas<=8`.

    Raises:
        AssertionFormError: with what was expected.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise AssertionFormError(
            f"expected a quantity, one of < <= > >= and a bound, such as p99<80ms, got {text!r}"
        )
    quantity, comparison, bound = match.groups()
    if quantity not in QUANTITIES:
        raise AssertionFormError(f"expected one of {', '.join(QUANTITIES)}, got {quantity!r}")
    percent = quantity in SHARES and bound.endswith("%")
    try:
        if quantity in DURATIONS:
            value = parse_duration(bound)
        else:
            value = float(bound.removesuffix("%")) / 100 if percent else float(bound)
    except UnitError as error:
        raise AssertionFormError(f"{quantity}: {error}") from error
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        expected = "a share such as 0.05 or 5%" if quantity in SHARES else "a number"
        raise AssertionFormError(f"{quantity}: expected {expected}, got {bound!r}")
    return Assertion(text.strip(), quantity, comparison, value)


DRAWS: Final = 3
"""Choices of replicas that pinned connections are simulated with; the middle one is shown."""


@dataclass(frozen=True, slots=True)
class Way:
    """How requests get to replicas, and what comes of it."""

    name: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Ways:
    """The same load on the same number of replicas, each way."""

    replicas: int
    ways: tuple[Way, ...]

    def as_object(self) -> dict[str, Any]:
        """For `--json`: durations in seconds, null where nothing was answered."""
        return {
            "replicas": self.replicas,
            "ways": [
                {
                    "name": one.name,
                    "miss_fraction": one.outcome.miss_fraction,
                    "p50": _or_none(one.outcome.p50),
                    "p99": _or_none(one.outcome.p99),
                    "mean_rows": one.outcome.mean_rows,
                }
                for one in self.ways
            ],
        }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def ways_of(
    setup: Setup, trace: StepTrace | RecordedTrace, replicas: int, connections: int
) -> Ways:
    """Each request to any replica, so many pinned connections, and one queue.

    One queue feeds every lane: to the batching it is one replica that has the lanes of all. Its
    way through Redis is left out, as HTTP is; the guide says what that takes.
    """
    service = setup.service
    one = dataclasses.replace(
        service,
        lanes=service.lanes * replicas,
        max_in_flight=service.max_in_flight * replicas,
        queue_limit=None if service.queue_limit is None else service.queue_limit * replicas,
    )

    def fixed(what: NoisyService, count: int, balancer: Balancer = at_random) -> Outcome:
        return simulate(
            what, trace, None, seed=setup.seed, replicas=count, max_replicas=count,
            balancer=balancer,
        )  # fmt: skip

    pinned = [
        fixed(service, replicas, PinnedConnections(connections, setup.seed + draw))
        for draw in range(DRAWS)
    ]
    pinned.sort(key=lambda outcome: (outcome.miss_fraction, outcome.p99))
    return Ways(
        replicas,
        (
            Way("each request to any replica", fixed(service, replicas)),
            Way(f"{connections} connections that stay", pinned[DRAWS // 2]),
            Way("one queue for all replicas", fixed(one, 1)),
        ),
    )


_FIRST: float = 5.0
"""Seconds of load that the fleet is found ready for."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """An outcome and what it is measured by."""

    outcome: Outcome
    rate: float  # rows/s that one replica holds within the target
    minimum: float  # replica-seconds of the clairvoyant
    target: float | None  # seconds
    settings: tuple[SettingLine, ...]
    ways: Ways | None = None
    """Where it was asked what one queue would bring."""

    @property
    def cost_ratio(self) -> float:
        """Replica-seconds over the clairvoyant's."""
        return self.outcome.cost / self.minimum

    def value(self, quantity: str) -> float:
        """One of QUANTITIES: seconds, a share of 0..1, or a number."""
        outcome = self.outcome
        values: Mapping[str, float] = {
            "p50": outcome.p50,
            "p90": outcome.p90,
            "p99": outcome.p99,
            "miss_fraction": outcome.miss_fraction,
            "cost_ratio": self.cost_ratio,
            "mean_rows": outcome.mean_rows,
            "replicas": outcome.max_replicas,
        }
        return values[quantity]

    def as_object(self) -> dict[str, Any]:
        """For `--json`; durations in seconds, null where nothing was answered."""
        outcome = self.outcome
        numbers = {name: self.value(name) for name in QUANTITIES if name != "replicas"}
        return {
            **{name: None if math.isnan(value) else value for name, value in numbers.items()},
            "rejected_fraction": outcome.rejected_fraction,
            "requests": outcome.requests,
            "seconds": outcome.seconds,
            "scale_events": outcome.scale_events,
            "max_replicas": outcome.max_replicas,
            "replica_seconds": outcome.cost,
            "clairvoyant_replica_seconds": self.minimum,
            "rows_per_second_of_a_replica": self.rate,
            "batch_rows": {str(rows): count for rows, count in outcome.batch_rows.items()},
            "replicas": [list(choice) for choice in outcome.replicas],
            "settings": {name: {"value": v, "from": o} for name, v, o in self.settings},
            **({"ways": self.ways.as_object()} if self.ways is not None else {}),
        }


def run(setup: Setup, trace: StepTrace | RecordedTrace) -> Simulated:
    """Simulate; deterministic."""
    service = setup.service
    sizes = trace.sizes if isinstance(trace, RecordedTrace) else ()
    rate = max_rate(service, sizes=sizes, quantile=setup.quantile)
    first = trace.peak(0.0, min(_FIRST, max(1.0, trace.seconds)))
    controller = None if setup.policy is None else CapacityController(setup.policy)
    replicas = setup.replicas
    if replicas is None:
        used = 1.0 if setup.policy is None else setup.policy.target_utilization
        needed = math.ceil(first / (used * rate) - 1e-9)
        replicas = max(setup.min_replicas, min(setup.max_replicas, needed))
    outcome = simulate(
        service,
        trace,
        controller,
        seed=setup.seed,
        startup=setup.startup,
        replicas=replicas,
        min_replicas=setup.min_replicas,
        max_replicas=setup.max_replicas,
        why=(lambda: "") if controller is None else controller.why,
    )
    origin = "as the first load needs" if setup.replicas is None else "given"
    return Simulated(
        outcome=outcome,
        rate=rate,
        minimum=clairvoyant(trace, rate, min_replicas=setup.min_replicas).cost,
        target=service.latency_target,
        settings=(*setup.settings, SettingLine("replicas at the start", str(replicas), origin)),
        ways=None
        if setup.connections is None
        else ways_of(setup, trace, max(1, outcome.max_replicas), setup.connections),
    )
