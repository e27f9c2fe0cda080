"""Install, upgrade from an earlier chart, roll back, uninstall and reinstall, under load.

    tests/cluster/images && tests/cluster/images --commit a3715b8
    python tests/bench/helm_cycle.py    # 20 rounds; wants the cluster of KUBECONFIG

The earlier chart is that of commit a3715b8 (`fixtures/chart-a3715b8`), with that commit's operator
and serving images. Each round has random values. Two APIs are asked all the while: none may be
lost, none of their pods may be replaced or restarted, and no request may fail.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import yaml
from harness.report import ROOT, Environment, Table, environment, help_of, out_option, report
from harness.service_load import ServiceLoad

import cluster

COMMIT: Final = "a3715b8"
OLD: Final = Path(__file__).parent / "fixtures" / f"chart-{COMMIT}"
NEW: Final = ROOT / "charts" / "batchedapi"
TAGS: Final = {OLD: COMMIT, NEW: "dev"}
RELEASE: Final = "batchedapi"
NAMESPACE: Final = "cycle"
RATE: Final = 15.0
"""Requests a second to each API: nobody is short of anything."""
SETTLE_SECONDS: Final = 8.0
"""After an operator is ready: it has looked at everything, and pods that it rolls would be seen."""
ROLLOUT: Final = "--timeout=180s"


def documents() -> list[dict[str, Any]]:
    """Two APIs of the example, one scaled by the operator and one by its user."""
    text = (ROOT / "examples/02-sleepy/batchedapi.yaml").read_text()
    source, native = yaml.safe_load_all(text)
    native["spec"]["compute"] = {"cpu": "50m"}
    native["spec"]["autoscaling"] = {"minReplicas": 2, "maxReplicas": 2}
    steady = json.loads(json.dumps(native))
    steady["metadata"]["name"] = "steady"
    steady["spec"] |= {"autoscaling": {"mode": "Off"}, "replicas": 1}
    steady["spec"]["predictor"]["env"] = [{"name": "A", "value": "1"}]
    steady["spec"]["networking"] = {"grpc": True}
    return [source, native, steady]


def values(chart: Path, wish: dict[str, Any]) -> dict[str, Any]:
    """What is wished for, in that chart's words; an older one has not all of them."""
    known = json.loads((chart / "values.schema.json").read_text())["properties"]
    given = {name: value for name, value in wish.items() if name in known}
    given |= {"image": {"tag": TAGS[chart]}, "servingImage": {"tag": TAGS[chart]}}
    if wish["alone"]:
        if "watchNamespaces" in known:
            given["watchNamespaces"] = [NAMESPACE]
        else:
            given["watchNamespace"] = NAMESPACE
    return given


def wishes(rng: random.Random) -> dict[str, Any]:
    """Random values; those that a chart does not have are left out."""
    memory = rng.choice(["192Mi", "256Mi", "512Mi"])
    return {
        "alone": rng.random() < 0.5,
        "logLevel": rng.choice(["debug", "info", "warning", "error"]),
        "logFormat": rng.choice(["json", "text"]),
        "replicas": rng.choice([1, 2]),
        "resources": {
            "requests": {"cpu": rng.choice(["20m", "50m", "100m"]), "memory": "96Mi"},
            "limits": {"memory": memory},
        },
        "dashboards": {"enabled": rng.random() < 0.5},
        "networkPolicies": {"enabled": rng.random() < 0.5},
        "podDisruptionBudgets": {"enabled": rng.random() < 0.5},
        "imagePullSecrets": rng.choice([[], ["registry"]]),
    }


