"""Inputs that make the predictor fail: who else notices, and what it costs.

    python tests/bench/isolation.py                       # every 32nd id raises, 10,000 batches
    python tests/bench/isolation.py --mode deadly         # every 2,000th id ends the process

64 clients ask ids of which no two are alike; an id is right if it is answered with itself, and a
culprit is right if it is answered 500. Anything else is collateral.
"""

import asyncio
import collections
import math
import sys
from pathlib import Path
from typing import Any, Final

import click
import uvloop
import workloads
from harness import metrics, servers
from harness.connections import Ask, Fate, run_client
from harness.load import IdLoad, finish
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract

_CONNECTIONS: Final = 64
_POLL_SECONDS: Final = 0.2


class FaultyLoad(IdLoad):
    """Knows which ids are to fail."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every = every
        self.culprits: collections.Counter[int] = collections.Counter()
        """Culprits by status."""

    def answered(self, ask: Ask, status: int, body: bytes) -> None:
        """See Exchange."""
        if ask.ids[0] % self._every:
            super().answered(ask, status, body)
        else:
            self.culprits[status] += 1

    def unanswered(self, ask: Ask, fate: Fate) -> None:
        """See Exchange."""
        super().unanswered(ask, fate)


async def run_load(server: servers.Server, every: int, batches: int) -> FaultyLoad:
    """Load until so many batches were run for the first time."""
    load = FaultyLoad(every)
    clients = [asyncio.create_task(run_client(server.port, load)) for _ in range(_CONNECTIONS)]
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        samples = await asyncio.to_thread(metrics.read, server.admin_port)
        if first_runs(samples) >= batches:
            break
    load.stop()
    await finish(clients, 30.0)
    return load


def first_runs(samples: metrics.Samples) -> float:
    """Batches but for those that were run again."""
    again = metrics.total(samples, contract.METRIC_BATCHES, reason="retry")
    return metrics.total(samples, contract.METRIC_BATCHES) - again


@click.command(help=help_of(__doc__))
@click.option("--mode", type=click.Choice(["poison", "deadly"]), default="poison")
@click.option("--every", type=int, help="Which ids are culprits.  [default: 32, or 2000]")
@click.option("--batches", type=int, help="Batches of first runs.  [default: 10000, or 500]")
@click.option("--port", default=servers.PORT + 500, show_default=True, help="First of two.")
@out_option
def main(*, mode: str, every: int | None, batches: int | None, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    every = every or (32 if mode == "poison" else 2000)
    batches = batches or (10_000 if mode == "poison" else 500)
    config = {mode: every, "milliseconds": 1}
    with servers.serving_workload("Faulty", port, config) as server:
        load = uvloop.run(run_load(server, every, batches))
        after = metrics.read(server.admin_port)
    culprits = sum(load.culprits.values())
    again = metrics.total(after, contract.METRIC_BATCHES, reason="retry")
    bound = 2 * math.ceil(math.log2(workloads.MAX_BATCH))
    found: dict[str, Any] = {
        "mode": mode,
        "every": every,
        "batches": first_runs(after),
        "right": load.right,
        "culprits": dict(load.culprits),
        "collateral": load.failed + load.wrong + load.fates[Fate.UNREAD],
        "extra_batches": again,
        "extra_a_culprit": again / culprits if culprits else 0.0,
        "bound": bound,
        "restarts": metrics.model_restarts(after),
    }
    table = Table(
        f"One culprit in {every}: {mode}",
        ["batches", "right", "culprits by status", "collateral", "extra runs a culprit",
         "bound 2 ceil(log2 B)", "restarts a culprit"],
        [[
            f"{found['batches']:.0f}", f"{load.right:,}", str(found["culprits"]),
            str(found["collateral"]), f"{found['extra_a_culprit']:.2f}", str(bound),
            f"{found['restarts'] / max(culprits, 1):.2f}",
        ]],
    )  # fmt: skip
    report(f"isolation-{mode}", began, [table], notes=[], measured=found, out=out)
    over = mode == "poison" and found["extra_a_culprit"] > bound
    if found["collateral"] or set(load.culprits) != {500} or over:
        sys.exit("neighbours of a culprit failed, or it cost too much: see the table")


if __name__ == "__main__":
    main()
