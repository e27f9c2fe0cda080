"""How full batches get with 64 clients, who gets whose answer, and what a lone client waits.

    python tests/bench/batches.py
    python tests/bench/batches.py --manifest my.yaml --item '{"id": $client}'

The lone client asks the predictor as it is and with batching off (maxBatchSize 1), in turns.
"""

import math
import shutil
import string
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import click
import yaml
from harness import metrics, servers, wrk
from harness.report import ROOT, Table, environment, help_of, out_option, report
from harness.rounds import Spread, percentile, ratio

from batchedapi_core import contract

CLIENTS: Final = 64
EXAMPLES: Final[Mapping[str, str]] = {
    "examples/01-iris": "[$fraction, 3.$client, 1.4, 0.$client]",
    "examples/02-sleepy": '{"id": $client}',
}
"""Folder -> item of one client: $client is 0 to 63, $fraction 4.00 to 7.15."""


@dataclass(frozen=True, slots=True)
class Filling:
    """64 clients for a while, twice: answers from the checked run, the rest from the timed one."""

    requests_per_second: float
    mean_batch: float
    largest_possible: int
    full_percent: float
    distinct_answers: int
    right: int
    wrong: int
    errors: int


def items(template: str) -> list[bytes]:
    """The body of each client."""
    text = string.Template(template)
    return [
        text.substitute(client=n, fraction=f"{4 + n * 0.05:.2f}").encode() for n in range(CLIENTS)
    ]


def fill(server: servers.Server, bodies: list[bytes], seconds: int) -> Filling:
    """Ask each body alone for its right answer; then all clients, first checked, then timed."""
    replies = [servers.ask(server.port, server.path, body) for body in bodies]
    refused = [reply for reply in replies if reply[0] != 200]
    if refused:
        status, text = refused[0]
        raise click.ClickException(f"the item was answered {status}: {text!r}; see --item")
    answers = [body for _, body in replies]
    check = wrk.checked(server, bodies, answers, CLIENTS, seconds)
    before = metrics.read(server.admin_port)
    timed = wrk.timed(server, bodies[1], CLIENTS, seconds)
    after = metrics.read(server.admin_port)
    batches = metrics.batch_delta(before, after)
    return Filling(
        requests_per_second=timed.rate,
        mean_batch=batches.mean,
        largest_possible=int(metrics.total(after, contract.METRIC_MAX_BATCH_SIZE)),
        full_percent=100 * batches.full / max(batches.batches, 1),
        distinct_answers=len(set(answers)),
        right=check.right,
        wrong=check.wrong,
        errors=check.errors + timed.errors,
    )


def lone_latencies(server: servers.Server, body: bytes, count: int) -> list[float]:
    """Seconds of `count` requests one after the other on one connection."""
    connection = HTTPConnection(servers.HOST, server.port, timeout=10)
    seconds = []
    try:
        for _ in range(count):
            began = time.perf_counter()
            connection.request("POST", server.path, body, {"Content-Type": contract.JSON})
            status = connection.getresponse()
            status.read()
            seconds.append(time.perf_counter() - began)
    finally:
        connection.close()
    return seconds


@contextmanager
def unbatched(file: Path) -> Iterator[Path]:
    """A copy of the manifest and its folder with maxBatchSize 1."""
    with tempfile.TemporaryDirectory(prefix="bench-unbatched-") as folder:
        copy = Path(folder) / "example"
        shutil.copytree(file.resolve().parent, copy)
        documents = list(yaml.safe_load_all(file.read_text()))
        for document in documents:
            if document["kind"] == contract.KIND:
                document["spec"].setdefault("serverSideBatching", {})["maxBatchSize"] = 1
        (copy / file.name).write_text(yaml.safe_dump_all(documents))
        yield copy / file.name


def measure(file: Path, template: str, port: int, seconds: int, rounds: int) -> dict[str, Any]:
    """Everything about one manifest."""
    bodies = items(template)
    with servers.serving(file, port) as server:
        filling = fill(server, bodies, seconds)
        with unbatched(file) as other, servers.serving(other, port + 20) as plain:
            pairs = [
                (lone_latencies(server, bodies[1], 100), lone_latencies(plain, bodies[1], 100))
                for _ in range(rounds)
            ]
    return {
        "filling": asdict(filling),
        "lone_p50": [percentile(batched, 50) for batched, _ in pairs],
        "lone_p99": [percentile(batched, 99) for batched, _ in pairs],
        "unbatched_p50": [percentile(plain, 50) for _, plain in pairs],
    }


def filling_row(name: str, value: Mapping[str, Any]) -> list[str]:
    """One row of the first table."""
    return [
        name,
        f"{value['mean_batch']:.1f} of {value['largest_possible']}",
        f"{value['full_percent']:.0f} %",
        f"{value['right']} / {value['wrong']}",
        str(value["distinct_answers"]),
        str(value["errors"]),
        f"{value['requests_per_second']:,.0f}",
    ]


def lone_row(name: str, value: Mapping[str, Any]) -> list[str]:
    """One row of the second table, in ms."""
    return [
        name,
        ratio(value["lone_p50"], value["unbatched_p50"]).text(2),
        Spread.of([s * 1e3 for s in value["lone_p50"]]).text(2),
        Spread.of([s * 1e3 for s in value["unbatched_p50"]]).text(2),
        Spread.of([s * 1e3 for s in value["lone_p99"]]).text(2),
    ]


def _cases(manifest: Path | None, item: str | None) -> dict[Path, str]:
    if manifest is not None:
        if item is None:
            raise click.UsageError("--manifest needs --item, the JSON to send; $client is 0 to 63")
        return {manifest: item}
    found = {
        ROOT / folder / contract.MANIFEST_FILE: template for folder, template in EXAMPLES.items()
    }
    return {file: template for file, template in found.items() if file.is_file()}


@click.command(help=help_of(__doc__))
@click.option("--manifest", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--item", help="JSON that one client sends, with $client or $fraction in it.")
@click.option("--seconds", type=click.IntRange(1, 60), default=5, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--port", default=servers.PORT + 100, show_default=True, help="First of 22.")
@out_option
def main(
    *,
    manifest: Path | None,
    item: str | None,
    seconds: int,
    rounds: int,
    port: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    wrk.require_wrk()
    began = environment()
    found = {
        file.resolve().parent.name: measure(file, template, port, seconds, rounds)
        for file, template in _cases(manifest, item).items()
    }
    tables = [
        Table(
            f"{CLIENTS} clients, {seconds} s",
            ["manifest", "mean batch", "full", "right / wrong", "distinct", "errors", "req/s"],
            [filling_row(name, value["filling"]) for name, value in found.items()],
        ),
        Table(
            "one client: median (range) of the rounds",
            ["manifest", "batched / unbatched p50", "p50 ms", "unbatched p50 ms", "p99 ms"],
            [lone_row(name, value) for name, value in found.items()],
        ),
    ]
    note = (
        "Right and wrong: each client sends an item of its own and compares every answer with the"
        " one that the item got alone. Mean batch: change of batchedapi_batch_rows in a second run,"
        " in which wrk has one thread and does not read answers. Unbatched: the same manifest with"
        " maxBatchSize 1."
    )
    report("batches", began, tables, notes=[note], measured=found, out=out)
    fillings = [value["filling"] for value in found.values()]
    if any(f["wrong"] or f["errors"] or math.isinf(f["mean_batch"]) for f in fillings):
        sys.exit("wrong answers or errors: see the table")


if __name__ == "__main__":
    main()
