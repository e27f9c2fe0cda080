"""Connections that stay with their replica beside one queue for all: goodput, and p99 at half load.

    python tests/bench/shared_queue_pinned.py

    python tests/bench/shared_queue_pinned.py --slower 4 --rows 4   # two cores have time to spare

Four models of 10 ms a batch and 0.2 ms a row, at most 16 rows a batch, are asked over 64
connections of HTTP/1.1 and 4 of gRPC. Each stays where it was drawn to, as behind a ClusterIP: at
one of four replicas, or at one of two web processes with one queue for four workers. All of them
are processes here and no pods: the draw is what makes the difference, and it is the same. A round
is a draw; each way gets half of the load and near all of it, and then what is between until the
highest is found that is held.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
import orjson
import uvloop
from harness import pinned, queued, servers
from harness.http_answers import request
from harness.pinned import Asked, Pinned
from harness.processes import busy_seconds
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread, ratio
from harness.servers import Server

from batchedapi_core import contract
from batchedapi_serving.codecs.open_inference_pb2 import ModelInferRequest
from batchedapi_serving.tuning.load import Answers

_MODELS: Final = 4
_WEB: Final = 2
"""As many as the operator starts with."""
_HTTP: Final = 64
_GRPC: Final = 4
_BATCH: Final = 16  # rows at most
_ROWS: Final = 8
"""Of a request. Two cores do not read as many requests of one row as four models can run; with four
rows near all of the load keeps 1.6 of both busy with a queue, and the generator is late."""
_TARGET_MS: Final = 100
_FIXED_MS: Final = 10
_ROW_MS: Final = 0.2
_HELD: Final = 0.99
"""A load is held where so many of all requests that were due are answered in time."""
SHARES: Final = tuple(number / 40 for number in range(12, 43))
"""Loads that may be tried, of the nominal one: from 0.3 to 1.05 in steps of 0.025."""
_HALF: Final = 0.5
_NEAR: Final = 0.9
_PATIENCE: Final = 1.0
"""Seconds for the last answers: later ones are late in any case."""
_TRIES: Final = 2
"""Of a load, while the generator itself was late."""


class Case(NamedTuple):
    """What is asked of the models."""

    rows: int
    """Of each request."""
    slower: int
    """Times as long that a batch takes, and may take to be in time."""

    @property
    def nominal(self) -> float:
        """Rows/s of all models with full batches and nothing around them."""
        full = self.slower * (_FIXED_MS + _ROW_MS * _BATCH) / 1000
        return _MODELS * _BATCH / full

    @property
    def target(self) -> float:
        """Seconds."""
        return self.slower * _TARGET_MS / 1000

    def manifest(self) -> dict[str, Any]:
        """Of the models."""
        cost = {"milliseconds": self.slower * _FIXED_MS, "row_milliseconds": self.slower * _ROW_MS}
        value = servers.manifest("Echo", max_batch_size=_BATCH, config=cost)
        value["spec"]["serverSideBatching"]["maxLatency"] = f"{1000 * self.target:g}ms"
        return value

    def asked(self) -> Asked:
        """Each request."""
        rows = np.arange(self.rows)
        message = ModelInferRequest(model_name="echo", raw_input_contents=[rows.tobytes()])
        message.inputs.add(name="input", datatype="INT64", shape=rows.shape)
        http = request(contract.PATH_PREDICT, contract.JSON, orjson.dumps(rows.tolist()))
        return Asked(http, message.SerializeToString())


class Step(NamedTuple):
    """A load that was offered."""

    answers: Answers
    busy: float
    """Cores of the machine that were."""

    @property
    def held(self) -> bool:
        """Whether enough was answered in time."""
        return self.answers.share_in_time >= _HELD


@dataclass
class Way:
    """How the requests of one draw get to the models, and the loads that were tried."""

    name: str
    servers: Sequence[Server]
    pinned: Pinned
    case: Case
    steps: dict[float, Step] = field(default_factory=dict)
    """By share of the nominal load."""

    @property
    def goodput(self) -> float:
        """Rows/s in time of the highest load that was held; 0: none was."""
        held = [share for share, step in self.steps.items() if step.held]
        return self.in_time(max(held)) if held else 0.0

    def to_try(self) -> float | None:
        """The next load; None: the knee is found."""
        return next_share({share: step.held for share, step in self.steps.items()})

    def in_time(self, share: float) -> float:
        """Rows/s."""
        return self.case.rows * self.steps[share].answers.goodput

    def p99(self, share: float) -> float:
        """Milliseconds, from when requests were due."""
        return 1000 * self.steps[share].answers.p(0.99)


Draws = Sequence[tuple[Way, Way]]
"""Of each draw: one queue, and pinned connections."""


def next_share(held: Mapping[float, bool]) -> float | None:
    """The load of SHARES to try next, halfway to the knee; None: it is between two neighbours.

    Args:
        held: Whether each load that was tried was. One above another that was not is believed.
    """
    tried = {SHARES.index(share): well for share, well in held.items()}
    low = max((place for place, well in tried.items() if well), default=-1)
    high = min((place for place, well in tried.items() if not well and place > low),
               default=len(SHARES))  # fmt: skip
    return SHARES[(low + high) // 2] if high > low + 1 else None


async def _offer(way: Way, share: float, seconds: float, seed: int) -> None:
    """A load; once more if the generator was late."""
    case = way.case
    rate = share * case.nominal / case.rows
    for _ in range(_TRIES):
        answers = Answers(rate, seconds, case.target)
        busy, began = busy_seconds(), time.monotonic()
        await pinned.send(way.pinned, case.asked(), answers, seed=seed, patience=_PATIENCE)
        busy = (busy_seconds() - busy) / (time.monotonic() - began)
        way.steps[share] = Step(answers, busy)
        click.echo(
            f"draw {seed}, {way.name}, {share:g} of nominal: {answers.share_in_time:.2%} in time,"
            f" p99 {way.p99(share):.0f} ms, {busy:.2f} cores busy"
            f"{', the generator was late' if answers.late else ''}"
        )
        if not answers.late:
            break


async def compared(ways: Sequence[Way], seconds: float, seed: int) -> None:
    """One draw: half of the load, near all of it, and what is between until the knee is found."""
    todo = [(way, share) for share in (_HALF, _NEAR) for way in ways]
    while todo:
        for way, share in todo:
            await _offer(way, share, seconds, seed)
        todo = [(way, to_try) for way in ways if (to_try := way.to_try()) is not None]


async def all_draws(
    ways: Mapping[str, Sequence[Server]], case: Case, rounds: int, seconds: float, seed: int
) -> Draws:
    """One after the other."""
    found = []
    for number in range(seed, seed + rounds):
        one, four = (
            Way(name, some, pinned.draw(some, _HTTP, _GRPC, number), case)
            for name, some in ways.items()
        )
        await compared((one, four), seconds, number)
        found.append((one, four))
    return found


def measure(port: int, case: Case, rounds: int, seconds: float, seed: int) -> Draws:
    """Start both, and compare them in so many draws."""
    value = case.manifest()
    first = port + queued.PORTS
    with (
        queued.running(value, port, web=_WEB, workers=_MODELS, grpc=True) as run,
        servers.manifest_file(value) as file,
        contextlib.ExitStack() as stack,
    ):
        replicas = [
            stack.enter_context(servers.serving(file, at, grpc_port=at + 2))
            for at in range(first, first + 3 * _MODELS, 3)
        ]
        ways = {"one queue": run.web, "pinned": replicas}
        return uvloop.run(all_draws(ways, case, rounds, seconds, seed))


def table(found: Draws) -> Table:
    """A row for each draw, and their medians with the ranges."""
    columns = [
        "draw: connections of each replica",
        "goodput rows/s: one queue", "pinned", "ratio",
        f"rows/s in time of {_NEAR:.0%}: one queue", "pinned", "ratio",
        f"p99 ms at {_HALF:.0%}: one queue", "pinned", "ratio",
    ]  # fmt: skip
    rows = [
        [", ".join(map(str, four.pinned.counts(four.servers))), *_cells([(one, four)])]
        for one, four in found
    ]
    return Table("Four models", columns, [*rows, ["median (range)", *_cells(found)]])


def _cells(found: Draws) -> list[str]:
    """Goodput, what is in time near all of the load, and p99 at half of it."""
    figures: tuple[tuple[Callable[[Way], float], int], ...] = (
        (lambda way: way.goodput, 0),
        (lambda way: way.in_time(_NEAR), 0),
        (lambda way: way.p99(_HALF), 1),
    )
    cells = []
    for figure, digits in figures:
        ours, theirs = ([figure(ways[side]) for ways in found] for side in (0, 1))
        cells += [_told(Spread.of(some), digits) for some in (ours, theirs)]
        cells.append(_told(ratio(ours, theirs), 2))
    return cells


def _told(spread: Spread, digits: int) -> str:
    return f"{spread.median:,.{digits}f}" if spread.low == spread.high else spread.text(digits)


def late_loads(ways: Iterable[Way]) -> int:
    """Those in which the generator was, which counts against whom it asked."""
    return sum(step.answers.late for way in ways for step in way.steps.values())


def notes_of(case: Case, rounds: int, seconds: float, found: Draws) -> list[str]:
    """What the figures are."""
    steps = [step for ways in found for way in ways for step in way.steps.values()]
    load = (
        f"{_HTTP} connections of HTTP/1.1 and {_GRPC} of gRPC, drawn {rounds} times; each has as"
        f" much of the load, in Poisson arrivals (open loop) of {case.rows} rows. Time"
        " counts from when a request was due, the wait for its own busy connection included. A"
        f" batch takes {case.slower * _FIXED_MS} ms and {case.slower * _ROW_MS:g} ms a row, at most"
        f" {_BATCH} rows; maxLatency is {1000 * case.target:g} ms for both. {_WEB} web processes"
        f" and {_MODELS} workers, or {_MODELS} replicas."
    )
    goodput = (
        f"Goodput: rows/s in time ({1000 * case.target:g} ms) of the highest load of which"
        f" {_HELD:.0%} are; loads differ by 2.5 % of {case.nominal:,.0f} rows/s, which is what the"
        f" models serve in full batches with nothing around them. {seconds:g} s a load."
    )
    machine = (
        f"The generator was late in {late_loads(one for one, _ in found)} loads with one queue and"
        f" in {late_loads(four for _, four in found)} with pinned connections, of {len(steps)}; at"
        f" most {max(step.busy for step in steps):.2f} cores were busy."
    )
    return [load, goodput, machine]


def measured(found: Draws, seed: int) -> list[dict[str, Any]]:
    """Everything, for programs."""
    return [
        {
            "draw": number, "way": way.name, "connections": way.pinned.counts(way.servers),
            "goodput": way.goodput,
            "loads": [
                {
                    "share": share, "due": answers.due, "in_time": answers.in_time,
                    "refused": answers.refused, "broken": answers.broken,
                    "p50_ms": 1000 * answers.p(0.5), "p99_ms": way.p99(share),
                    "late": answers.late, "busy_cores": busy,
                }
                for share, (answers, busy) in sorted(way.steps.items())
            ],
        }
        for number, ways in enumerate(found, seed) for way in ways
    ]  # fmt: skip


@click.command(help=help_of(__doc__))
@click.option("--rounds", type=click.IntRange(1, 20), default=5, show_default=True, help="Draws.")
@click.option("--seconds", type=click.FloatRange(1, 60), default=5, show_default=True,
              help="Of each load.")  # fmt: skip
@click.option("--rows", type=click.IntRange(1, _BATCH), default=_ROWS, show_default=True,
              help="Of each request.")  # fmt: skip
@click.option("--slower", type=click.IntRange(1, 5), default=1, show_default=True,
              help="Times as long that a batch takes, and the target.")  # fmt: skip
@click.option("--seed", default=1, show_default=True, help="Of the first draw.")
@click.option("--port", default=servers.PORT + 1600, show_default=True,
              help=f"First of {queued.PORTS + 3 * _MODELS}.")  # fmt: skip
@out_option
def main(
    *,
    rounds: int,
    seconds: float,
    rows: int,
    slower: int,
    seed: int,
    port: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began = environment()
    case = Case(rows, slower)
    found = measure(port, case, rounds, seconds, seed)
    name = "shared_queue-pinned" + (f"-slower-{slower}" if slower > 1 else "")
    report(
        name, began, [table(found)], notes=notes_of(case, rounds, seconds, found),
        measured={"draws": measured(found, seed)}, out=out,
    )  # fmt: skip
    if late_loads(four for _, four in found):
        sys.exit("the generator was late with pinned connections, which flatters the queue")
    more = ratio([one.goodput for one, _ in found], [four.goodput for _, four in found])
    waits = ratio([one.p99(_HALF) for one, _ in found], [four.p99(_HALF) for _, four in found])
    if more.median <= 1 or waits.median > 1:
        sys.exit("one queue is no better than connections that stay: see the table")


if __name__ == "__main__":
    main()
