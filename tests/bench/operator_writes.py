"""Requests of the operator to a real apiserver: APIs under load, and an apiserver that hangs.

    python tests/bench/operator_writes.py --apis 100 --minutes 30 --hang 180
    python tests/bench/operator_writes.py --apis 20 --minutes 20 --unschedulable
    python tests/bench/operator_writes.py --apis 1000 --idle 10

etcd and kube-apiserver run on ports of their own; pods are objects, and their pages come from a
process that answers on local addresses. Counted is what the apiserver's audit log says. What an API
takes of memory is the difference to an operator of ten of them, which runs beside for as long. With
`--unschedulable` three pods of each API have nodes, all ordered beyond wait for one, and the load
wants more. With `--idle` nobody asks the pods anything, after a while under load: counted is every
write, and how soon the child of an API that is changed follows.
"""

import asyncio
import collections
import datetime as dt
import os
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from harness.control_plane import ADMIN, control_plane
from harness.operated import MOST_PODS, NAMESPACE, Rig, api_name, rig
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import percentile

from batchedapi_operator.cluster import BATCHED_APIS, DEPLOYMENTS, PODS, ObjectKey
from batchedapi_operator.errors import ApplyError

SPEC: Final[dict[str, Any]] = {
    "predictor": {"path": "model:Model"},
    "serverSideBatching": {"maxLatency": "100ms"},
    "autoscaling": {"minReplicas": 1, "maxReplicas": 6},
}
FEW: Final = range(1000, 1010)
"""APIs of another operator, in a namespace of its own: what each further one takes of memory is the
difference, between processes of the same age."""
CATCH_UP_SECONDS: Final = 10.0
WRITES_PER_SECOND: Final = 10
READS_PER_API: Final = 6
OLDEST_SECONDS: Final = 300.0
KIB_PER_API: Final = 100.0
SCHEDULED: Final = 3
WANTING: Final = 6.3
"""Times the rows that pods have at first: about 1.15 times what three of them hold, where a need
that wanders by 2 % had turned the hedge on and off."""
SCALES: Final = 3
"""Writes of replicas of one API of which no pod beyond those is ever ready."""
MIB: Final = 200.0
FOLLOW_SECONDS: Final = 2.0
CHANGES: Final = 200
SETTLE_SECONDS: Final = 720.0
"""After the load ended: a window of the autoscaler, its wait before it removes replicas, and the
statuses that tell of it, of a thousand APIs at ten a second."""
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_SELECTED: Final = re.compile(r"batchedapi.dev%2Fapi%3D(api-\d+)")
_NAME: Final = re.compile(r"api-\d+")


async def until(check: Callable[[], Awaitable[bool]], what: str, seconds: float) -> float:
    """Seconds until the answer was yes."""
    began = time.monotonic()
    while not await check():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"waited {seconds} s for {what}")
        await asyncio.sleep(0.25)
    return time.monotonic() - began


async def decided(made: Rig, seconds: float) -> None:
    """Wait until each API has a decision."""

    async def all_are() -> bool:
        found = await made.list(BATCHED_APIS)
        return all((b.get("status") or {}).get("autoscaling", {}).get("learned") for b in found)

    await until(all_are, "a decision about each API", seconds)


async def prepare(made: Rig, numbers: range, spec: dict[str, Any]) -> None:
    """All APIs with ready pods and decisions."""
    made.start_operator()

    async def ready() -> bool:
        return await made.probe("/readyz") == 200

    await until(ready, "the operator", 60)
    await made.create_apis(numbers, spec)
    await decided(made, 300 + len(numbers))


def of_api(event: dict[str, Any]) -> str | None:
    """The API that a read is about."""
    selected = _SELECTED.search(event["requestURI"])
    if selected:
        return selected[1]
    named = _NAME.match(event.get("objectRef", {}).get("name", ""))
    return named[0] if named else None


def time_of(event: dict[str, Any]) -> float:
    """Unix seconds at which the apiserver got the request."""
    return dt.datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


def counted(events: list[dict[str, Any]], began: float) -> dict[str, Any]:
    """Status writes in the busiest second and ten, reads an API at first and in all."""
    later = [one for one in events if time_of(one) >= began]
    writes = sorted(
        time_of(one) for one in later
        if one["verb"] == "patch" and one.get("objectRef", {}).get("subresource") == "status"
    )  # fmt: skip
    reads = [one for one in later if one["verb"] in {"get", "list"}]
    first: collections.Counter[str] = collections.Counter()
    whole: collections.Counter[str] = collections.Counter()
    for one in reads:
        name = of_api(one)
        if name is not None:
            whole[name] += 1
            if time_of(one) < began + 60.0:
                first[name] += 1
    return {
        "status_writes": len(writes),
        "refused": sum(one["responseStatus"]["code"] >= 300 for one in later),
        "most_in_1s": busiest(writes, 1.0),
        "most_in_10s": busiest(writes, 10.0),
        "reads_first_minute": max(first.values(), default=0),
        "reads_in_all": max(whole.values(), default=0),
        "scales": sum(
            one["verb"] == "patch" and one.get("objectRef", {}).get("subresource") == "scale"
            for one in later
        ),
    }


