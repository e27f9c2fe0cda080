"""Who shares a batch: rows of different lengths, by t(n, L), beside Pad, Bucket and classes.

    python tests/bench/lengths.py [--rows 20000] [--seed 1] [--held-out]
    python tests/bench/lengths.py --long
    python tests/bench/lengths.py --admission
    python tests/bench/lengths.py --regret 100
    python tests/bench/lengths.py --cost

Each cell is one replica in virtual time: the product's own Scheduler, with one lane, whose batches
take fixed + per_padded * n * Lmax seconds and 5 % noise. Only who may share a batch differs:

- Pad: all rows, in order of arrival;
- Bucket: rows of one length;
- Classes: rows whose lengths lie between two powers of two;
- Measured: the product's rule, which learns t(n, L) as it runs.

Closed loops: clients that think for 1 ms. Open loops: Poisson arrivals at a share of what Classes
serve in the closed loop of 128. The first fifth of the rows is not counted. `--held-out` takes
texts and models that no constant of the rule was chosen by.

`--long` sends rows of which some are ten times as long as the others. `--admission` sets a latency
target, and sends less and more than can be served.

`--regret` draws so many surfaces t(n, L). It serves queues by what was learned of one from 200
batches, and after a change of it from 200 more, and by the truth. It compares the time. `--cost`
times one decision of a long queue, compiled or not.
"""

import argparse
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from heapq import heappop, heappush
from itertools import count
from math import inf
from pydoc_data.topics import topics
from typing import Final, NamedTuple

import numpy as np

from batchedapi_core.batching import Batch, BatchPolicy, Client, LaneChoice, Request, Strategy
from batchedapi_core.batching.lengths import lengths_of
from batchedapi_core.batching.policy import QueueOrder
from batchedapi_core.batching.queue import LengthQueue
from batchedapi_core.service_surface import ServiceSurface, SurfaceSamples
from batchedapi_core.simulation.virtual_replica import (
    BatchRun,
    Books,
    End,
    ReplicaPlan,
    VirtualReplica,
)

LONGEST: Final = 512
THINK: Final = 0.001  # seconds
NOISE: Final = 0.05
UNCOUNTED: Final = 0.2  # share of the rows, the first
CLOSED: Final = (32, 128)  # clients
OPEN: Final = (0.5, 0.8)  # of the capacity with classes
HOPELESS: Final = 4000
"""Rows that wait, at which an open loop is given up: the rule does not serve it."""
RULES: Final = ("Pad", "Bucket", "Classes", "Measured")


class Model(NamedTuple):
    """A model whose batch takes the time of its padding; its largest batch."""

    name: str
    fixed: float  # seconds
    per_padded: float  # seconds
    most: int  # rows

    def seconds(self, rows: int, longest: int) -> float:
        """Seconds of a batch, without noise."""
        return self.fixed + self.per_padded * rows * longest


MODELS: Final = (Model("CPU", 0.004, 0.00002, 32), Model("GPU", 0.008, 0.000002, 64))
OTHER_MODELS: Final = (Model("small", 0.001, 0.00004, 16), Model("large", 0.02, 0.000005, 128))


class Served(NamedTuple):
    """Figures of one rule in one cell."""

    rows_per_second: float
    p99: float  # seconds; inf: it does not serve the load
    padding: float  # share of what was computed


Lengths = Callable[[random.Random], int]


def lognormal(rng: random.Random) -> int:
    """As texts are said to be."""
    return max(4, min(LONGEST, int(rng.lognormvariate(3.6, 0.9))))


def two_peaks(rng: random.Random) -> int:
    """Four short rows for each long one."""
    if rng.random() < 0.8:
        return max(4, min(LONGEST, int(rng.gauss(16, 4))))
    return max(64, min(LONGEST, int(rng.gauss(300, 80))))


SEPARATORS: Final = {
    "sentences": r"(?<=[.!?:])\s+",
    "paragraphs": r"\n\s*\n",
    "sections": r"\n[^\n]+\n[*=-]{3,}\n",
}


def parts(separator: str, of: Sequence[str] = tuple(topics.values())) -> list[list[str]]:
    """Words of each part of texts: of those that Python ships about itself."""
    found = re.split(separator, "\n\n\f".join(of))
    return [part.split() for part in found if part.strip()]


def texts(separator: str, of: Sequence[str] = tuple(topics.values())) -> Lengths:
    """Tokens, 1.3 a word."""
    lengths = [max(3, min(LONGEST, int(1.3 * len(words)))) for words in parts(separator, of)]
    return lambda rng: rng.choice(lengths)


