"""Every leaf of the resource definition with every kind of value, and walks between random specs.

    python tests/bench/operator_specs.py
    python tests/bench/operator_specs.py --field compute --transitions 100

A real apiserver with Pod Security `restricted`, real controllers, and the operator as a process.
Each value, in an otherwise good manifest, is refused with its field and a remedy, or becomes a pod
that is admitted, or a condition tells of the field and a remedy. A walk goes from spec to spec,
good ones and such that cannot work, and each time has to arrive where an API that was never
anything else is. Of each leaf a value has to be admitted, and of the specs about half can work.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from harness.control_plane import ADMIN, ControlPlane, control_plane, controllers
from harness.operated import Rig
from harness.report import Environment, Table, environment, help_of, out_option, report
from kubernetes.aio import client, config
from tests.contract.operator.corpus import GOOD
from tests.contract.operator.generated import (
    FIELDS,
    LEAVES,
    RUNTIME_CLASS,
    Place,
    tried,
    with_company,
    with_value,
    words,
)
from tests.contract.operator.outcomes import (
    ADMITTED,
    PATIENCE,
    REFUSED,
    RESTRICTED,
    TOLD,
    WRONG,
    Outcome,
    Seen,
    conditions,
    outcome_of,
    settled,
    state_of,
    until_settled,
    watching,
)
from tests.contract.operator.world import CUSTOM_RESOURCES, NAMESPACES, Body, World, until

from batchedapi_core import contract
from batchedapi_core.manifest.crd import crd
from batchedapi_operator.cluster import BATCHED_APIS, CONFIG_MAPS, PODS
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube
from cluster import is_ready
from ports import free_port

FEW: Final = "few"
"""The namespace of counts of replicas, in which a quota ends what would be thousands of pods."""
MANY: Final = "specs"
MOST_PODS: Final = 5
RUNTIME_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
LARGE: Final = "x" * 1_100_000
"""More than a ConfigMap may have."""
WRITES: Final = 12
"""Writes to one Deployment that was only created: more is an operator that is never content."""
CHANGES: Final = 6
"""Fields of a random spec, at most."""
MISSING: Final = "no-such"
"""A ConfigMap that is not there."""
FROM_FILES: Final = 0.3
"""Share of random specs whose predictor is in a ConfigMap."""
LEAST_SHARE: Final = 1 / 3
"""Of random states that can work, and of those that cannot: without both, walks show little."""
ANSWER_SECONDS: Final = 0.5
"""From one look for pods that are not ready to the next."""

NOTE: Final = (
    "Each value stands in an otherwise good manifest. *admitted*: a pod was admitted under Pod"
    " Security `restricted`, and the status says so; *told*: a condition names the field and a"
    " remedy; *refused*: by the apiserver, with the field and a remedy. A transition has arrived"
    " when Deployment, Service, revision and condition are those of an API that was created with"
    " the last spec."
)


@dataclass(frozen=True)
class Case:
    """One value of one leaf."""

    place: Place
    value: Any


@dataclass
class Found:
    """What was seen."""

    cases: list[tuple[Case, Outcome]] = field(default_factory=list)
    states: int = 0
    broken: int = 0
    """States that cannot work."""
    transitions: int = 0
    arrived: int = 0
    repairs: int = 0
    """Transitions from a state that cannot work to one that can."""
    repaired: int = 0
    astray: list[str] = field(default_factory=list)
    alarms: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class State:
    """A spec, and where it leads when nothing was there before."""

    spec: Body
    outcome: Outcome
    reached: Any
    """As `state_of` tells it; of a spec that cannot work, its condition."""


def cases(wanted: str, most: int) -> list[Case]:
    """All that are to be tried."""
    found = []
    for place in LEAVES:
        values = tried(place)
        if FIELDS[place].get("x-kubernetes-preserve-unknown-fields"):
            values += [{"a": LARGE}, {"a": {"b": [None, {"c": "\x00"}]}}, {"": ""}]
        found += [Case(place, value) for value in values[:most] if wanted in words(place)]
    return found


def counts_replicas(place: Place) -> bool:
    """Whether a value may be thousands of pods."""
    return str(place[-1]) in {"replicas", "minReplicas", "initReplicas"}


async def all_of(lanes: int, work: list[Callable[[], Awaitable[None]]]) -> None:
    """So many at once."""
    waiting = iter(work)

    async def lane() -> None:
        for one in waiting:
            await one()

    await asyncio.gather(*(lane() for _ in range(lanes)))


async def try_cases(rooms: dict[str, tuple[World, Seen]], wanted: list[Case], lanes: int) -> Found:
    """Every value in a manifest of its own."""
    found = Found()
    began = time.monotonic()

    def one(number: int, case: Case) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            world, seen = rooms[FEW if counts_replicas(case.place) else MANY]
            spec = with_company(case.place, case.value)
            outcome = await outcome_of(world, seen, f"case{number}q", case.place, spec)
            found.cases.append((case, outcome))
            if outcome.kind == WRONG:
                click.echo(f"{words(case.place)} = {case.value!r:.80}: {outcome.said[:600]}")
            if len(found.cases) % 500 == 0:
                click.echo(f"{len(found.cases)} values, {time.monotonic() - began:.0f} s")

        return run

    await all_of(lanes, [one(number, case) for number, case in enumerate(wanted)])
    return found


def random_spec(accepted: Sequence[tuple[Case, Outcome]], source: str, rng: random.Random) -> Body:
    """Several fields at once; the files, if not out of the image, are in that ConfigMap."""
    spec: Body = dict(GOOD)
    drawn = rng.sample(accepted, rng.randint(1, min(CHANGES, len(accepted))))
    for case, _ in drawn:
        spec = with_value(case.place, case.value, {**with_company(case.place, case.value), **spec})
    works = all(outcome.kind == ADMITTED for _, outcome in drawn)
    if rng.random() < FROM_FILES or (works and source == MISSING):
        spec["predictor"] = {**spec["predictor"], "source": {"configMap": source}}
    return spec


async def random_states(
    world: World, seen: Seen, found: Found, *, rng: random.Random, number: int, lanes: int
) -> list[State]:
    """Random specs that the apiserver takes, each with what it leads to from nothing.

    Every other one has values alone that can work by themselves; the others have something that
    cannot.
    """
    accepted = [
        (case, outcome)
        for case, outcome in found.cases
        if outcome.kind in {ADMITTED, TOLD}
        and not (counts_replicas(case.place) and int(case.value) > MOST_PODS)
        and LARGE not in str(case.value)
    ]
    states: list[State] = []

    able = [(case, outcome) for case, outcome in accepted if outcome.kind == ADMITTED]

    async def one(index: int) -> None:
        name = f"state{index}q"
        drawn = (able, "iris") if index % 2 else (accepted, MISSING)
        while True:
            spec = random_spec(*drawn, rng)
            try:
                await world.create_api(name, spec)
                break
            except ApplyError:
                continue  # two of its fields do not go together
        outcome = await until_settled(seen, name)
        if outcome.kind == WRONG:
            found.astray.append(f"new {json.dumps(spec)[:500]}: {outcome.said[:1000]}")
        else:
            states.append(State(spec, outcome, reached(seen, name, outcome)))
        await world.delete(BATCHED_APIS, name)

    await all_of(lanes, [lambda index=index: one(index) for index in range(number)])  # type: ignore[misc]
    found.states = len(states)
    found.broken = sum(state.outcome.kind == TOLD for state in states)
    return states


def reached(seen: Seen, name: str, outcome: Outcome) -> Any:
    """Where an API is: its children, or of a spec that cannot work what is said."""
    if outcome.kind == TOLD:
        valid = conditions(seen.apis[name])["SpecValid"]
        return [valid["status"], valid["reason"]]
    return "paused" if outcome.said == "paused" else state_of(seen, name)


async def until_reached(seen: Seen, name: str, state: State) -> str:
    """Wait until an API is where a new one would be; otherwise how it differs."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        await asyncio.sleep(0.15)
        outcome = settled(seen, name)
        differs = "not settled"
        if outcome is not None and outcome.kind == state.outcome.kind:
            here = reached(seen, name, outcome)
            differs = "" if here == state.reached else difference(here, state.reached)
            differs = differs or out_of_bounds(seen, name, outcome)
        elif outcome is not None:
            differs = f"{outcome} instead of {state.outcome}"
        if not differs or asyncio.get_running_loop().time() > deadline:
            return differs


