"""`strategy: Adaptive` for half an hour, under load that changes and a model that changes too.

    python tests/bench/adaptive.py --seconds 1800

Every minute another load comes, of a fifth to one and a half times what a lane can do; every two
minutes batches of more than 24 rows take 150 ms more, or no longer do. Meanwhile the settings in
effect are read twice a second. A request that is neither answered nor refused (429, 503) is lost.
"""

import asyncio
import http
import itertools
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from harness import metrics, servers
from harness.http_answers import request
from harness.open_loop import Answers, OpenLoop
from harness.report import Table, environment, help_of, out_option, report
from workloads import MAX_BATCH

from batchedapi_core import contract

FROM_ROWS: Final = 24
BENT_SECONDS: Final = 120.0
PHASE_SECONDS: Final = 60.0
MAX_LATENCY: Final = "250ms"
INTERVAL_MS: Final = 100
CAPACITY: Final = FROM_ROWS / (0.010 + 0.002 * FROM_ROWS)
"""Rows a second of batches that are never slow: 414."""
SHARES: Final = (0.2, 0.5, 0.8, 1.0, 1.5)
REFUSED: Final = (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.SERVICE_UNAVAILABLE)
LOOK_SECONDS: Final = 0.5

Setting = tuple[float, float]
"""Largest batch, and seconds of the interval."""


def manifest() -> dict[str, Any]:
    """One lane."""
    config = {"from_rows": FROM_ROWS, "seconds": BENT_SECONDS}
    value = servers.manifest("Bent", config=config)
    value["spec"]["serverSideBatching"] |= {
        "strategy": "Adaptive",
        "maxLatency": MAX_LATENCY,
        "batchInterval": f"{INTERVAL_MS}ms",
    }
    return value


@dataclass
class Seen:
    """What was in effect, one after the other."""

    settings: list[Setting] = field(default_factory=list)
    looks: int = 0

    async def watch(self, admin_port: int) -> None:
        """Until cancelled."""
        while True:
            page = await asyncio.to_thread(metrics.read, admin_port)
            names = contract.METRIC_MAX_BATCH_SIZE, contract.METRIC_BATCH_INTERVAL_SECONDS
            size, interval = (metrics.total(page, name) for name in names)
            self.looks += 1
            if not self.settings or self.settings[-1] != (size, interval):
                self.settings.append((size, interval))
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def outside(self) -> list[Setting]:
        """Those beyond what the manifest says."""
        return [
            (size, interval)
            for size, interval in self.settings
            if not (1 <= size <= MAX_BATCH and 0.0 <= interval <= INTERVAL_MS / 1000)
        ]

    @property
    def taken_back(self) -> int:
        """Changes to exactly a setting of before: what is learned anew differs in some digit."""
        seen, back = set[Setting](), 0
        for setting in self.settings:
            back += setting in seen and setting != self.settings[0]
            seen.add(setting)
        return back


async def measure(server: servers.Server, seconds: float, seed: int) -> dict[str, Any]:
    """All phases."""
    chance, seen, ids, phases = random.Random(seed), Seen(), itertools.count(), []
    watching = asyncio.create_task(seen.watch(server.admin_port))
    for number in range(max(1, round(seconds / PHASE_SECONDS))):
        share = chance.choice(SHARES)
        load = OpenLoop(
            server.port,
            share * CAPACITY,
            lambda: request(contract.PATH_PREDICT, contract.JSON, str(next(ids)).encode()),
            seed=seed + number,
        )
        phases.append({"share": share, **_told(await load.run(min(seconds, PHASE_SECONDS)))})
        print(json.dumps(phases[-1]), file=sys.stderr)
    watching.cancel()
    return {
        "phases": phases,
        "settings": len(seen.settings),
        "sizes": [min(s for s, _ in seen.settings), max(s for s, _ in seen.settings)],
        "outside": seen.outside,
        "taken_back": seen.taken_back,
        "looks": seen.looks,
    }


def _told(answers: Answers) -> dict[str, Any]:
    refused = sum(len(answers.seconds[status]) for status in REFUSED)
    answered = len(answers.seconds[http.HTTPStatus.OK])
    return {
        "due": answers.due,
        "answered": answered,
        "refused": refused,
        "lost": answers.due - answered - refused,
        "p99_ms": round(1000 * answers.quantile(http.HTTPStatus.OK, 0.99), 1),
    }


@click.command(help=help_of(__doc__))
@click.option("--seconds", type=click.FloatRange(5), default=1800.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--port", default=servers.PORT + 840, show_default=True, help="First of two.")
@out_option
def main(*, seconds: float, seed: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with servers.manifest_file(manifest()) as file, servers.serving(file, port) as server:
        found = uvloop.run(measure(server, seconds, seed))
    phases = found["phases"]
    whole = {name: sum(one[name] for one in phases) for name in ("due", "answered", "refused")}
    lost = sum(one["lost"] for one in phases)
    table = Table(
        f"Adaptive for {seconds:g} s, another load every {PHASE_SECONDS:g} s",
        ["requests", "answered", "refused", "lost", "settings", "largest batch", "outside bounds",
         "changes taken back"],
        [[
            *(f"{whole[name]:,}" for name in whole), str(lost), str(found["settings"]),
            "{:g} to {:g}".format(*found["sizes"]), str(len(found["outside"])),
            str(found["taken_back"]),
        ]],
    )  # fmt: skip
    by_share = [
        [f"{share:g}", str(len(those)), f"{sum(one['refused'] for one in those):,}",
         " ".join(f"{one['p99_ms']:.0f}" for one in those)]
        for share in SHARES
        if (those := [one for one in phases if one["share"] == share])
    ]  # fmt: skip
    loads = Table("By load", ["of capacity", "phases", "refused", "p99 ms of each"], by_share)
    note = (
        f"maxLatency is {MAX_LATENCY}, maxBatchSize {MAX_BATCH}, batchInterval {INTERVAL_MS} ms."
        f" {found['looks']} looks at the settings in effect."
    )
    report("adaptive", began, [table, loads], notes=[note], measured=found, out=out)
    if found["outside"] or lost:
        sys.exit("a setting was out of bounds, or a request was lost: see the table")


if __name__ == "__main__":
    main()