DRAWN: Final[dict[str, Lengths]] = {"log-normal": lognormal, "two peaks": two_peaks}
REAL: Final[dict[str, Lengths]] = {kind: texts(one) for kind, one in SEPARATORS.items()}
_DOCSTRINGS: Final = sorted({str(each.__doc__) for each in vars(np).values() if each.__doc__})
HELD_OUT: Final[dict[str, Lengths]] = {
    "numpy's lines": texts(r"\n", _DOCSTRINGS),
    "numpy's paragraphs": texts(r"\n\s*\n", _DOCSTRINGS),
    "numpy's docstrings": texts(r"\f", _DOCSTRINGS),
}


class Cell(NamedTuple):
    """A load on a model."""

    kind: str
    lengths: Lengths
    model: Model
    clients: int | None = None  # of a closed loop
    rate: float = 0.0  # rows a second, of an open loop
    target: float | None = None  # seconds to an answer, which admission keeps


class Clients(Books):
    """The replica of a cell under a rule, and its clients."""

    def __init__(self, cell: Cell, rule: str, seed: int) -> None:
        self._cell, self._rule = cell, rule
        self._rng = random.Random(seed)
        self._lengths: dict[int, int] = {}  # of a request, by its id
        self._clients = [Client() for _ in range(cell.clients or 0)]
        self._of: dict[int, Client] = {}
        self._due: list[tuple[float, int, Client | None]] = []  # heap of arrivals
        self._tie = count()
        self.answered: list[tuple[float, float]] = []  # when, and seconds, of each row
        self.by_length: dict[int, list[float]] = {}  # seconds of each row
        self._own = self._padded = 0
        self.refused = 0
        policy = BatchPolicy(
            cell.model.most, 0.005, Strategy.WINDOW,
            latency_target=cell.target, pads_to=LONGEST if rule == "Measured" else 0,
        )  # fmt: skip
        self._replica = VirtualReplica(
            ReplicaPlan({"m": policy}, lane_choice=LaneChoice.LEAST_LOADED),
            self._run,
            self,
            random.Random(seed),
        )

    def _run(self, batch: Batch) -> BatchRun:
        lengths = [self._lengths[request.id] for request in batch.requests]
        self._own += sum(lengths)
        self._padded += batch.rows * max(lengths)
        noise = self._rng.lognormvariate(0.0, NOISE)
        return BatchRun(noise * self._cell.model.seconds(batch.rows, max(lengths)))

    def ended(self, request: Request, how: End, now: float) -> None:
        """See Books."""
        assert how is End.ANSWERED
        seconds = now - request.arrived
        self.answered.append((now, seconds))
        self.by_length.setdefault(self._lengths.pop(request.id), []).append(seconds)
        client = self._of.pop(request.id, None)
        if client is not None:
            self._comes(now + THINK * self._rng.uniform(0.8, 1.2), client)

    def _comes(self, at: float, client: Client | None) -> None:
        heappush(self._due, (at, next(self._tie), client))

    def _shapes(self, length: int) -> Sequence[tuple[int, ...]] | None:
        if self._rule == "Pad":
            return None
        return [(length.bit_length(),) if self._rule == "Classes" else (length,)]

    def _arrives(self) -> None:
        at, _, client = heappop(self._due)
        length = self._cell.lengths(self._rng)
        if client is None:
            self._comes(at + self._rng.expovariate(self._cell.rate), None)
        else:
            self._of[self._next_id] = client
        self._lengths[self._next_id] = length  # before: it may run at once
        shapes = self._shapes(length)
        if isinstance(self._replica.arrive("m", 1, at, client=client, shapes=shapes), Request):
            self._next_id += 1
        else:
            self.refused += 1

    def serve(self, rows: int) -> Served:
        """So many rows are answered."""
        self._next_id = 1
        for client in self._clients:
            self._comes(0.0, client)
        if not self._clients:
            self._comes(0.0, None)
        while len(self.answered) < rows:
            if self._replica.next_event < (self._due[0][0] if self._due else inf):
                self._replica.step(self._replica.next_event)
            else:
                self._arrives()
            if self._replica.queue_rows > HOPELESS:
                return Served(0.0, inf, 0.0)
        counted = self.answered[int(UNCOUNTED * rows) :]
        seconds = sorted(seconds for _, seconds in counted)
        rate = len(counted) / (counted[-1][0] - counted[0][0])
        return Served(rate, seconds[int(0.99 * len(seconds))], 1.0 - self._own / self._padded)


