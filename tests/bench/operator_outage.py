"""The apiserver is away for ten minutes, stopped or killed: what the operator does, and after.

    python tests/bench/operator_outage.py --seconds 600

Two replicas of the operator, APIs whose pods are objects with pages, and one real replica of the
server, which is asked all the time. Meanwhile the load rises; right after, Deployments are deleted.
"""

import asyncio
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
from harness import servers
from harness.control_plane import STANDBY, ControlPlane, control_plane, until_ready
from harness.operated import NAMESPACE, Rig, api_name, rig
from harness.report import Table, environment, help_of, out_option, report
from operator_leaders import PATIENCE, SPEC, Replica

from batchedapi_operator.cluster import BATCHED_APIS, DEPLOYMENTS

KINDS: Final = ("stopped", "killed")
CATCH_UP_SECONDS: Final = 10.0
CALM_SECONDS: Final = 600.0
"""For which the autoscaler may keep what an earlier outage ordered."""
_LOADS: Final = 14.0
"""Times as many rows while the apiserver is away: more than one replica holds, a fifth less too."""


class Asked:
    """Predictions of a real replica, one after the other, until the block ends."""

    def __init__(self, port: int) -> None:
        self._url = f"http://{servers.HOST}:{port}/predict"
        self.right = self.failed = 0

    async def run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    async with session.post(self._url, json=7) as answer:
                        good = answer.status == 200 and await answer.json() == 7
                except (aiohttp.ClientError, TimeoutError):
                    good = False
                self.right, self.failed = self.right + good, self.failed + (not good)
                await asyncio.sleep(0.1)


def take_away(plane: ControlPlane, kind: str) -> None:
    """Answers stop."""
    if kind == "stopped":
        plane.stop()
    else:
        plane.kill()


async def bring_back(plane: ControlPlane, kind: str) -> None:
    """Returns once it is ready."""
    if kind == "stopped":
        plane.go_on()
    else:
        plane.start_again()
        await asyncio.to_thread(until_ready, plane)


async def calm(made: Rig) -> dict[str, int]:
    """Replicas of all APIs, by name, once the least is ordered of each: all can go up again.

    Raises:
        TimeoutError: An API still has more.
    """
    await made.change_load(1.0)
    await asyncio.sleep(60.0)
    end, least = time.monotonic() + CALM_SECONDS, SPEC["autoscaling"]["minReplicas"]
    while True:
        found = await made.list(DEPLOYMENTS)
        replicas = {body["metadata"]["name"]: body["spec"]["replicas"] for body in found}
        if max(replicas.values()) <= least:
            return replicas
        if time.monotonic() > end:
            raise TimeoutError(f"waited {CALM_SECONDS} s for {least} of each API: {replicas}")
        await asyncio.sleep(2.0)


async def one_outage(
    made: Rig, replicas: list[Replica], kind: str, apis: int, seconds: float
) -> dict[str, Any]:
    """What it did to the operators, and how long all took after it."""
    before = await calm(made)
    leads = [await one.made.leads() for one in replicas]
    take_away(made.plane, kind)
    await made.change_load(_LOADS)
    end, probes, dead = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        for one in replicas:
            probes, dead = probes + 1, dead + (await one.made.probe("/livez") != 200)
        await asyncio.sleep(2.0)
    await bring_back(made.plane, kind)
    returned = time.monotonic()
    deleted = [api_name(number) for number in range(0, apis, 10)]
    uids = {b["metadata"]["name"]: b["metadata"]["uid"] for b in await made.list(DEPLOYMENTS)}
    for name in deleted:
        await made.kube._request("DELETE", DEPLOYMENTS.path(NAMESPACE, name), {})
    told = {
        b["metadata"]["name"]: b["status"]["autoscaling"]["lastDecision"]["time"]
        for b in await made.list(BATCHED_APIS)
    }

    async def after(reached: Any) -> float:
        while not await reached():
            if time.monotonic() - returned > 2 * PATIENCE:
                return float("inf")
            await asyncio.sleep(0.2)
        return time.monotonic() - returned

    async def children() -> bool:
        now = {b["metadata"]["name"]: b for b in await made.list(DEPLOYMENTS)}
        return len(now) == apis and all(
            body["metadata"]["uid"] != uids[name]
            if name in deleted
            else body["spec"]["replicas"] > before[name]
            for name, body in now.items()
        )

    async def statuses() -> bool:
        return all(
            b["status"]["autoscaling"]["lastDecision"]["time"] != told[b["metadata"]["name"]]
            for b in await made.list(BATCHED_APIS)
        )

    caught_up, told_anew = await asyncio.gather(after(children), after(statuses))
    return {
        "kind": kind,
        "seconds": seconds,
        "caught_up_seconds": caught_up,
        "statuses_seconds": told_anew,
        "probes": probes,
        "probes_failed": dead,
        "exits": sum(
            one.made.operator is None or one.made.operator.poll() is not None for one in replicas
        ),
        "same_leader": leads == [await one.made.leads() for one in replicas],
    }


