"""More than a replica can do: what is still served, and how fast the rest is refused.

    python tests/bench/overload.py

The predictor of examples/02-sleepy, at most 8 rows a batch (about 690 rows/s), against Poisson
arrivals that do not wait for answers. Each item says when nobody waits for it any more; the
predictor counts the items that were run after that.
"""

import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from harness import metrics, servers
from harness.connections import run_client
from harness.http_answers import request
from harness.load import IdLoad
from harness.open_loop import Answers, OpenLoop
from harness.processes import children, resident_kib, slope_per_hour
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract

MAX_BATCH: Final = 8
PEAK_SECONDS: Final = 8.0
_ON_THE_WAY: Final = 0.1
"""Seconds that a request may take to the server on these cores; its timeout counts from there."""
CASES: Final = {
    "queue bounded (as shipped)": {"timeout": "30s"},
    "latency target 100 ms": {"timeout": "30s", "max_latency": "100ms"},
    "timeout 500 ms": {"timeout": "500ms"},
}


def manifest(case: dict[str, str]) -> dict[str, Any]:
    """A manifest of the sleepy predictor."""
    value = servers.manifest("Sleepy", max_batch_size=MAX_BATCH)
    value["spec"]["overload"] = {"timeout": case["timeout"]}
    if "max_latency" in case:
        value["spec"]["serverSideBatching"]["maxLatency"] = case["max_latency"]
    return value


async def peak(server: servers.Server) -> float:
    """Requests/s with 64 clients that ask again when answered."""
    load = IdLoad(b'{"n":%d}')
    clients = [asyncio.create_task(run_client(server.port, load)) for _ in range(64)]
    await asyncio.sleep(1.0)
    before, began = load.right, time.monotonic()
    await asyncio.sleep(PEAK_SECONDS)
    rate = (load.right - before) / (time.monotonic() - began)
    load.stop()
    await asyncio.gather(*clients)
    return rate


async def overload(
    server: servers.Server, rate: float, seconds: float, patience: float
) -> tuple[Answers, list[tuple[float, float]]]:
    """Answers, and (seconds, KiB) of the web process."""
    numbers = itertools.count()

    def ask() -> bytes:
        item = {"n": next(numbers), "until": time.monotonic() + patience + _ON_THE_WAY}
        return request(contract.PATH_PREDICT, contract.JSON, json.dumps(item).encode())

    load = OpenLoop(server.port, rate, ask)
    (web,) = children(server.pid, "batchedapi_serving.web_process")
    memory: list[tuple[float, float]] = []

    async def watch() -> None:
        began = time.monotonic()
        while True:
            memory.append((time.monotonic() - began, resident_kib(web)))
            await asyncio.sleep(1.0)

    watching = asyncio.create_task(watch())
    answers = await load.run(seconds)
    watching.cancel()
    return answers, memory


def run_case(case: dict[str, str], port: int, factor: float, seconds: float) -> dict[str, Any]:
    """One replica, its peak, the overload, and what came of it."""
    patience = float(case["timeout"].removesuffix("ms")) / 1000 if "ms" in case["timeout"] else 30.0
    with servers.manifest_file(manifest(case)) as file, servers.serving(file, port) as server:
        highest = uvloop.run(peak(server))
        rate = factor * MAX_BATCH / (0.010 + 0.0002 * MAX_BATCH)
        answers, memory = uvloop.run(overload(server, rate, seconds, patience))
        after = metrics.read(server.admin_port)
        expired = servers.ask(port, contract.PATH_PREDICT, b'{"report":1}')[1]
    refused = [s for code in (429, 503) for s in answers.seconds[code]]
    refused.sort()
    settled = memory[len(memory) // 3 :]
    return {
        "peak": highest,
        "offered": answers.due / seconds,
        "goodput": len(answers.seconds[200]) / seconds,
        "by_status": {code: len(found) for code, found in sorted(answers.seconds.items())},
        "late_sends": answers.late,
        "unanswered": answers.unanswered,
        "refused_p99": refused[int(0.99 * len(refused))] if refused else 0.0,
        "answered_p99": answers.quantile(200, 0.99),
        "memory_kib": [memory[0][1], max(m for _, m in memory), memory[-1][1]],
        "memory_kib_per_hour": slope_per_hour(settled),
        "ran_too_late": json.loads(expired)["too_late"],
        "queue_after": metrics.total(after, contract.METRIC_QUEUE_ROWS),
    }


@click.command(help=help_of(__doc__))
@click.option("--factor", default=5.0, show_default=True, help="Of what the replica can do.")
@click.option("--seconds", type=click.FloatRange(2, 600), default=60, show_default=True)
@click.option("--port", default=servers.PORT + 400, show_default=True, help="First of two.")
@out_option
def main(*, factor: float, seconds: float, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    found = {name: run_case(case, port, factor, seconds) for name, case in CASES.items()}
    table = Table(
        f"{factor:g} times the capacity for {seconds:g} s, open loop",
        [
            "case", "offered/s", "peak/s", "goodput/s", "of peak", "refused p99 ms",
            "answered p99 ms", "ran too late", "unanswered", "MiB first/most/last",
        ],
        [
            [
                name, f"{f['offered']:.0f}", f"{f['peak']:.0f}", f"{f['goodput']:.0f}",
                f"{f['goodput'] / f['peak']:.1%}", f"{1000 * f['refused_p99']:.1f}",
                f"{1000 * f['answered_p99']:.0f}", str(f["ran_too_late"]), str(f["unanswered"]),
                "/".join(f"{kib / 1024:.0f}" for kib in f["memory_kib"]),
            ]
            for name, f in found.items()
        ],
    )  # fmt: skip
    note = "Ran too late: rows given to the predictor after their timeout."
    report("overload", began, [table], notes=[note], measured=found, out=out)
    if any(f["ran_too_late"] or f["unanswered"] for f in found.values()):
        sys.exit("rows were run for nobody, or requests left without an answer: see the table")


if __name__ == "__main__":
    main()