def out_of_bounds(seen: Seen, name: str, outcome: Outcome) -> str:
    """Whether a count that the autoscaler owns is not what the spec allows; empty if it is."""
    scaling = seen.apis[name]["spec"]["autoscaling"]
    if outcome.kind == TOLD or outcome.said or scaling["mode"] != "Native":
        return ""
    count = seen.deployments[name]["spec"]["replicas"]
    allowed = range(scaling["minReplicas"], scaling["maxReplicas"] + 1)
    return "" if count in allowed else f"{count} replicas, {allowed} are allowed"


def difference(here: Any, there: Any, path: str = "") -> str:
    """The first place where two documents differ."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in sorted({*here, *there}):
            if here.get(key) != there.get(key):
                return difference(here.get(key), there.get(key), f"{path}.{key}")
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for index, pair in enumerate(zip(here, there, strict=True)):
            if pair[0] != pair[1]:
                return difference(*pair, f"{path}[{index}]")
    return f"{path}: {here!r:.300} instead of {there!r:.300}"


async def walk(
    world: World, seen: Seen, states: list[State], found: Found, *, walkers: int, seed: int
) -> None:
    """From state to state, so many transitions in all."""
    wanted = found.transitions
    found.transitions = 0

    async def one(index: int) -> None:
        rng, name = random.Random(seed + index), f"walker{index}q"
        before = rng.choice([state for state in states if state.outcome.kind == ADMITTED])
        await world.create_api(name, before.spec)
        await until_reached(seen, name, before)
        while found.transitions < wanted:
            state = rng.choice(states)
            hops = [state]
            if rng.random() < 0.25:  # before the operator is done with another
                hops.insert(0, rng.choice(states))
            try:
                for hop in hops:
                    patch: Any = [{"op": "replace", "path": "/spec", "value": hop.spec}]
                    path = BATCHED_APIS.path(world.namespace, name)
                    await world.kube._request(
                        "PATCH", path, {}, patch, content_type="application/json-patch+json"
                    )
            except ApplyError as error:
                found.astray.append(f"refused: {error.message[:300]}")
                continue
            found.transitions += len(hops)
            repair = before.outcome.kind == TOLD and state.outcome.kind == ADMITTED
            found.repairs += repair
            differs = await until_reached(seen, name, state)
            if differs:
                words = f"{name}: {differs}\n  from {json.dumps(before.spec)[:600]}\n"
                found.astray.append(f"{words}  to {json.dumps(state.spec)[:600]}")
                click.echo(found.astray[-1])
            else:
                found.arrived += len(hops)
                found.repaired += repair
            before = state
            if found.transitions % 100 < len(hops):
                click.echo(f"{found.transitions} transitions, {len(found.astray)} astray")

    async with asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(pods_answer(world))
        await asyncio.gather(*(one(index) for index in range(walkers)))
        answering.cancel()


async def pods_answer(world: World) -> None:
    """An API gets its queue, and loses it, as pods become ready; nobody runs them here."""
    while True:
        pods = await world.kube.find(PODS, world.namespace, contract.LABEL_API)
        await world.make_ready(one for one in pods if not is_ready(one))
        await asyncio.sleep(ANSWER_SECONDS)


def alarms_of(plane: ControlPlane, logs: list[Path]) -> Counter[str]:
    """What the operators logged as wrong, and Deployments that they never left alone."""
    found: Counter[str] = Counter()
    for line in "".join(log.read_text() for log in logs).splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            found[f"log: {line[:200]}"] += 1
            continue
        if entry["level"] not in {"debug", "info"} or "Traceback" in line:
            found[f"log: {entry['event']} {str(entry.get('error', ''))[-200:]}"[:300]] += 1
    writes: Counter[str] = Counter()
    for entry in plane.audited():
        asked = entry.get("objectRef") or {}
        if entry["verb"] == "patch" and asked.get("resource") == "deployments":
            name = asked.get("name", "")
            writes[name] += not name.startswith("walker")
    for name, count in writes.items():
        if count > WRITES:
            found[f"Deployment {name} written {count} times"] += 1
    return found


async def make_namespaces(kube: Kube) -> None:
    """Two that admit `restricted` pods alone, one of them with a quota."""
    await kube._request("POST", CUSTOM_RESOURCES, {}, crd())
    files = {"data": {"model.py": "class Iris: ..."}}
    for name in (MANY, FEW):
        body = {"apiVersion": "v1", "kind": "Namespace"}
        metadata = {"name": name, "labels": RESTRICTED}
        await kube._request("POST", NAMESPACES, {}, {**body, "metadata": metadata})
        await World(kube, name).create(CONFIG_MAPS, {"metadata": {"name": "iris"}, **files})
    sandbox = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "none"}
    await kube._request(
        "POST", RUNTIME_CLASSES, {}, {**sandbox, "metadata": {"name": RUNTIME_CLASS}}
    )
    # admission counts pods by itself, but for those that are gone
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    path = f"{NAMESPACES}/{FEW}/resourcequotas"
    await kube._request("POST", path, {}, {**quota, "spec": {"hard": {"pods": str(MOST_PODS)}}})
    limit = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "memory"}}
    largest = {"limits": [{"type": "Container", "max": {"memory": "1Ti"}}]}
    path = f"{NAMESPACES}/{MANY}/limitranges"
    await kube._request("POST", path, {}, {**limit, "spec": largest})


async def served(kube: Kube) -> bool:
    """Whether BatchedAPIs can be listed."""
    try:
        await kube.find(BATCHED_APIS, MANY)
    except ApplyError:
        return False
    return True


async def measure(
    plane: ControlPlane, tried: list[Case], *, transitions: int, number: int, lanes: int, seed: int
) -> Found:
    """Values first, then walks between what was accepted."""
    await config.load_kube_config(str(plane.kubeconfig(ADMIN)))  # type: ignore[no-untyped-call]
    async with client.ApiClient() as api:
        kube = Kube(api)
        await make_namespaces(kube)
        await until(partial(served, kube), "the apiserver to serve the new kind")
        rigs = [
            Rig(plane, kube, free_port(), plane.folder / f"operator-{name}.log", namespace=name)
            for name in (MANY, FEW)
        ]
        try:
            for rig in rigs:
                rig.start_operator()
            many, few = World(kube, MANY), World(kube, FEW)
            async with watching(many) as of_many, watching(few) as of_few:
                rooms = {MANY: (many, of_many), FEW: (few, of_few)}
                found = await try_cases(rooms, tried, lanes)
                rng, found.transitions = random.Random(seed), transitions
                if transitions:
                    states = await random_states(
                        many, of_many, found, rng=rng, number=number, lanes=lanes
                    )
                    await walk(many, of_many, states, found, walkers=lanes, seed=seed)
        finally:
            for rig in rigs:
                rig.stop_operator()
        found.alarms = alarms_of(plane, [rig.log for rig in rigs])
    return found


def counts(found: Found) -> dict[str, Counter[str]]:
    """How many values of each field became what."""
    kinds: dict[str, Counter[str]] = {}
    for case, outcome in found.cases:
        kinds.setdefault(words(case.place), Counter())[outcome.kind] += 1
    return {words(place): kinds[words(place)] for place in LEAVES if words(place) in kinds}


def wrong(found: Found) -> list[list[str]]:
    """Where, with what value, and what; of a field and of the states what they did not show."""
    rows = [
        [words(case.place), f"{case.value!r:.60}", outcome.said[:300]]
        for case, outcome in found.cases
        if outcome.kind == WRONG
    ]
    rows += [
        [name, "", "none was admitted"] for name, n in counts(found).items() if not n[ADMITTED]
    ]
    able, least = found.states - found.broken, found.states * LEAST_SHARE
    if able < least or found.broken < least:
        rows.append(["random states", "", f"{able} of {found.states} can work"])
    rows += [["a walk", "", line[:300]] for line in found.astray]
    return rows + [["alarm", str(count), line] for line, count in found.alarms.items()]


def tables(found: Found) -> list[Table]:
    """By field, and of the walks."""
    kinds = (ADMITTED, TOLD, REFUSED, WRONG)
    fields = counts(found)
    rows = [
        [name, str(here.total()), *(str(here[kind]) for kind in kinds)]
        for name, here in {**fields, "all": sum(fields.values(), Counter())}.items()
    ]
    values = Table("Values of every leaf", ("field", "values", *kinds), rows)
    walks = Table(
        "Walks between random specs",
        ("states", "that cannot work", "transitions", "arrived", "repairs", "repaired", "astray"),
        [[str(one) for one in (
            found.states, found.broken, found.transitions, found.arrived, found.repairs,
            found.repaired, len(found.astray),
        )]],
    )  # fmt: skip
    what = Table("What went wrong", ("where", "value", "what"), wrong(found))
    return [values, walks, *([what] if what.rows else [])]


def write(found: Found, began: Environment, seconds: float, out: Path | None) -> None:
    """The tables; for programs the counts, and what went wrong."""
    figures = ("states", "broken", "transitions", "arrived", "repairs", "repaired")
    report(
        "operator_specs",
        began,
        tables(found),
        notes=[NOTE, f"{seconds:.0f} s in all."],
        measured={
            "values": counts(found),
            "walks": {name: getattr(found, name) for name in figures},
            "wrong": wrong(found),
        },
        out=out,
    )


@click.command(help=help_of(__doc__))
@click.option("--field", "wanted", default="", help="Only fields whose path has this in it.")
@click.option("--values", default=10_000, show_default=True, help="Of a field, at most.")
@click.option("--transitions", default=2000, show_default=True)
@click.option("--states", default=150, show_default=True, help="Random specs to walk between.")
@click.option("--lanes", default=16, show_default=True, help="APIs at once.")
@click.option("--seed", default=1, show_default=True)
@out_option
def main(
    *,
    wanted: str,
    values: int,
    transitions: int,
    states: int,
    lanes: int,
    seed: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began, clock = environment(), time.monotonic()
    with (
        tempfile.TemporaryDirectory() as name,
        control_plane(Path(name)) as plane,
        controllers(plane),
    ):
        work = measure(
            plane,
            cases(wanted, values),
            transitions=transitions,
            number=states,
            lanes=lanes,
            seed=seed,
        )
        found = asyncio.run(work)
    write(found, began, time.monotonic() - clock, out)
    if wrong(found) or found.arrived != found.transitions:
        sys.exit(1)


if __name__ == "__main__":
    main()
