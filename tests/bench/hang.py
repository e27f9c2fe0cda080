"""A predictor that hangs on one input: when its client is told, and what the others notice.

    python tests/bench/hang.py

Two model processes. Rounds without and with a hang alternate; a round is a request every 10 ms,
which one lane carries without a queue, so that what is compared is the lane and not the capacity
that is missing. In a round with a hang one id more never returns: sleeping, or holding the GIL, in
turn on a replica each. What the others see is compared with the calm part of the round before,
while it hangs and while its process starts again. A process that starts needs a core for a while;
what that costs by itself is measured at the end of each calm round, where a process that does the
same imports starts outside the replica.
"""

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from harness import metrics, servers
from harness.http_answers import read_answer, request
from harness.open_loop import Answers, OpenLoop
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread, percentile, ratio

from batchedapi_core import contract

TIMEOUT: Final = 2.0
LOAD_SECONDS: Final = 0.5
RATE: Final = 100.0
HANGS_ON: Final = 1_000_000_007
_ROUND_SECONDS: Final = 5.0
_PHASES: Final = ("hanging", "starting", "another")
"""Until the client of a hang was told, from then until both lanes are there again; and of a round
without a hang, while another process starts outside the replica."""
_ANOTHER: Final = f"import time, batchedapi_serving.model.__main__; time.sleep({LOAD_SECONDS})"


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


class Watch:
    """Reads a replica's metrics all the time: what that costs, it costs in every phase."""

    def __init__(self, admin_port: int) -> None:
        self._port = admin_port
        self.restarts = self.lanes = 0.0

    async def run(self) -> None:
        """Read ten times a second, until cancelled."""
        while True:
            samples = await asyncio.to_thread(metrics.read, self._port)
            self.restarts = metrics.model_restarts(samples)
            self.lanes = metrics.total(samples, contract.METRIC_LANES)
            await asyncio.sleep(0.1)

    async def both_lanes(self, restarts: float, patience: float) -> float:
        """Seconds until so many processes were replaced, and both lanes are there; else inf."""
        began = time.monotonic()
        while time.monotonic() < began + patience:
            if self.lanes == 2 and self.restarts >= restarts:
                return time.monotonic() - began
            await asyncio.sleep(0.01)
        return float("inf")


async def wait_for_lanes(admin_port: int) -> None:
    """Return when both lanes are there."""
    watch = Watch(admin_port)
    reading = asyncio.create_task(watch.run())
    await watch.both_lanes(0, 20.0)
    reading.cancel()


