"""Rollouts of worse and of equal revisions under load: which `updateStrategy.compare` holds.

    python tests/bench/compared.py    # wants the local cluster; 10 rollouts of each kind

Two APIs side by side, one of which has its queue on Redis: real pods behind a real kube-proxy, and
CoreDNS, by which they find each other. Each request has a row of its own, and any answer but the
right one of the good revision is a failure. Each rollout is a new revision; when it is held, or is
all that serves, the good one is applied again.
"""

import asyncio
import contextlib
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import click
import httpx
from harness.report import ROOT, Table, environment, help_of, out_option, report
from harness.service_load import ServiceLoad, through

import cluster
import cluster_dns
import cluster_redis

NAMESPACE: Final = "compared"
Steps = Iterator[tuple[str, Callable[[], None]]]
GOOD: Final = {
    "number": 0, "start": 0.0, "row": 1.0, "failing": False, "nan": False, "flipped": False,
}  # fmt: skip


class Kind(NamedTuple):
    """A revision, by what it has else than the good one."""

    title: str
    holds: str = ""
    """The reason for which it is to be held; empty: it is to be promoted."""
    config: Mapping[str, float | bool] = MappingProxyType({})
    model: str = "Tried"
    mode: str = "On"


KINDS: Final = {
    "slower": Kind("b + 60 %", "Slower", {"row": 1.6}),
    "flipped": Kind("labels flipped", "AnswersDiffer", {"flipped": True}),
    "nan": Kind("NaN", "MoreErrors", {"nan": True}),
    "errors": Kind("2 % of rows fail", "MoreErrors", {"failing": True}),
    "late": Kind("starts 5 s later", config={"start": 5.0}),
    "equal": Kind("equal"),
    "off": Kind("equal, compare is Off", mode="Off"),
    "near": Kind("b + 10 %", config={"row": 1.1}),
    "signature": Kind("another signature", model="Wider"),
}
MOST_LONGER_SECONDS: Final = 5.0
"""For an equal revision."""
STEP_SECONDS: Final = 240.0
"""The longest that a rollout may take."""
FIRST_SECONDS: Final = 20.0
"""Of load before the first rollout: rows are kept then."""
ANEW_SECONDS: Final = 5.0
"""The same, after the pods that keep them were replaced. `errors`, which wants many rows, comes
after those that leave these pods."""


class Load(ServiceLoad):
    """Rows of four whole numbers, of which no two are alike."""

    def row_of(self, number: int) -> list[int]:
        """See ServiceLoad; of fifty values of the first number, one lets a faulty model fail."""
        drawn = random.Random(number)
        return [drawn.randrange(5000), *(drawn.randint(-5000, 3000) for _ in range(3))]

    def answer_of(self, number: int) -> list[float]:
        """See ServiceLoad."""
        total = sum(self.row_of(number))
        return [float(total > 0), float(total)]


