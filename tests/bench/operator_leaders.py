"""Two replicas of the operator: the one that leads is killed, stopped, asked to end; clocks move.

    python tests/bench/operator_leaders.py --rounds 50

etcd and kube-apiserver run on ports of their own; pods are objects with pages, manifests are
changed and the load swings all the time, and the wall clocks of both replicas jump by days, each
its own (`native/shifted_clock.c`, needs gcc). Whether both wrote is read from the apiserver's audit
log, which names the user of every request: a write counts as a second one if it was carried out
after the other replica had the Lease.
"""

import asyncio
import contextlib
import datetime as dt
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from clock import build
from harness.control_plane import STANDBY, control_plane
from harness.operated import Rig, api_name, rig
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_operator.cluster import BATCHED_APIS
from batchedapi_operator.errors import ApplyError

SPEC: Final[dict[str, Any]] = {
    "predictor": {"path": "model:Model"},
    "serverSideBatching": {"maxLatency": "100ms"},
    "autoscaling": {"minReplicas": 1, "maxReplicas": 4},
}
KINDS: Final = ("SIGKILL", "SIGSTOP", "SIGTERM")
LIMITS: Final = {"SIGKILL": 15.0, "SIGSTOP": 15.0, "SIGTERM": 2.0}
"""Seconds until the other one leads."""
PATIENCE: Final = 60.0
_DAY: Final = 86400
_WRITES: Final = ("create", "update", "patch", "delete")