async def start_another() -> None:
    """Start what a model process is without its lanes, outside the replica, until it ends."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _ANOTHER)
    if await process.wait():
        raise RuntimeError(f"expected exit code 0 of {_ANOTHER!r}, got {process.returncode}")


async def run_round(server: servers.Server, *, hang: bool) -> dict[str, Any]:
    """One round of load."""
    numbers = itertools.count(1)
    load = OpenLoop(
        server.port, RATE,
        lambda: request(contract.PATH_PREDICT, contract.JSON, b"%d" % next(numbers)), even=True,
    )  # fmt: skip
    watch = Watch(server.admin_port)
    reading = asyncio.create_task(watch.run())
    running = asyncio.create_task(load.run(_ROUND_SECONDS))
    await asyncio.sleep(1.0)
    found: dict[str, Any] = {}
    began = time.monotonic()
    if hang:
        before = watch.restarts
        status, took = await ask_to_hang(server.port)
        told = time.monotonic()
        found = {"status": status, "seconds": took}
        found["lane_back"] = await watch.both_lanes(before + 1, 20.0)
    else:
        await asyncio.sleep(TIMEOUT)
        told = time.monotonic()
        await start_another()
    back = time.monotonic()
    answers: Answers = await running
    if reading.done():  # it never ends by itself but for an error
        reading.result()
    reading.cancel()
    first, second = ("hanging", "starting") if hang else ("calm", "another")
    return {
        **found,
        first: [took for due, took in answers.good if began <= due < told],
        second: [took for due, took in answers.good if told <= due < back],
        "others_failed": answers.unanswered + answers.due - len(answers.seconds[200]),
    }


def run_rounds(port: int, rounds: int) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Rounds without and with a hang in turn, on a replica for each kind of hang."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with contextlib.ExitStack() as stack:
        replicas = {}
        for number, (name, gil) in enumerate((("sleep", False), ("GIL", True))):
            file = stack.enter_context(servers.manifest_file(manifest(gil=gil)))
            replicas[name] = stack.enter_context(servers.serving(file, port + 2 * number))
            uvloop.run(wait_for_lanes(replicas[name].admin_port))
            found[name] = {"calm": [], "hang": []}
        for number in range(rounds):
            for name, server in replicas.items():
                for hang in (False, True):
                    kind = "hang" if hang else "calm"
                    found[name][kind].append(uvloop.run(run_round(server, hang=hang)))
                click.echo(
                    f"{name} round {number + 1}: {_ratios(found[name], 'hanging', 50).median:.3f}"
                )
    return found


def _parts(both: Mapping[str, Sequence[dict[str, Any]]], phase: str) -> list[list[float]]:
    """Seconds of the requests of a phase, of each round that has it."""
    return [one[phase] for one in both["calm" if phase in {"calm", "another"} else "hang"]]


def _ratios(both: Mapping[str, Sequence[dict[str, Any]]], phase: str, percent: float) -> Spread:
    """Of a percentile in that phase of each round to that in the calm part next to it."""
    calm = [percentile(part, percent) for part in _parts(both, "calm")]
    return ratio([percentile(part, percent) for part in _parts(both, phase)], calm)


def _pooled(both: Mapping[str, Sequence[dict[str, Any]]], phase: str) -> str:
    """Of the p99 of all requests in that phase of all rounds to that of all calm ones."""
    seen, calm = ([took for part in _parts(both, p) for took in part] for p in (phase, "calm"))
    return f"{percentile(seen, 99) / percentile(calm, 99):.3f} of {len(seen)}"


@click.command(help=help_of(__doc__))
@click.option("--rounds", type=click.IntRange(1, 50), default=6, show_default=True)
@click.option("--port", default=servers.PORT + 600, show_default=True, help="First of four.")
@out_option
def main(*, rounds: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    found = run_rounds(port, rounds)
    rows = []
    bad = False
    for name, both in found.items():
        hangs = both["hang"]
        off = max(abs(h["seconds"] - TIMEOUT) for h in hangs)
        back = max(h["lane_back"] for h in hangs)
        failed = sum(r["others_failed"] for rounds_ in both.values() for r in rounds_)
        statuses = sorted({h["status"] for h in hangs})
        bad = bad or failed > 0 or statuses != [504] or off > 0.1 or back > LOAD_SECONDS + 1
        rows.append(
            [
                name,
                str(statuses),
                f"{1000 * off:.0f}",
                f"{back:.2f}",
                *(_pooled(both, phase) for phase in _PHASES),
                *(_ratios(both, phase, 50).text(3) for phase in _PHASES),
                str(failed),
            ]
        )
    table = Table(
        f"A hang, timeout {TIMEOUT:g} s, model loads in {LOAD_SECONDS:g} s",
        ["hangs in", "status", "off the timeout ms", "lane back s",
         "p99 of others while it hangs / calm", "its process starts", "another starts",
         "p50 while it hangs / calm", "its process starts", "another starts", "others failed"],
        rows,
    )  # fmt: skip
    note = (
        f"{rounds} rounds of {_ROUND_SECONDS:g} s each without and with a hang. p99: over all"
        " requests of all rounds, beside how many these are; p50: ratio of the medians of all"
        " rounds, and the range of that of neighbouring ones."
    )
    report("hang", began, [table], notes=[note], measured=found, out=out)
    if bad:
        sys.exit("a hang was not contained: see the table")


if __name__ == "__main__":
    main()
