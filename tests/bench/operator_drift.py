"""How soon is each field of ours put right that others change or remove, and is an HPA left alone?

    python tests/bench/operator_drift.py --rounds 3 --hpa 10

On a real apiserver, with the operator as it runs for users: each field of each child that
managedFields says is ours is given another value, and removed, by another field manager. The API
has every setting of its pods. Labels, annotations, a container, a volume and a variable of others
beside them are to stay. Then a HorizontalPodAutoscaler of Kubernetes' own scales an API in
mode External between two counts, and the audit log says how often the operator wrote replicas.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import click
from harness.control_plane import OPERATOR, ControlPlane, control_plane, controllers
from harness.operators import CHILDREN, Operator, User, installed, quantile, until
from harness.report import Table, environment, help_of, out_option, report

import drift
from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    DEPLOYMENTS,
    JsonObject,
    Resource,
)
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.resources.deployment import CONTAINER
from pod_specs import ACCEPTED

SECONDS: Final = 2.0
GIVEN_UP: Final = 60.0
SPEC: Final[JsonObject] = {
    "predictor": {
        "path": "model:Iris",
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}, "prefix": "S_"}],
    },
    "networking": {"grpc": True, "apiKeys": {"secretName": "keys"}},
    "compute": {"cpu": "1", "mem": "1Gi"},
    "pod": ACCEPTED["every setting of the pods"]["pod"],
}
KINDS: Final = {one.kind: one for one in CHILDREN}
ADMIN_PEERS: Final = '[{"podSelector": {}}]'
THEIRS: Final = "example.com/theirs"
SIDECAR: Final = {"name": "theirs", "image": "theirs"}
VOLUME: Final = {"name": "theirs", "emptyDir": {}}
VARIABLE: Final = {"name": "THEIRS", "value": "1"}
TEMPLATE: Final = "/spec/template/spec"
HPAS: Final = Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
COUNTS: Final = (3, 5)
SWITCH_SECONDS: Final = 60.0


async def settled(user: User, name: str) -> dict[str, JsonObject]:
    """The children, once nobody writes them any more."""
    before: dict[str, str] = {}
    while True:
        children = await user.children(name)
        now = {key: body["metadata"]["resourceVersion"] for key, body in children.items()}
        if len(now) >= len(KINDS) and now == before:
            return children
        before = now
        await asyncio.sleep(1.0)


async def edited(user: User, resource: Resource, name: str, edit: drift.Edit) -> JsonObject | None:
    """The child as it is then; None if the apiserver lets nobody do it."""
    live = await user.get(resource, name)
    for patch in edit.patches(live or {}):
        try:
            return await user.patch(resource, name, patch)
        except ApplyError as error:
            if error.status not in {400, 422}:
                raise
    return None


def foreign(body: JsonObject) -> set[str]:
    """What a child has that is not ours; a variable may have moved with a container's new name."""
    metadata, pod = body["metadata"], body.get("spec", {}).get("template", {}).get("spec", {})
    containers = pod.get("containers", ())
    there = {
        "label": THEIRS in metadata.get("labels", {}),
        "annotation": THEIRS in metadata.get("annotations", {}),
        "container": any(one["name"] == SIDECAR["name"] for one in containers),
        "volume": VOLUME in pod.get("volumes", ()),
        "variable": any(VARIABLE in one.get("env", ()) for one in containers),
    }
    return {what for what, is_there in there.items() if is_there}


async def add_foreign(user: User, resource: Resource, name: str) -> None:
    """Whatever of that is not there: an edit may have taken it away with what is ours."""
    theirs = {"labels": {THEIRS: "1"}, "annotations": {THEIRS: "1"}}
    body = await user.merge(resource, name, {"metadata": theirs})
    if resource is not DEPLOYMENTS:
        return
    containers = body["spec"]["template"]["spec"]["containers"]
    (number,) = (i for i, one in enumerate(containers) if one["name"] == CONTAINER)
    places = {
        "container": ("containers", SIDECAR),
        "volume": ("volumes", VOLUME),
        "variable": (f"containers/{number}/env", VARIABLE),
    }
    here = foreign(body) - ({"variable"} if VARIABLE not in containers[number]["env"] else set())
    adds = [
        {"op": "add", "path": f"{TEMPLATE}/{place}/-", "value": value}
        for what, (place, value) in places.items()
        if what not in here
    ]
    await user.patch(resource, name, adds)


async def measure_kind(user: User, kind: str, api: str) -> dict[str, Any]:
    """Every field of one child."""
    resource = KINDS[kind]
    (key,) = (key for key in await settled(user, api) if key.startswith(f"{kind}/"))
    name = key.partition("/")[2]
    await add_foreign(user, resource, name)
    before = (await settled(user, api))[key]
    owned = drift.owned(before, contract.FIELD_MANAGER)
    seconds: list[float] = []
    late: list[str] = []
    lost: list[str] = []
    guarded = 0

    async def whole() -> bool:
        return drift.whole(await user.get(resource, name), owned)

    for edit in drift.edits(before, contract.FIELD_MANAGER):
        left = await edited(user, resource, name, edit)
        if left is None:
            guarded += 1
            continue
        began = time.monotonic()
        try:
            await until(whole, GIVEN_UP, 0.02)
        except TimeoutError:
            return {"kind": kind, "stuck": str(edit), "seconds": seconds, "lost": lost}
        seconds.append(time.monotonic() - began)
        if seconds[-1] > SECONDS:
            late.append(str(edit))
        live = await user.get(resource, name)
        kept = foreign(live) if live is not None else set()
        lost += [f"{what} after: {edit}" for what in sorted(foreign(left) - kept)]
        await add_foreign(user, resource, name)
    return {
        "kind": kind, "stuck": "", "fields": len(owned), "guarded": guarded, "late": late,
        "seconds": seconds, "lost": lost,
    }  # fmt: skip