class Replica:
    """One of the two, with a wall clock of its own."""

    def __init__(self, made: Rig, offset: Path) -> None:
        self.made = made
        self._offset = offset
        self.move_clock(0)

    def move_clock(self, seconds: int) -> None:
        """In place: the process has mapped the file."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def send(self, number: signal.Signals) -> None:
        """To the process."""
        assert self.made.operator is not None
        self.made.operator.send_signal(number)

    async def start(self) -> None:
        """And wait until it is ready."""
        self.made.start_operator()
        began = time.monotonic()
        while await self.made.probe("/readyz") != 200:
            if time.monotonic() - began > PATIENCE:
                raise TimeoutError(f"not ready: {self.made.log.read_text()[-2000:]}")
            await asyncio.sleep(0.2)

    async def until_leads(self) -> None:
        """Wait for its gauge."""
        began = time.monotonic()
        while not await self.made.leads():
            if time.monotonic() - began > PATIENCE:
                raise TimeoutError(f"does not lead: {self.made.log.read_text()[-2000:]}")
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def unrest(made: Rig, replicas: list[Replica], apis: int) -> AsyncIterator[dict[str, int]]:
    """Manifests are changed, the load swings, clocks jump; yields how often."""
    counts = dict.fromkeys(("manifests changed", "loads", "jumps"), 0)

    async def go_on() -> None:
        for number in range(10**9):
            with contextlib.suppress(ApplyError):  # a busy machine
                wait = {"serverSideBatching": {"batchInterval": f"{1 + number % 9}ms"}}
                name = api_name(random.randrange(apis))
                await made.merge(BATCHED_APIS, name, {"spec": wait})
                counts["manifests changed"] += 1
            if number % 20 == 0:
                await made.change_load(random.choice((0.5, 1.0, 3.0, 9.0)))
                counts["loads"] += 1
            for replica in replicas:
                replica.move_clock(random.choice((0, 600, _DAY, 300 * _DAY)))
                counts["jumps"] += 1
            await asyncio.sleep(0.5)

    task = asyncio.create_task(go_on())
    try:
        yield counts
    finally:
        task.cancel()


async def one_round(kind: str, leader: Replica, other: Replica) -> float:
    """Seconds until the other one leads; the first is its standby when this returns."""
    await asyncio.sleep(random.uniform(1.0, 4.0))  # at any moment of what it does
    began = time.monotonic()
    leader.send(signal.Signals[kind])
    await other.until_leads()
    seconds = time.monotonic() - began
    if kind == "SIGSTOP":
        await asyncio.sleep(random.uniform(0.0, 2.0))
        leader.send(signal.SIGCONT)
        while await leader.made.probe("/readyz") != 200 or await leader.made.leads():
            if time.monotonic() - began > PATIENCE:
                raise TimeoutError("the one that was woken does not stand by")
            await asyncio.sleep(0.1)
    else:
        assert leader.made.operator is not None
        await asyncio.to_thread(leader.made.operator.wait, 30)
        await leader.start()
    return seconds


def second_writes(events: list[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """How many writes there were, and those carried out after the other had the Lease."""
    done = [
        (dt.datetime.fromisoformat(one["stageTimestamp"]), one)
        for one in events
        if one["verb"] in _WRITES and one["responseStatus"]["code"] < 300
    ]
    done.sort(key=lambda pair: pair[0])
    writes, late, holder = 0, [], ""
    for _, one in done:
        user = one["user"]["username"]
        if one.get("objectRef", {}).get("resource") != "leases":
            writes += 1
            late += [one] if holder != user else []
        elif one["objectRef"]["name"].startswith("operator-of-"):
            holder = user
    return writes, late


async def measure(rounds: int, apis: int, jumps: int, folder: Path) -> dict[str, Any]:
    """All of it, in one control plane."""
    found: dict[str, Any] = {"seconds": {kind: [] for kind in KINDS}}
    library = str(build(folder))
    with control_plane(folder) as plane:
        async with rig(plane) as made:
            replicas = []
            for number, identity in enumerate((made.identity, STANDBY)):
                offset = folder / f"offset-{number}"
                preload = {"LD_PRELOAD": library, "CLOCK_OFFSET_FILE": str(offset)}
                log = folder / f"operator-{number}.log"
                one = replace(made, identity=identity, preload=preload, log=log)
                replicas.append(Replica(one, offset))
            leader, other = replicas
            try:
                await leader.start()
                await leader.until_leads()
                await other.start()
                await made.create_apis(range(apis), SPEC)
                async with unrest(made, replicas, apis) as counts:
                    await asyncio.sleep(0.5 * jumps)  # clocks alone: nobody else may lead
                    found["led_through_jumps"] = await leader.made.leads()
                    for number in range(rounds):
                        for kind in KINDS:
                            seconds = await one_round(kind, leader, other)
                            found["seconds"][kind].append(seconds)
                            leader, other = other, leader
                        print(number, {k: found["seconds"][k][-1] for k in KINDS}, file=sys.stderr)
                    found |= counts
            finally:
                for one_of_two in replicas:
                    if one_of_two.made.operator is not None:
                        one_of_two.send(signal.SIGCONT)
                    one_of_two.made.stop_operator()
            writes, late = second_writes(plane.audited())
    return {**found, "writes": writes, "late": [(o["verb"], o["requestURI"]) for o in late]}


@click.command(help=help_of(__doc__))
@click.option("--rounds", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--apis", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.option("--jumps", type=click.IntRange(1, 1000), default=50, show_default=True)
@out_option
def main(*, rounds: int, apis: int, jumps: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with tempfile.TemporaryDirectory(prefix="bench-leaders-") as folder:
        found = asyncio.run(measure(rounds, apis, jumps, Path(folder)))
    table = Table(
        f"Two replicas, {apis} APIs; {found['manifests changed']} changes of manifests,"
        f" {found['loads']} of the load, {found['jumps']} jumps of clocks",
        ["the one that leads", "rounds", "seconds until the other does: median", "most", "limit"],
        [
            [kind, str(len(times)), f"{sorted(times)[len(times) // 2]:.2f}", f"{max(times):.2f}",
             f"{LIMITS[kind]:g}"]
            for kind, times in found["seconds"].items()
        ],
    )  # fmt: skip
    note = (
        f"Of {found['writes']} writes {len(found['late'])} were carried out after the other replica"
        f" had the Lease. {jumps} jumps of clocks alone changed no leader:"
        f" {found['led_through_jumps']}."
    )
    report("operator-leaders", began, [table], notes=[note], measured=found, out=out)
    slow = [kind for kind in KINDS if max(found["seconds"][kind]) > LIMITS[kind]]
    if slow or found["late"] or not found["led_through_jumps"]:
        sys.exit(f"over the limits: {', '.join(slow)}; second writes: {found['late'][:5]}")


if __name__ == "__main__":
    main()
