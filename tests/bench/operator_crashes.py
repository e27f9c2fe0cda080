"""The operator dies, or one of its calls fails, at each call in turn: is the end the same?

    python tests/bench/operator_crashes.py --lanes 4
    python tests/bench/operator_crashes.py --lanes 2 --share 0.1 --faults 0.01

A proxy before a real apiserver numbers the operator's calls. Three workloads run: an API with a
ConfigMap is there when the operator starts; its spec, its source and its replicas are changed; it
is deleted and made anew. At each call the operator is killed before the call was forwarded, in
another case after it, and started again. Of the eight faults (401, 409, 429, 500, 503, a hang, a
connection cut before or after the call was forwarded) a share is tried here, all of them by
`tests/unit/operator/test_faults_at_each_call.py` in virtual time. Objects and fields that are there
in the end are compared with those of a run in which nothing failed; every child has its owner.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from harness.control_plane import ADMIN, ControlPlane, control_plane, controllers
from harness.operators import CHILDREN, Operator, User, installed, quantile, until
from harness.report import Table, environment, help_of, out_option, report

from apiserver_proxy import FAULTS, KILLS, Proxy, proxy
from batchedapi_operator.cluster import BATCHED_APIS, CONFIG_MAPS, JsonObject
from batchedapi_operator.kube import Kube

CASE_SECONDS: Final = 30.0
GOLDEN_SECONDS: Final = 90.0
QUIET_SECONDS: Final = 8.0
"""Of a run in which nothing fails, without a change: it is over. The looks come every 2 s."""
NAME: Final = "iris"
SOURCE: Final = {"metadata": {"name": "files"}, "data": {"model.py": "class Iris: ..."}}
SPEC: Final[JsonObject] = {
    "predictor": {"path": "model:Iris", "source": {"configMap": "files"}},
    "autoscaling": {"minReplicas": 2},
}
Step = Callable[[User], Awaitable[None]]


async def create(user: User) -> None:
    """The API and the files that it names."""
    await user.create(CONFIG_MAPS, SOURCE)
    await user.create(BATCHED_APIS, {"metadata": {"name": NAME}, "spec": SPEC})


async def change(user: User) -> None:
    """Its spec and its source, thus its revision, and by hand its replicas.

    It is paused meanwhile: a revision of the one change without the other may be there, or not.
    """
    await user.merge(BATCHED_APIS, NAME, {"spec": {"paused": True}})
    await user.merge(CONFIG_MAPS, "files", {"data": {"model.py": "class Iris: pass"}})
    batching = {"serverSideBatching": {"batchInterval": "3ms"}, "networking": {"grpc": True}}
    mode = {"autoscaling": {"mode": "External"}, "replicas": 3, "paused": False}
    await user.merge(BATCHED_APIS, NAME, {"spec": {**batching, **mode}})
    await user.merge(BATCHED_APIS, NAME, {"spec": {"replicas": 5}}, "scale")


async def recreate(user: User) -> None:
    """Another API of the same name, with other files, before the children of the first are gone."""
    await user.delete(BATCHED_APIS, NAME)
    predictor = {"predictor": {"path": "model:Other"}}
    await user.create(BATCHED_APIS, {"metadata": {"name": NAME}, "spec": predictor})


@dataclass(frozen=True)
class Workload:
    """What is done before the calls are counted, and what while they are."""

    name: str
    before: Step | None
    """None: the operator starts beside what `act` has made."""
    act: Step


WORKLOADS: Final = (
    Workload("start", None, create),
    Workload("change", create, change),
    Workload("recreate", create, recreate),
)


@dataclass(frozen=True)
class Case:
    """One run."""

    workload: Workload
    at: int
    """Which call; -1: none."""
    how: str


@dataclass
class Outcome:
    """Of one run."""

    case: Case
    state: JsonObject
    seconds: float
    """From the fault until the state was that of the golden run."""
    call: str
    calls: int
    same: bool
    orphans: int


@dataclass
class Lane:
    """Runs cases one after the other, each in a namespace of its own."""

    kube: Kube
    proxy: Proxy
    kubeconfig: Path
    folder: Path
    number: int
    ran: int = 0

    @asynccontextmanager
    async def prepared(self, case: Case) -> AsyncIterator[tuple[User, Operator]]:
        """A namespace in which the workload is about to begin."""
        self.ran += 1
        user = User(self.kube, f"lane-{self.number}-{self.ran}")
        log = self.folder / f"{user.namespace}.log"
        operator = Operator(self.kubeconfig, user.namespace, log)
        self.proxy.die = operator.kill
        await user.create_namespace()
        try:
            if case.workload.before is not None:
                operator.start()
                await operator.ready()
                await case.workload.before(user)
                await until(lambda: settled(user), GOLDEN_SECONDS)
            yield user, operator
        finally:
            self.proxy.disarm()
            operator.kill()
            await user.delete_namespace()

    async def golden(self, workload: Workload) -> Outcome:
        """Without a fault, until nothing changes any more."""
        case = Case(workload, -1, "")
        async with self.prepared(case) as (user, operator):
            await self.begin(case, user, operator)
            await until(lambda: settled(user), GOLDEN_SECONDS)
            state, since = await user.state(NAME), time.monotonic()
            while time.monotonic() - since < QUIET_SECONDS:
                await asyncio.sleep(0.5)
                if (now := await user.state(NAME)) != state:
                    state, since = now, time.monotonic()
            calls = len(self.proxy.calls)
            return Outcome(case, state, 0.0, "", calls, same=True, orphans=await orphans(user))

    async def run(self, case: Case, golden: JsonObject) -> Outcome:
        """With it, until the state is that of the golden run."""
        async with self.prepared(case) as (user, operator):
            await self.begin(case, user, operator)
            fired = asyncio.create_task(self.proxy.fired.wait())
            same, seconds = True, 0.0

            async def equal() -> bool:
                return await user.state(NAME) == golden

            try:
                await asyncio.wait({fired}, timeout=CASE_SECONDS)
                fired.cancel()
                if operator.process is None:
                    operator.start()
                seconds = await until(equal, CASE_SECONDS, 0.25)
            except TimeoutError:
                same, seconds = False, CASE_SECONDS
            calls = self.proxy.calls
            call = calls[case.at] if case.at < len(calls) else "not made"
            state = await user.state(NAME)
            return Outcome(case, state, seconds, call, len(calls), same, await orphans(user))

    async def begin(self, case: Case, user: User, operator: Operator) -> None:
        """Count, and let the workload run."""
        if case.workload.before is None:
            await case.workload.act(user)
            self.proxy.arm(case.at, case.how)
            operator.start()
        else:
            self.proxy.arm(case.at, case.how)
            await case.workload.act(user)


async def settled(user: User) -> bool:
    """The children are there, and the status tells of the API as it is."""
    state = await user.state(NAME)
    return (
        state["api"] is not None
        and state["api"]["observed"]
        and len(state["children"]) >= len(CHILDREN)
        and all(child["owners"] for child in state["children"].values())
    )


async def orphans(user: User) -> int:
    """Children whose owner is not the API that is there."""
    api = await user.get(BATCHED_APIS, NAME)
    uid = api["metadata"]["uid"] if api is not None else None
    return sum(
        [owner["uid"] for owner in body["metadata"].get("ownerReferences") or ()] != [uid]
        for body in (await user.children()).values()
    )


def differing(wanted: Any, found: Any, where: str = "") -> list[str]:
    """Places at which two states differ, with what is there."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        names = sorted({*wanted, *found})
        return [
            text
            for name in names
            for text in differing(wanted.get(name), found.get(name), f"{where}.{name}")
        ]
    return [] if wanted == found else [f"{where}: {wanted} became {found}"]