def cells(
    seed: int,
    rows: int,
    kinds: dict[str, Lengths],
    models: Sequence[Model] = MODELS,
    *,
    opened: bool = True,
) -> list[Cell]:
    """Closed loops, and if `opened` Poisson loads by what classes serve."""
    found = []
    for kind, lengths in kinds.items():
        for model in models:
            closed = [Cell(kind, lengths, model, clients) for clients in CLOSED]
            found += closed
            if opened:
                capacity = Clients(closed[-1], "Classes", seed).serve(rows // 4).rows_per_second
                found += [Cell(kind, lengths, model, None, share * capacity) for share in OPEN]
    return found


def measured(cell: Cell, rows: int, seed: int) -> dict[str, Served]:
    """By rule."""
    return {rule: Clients(cell, rule, seed).serve(rows) for rule in RULES}


def drawn(rng: random.Random) -> ServiceSurface:
    """A surface as models have them: 0.5 to 20 ms, and padding that costs something."""

    def some(low: float, high: float) -> float:
        return 10 ** rng.uniform(low, high)

    per_row = rng.choice((0.0, some(-5.0, -3.3)))
    return ServiceSurface(
        some(-3.3, -1.7), per_row, some(-6.5, -4.3), rng.choice((0.0, some(-6.5, -4.5)))
    )


class Serving:
    """Queues that are served by what is learned of a surface, with noise."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.learned = SurfaceSamples()

    def queue(self) -> LengthQueue:
        """Sixty-four rows, at once."""
        queue = LengthQueue(QueueOrder.FIFO)
        for number in range(64):
            request = Request(number, "m", 1, 1, Client(), 0.001 * number, inf)
            request.length = lognormal(self.rng)
            queue.append(request)
        return queue

    def seconds(self, queue: LengthQueue, truth: ServiceSurface, *, known: bool) -> float:
        """Seconds that it takes to serve all of it, by the truth or by what is learned."""
        now = start = 0.064
        while queue.size:
            surface = truth if known else self.learned.surface
            matters = known or self.learned.padding_matters
            group = queue.group(surface, 32) if matters else None
            if group is None:
                batch = queue.take(32, now).requests
            else:
                batch = queue.take_these(group, now, 0.0).requests
            rows, longest, own = lengths_of(batch)
            took = truth.seconds(rows, longest, own)
            now += took
            if not known:
                self.learned.observe(rows, longest, own, took * self.rng.lognormvariate(0, NOISE))
        return now - start

    def learn(self, truth: ServiceSurface, batches: int) -> None:
        """From batches that its own rule formed."""
        before = self.learned.batches
        while self.learned.batches < before + batches:
            self.seconds(self.queue(), truth, known=False)

    def regret(self, truth: ServiceSurface, queues: int = 8) -> float:
        """Share of time that is lost to not knowing the truth."""
        ours = best = 0.0
        for seed in range(queues):
            self.rng.seed(seed)
            ours += self.seconds(self.queue(), truth, known=False)
            self.rng.seed(seed)
            best += self.seconds(self.queue(), truth, known=True)
        return ours / best - 1.0


def regrets(seed: int) -> tuple[float, float]:
    """After 200 batches, and after 200 more of another surface."""
    serving = Serving(seed)
    before = drawn(serving.rng)
    now = ServiceSurface(*[term * 3 ** serving.rng.uniform(-1, 1) for term in astuple(before)])
    found = []
    for truth in (before, now):
        serving.learn(truth, 200)
        found.append(serving.regret(truth))
    return found[0], found[1]


def cost(queued: int, most: int) -> float:
    """Seconds that the choice of one batch takes."""
    rng = random.Random(1)
    queue = LengthQueue(QueueOrder.FIFO)
    for number in range(queued):
        request = Request(number, "m", 1, 1, Client(), 0.001 * number, inf)
        request.length = lognormal(rng)
        queue.append(request)
    surface = ServiceSurface(0.004, 0.0, 0.00002, 0.0)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        queue.group(surface, most)
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def long_rows(model: Model, rate: float, share: float, rows: int, rule: str) -> tuple[float, float]:
    """p99 in seconds of rows of 50, and of a share of rows of 500."""
    cell = Cell("long", lambda rng: 500 if rng.random() < share else 50, model, None, rate)
    clients = Clients(cell, rule, 1)
    clients.serve(rows)
    short, long = (sorted(clients.by_length[length]) for length in (50, 500))
    return short[int(0.99 * len(short))], long[int(0.99 * len(long))]


def print_long(rows: int) -> None:
    """p99 of long rows, and twice their time alone and a batch of short ones."""
    for model in MODELS:
        bound = 2 * model.seconds(1, 500) + model.seconds(model.most, 50)
        capacity = 1 / (0.9 * model.seconds(model.most, 50) + 0.1 * model.seconds(model.most, 500))
        for share, load in ((0.001, 0.5), (0.1, 0.2), (0.1, 0.35), (0.1, 0.5), (0.1, 0.65)):
            rate = load * capacity * model.most
            figures = [
                f"{1e3 * short:.0f}, {1e3 * long:.0f}"
                for short, long in (
                    long_rows(model, rate, share, rows, rule) for rule in ("Classes", "Measured")
                )
            ]
            print(f"| {model.name} | {share:.1%} | {rate:.0f} | {' | '.join(figures)} |"
                  f" {1e3 * bound:.0f} |", flush=True)  # fmt: skip


def admitted(cell: Cell, rows: int, seed: int) -> tuple[float, float, float, float]:
    """Shares that are refused, and late of those answered; p99 in seconds; rows/s in time."""
    assert cell.target is not None
    clients = Clients(cell, "Measured", seed)
    clients.serve(rows)
    took = sorted(seconds for _, seconds in clients.answered[int(UNCOUNTED * rows) :])
    late = sum(seconds > cell.target for seconds in took) / len(took)
    in_time = sum(seconds <= cell.target for _, seconds in clients.answered)
    return (
        clients.refused / (clients.refused + rows),
        late,
        took[int(0.99 * len(took))],
        in_time / clients.answered[-1][0],
    )


def print_admission(rows: int, seed: int) -> None:
    """Loads of 0.8, 1.5 and 2 times what 128 clients in a closed loop are served."""
    for kind, lengths in {**DRAWN, **REAL}.items():
        for model in MODELS:
            capacity = Clients(Cell(kind, lengths, model, 128), "Measured", seed).serve(rows // 4)
            for target in (0.1, 0.3):
                for load in (0.8, 1.5, 2.0):
                    rate = load * capacity.rows_per_second
                    cell = Cell(kind, lengths, model, None, rate, target)
                    refused, late, p99, in_time = admitted(cell, rows, seed)
                    figures = f"{refused:.0%} | {late:.2%} | {1e3 * p99:.0f} | {in_time:.0f}"
                    asked = f"{kind} | {model.name} | {1e3 * target:.0f} | {load}"
                    print(f"| {asked} | {figures} |", flush=True)


def line(cell: Cell, served: dict[str, Served]) -> str:
    """A row of the table."""
    load = f"{cell.clients} clients" if cell.clients else f"{cell.rate:.0f} rows/s"
    figures = [
        f"{one.rows_per_second:.0f}, {1e3 * one.p99:.0f}" if one.p99 < inf else "-"
        for one in served.values()
    ]
    ours = served["Measured"]
    best = max(one.rows_per_second for one in served.values() if one is not ours)
    gain = f"{ours.rows_per_second / best:.2f}"
    tail = f"{ours.p99 / served['Classes'].p99:.2f}"
    return " | ".join(
        ["", cell.kind, cell.model.name, load, *figures, gain, tail, f"{ours.padding:.0%}", ""]
    ).strip()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--regret", type=int, default=0)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--admission", action="store_true")
    options = parser.parse_args()
    if options.regret:
        found = list(zip(*map(regrets, range(options.regret)), strict=True))
        for when, each in zip(("200 batches", "a change"), found, strict=True):
            mean, p90, worst = sum(each) / len(each), sorted(each)[int(0.9 * len(each))], max(each)
            print(f"after {when}: mean {mean:.2%}, p90 {p90:.2%}, worst {worst:.2%}")
        return
    if options.cost:
        for queued in (100, 1000, 10_000):
            figures = ", ".join(
                f"{1e6 * cost(queued, most):.0f} us at {most} rows" for most in (32, 64, 256, 1024)
            )
            print(f"{queued} queued: {figures}")
        return
    if options.long:
        print_long(options.rows)
        return
    if options.admission:
        print_admission(options.rows, options.seed)
        return
    if options.held_out:
        chosen = cells(options.seed, options.rows, HELD_OUT, OTHER_MODELS)
    else:
        drawn_cells = cells(options.seed, options.rows, DRAWN, opened=False)
        chosen = [*drawn_cells, *cells(options.seed, options.rows, REAL)]
    for cell in chosen:
        print(line(cell, measured(cell, options.rows, options.seed)), flush=True)


if __name__ == "__main__":
    main()