async def measure_hpa(plane: ControlPlane, user: User, minutes: float) -> dict[str, Any]:
    """Kubernetes' own, whose bounds are moved up and down: that needs no metrics."""
    spec = {**SPEC, "autoscaling": {"mode": "External"}, "replicas": COUNTS[0]}
    await user.create(BATCHED_APIS, {"metadata": {"name": "external"}, "spec": spec})
    await settled(user, "external")
    target = {"apiVersion": contract.API_VERSION, "kind": contract.KIND, "name": "external"}
    metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}

    def bounds(count: int) -> JsonObject:
        return {"minReplicas": count, "maxReplicas": count}

    resource = {"type": "Resource", "resource": metric}
    body = {"scaleTargetRef": target, "metrics": [resource], **bounds(COUNTS[0])}
    await user.create(HPAS, {"metadata": {"name": "external"}, "spec": body})
    switches, seconds = 0, []
    end = time.monotonic() + 60.0 * minutes
    before = len(scales(plane))
    while time.monotonic() < end:
        count = COUNTS[(switches + 1) % len(COUNTS)]
        await user.merge(HPAS, "external", {"spec": bounds(count)})
        began, switches = time.monotonic(), switches + 1

        async def followed(wanted: int = count) -> bool:
            live = await user.get(DEPLOYMENTS, "external")
            return live is not None and live["spec"]["replicas"] == wanted

        seconds.append(await until(followed, GIVEN_UP))
        await asyncio.sleep(max(0.0, min(end, began + SWITCH_SECONDS) - time.monotonic()))
    return {
        "minutes": minutes,
        "switches": switches,
        "writes": len(scales(plane)) - before,
        "seconds": max(seconds, default=0.0),
    }


def scales(plane: ControlPlane) -> list[JsonObject]:
    """Replicas that the operator wrote."""
    return [
        one
        for one in plane.audited()
        if one["verb"] == "patch" and one.get("objectRef", {}).get("subresource") == "scale"
    ]


async def measure(plane: ControlPlane, rounds: int, hpa: float) -> dict[str, Any]:
    """Both."""
    names = "horizontal-pod-autoscaler-controller,garbage-collector-controller"
    async with installed(plane) as kube:
        user = User(kube, "bench")
        await user.create_namespace()
        log = plane.folder / "operator.log"
        operator = Operator(plane.kubeconfig(OPERATOR), "bench", log, ADMIN_PEERS)
        operator.start()
        try:
            await operator.ready()
            found = []
            for number in range(rounds):
                for kind in KINDS:
                    api = f"{kind.lower()}-{number}"
                    await user.create(BATCHED_APIS, {"metadata": {"name": api}, "spec": SPEC})
                    found.append(await measure_kind(user, kind, api))
            scaled = {}
            if hpa:
                with controllers(plane, names):
                    scaled = await measure_hpa(plane, user, hpa)
        finally:
            operator.kill()
    return {"kinds": found, "hpa": scaled}


@click.command(help=help_of(__doc__))
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--hpa", type=float, default=10.0, show_default=True, help="Minutes; 0: without.")
@out_option
def main(*, rounds: int, hpa: float, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        found = asyncio.run(measure(plane, rounds, hpa))
    stuck = [one["stuck"] for one in found["kinds"] if one["stuck"]]
    if stuck:
        sys.exit(f"not put right within {GIVEN_UP:g} s: {stuck}")
    rows = []
    for kind in KINDS:
        ran = [one for one in found["kinds"] if one["kind"] == kind]
        seconds = [value for one in ran for value in one["seconds"]]
        rows.append(
            [kind, str(ran[0]["fields"]), str(len(seconds)), str(ran[0]["guarded"]),
             f"{quantile(seconds, 0.5):.2f}", f"{quantile(seconds, 0.99):.2f}",
             f"{max(seconds):.2f}", "no" if any(one["lost"] for one in ran) else "yes"]
        )  # fmt: skip
    tables = [
        Table(
            "Each field of ours changed, and removed, by another field manager",
            ["child", "fields", "edits", "refused by the apiserver", "median s until it is right",
             "p99", "longest", "foreign fields kept"],
            rows,
        )
    ]  # fmt: skip
    scaled = found["hpa"]
    if scaled:
        tables.append(
            Table(
                f"A HorizontalPodAutoscaler on an API in mode External, {hpa:g} minutes",
                ["counts it has set", "writes of replicas by the operator", "longest s until"],
                [[str(scaled["switches"]), str(scaled["writes"]), f"{scaled['seconds']:.2f}"]],
            )
        )
    report("operator-drift", began, tables, notes=[], measured=found, out=out)
    late = [edit for one in found["kinds"] for edit in one["late"]]
    lost = [what for one in found["kinds"] for what in one["lost"]]
    if late or lost:
        sys.exit(f"later than {SECONDS:g} s: {late}; of others is gone: {lost}")
    if scaled and scaled["writes"] != scaled["switches"]:
        sys.exit("replicas were written more often than the HorizontalPodAutoscaler has")


if __name__ == "__main__":
    main()