def busiest(times: list[float], seconds: float) -> int:
    """Most events within so many seconds."""
    most = begin = 0
    for end, now in enumerate(times):
        while times[begin] <= now - seconds:
            begin += 1
        most = max(most, end - begin + 1)
    return most


async def ages(made: Rig) -> list[float]:
    """Seconds since the last decision of each API was written."""
    now = dt.datetime.now(dt.UTC)
    return [
        (now - dt.datetime.fromisoformat(body["status"]["autoscaling"]["lastDecision"]["time"]))
        .total_seconds()
        for body in await made.list(BATCHED_APIS)
    ]  # fmt: skip


async def measure_steady(made: Rig, few: Rig, apis: int, seconds: float) -> dict[str, Any]:
    """Operators that start beside APIs that all have what they need."""
    for one in (few, made):
        one.stop_operator()
    began = time.time()
    for one in (few, made):
        one.start_operator()
    oldest = 0.0
    end = time.monotonic() + seconds
    await asyncio.sleep(min(60.0, seconds / 4))
    while time.monotonic() < end:
        with suppress(ApplyError):  # a busy machine: the next look will say it
            oldest = max(oldest, *await ages(made))
        await asyncio.sleep(5.0)
    found = counted(made.plane.audited(), began)
    return {
        **found,
        "seconds": seconds,
        "oldest_decision": oldest,
        "mib": made.rss() / 2**20,
        "kib_per_api": (made.rss() - few.rss()) / (apis - len(FEW)) / 1024,
    }


async def measure_hang(made: Rig, apis: int, seconds: float) -> dict[str, Any]:
    """More load on all pods while the apiserver is stopped; what is deleted right after it."""
    assert made.operator is not None
    before = {b["metadata"]["name"]: b["spec"]["replicas"] for b in await made.list(DEPLOYMENTS)}
    made.plane.stop()
    await made.change_load(9.0)
    end, alive, dead = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        live = await made.probe("/livez") == 200
        alive, dead = alive + live, dead + (not live)
        await asyncio.sleep(5.0)
    made.plane.go_on()
    returned = time.monotonic()
    deleted = [api_name(number) for number in range(0, apis, 10)]
    uids = {b["metadata"]["name"]: b["metadata"]["uid"] for b in await made.list(DEPLOYMENTS)}
    for name in deleted:
        await made.kube._request("DELETE", DEPLOYMENTS.path(NAMESPACE, name), {})

    async def caught_up() -> bool:
        now = {b["metadata"]["name"]: b for b in await made.list(DEPLOYMENTS)}
        return len(now) == apis and all(
            body["metadata"]["uid"] != uids[name]
            if name in deleted
            else body["spec"]["replicas"] > before[name]
            for name, body in now.items()
        )

    await until(caught_up, "children and replicas", 120)
    return {
        "seconds": seconds,
        "caught_up_seconds": time.monotonic() - returned,
        "probes": alive + dead,
        "probes_failed": dead,
        "restarts": int(made.operator.poll() is not None),
    }


async def measure(apis: int, minutes: float, hang: float) -> dict[str, Any]:
    """Both, in one control plane."""
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        async with rig(plane) as made:
            few = replace(made, namespace="few", identity=ADMIN, log=plane.folder / "few.log")
            async with few.controlled():
                await prepare(few, FEW, SPEC)
                await prepare(made, range(apis), SPEC)
                steady = await measure_steady(made, few, apis, 60.0 * minutes)
            print(steady, file=sys.stderr)
            return {"steady": steady, "hang": await measure_hang(made, apis, hang)}