def helm(verb: str, chart: Path | None = None, given: dict[str, Any] | None = None) -> None:
    """One step, until the operator that it leaves is ready."""
    words: list[object] = ["helm", verb, RELEASE, "--namespace", cluster.SYSTEM_NAMESPACE]
    if chart is not None:
        words[3:3] = [chart]
        words += ["--values", "-", "--create-namespace"]
        words += ["--reset-values"] if verb == "upgrade" else []
        # the resource definition stays when a release goes, and belongs to nobody then
        words += ["--take-ownership"]
    if verb == "uninstall":
        words += ["--wait"]
    cluster.run(*words, stdin=json.dumps(given) if given is not None else None)
    if verb != "uninstall":
        where = ("-n", cluster.SYSTEM_NAMESPACE, ROLLOUT)
        cluster.kubectl("rollout", "status", f"deployment/{RELEASE}-operator", *where)


def state() -> dict[str, Any]:
    """APIs and pods by name, with what tells one from another that has taken its place."""
    apis = cluster.get_all("batchedapis.batchedapi.dev", NAMESPACE)
    pods = cluster.get_all("pod", NAMESPACE)
    return {
        "apis": {one["metadata"]["name"]: one["metadata"]["uid"] for one in apis},
        "pods": {one["metadata"]["name"]: _restarts(one) for one in pods},
    }


def _restarts(pod: dict[str, Any]) -> int:
    found = pod.get("status", {}).get("containerStatuses", ())
    return sum(int(one["restartCount"]) for one in found)


def until_acting(name: str) -> None:
    """Wait for the operator that runs now to do its work: to note an edit in the status."""
    before = cluster.get("bapi", name, NAMESPACE)["spec"]["autoscaling"].get("window")
    edit = {"autoscaling": {"window": "60s" if before != "60s" else "30s"}}
    cluster.patch_api(name, NAMESPACE, edit)

    def noted() -> bool:
        body = cluster.get("bapi", name, NAMESPACE)
        observed = body.get("status", {}).get("observedGeneration")
        return bool(observed == body["metadata"]["generation"])

    cluster.wait_for(noted, 60, f"the operator to note an edit of {name}")


def steps(wish: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """What is done in one round."""
    yield "install the earlier", ("install", OLD, values(OLD, wish))
    yield "upgrade", ("upgrade", NEW, values(NEW, wish))
    yield "roll back", ("rollback",)
    yield "upgrade again", ("upgrade", NEW, values(NEW, wish))
    yield "uninstall", ("uninstall",)
    yield "reinstall", ("install", NEW, values(NEW, wish))
    yield "uninstall for the next", ("uninstall",)


def lost_between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[str]]:
    """APIs that are gone or others, and pods that are gone or were restarted."""
    return {
        "apis": [name for name, uid in before["apis"].items() if after["apis"].get(name) != uid],
        "pods": [name for name, n in before["pods"].items() if after["pods"].get(name) != n],
    }


async def one_round(number: int, wish: dict[str, Any], loads: list[ServiceLoad]) -> dict[str, Any]:
    """All steps with these values; what each of them cost."""
    found: dict[str, Any] = {"round": number, "values": wish, "steps": []}
    for name, words in steps(wish):
        began, sent = time.time(), sum(load.counts.sent for load in loads)
        lost = sum(load.counts.lost.total() for load in loads)
        before = await asyncio.to_thread(state)
        await asyncio.to_thread(helm, *words)
        if words[0] != "uninstall":
            await asyncio.to_thread(until_acting, "sleepy")
        await asyncio.sleep(SETTLE_SECONDS)
        gone = lost_between(before, await asyncio.to_thread(state))
        found["steps"].append({
            "step": name,
            "seconds": time.time() - began,
            **gone,
            "sent": sum(load.counts.sent for load in loads) - sent,
            "lost": sum(load.counts.lost.total() for load in loads) - lost,
        })  # fmt: skip
        click.echo(json.dumps({"round": number, **found["steps"][-1]}))
    return found


