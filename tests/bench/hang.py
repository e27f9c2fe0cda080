"""A predictor that hangs on one input: when its client is told, and what the others notice.

    python tests/bench/hang.py

Two model processes. Rounds without and with a hang alternate; a round is a request every 20 ms,
which one lane carries without a queue, so that what is compared is the lane and not the capacity
that is missing. In a round with a hang one id more never returns: sleeping, or holding the GIL.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from harness import metrics, servers
from harness.http_answers import read_answer, request
from harness.open_loop import Answers, OpenLoop
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract

TIMEOUT: Final = 2.0
LOAD_SECONDS: Final = 0.5
RATE: Final = 50.0
HANGS_ON: Final = 1_000_000_007
_ROUND_SECONDS: Final = 8.0


def manifest(*, gil: bool) -> dict[str, Any]:
    """Two processes whose model takes half a second to load."""
    value = servers.manifest(
        "Faulty",
        config={"hang": HANGS_ON, "gil": gil, "milliseconds": 5, "load_seconds": LOAD_SECONDS},
        max_batch_size=1,  # whoever rides with the culprit hangs too: here nobody does
    )
    value["spec"]["predictor"]["processesPerReplica"] = 2
    value["spec"]["overload"] = {"timeout": f"{TIMEOUT:g}s"}
    return value


async def ask_to_hang(port: int) -> tuple[int, float]:
    """Status, and seconds until it came."""
    reader, writer = await asyncio.open_connection(servers.HOST, port)
    began = time.monotonic()
    writer.write(request(contract.PATH_PREDICT, contract.JSON, json.dumps(HANGS_ON).encode()))
    data = b""
    while (answer := read_answer(data)) is None:
        data += await reader.read(65536)
    took = time.monotonic() - began
    writer.close()
    return answer.status, took


async def wait_for_lanes(admin_port: int, restarts: int, patience: float) -> float:
    """Seconds until so many processes were replaced, and both lanes are there."""
    began = time.monotonic()
    while time.monotonic() < began + patience:
        samples = await asyncio.to_thread(metrics.read, admin_port)
        lanes = metrics.total(samples, contract.METRIC_LANES)
        if lanes == 2 and metrics.model_restarts(samples) >= restarts:
            return time.monotonic() - began
        await asyncio.sleep(0.02)
    return float("inf")


async def run_round(server: servers.Server, *, hang: bool) -> dict[str, Any]:
    """One round of load."""
    numbers = itertools.count(1)
    load = OpenLoop(
        server.port, RATE,
        lambda: request(contract.PATH_PREDICT, contract.JSON, b"%d" % next(numbers)), even=True,
    )  # fmt: skip
    running = asyncio.create_task(load.run(_ROUND_SECONDS))
    await asyncio.sleep(1.0)
    found: dict[str, Any] = {}
    began = told = time.monotonic()
    if hang:
        before = metrics.model_restarts(await asyncio.to_thread(metrics.read, server.admin_port))
        status, took = await ask_to_hang(server.port)
        told = time.monotonic()
        found = {"status": status, "seconds": took}
        found["lane_back"] = await wait_for_lanes(server.admin_port, before + 1, 20.0)
    answers: Answers = await running
    until = told if hang else began + TIMEOUT
    return {
        **found,
        "during": [took for due, took in answers.good if began <= due < until],
        "whole": [took for _, took in answers.good],
        "others_failed": answers.unanswered + answers.due - len(answers.seconds[200]),
    }


def p99(rounds: Sequence[dict[str, Any]], which: str) -> float:
    """Over all requests of all rounds: those `during` a hang, or the `whole` rounds'."""
    found = sorted(took for one in rounds for took in one[which])
    return float(found[int(0.99 * len(found))])


def run_rounds(port: int, rounds: int, *, gil: bool) -> dict[str, list[dict[str, Any]]]:
    """Rounds without and with a hang in turn, on one replica."""
    found: dict[str, list[dict[str, Any]]] = {"calm": [], "hang": []}
    with (
        servers.manifest_file(manifest(gil=gil)) as file,
        servers.serving(file, port) as server,
    ):
        uvloop.run(wait_for_lanes(server.admin_port, 0, 20.0))
        for _ in range(rounds):
            for hang in (False, True):
                result = uvloop.run(run_round(server, hang=hang))
                found["hang" if hang else "calm"].append(result)
                click.echo(f"gil={gil} {'hang' if hang else 'calm'} {p99([result], 'whole'):.4f} s")
    return found


@click.command(help=help_of(__doc__))
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--port", default=servers.PORT + 600, show_default=True, help="First of two.")
@out_option
def main(*, rounds: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    found = {
        name: run_rounds(port, rounds, gil=gil) for name, gil in (("sleep", False), ("GIL", True))
    }
    rows = []
    bad = False
    for name, both in found.items():
        hangs = both["hang"]
        off = max(abs(h["seconds"] - TIMEOUT) for h in hangs)
        back = max(h["lane_back"] for h in hangs)
        ratios = [p99(hangs, which) / p99(both["calm"], which) for which in ("during", "whole")]
        failed = sum(r["others_failed"] for rounds_ in both.values() for r in rounds_)
        statuses = sorted({h["status"] for h in hangs})
        bad = bad or failed > 0 or statuses != [504] or off > 0.1 or back > LOAD_SECONDS + 1
        rows.append(
            [
                name,
                str(statuses),
                f"{1000 * off:.0f}",
                f"{back:.2f}",
                *(f"{ratio:.3f}" for ratio in ratios),
                str(failed),
            ]
        )
    table = Table(
        f"A hang, timeout {TIMEOUT:g} s, model loads in {LOAD_SECONDS:g} s",
        ["hangs in", "status", "off the timeout ms", "lane back s",
         "p99 of others while it hangs / calm", "... and while its process starts again",
         "others failed"],
        rows,
    )  # fmt: skip
    note = "p99 over all requests of all rounds; a process that starts needs a core for a while."
    report("hang", began, [table], notes=[note], measured=found, out=out)
    if bad:
        sys.exit("a hang was not contained: see the table")


if __name__ == "__main__":
    main()