async def measure(kinds: tuple[str, ...], apis: int, seconds: float, port: int) -> dict[str, Any]:
    """Both kinds, one after the other."""
    outages = []
    with tempfile.TemporaryDirectory(prefix="bench-outage-") as name:
        folder = Path(name)
        with control_plane(folder) as plane:
            async with rig(plane) as made:
                replicas = [
                    Replica(
                        replace(made, identity=identity, log=folder / f"operator-{number}.log"),
                        folder / f"offset-{number}",
                    )
                    for number, identity in enumerate((made.identity, STANDBY))
                ]
                asked = Asked(port)
                asking = asyncio.create_task(asked.run())
                try:
                    for one in replicas:
                        await one.start()
                        await replicas[0].until_leads()
                    await made.create_apis(range(apis), SPEC)
                    await asyncio.sleep(60.0)
                    for kind in kinds:
                        found = await one_outage(made, replicas, kind, apis, seconds)
                        print(found, file=sys.stderr)
                        outages.append(found)
                finally:
                    asking.cancel()
                    for one in replicas:
                        one.made.stop_operator()
    return {"outages": outages, "right": asked.right, "failed": asked.failed}


@click.command(help=help_of(__doc__))
@click.option("--seconds", type=float, default=600.0, show_default=True, help="Of each outage.")
@click.option("--apis", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, default=KINDS)
@click.option("--port", default=servers.PORT + 820, show_default=True, help="First of two.")
@out_option
def main(*, seconds: float, apis: int, kinds: tuple[str, ...], port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    value = servers.manifest("Echo", config={"milliseconds": 1})
    with servers.manifest_file(value) as file, servers.serving(file, port) as server:
        found = asyncio.run(measure(kinds, apis, seconds, server.port))
    table = Table(
        f"The apiserver away for {seconds:g} s, {apis} APIs that need more replicas meanwhile and"
        f" {len(range(0, apis, 10))} Deployments deleted right after",
        ["apiserver", "children and replicas caught up s", "all statuses s", "probes of liveness",
         "failed", "exits", "the same leader"],
        [
            [one["kind"], f"{one['caught_up_seconds']:.1f}", f"{one['statuses_seconds']:.1f}",
             str(one["probes"]), str(one["probes_failed"]), str(one["exits"]),
             "yes" if one["same_leader"] else "no"]
            for one in found["outages"]
        ],
    )  # fmt: skip
    note = f"Of {found['right'] + found['failed']} predictions meanwhile {found['failed']} failed."
    report("operator-outage", began, [table], notes=[note], measured=found, out=out)
    over = [
        one["kind"]
        for one in found["outages"]
        if one["caught_up_seconds"] > CATCH_UP_SECONDS or one["probes_failed"] or one["exits"]
    ]
    if over or found["failed"]:
        raise click.ClickException(f"over the limits: {', '.join(over)}, {found['failed']} failed")


if __name__ == "__main__":
    main()