def begin() -> None:
    """The earlier operator makes the APIs, with the earlier serving image."""
    with contextlib.suppress(AssertionError):  # there is none, mostly
        helm("uninstall")
    helm("install", OLD, values(OLD, {"alone": False}))
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"apiVersion": "v1", "kind": "Namespace"}
    cluster.apply({**space, "metadata": {"name": NAMESPACE, "labels": labels}}, NAMESPACE)
    for document in documents():
        cluster.apply(document, NAMESPACE)
    for name in ("sleepy", "steady"):
        where = ("-n", NAMESPACE, ROLLOUT)
        cluster.kubectl("wait", "--for=condition=Ready", f"bapi/{name}", *where)
        cluster.kubectl("rollout", "status", f"deployment/{name}", *where)
    helm("uninstall")


def end() -> None:
    """Nothing is left of it."""
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")
    with contextlib.suppress(AssertionError):
        helm("uninstall")


async def measure(rounds: int, seed: int, began: Environment, out: Path | None) -> dict[str, Any]:
    """All rounds; results are written after each, so that a run that breaks off leaves them."""
    loads = []
    for name in ("sleepy", "steady"):
        address = cluster.get("service", name, NAMESPACE)["spec"]["clusterIP"]
        loads.append(ServiceLoad(address, 80, f"/{name}", RATE))
    sending = [asyncio.create_task(load.run()) for load in loads]
    found: dict[str, Any] = {"rounds": [], "counts": []}
    rng = random.Random(seed)
    try:
        for number in range(1, rounds + 1):
            found["rounds"].append(await one_round(number, wishes(rng), loads))
            found["counts"] = [load.counts.told() for load in loads]
            write(found, began, out)
    except AssertionError as error:
        found["broken_off"] = str(error)
    finally:
        for load in loads:
            load.stop()
        await asyncio.gather(*sending)
        found["counts"] = [load.counts.told() for load in loads]
    return found


def totals(found: dict[str, Any]) -> dict[str, int]:
    """APIs, pods and requests lost."""
    done = [step for one in found["rounds"] for step in one["steps"]]
    return {
        "apis": sum(len(step["apis"]) for step in done),
        "pods": sum(len(step["pods"]) for step in done),
        "requests": sum(sum(one["lost"].values()) for one in found["counts"]),
    }


def write(found: dict[str, Any], began: Environment, out: Path | None) -> None:
    """The table of all steps so far."""
    done = [step for one in found["rounds"] for step in one["steps"]]
    names = list(dict.fromkeys(step["step"] for step in done))
    rows = []
    for name in names:
        of_step = [step for step in done if step["step"] == name]
        rows.append([
            name,
            str(len(of_step)),
            f"{sum(step['seconds'] for step in of_step) / len(of_step):.0f}",
            str(sum(len(step["apis"]) for step in of_step)),
            str(sum(len(step["pods"]) for step in of_step)),
            f"{sum(step['sent'] for step in of_step):,}",
            str(sum(step["lost"] for step in of_step)),
        ])  # fmt: skip
    columns = (
        "step", "times", "seconds", "APIs lost", "pods replaced or restarted", "requests",
        "requests lost",
    )  # fmt: skip
    reasons = {why: n for one in found["counts"] for why, n in one["lost"].items()}
    table = Table(f"Rounds with random values: {len(found['rounds'])}", columns, rows)
    lost = Table("Lost", ["requests", "of which"], [[str(n), why] for why, n in reasons.items()])
    note = (
        f"From the chart and the images of {COMMIT} to those of here, and back. Two APIs, 3 pods,"
        f" {RATE:g} requests/s each, half of them on new connections."
    )
    tables = [table, *([lost] if reasons else [])]
    report("helm_cycle", began, tables, notes=[note], measured=found, out=out)


@click.command(help=help_of(__doc__))
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
@click.option("--seed", default=1, show_default=True)
@out_option
def main(*, rounds: int, seed: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    try:
        begin()
        found = asyncio.run(measure(rounds, seed, began, out))
    finally:
        end()
    write(found, began, out)
    if "broken_off" in found:
        sys.exit(found["broken_off"])
    if any(totals(found).values()):
        sys.exit(f"lost: {totals(found)}")


if __name__ == "__main__":
    main()