async def measure_unschedulable(apis: int, minutes: float) -> dict[str, Any]:
    """Load that wants more than there are nodes for."""
    most = {"minReplicas": SCHEDULED, "maxReplicas": MOST_PODS}
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        async with rig(plane) as made:
            made.scheduled = SCHEDULED
            await prepare(made, range(apis), {**SPEC, "autoscaling": most})
            began = time.time()
            await made.change_load(WANTING)
            await asyncio.sleep(60.0 * minutes)
            ordered = [body["spec"]["replicas"] for body in await made.list(DEPLOYMENTS)]
            pods = [body["status"]["phase"] for body in await made.list(PODS)]
            writes = collections.Counter(
                one["objectRef"]["name"]
                for one in made.plane.audited()
                if one["verb"] == "patch"
                and one.get("objectRef", {}).get("subresource") == "scale"
                and one["responseStatus"]["code"] < 300
                and time_of(one) >= began
            )
    return {
        "scales_most": max(writes.values(), default=0),
        "scales": sum(writes.values()),
        "apis_scaled": len(writes),
        "ordered_most": max(ordered),
        "pods": len(pods),
        "pending": pods.count("Pending"),
    }


async def measure_idle(apis: int, minutes: float, settle: float) -> dict[str, Any]:
    """Writes while nothing happens; then one API after the other is changed."""
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        async with rig(plane) as made:
            await prepare(made, range(apis), SPEC)
            await made.change_load(0.0)
            await asyncio.sleep(settle)
            began, seconds = time.time(), 60.0 * minutes
            assert made.operator is not None
            cpu = cpu_seconds(made.operator.pid)
            before = await statuses(made)
            await asyncio.sleep(seconds)
            after = await statuses(made)
            busy = (cpu_seconds(made.operator.pid) - cpu) / seconds
            writes = [one for one in plane.audited() if is_write(one) and time_of(one) >= began]
            mib = made.rss() / 2**20
            follows = [await follow(made, number % apis, number) for number in range(CHANGES)]
            return {
                "seconds": seconds,
                "writes": len(writes),
                "written": dict(collections.Counter(of_kind(one) for one in writes)),
                "changed": dict(
                    collections.Counter(
                        place for name in before for place in differing(before[name], after[name])
                    )
                ),
                "cpu": busy,
                "mib": mib,
                "mib_after_changes": made.rss() / 2**20,
                "follows": follows,
            }


async def statuses(made: Rig) -> dict[str, Any]:
    """Statuses of all APIs, by name."""
    found = await made.list(BATCHED_APIS)
    return {body["metadata"]["name"]: body.get("status") or {} for body in found}


def differing(before: Any, after: Any, place: str = "status") -> list[str]:
    """Where two statuses differ: what a write was for."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted({*before, *after})
        return [
            where
            for name in names
            for where in differing(before.get(name), after.get(name), f"{place}.{name}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return [
            where
            for old, new in pairs
            for where in differing(old, new, f"{place}[{_type_of(new)}]")
        ]
    return [] if before == after else [place]


def _type_of(one: Any) -> str:
    return str(one.get("type", "")) if isinstance(one, dict) else ""


def is_write(event: dict[str, Any]) -> bool:
    """Whatever changes an object, but for the operator's own Lease."""
    return event["verb"] in _WRITES and event.get("objectRef", {}).get("resource") != "leases"


def of_kind(event: dict[str, Any]) -> str:
    """Kind of the object that was written."""
    place = event.get("objectRef", {})
    return f"{event['verb']} {place.get('resource')} {place.get('subresource', '')}".strip()


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def follow(made: Rig, number: int, turn: int) -> float:
    """Seconds from the change of an API until its Deployment is another."""
    name = api_name(number)
    key = ObjectKey(made.namespace, name)

    async def template() -> Any:
        body = await made.kube.get(DEPLOYMENTS, key)
        return None if body is None else body["spec"]["template"]["metadata"]["labels"]

    before = await template()
    batching = {"serverSideBatching": {"batchInterval": f"{1 + turn % 7}ms"}}
    env = [{"name": "TURN", "value": str(turn)}]
    began = time.monotonic()
    await made.merge(BATCHED_APIS, name, {"spec": {**batching, "predictor": {"env": env}}})
    while await template() == before:
        if time.monotonic() - began > CATCH_UP_SECONDS:
            break
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def report_idle(apis: int, minutes: float, settle: float, out: Path | None) -> None:
    """Exits with 1 if anything was written, or the memory or the pace is over its limit."""
    began = environment()
    found = asyncio.run(measure_idle(apis, minutes, settle))
    p99 = percentile(found["follows"], 99)
    table = Table(
        f"{apis} APIs that nobody asks for {minutes:g} minutes, then {CHANGES} changes in turn",
        ["writes", "CPU share", "MiB", "MiB after the changes", "median s until the child follows",
         "p99", "longest"],
        [[str(found["writes"]), f"{found['cpu']:.2f}", f"{found['mib']:.0f}",
          f"{found['mib_after_changes']:.0f}", f"{percentile(found['follows'], 50):.2f}",
          f"{p99:.2f}", f"{max(found['follows']):.2f}"]],
    )  # fmt: skip
    report("operator-idle", began, [table], notes=[], measured=found, out=out)
    if found["writes"] or p99 > FOLLOW_SECONDS or found["mib_after_changes"] > MIB:
        limits = f"0 writes, {MIB:g} MiB, {FOLLOW_SECONDS:g} s"
        sys.exit(
            f"over the limits ({limits}); written: {found['written']}; changed: {found['changed']}"
        )