@dataclass
class Api:
    """One API, and what became of its rollouts."""

    name: str
    redis: str
    """Address; empty: each replica has a queue."""
    replicas: int
    proxy: str
    """Where kubectl answers for the apiserver."""
    rollouts: list[dict[str, Any]] = field(default_factory=list)

    def manifest(self) -> dict[str, Any]:
        """The good revision."""
        spec = change(KINDS["equal"], 0)
        spec["predictor"]["source"] = {"configMap": "tried-model"}
        batching: dict[str, Any] = {"maxBatchSize": 8}
        if self.redis:
            batching["queue"] = {
                "redis": {"host": self.redis},
                "web": {"cpu": "25m", "maxReplicas": 2},
            }
        spec |= {"serverSideBatching": batching, "compute": {"cpu": "50m"}}
        spec |= {"autoscaling": {"mode": "External"}, "replicas": self.replicas}
        head = {"apiVersion": "batchedapi.dev/v1alpha1", "kind": "BatchedAPI"}
        return {**head, "metadata": {"name": self.name}, "spec": spec}

    def look(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The API and its pods; by no kubectl, which would take a good part of two cores."""
        apis = f"apis/batchedapi.dev/v1alpha1/namespaces/{NAMESPACE}/batchedapis/{self.name}"
        pods = f"api/v1/namespaces/{NAMESPACE}/pods?labelSelector=batchedapi.dev/api={self.name}"
        with httpx.Client(base_url=self.proxy, trust_env=False, timeout=30) as client:
            return client.get(apis).json(), client.get(pods).json()["items"]

    def model_pods(self, revision: str) -> set[str]:
        """Names of its pods that have a model."""
        models = (one for one in self.look()[1] if labels_of(one).get("role") != "web")
        return {name_of(one) for one in models if labels_of(one)["revision"] == revision}

    def outcome(self, before: str) -> tuple[str, str, str] | None:
        """(reason, message, revision) once a revision other than `before` is held or is all.

        None: neither yet. The reason of the second is empty.
        """
        api, pods = self.look()
        if api.get("status", {}).get("observedGeneration") != api["metadata"]["generation"]:
            return None
        told = cluster.condition_of(api, "Compared")
        if told.get("status") == "False":
            return told["reason"], told["message"], ""
        staying = [one for one in pods if "deletionTimestamp" not in one["metadata"]]
        models = [one for one in staying if labels_of(one).get("role") != "web"]
        revisions = {labels_of(one)["revision"] for one in staying}
        ready = len(models) == self.replicas and all(map(cluster.is_ready, staying))
        alone = ready and len(revisions) == 1 and before not in revisions
        has_web = not self.redis or len(staying) > len(models)
        return ("", "", revisions.pop()) if alone and has_web else None

    def until_good(self, before: str) -> str:
        """Wait until the good revision is all that serves; which it is."""

        def good() -> str | None:
            found = self.outcome(before)
            return found[2] if found and not found[0] else None

        return cluster.wait_for(good, STEP_SECONDS, f"{self.name} of the good revision alone")

    def until_settled(self, revision: str) -> set[str]:
        """Wait until no pod of another revision is there, or is ending; those with a model."""

        def settled() -> bool:
            pods = self.look()[1]
            ending = any("deletionTimestamp" in one["metadata"] for one in pods)
            return not ending and {labels_of(one)["revision"] for one in pods} == {revision}

        cluster.wait_for(settled, STEP_SECONDS, f"{self.name} of {revision} and no other pod")
        return self.model_pods(revision)

    def roll(self, name: str, number: int) -> None:
        """A revision of that kind, until it is held or is all; then the good one again."""
        good = self.until_good("")
        served = self.until_settled(good)
        cluster.patch_api(self.name, NAMESPACE, change(KINDS[name], number))
        began = time.monotonic()
        what = f"{name} {number} of {self.name}"
        reason, text, revision = cluster.wait_for(lambda: self.outcome(good), STEP_SECONDS, what)
        seconds = time.monotonic() - began
        said = [] if reason else [line for pod in self.model_pods(revision) for line in log_of(pod)]
        cluster.patch_api(self.name, NAMESPACE, change(KINDS["equal"], 0))
        began = time.monotonic()
        self.until_good(revision)
        back = time.monotonic() - began
        kept = served == self.until_settled(good)
        if not reason:
            time.sleep(ANEW_SECONDS)
        self.rollouts.append({
            "kind": name, "reason": reason, "message": text, "seconds": seconds, "back": back,
            "said": said, "kept": kept,
        })  # fmt: skip

    def right(self, one: dict[str, Any]) -> bool:
        """Whether a rollout ended as it is to: compared, and for the right reason."""
        kind, compared = KINDS[one["kind"]], [line["message"] for line in one["said"]]
        if kind.holds:
            return bool(one["reason"] == kind.holds and one["kept"])
        told = kind.mode == "Off" or compared == ["compared"] * self.replicas
        return not one["reason"] and told


def change(kind: Kind, number: int) -> dict[str, Any]:
    """What a revision changes of the spec; those of other numbers are others."""
    config = {**GOOD, **kind.config, "number": number}
    predictor = {"path": f"model:{kind.model}", "config": config}
    return {"predictor": predictor, "updateStrategy": {"compare": {"mode": kind.mode}}}


def name_of(one: dict[str, Any]) -> str:
    """Of an object."""
    return str(one["metadata"]["name"])


def labels_of(one: dict[str, Any]) -> dict[str, str]:
    """Labels of the product, by the last part of their names."""
    labels: dict[str, str] = one["metadata"].get("labels", {})
    return {key.partition("/")[2]: value for key, value in labels.items() if "batched" in key}


def log_of(pod: str) -> list[dict[str, Any]]:
    """What a pod said of its comparison."""
    lines = cluster.kubectl("logs", pod, "-n", NAMESPACE).splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [one for one in found if one["message"] in {"compared", "not compared"}]


@contextlib.contextmanager
def deployed(names: Sequence[str], replicas: int) -> Iterator[list[Api]]:
    """The APIs, ready; operator and namespace are gone afterwards."""
    cluster.install_chart()
    labels = {"pod-security.kubernetes.io/enforce": "restricted", **cluster_dns.LABEL}
    space = {"apiVersion": "v1", "kind": "Namespace"}
    cluster.apply({**space, "metadata": {"name": NAMESPACE, "labels": labels}}, NAMESPACE)
    try:
        with cluster_dns.running(), cluster.proxy() as proxy:
            code = (ROOT / "tests/bench/tried_model.py").read_text()
            source = {"kind": "ConfigMap", "metadata": {"name": "tried-model"}}
            cluster.apply({"apiVersion": "v1", **source, "data": {"model.py": code}}, NAMESPACE)
            address = cluster_redis.applied(NAMESPACE) if "on-redis" in names else ""
            places = {"plain": "", "on-redis": address}
            apis = [Api(name, places[name], replicas, proxy) for name in names]
            for api in apis:
                cluster.apply(api.manifest(), NAMESPACE)
            for api in apis:
                api.until_good("")
                cluster.service_url(api.name, NAMESPACE)  # kube-proxy hears of pods later
            yield apis
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
        cluster.uninstall_chart()


def steps(api: Api, kinds: Sequence[str], rollouts: int, minutes: float) -> Steps:
    """Rollouts in turn; none begins after so many minutes."""
    until = time.monotonic() + 60 * minutes
    yield "rows", partial(time.sleep, FIRST_SECONDS)
    for number, name in enumerate([*kinds] * rollouts, 1):
        if time.monotonic() < until:
            yield name, partial(api.roll, name, number)


async def measure(api: Api, todo: Steps, rate: float) -> dict[str, Any]:
    """All rollouts of an API under load."""
    address = cluster.get("service", api.name, NAMESPACE)["spec"]["clusterIP"]
    found = await through(Load(address, 80, f"/{api.name}", rate), todo, 0)
    return {"api": api.name, "rollouts": api.rollouts, **found}


def longer(api: Api) -> float | None:
    """Seconds that an equal revision takes longer than with compare Off; None: not measured."""
    equal, off = (
        [one["seconds"] for one in api.rollouts if one["kind"] == kind] for kind in ("equal", "off")
    )
    return statistics.median(equal) - statistics.median(off) if equal and off else None


def rows_of(api: Api, kinds: Sequence[str], found: dict[str, Any]) -> Iterator[list[str]]:
    """A row of the table for each kind."""
    for name in kinds:
        kind, done = KINDS[name], [one for one in api.rollouts if one["kind"] == name]
        of_kind = [one for one in found["steps"] if one["step"] == name]
        took = ([one[at] for one in done] or [math.nan] for at in ("seconds", "back"))
        yield [
            kind.title, "Redis" if api.redis else "each replica's",
            f"held: {kind.holds}" if kind.holds else "promoted",
            f"{sum(map(api.right, done))} of {len(done)}",
            f"{sum(one['sent'] for one in of_kind):,}",
            str(sum(sum(one["lost"].values()) for one in of_kind)),
            *(f"{statistics.median(s):.1f} ({min(s):.1f} to {max(s):.1f})" for s in took),
        ]  # fmt: skip


@click.command(help=help_of(__doc__))
@click.option("--rollouts", type=click.IntRange(1), default=10, show_default=True, help="Each.")
@click.option("--kinds", default=",".join(KINDS), show_default=True)
@click.option("--queue/--no-queue", default=None, help="One of the APIs alone.")
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True)
@click.option("--rate", type=click.FloatRange(1), default=40.0, show_default=True, help="Each.")
@click.option("--minutes", default=60.0, show_default=True, help="After which none begins.")
@out_option
def main(
    *,
    rollouts: int,
    kinds: str,
    queue: bool | None,
    replicas: int,
    rate: float,
    minutes: float,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began, names = environment(), kinds.split(",")
    wanted = {None: ["plain", "on-redis"], False: ["plain"], True: ["on-redis"]}[queue]

    async def side_by_side() -> list[dict[str, Any]]:
        todo = ((api, steps(api, names, rollouts, minutes)) for api in apis)
        return await asyncio.gather(*(measure(api, of_api, rate) for api, of_api in todo))

    with deployed(wanted, replicas) as apis:
        found = asyncio.run(side_by_side())
    rows = [row for api, one in zip(apis, found, strict=True) for row in rows_of(api, names, one)]
    head = [
        "revision", "queue", "is to be", "was", "requests", "failed",
        "s to the verdict, median (range)", "s back to the good one",
    ]  # fmt: skip
    tables = [Table("Rollouts under load", head, rows)]
    more = [longer(api) for api in apis]
    told = ", ".join(f"{s:+.1f} s {api.name}" for api, s in zip(apis, more, strict=True) if s)
    lost = {why: n for one in found for why, n in one["counts"]["lost"].items()}
    if lost:
        reasons = [[str(n), why] for why, n in lost.items()]
        tables.append(Table("Failed", ["requests", "of which"], reasons))
    note = (
        f"A batch takes 1 ms and b = 5 ms a row, asleep; {rate:g} requests/s to each API, of"
        f" {replicas} replicas; half of them on a new connection. Both APIs were rolled side by"
        " side. The time is from `kubectl patch` to the condition `Compared`, or to all ready pods"
        " being of the new revision, looked at twice a second. `promoted` counts where each new pod"
        " said that it was compared; `held` where the pods that served are still the same. An equal"
        f" revision beside the same with compare Off: {told or 'not measured'}."
    )
    report("compared", began, tables, notes=[note], measured={"apis": found}, out=out)
    wrong = any(not api.right(one) for api in apis for one in api.rollouts)
    wrong = wrong or any(s and s > MOST_LONGER_SECONDS for s in more)
    if lost or wrong or any("broken_off" in one for one in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