def cases_of(golden: dict[str, Outcome], share: float, faults: float) -> list[Case]:
    """Kills at each call, and of the faults a share; the same ones each time."""
    chosen = random.Random(1)
    return [
        Case(workload, at, how)
        for workload in WORKLOADS
        for at in range(golden[workload.name].calls)
        for how in (*KILLS, *FAULTS)
        if chosen.random() < (share if how in KILLS else faults)
    ]


async def measure(plane: ControlPlane, lanes: int, share: float, faults: float) -> dict[str, Any]:
    """All of it."""
    async with installed(plane) as kube:
        with controllers(plane, "garbage-collector-controller,namespace-controller"):
            return await _measure(plane, kube, lanes, share, faults)


async def _measure(
    plane: ControlPlane, kube: Kube, lanes: int, share: float, faults: float
) -> dict[str, Any]:
    asks = plane.kubeconfig(ADMIN).read_text()
    async with asyncio.TaskGroup() as tasks:
        opened = asyncio.Queue[Lane]()
        stop = asyncio.Event()

        async def lane(number: int) -> None:
            name = f"proxy-{number}"
            async with proxy(asks, plane.folder, name) as (made, config):
                await opened.put(Lane(kube, made, config, plane.folder, number))
                await stop.wait()

        for number in range(lanes):
            tasks.create_task(lane(number))
        all_lanes = [await opened.get() for _ in range(lanes)]
        golden = {one.name: await all_lanes[0].golden(one) for one in WORKLOADS}
        waiting = cases_of(golden, share, faults)
        outcomes: list[Outcome] = []

        async def work(one: Lane) -> None:
            while waiting:
                case = waiting.pop(0)
                outcome = await one.run(case, golden[case.workload.name].state)
                outcomes.append(outcome)
                click.echo(f"{len(waiting)} to go, {outcome.seconds:.1f} s: {case.how}", err=True)
                if not outcome.same or outcome.orphans:
                    text = f"{case.workload.name} {case.at} {case.how} {outcome.call}"
                    differs = differing(golden[case.workload.name].state, outcome.state)
                    click.echo(f"{text}: {differs}", err=True)

        await asyncio.gather(*(work(one) for one in all_lanes))
        stop.set()
    return {
        "calls": {name: one.calls for name, one in golden.items()},
        "outcomes": [
            {"workload": o.case.workload.name, "at": o.case.at, "how": o.case.how, "call": o.call,
             "seconds": round(o.seconds, 2), "same": o.same, "orphans": o.orphans}
            for o in outcomes
        ],
    }  # fmt: skip