def report_unschedulable(apis: int, minutes: float, out: Path | None) -> None:
    """Exits with 1 if an API was scaled more often than it may be, or none was."""
    began = environment()
    found = asyncio.run(measure_unschedulable(apis, minutes))
    table = Table(
        f"{apis} APIs with {SCHEDULED} ready pods and load that wants more for {minutes:g} minutes;"
        " what is ordered beyond waits for a node",
        ["writes of replicas, most of an API", "of all", "APIs that ordered more",
         "replicas, most of an API", "pods", "that wait"],
        [[str(found[name]) for name in
          ("scales_most", "scales", "apis_scaled", "ordered_most", "pods", "pending")]],
    )  # fmt: skip
    report("operator-writes-unschedulable", began, [table], notes=[], measured=found, out=out)
    if found["scales_most"] > SCALES or found["apis_scaled"] < apis:
        sys.exit(f"over the limit: {SCALES} writes of replicas of an API, or one ordered nothing")


@click.command(help=help_of(__doc__))
@click.option("--apis", type=click.IntRange(1, FEW.start), default=100, show_default=True)
@click.option("--minutes", type=float, default=30.0, show_default=True, help="Under load.")
@click.option("--hang", type=float, default=180.0, show_default=True, help="Seconds stopped.")
@click.option("--unschedulable", is_flag=True, help="This alone: pods that wait for nodes.")
@click.option("--idle", type=float, help="This alone: so many minutes without a request.")
@click.option("--settle", type=float, default=SETTLE_SECONDS, show_default=True, help="Seconds.")
@out_option
def main(
    *,
    apis: int,
    minutes: float,
    hang: float,
    unschedulable: bool,
    idle: float | None,
    settle: float,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    if idle is not None:
        report_idle(apis, idle, settle, out)
        return
    if unschedulable:
        report_unschedulable(apis, minutes, out)
        return
    if apis <= len(FEW):
        raise click.UsageError(f"--apis: more than {len(FEW)}, to which it is compared, got {apis}")
    began = environment()
    found = asyncio.run(measure(apis, minutes, hang))
    steady, hung = found["steady"], found["hang"]
    first = Table(
        f"{apis} APIs under load for {minutes:g} minutes, the operator just started",
        ["status writes", "most in 1 s", "in 10 s", "refused", "reads an API: first minute",
         "in all", "oldest decision s", "MiB", "KiB an API"],
        [[str(steady["status_writes"]), str(steady["most_in_1s"]), str(steady["most_in_10s"]),
          str(steady["refused"]), str(steady["reads_first_minute"]), str(steady["reads_in_all"]),
          f"{steady['oldest_decision']:.0f}", f"{steady['mib']:.0f}",
          f"{steady['kib_per_api']:.0f}"]],
    )  # fmt: skip
    second = Table(
        f"The apiserver stopped for {hang:g} s, {apis} APIs that need more replicas meanwhile and"
        f" {len(range(0, apis, 10))} Deployments deleted right after",
        ["caught up s", "probes of liveness", "failed", "restarts"],
        [[f"{hung['caught_up_seconds']:.1f}", str(hung["probes"]), str(hung["probes_failed"]),
          str(hung["restarts"])]],
    )  # fmt: skip
    report("operator-writes", began, [first, second], notes=[], measured=found, out=out)
    over = [
        name
        for name, value, most in (
            ("status writes in 1 s", steady["most_in_1s"], WRITES_PER_SECOND),
            ("reads an API in the first minute", steady["reads_first_minute"], READS_PER_API),
            ("age of a decision", steady["oldest_decision"], OLDEST_SECONDS),
            ("KiB an API", steady["kib_per_api"], KIB_PER_API),
            ("seconds to catch up", hung["caught_up_seconds"], CATCH_UP_SECONDS),
            ("failed probes", hung["probes_failed"], 0),
            ("restarts", hung["restarts"], 0),
        )
        if value > most
    ]
    if over:
        sys.exit(f"over the limits: {', '.join(over)}")


if __name__ == "__main__":
    main()