@click.command(help=help_of(__doc__))
@click.option("--lanes", type=click.IntRange(1), default=2, show_default=True, help="At once.")
@click.option("--share", type=float, default=1.0, show_default=True, help="Of the kills.")
@click.option("--faults", type=float, default=0.05, show_default=True, help="Share of the faults.")
@out_option
def main(*, lanes: int, share: float, faults: float, out: Path | None) -> None:
    """See the module's docstring."""
    began, since = environment(), time.monotonic()
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        found = asyncio.run(measure(plane, lanes, share, faults))
    minutes = (time.monotonic() - since) / 60
    rows = []
    for workload in (one.name for one in WORKLOADS):
        for kind, hows in (("killed", KILLS), ("fault", FAULTS)):
            ran = [o for o in found["outcomes"] if o["workload"] == workload and o["how"] in hows]
            seconds = [o["seconds"] for o in ran] or [0.0]
            rows.append(
                [workload, str(found["calls"][workload]), kind, str(len(ran)),
                 str(sum(o["same"] for o in ran)), str(sum(o["orphans"] for o in ran)),
                 f"{quantile(seconds, 0.5):.1f}", f"{max(seconds):.1f}"]
            )  # fmt: skip
    table = Table(
        f"At each call of the operator, {minutes:.0f} minutes, {lanes} side by side",
        ["workload", "calls", "what happens", "cases", "same end", "orphans",
         "median s to it", "longest"],
        rows,
    )  # fmt: skip
    report("operator-crashes", began, [table], notes=[], measured=found, out=out)
    if not all(o["same"] and not o["orphans"] for o in found["outcomes"]):
        sys.exit("an end that differs, or an orphan")


if __name__ == "__main__":
    main()
