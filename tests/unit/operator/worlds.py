"""Bodies of Kubernetes objects as tests need them, and a cluster in memory."""

import itertools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, parse_api
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    JsonObject,
    ObjectKey,
    Resource,
    rfc3339,
)
from batchedapi_operator.errors import ApplyError, ConflictError
from batchedapi_operator.outbox import Outbox

NOW: Final = "2026-01-02T03:04:05Z"
WALL: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UID: Final = "api-uid"
IMAGE: Final = "batchedapi-serving:test"
KEY: Final = ObjectKey("demo", "iris")

Path = tuple[str, ...]
"""Names of a field and of those around it."""


async def no_fleet(_: str) -> JsonObject:
    """The operator's answer about all APIs, where there is none."""
    return {"apis": [], "more": 0}


def api_body(**spec: Any) -> JsonObject:
    """A BatchedAPI as the apiserver keeps it; `spec` is added to the smallest good one."""
    return {
        "apiVersion": "batchedapi.dev/v1alpha1",
        "kind": "BatchedAPI",
        "metadata": {
            "name": KEY.name,
            "namespace": KEY.namespace,
            "uid": UID,
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {"predictor": {"path": "model:Iris"}, **spec},
    }


def api(**spec: Any) -> BatchedAPI:
    """The same, parsed."""
    return parse_api(api_body(**spec))


def owned_by_api(uid: str = UID, name: str = KEY.name) -> list[JsonObject]:
    """Owner references of a child."""
    return [{"kind": "BatchedAPI", "name": name, "uid": uid, "controller": True}]


def child_body(name: str, **metadata: Any) -> JsonObject:
    """A child of the API."""
    return {
        "metadata": {
            "name": name,
            "namespace": KEY.namespace,
            "uid": f"{name}-uid",
            "resourceVersion": "7",
            "labels": {"batchedapi.dev/api": KEY.name},
            "ownerReferences": owned_by_api(),
            **metadata,
        }
    }


def deployment_body(
    *,
    replicas: int = 2,
    ready: int = 2,
    revision: str = "",
    image: str = IMAGE,
    replicas_owned: bool = True,
    conditions: list[JsonObject] | None = None,
    **metadata: Any,
) -> JsonObject:
    """The API's Deployment, rolled out."""
    rolled_out = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    body = child_body(KEY.name, generation=3, **metadata)
    if replicas_owned:
        body["metadata"]["managedFields"] = [
            {"manager": "batchedapi-autoscaler", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        ]
    container = {"name": "serving", "image": image}
    labels = {"batchedapi.dev/revision": revision}
    return body | {
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
        "status": {
            "observedGeneration": 3,
            "replicas": replicas,
            "updatedReplicas": replicas,
            "readyReplicas": ready,
            "conditions": [rolled_out] if conditions is None else conditions,
        },
    }


def pod_body(
    name: str = "iris-1",
    *,
    ready: bool = True,
    revision: str = "",
    state: JsonObject | None = None,
    last_state: JsonObject | None = None,
    conditions: list[JsonObject] | None = None,
    owner: str = "rs-uid",
    ip: str = "10.0.0.1",
) -> JsonObject:
    """A replica."""
    container = {"name": "serving", "state": state or {}, "lastState": last_state or {}}
    return {
        "metadata": {
            "name": name,
            "namespace": KEY.namespace,
            "uid": f"{name}-uid",
            "labels": {"batchedapi.dev/api": KEY.name, "batchedapi.dev/revision": revision},
            "ownerReferences": [{"kind": "ReplicaSet", "uid": owner, "controller": True}],
        },
        "status": {
            "podIP": ip,
            "conditions": [
                {"type": "Ready", "status": "True" if ready else "False"},
                *(conditions or []),
            ],
            "containerStatuses": [container],
        },
    }


def replica_set_body(uid: str = "rs-uid", owner: str = f"{KEY.name}-uid") -> JsonObject:
    """The ReplicaSet between Deployment and pods."""
    owners = [{"kind": "Deployment", "name": KEY.name, "uid": owner, "controller": True}]
    return child_body("iris-rs", uid=uid, ownerReferences=owners)


def _fields(status: JsonObject, above: Path = ()) -> dict[Path, Any]:
    """Every field that has a value of its own, by where it is."""
    fields: dict[Path, Any] = {}
    for name, value in status.items():
        if name == "conditions" and not above:
            fields |= {(name, one["type"]): one for one in value}
        elif isinstance(value, dict) and value:
            fields |= _fields(value, (*above, name))
        else:
            fields[(*above, name)] = value
    return fields


def _status_of(fields: dict[Path, Any]) -> JsonObject:
    """The status that `_fields` took apart."""
    status: JsonObject = {}
    for (*above, name), value in fields.items():
        place = status
        for part in above:
            place = place.setdefault(part, {})
        place[name] = value
    return {**status, "conditions": list(status.get("conditions", {}).values())}


def _parts(body: JsonObject) -> dict[Path, Any]:
    """A child's parts in an apply: labels and annotations one by one, and `spec` at its top."""
    metadata = body["metadata"]
    parts: dict[Path, Any] = {("spec", name): one for name, one in body.get("spec", {}).items()}
    for part in ("labels", "annotations"):
        parts |= {("metadata", part, name): one for name, one in metadata.get(part, {}).items()}
    if "ownerReferences" in metadata:
        parts["metadata", "ownerReferences"] = metadata["ownerReferences"]
    whole = body.keys() - {"apiVersion", "kind", "metadata", "spec"}
    return parts | {(name,): body[name] for name in whole}


def _at(body: JsonObject, path: Path) -> tuple[JsonObject, str]:
    """The object that has the last name of a path, made where it is not there."""
    for part in path[:-1]:
        body = body.setdefault(part, {})
    return body, path[-1]


def _labelled(body: JsonObject, label: str, value: str) -> bool:
    labels = body["metadata"].get("labels", {})
    return label in labels and value in {"", labels[label]}


@dataclass
class MemoryCluster:
    """Keeps what is applied and records every write, in order."""

    objects: dict[tuple[Resource, ObjectKey], JsonObject] = field(default_factory=dict)
    writes: list[tuple[str, str]] = field(default_factory=list)
    statuses: list[tuple[str, JsonObject]] = field(default_factory=list)
    events: list[JsonObject] = field(default_factory=list)
    applied: dict[tuple[ObjectKey, str], dict[Path, Any]] = field(default_factory=dict)
    """Fields of a status by who applied them last."""
    set_by_us: dict[tuple[Resource, ObjectKey, str], dict[Path, Any]] = field(default_factory=dict)
    """Parts of a child, by its uid too, as the operator applied them last."""
    fail: Callable[[str, str], ApplyError | None] = lambda _verb, _what: None
    version: int = 100
    wall: Callable[[], datetime] = lambda: WALL

    def put(self, resource: Resource, body: JsonObject) -> None:
        """An object that is there; a spec that was changed has the next generation."""
        before = self.objects.get((resource, ObjectKey.of(body)))
        metadata = body["metadata"]
        same = before is not None and before["metadata"]["uid"] == metadata["uid"]
        if same and before is not None and before.get("spec") != body.get("spec"):
            generation = before["metadata"].get("generation", 0) + 1
            body = {**body, "metadata": {**metadata, "generation": generation}}
        self.objects[resource, ObjectKey.of(body)] = body

    def _write(self, verb: str, what: str) -> None:
        failure = self.fail(verb, what)
        if failure is not None:
            raise failure
        self.writes.append((verb, what))

    def _same(self, resource: Resource, key: ObjectKey, uid: str) -> None:
        found = self.objects.get((resource, key))
        if found is None or found["metadata"]["uid"] != uid:
            raise ConflictError(f"{resource.kind} {key}: its uid is not {uid}", 409)

    async def get(self, resource: Resource, key: ObjectKey) -> JsonObject | None:
        """As Kube."""
        return deepcopy(self.objects.get((resource, key)))

    async def get_metadata(self, resource: Resource, key: ObjectKey) -> JsonObject | None:
        """As Kube."""
        found = await self.get(resource, key)
        return None if found is None else {"metadata": found["metadata"]}

    async def find(
        self, resource: Resource, namespace: str | None, selector: str = ""
    ) -> list[JsonObject]:
        """As Kube; selectors `label=value` and `label` only."""
        label, _, value = selector.partition("=")
        return [
            deepcopy(body)
            for (kind, key), body in self.objects.items()
            if kind == resource
            and namespace in {None, key.namespace}
            and (not selector or _labelled(body, label, value))
        ]

    async def list_metadata(
        self, resource: Resource, namespace: str | None, selector: str = ""
    ) -> tuple[list[JsonObject], str]:
        """As Kube."""
        found = await self.find(resource, namespace, selector)
        return [{"metadata": one["metadata"]} for one in found], str(self.version)

    async def apply(self, resource: Resource, body: JsonObject, *, force: bool) -> JsonObject:
        """As Kube: what the operator applied before and does not now is gone.

        What others have set stays, beside labels and annotations and at the top of `spec`.
        """
        key = ObjectKey.of(body)
        if "uid" in body["metadata"]:
            self._same(resource, key, body["metadata"]["uid"])
        live = self.objects.get((resource, key))
        new = {"uid": f"{key.name}-uid", "name": key.name, "namespace": key.namespace}
        kind: JsonObject = {"apiVersion": resource.api_version, "kind": resource.kind}
        merged = kind | deepcopy(live or {"metadata": new})
        child = (resource, key, merged["metadata"]["uid"])
        parts, before = _parts(body), self.set_by_us.get(child, {})
        for path, value in parts.items():
            holder, name = _at(merged, path)
            if not force and live is not None and path not in before and holder.get(name) != value:
                raise ConflictError(f"{resource.kind} {key}: {path} is somebody else's", 409)
            holder[name] = deepcopy(value)
        for path in before.keys() - parts.keys():
            holder, name = _at(merged, path)
            holder.pop(name, None)
            if not holder:  # an empty map is not kept
                above, name = _at(merged, path[:-1])
                del above[name]
        self._write("apply" if force else "create", f"{resource.kind}/{key.name}")
        self.set_by_us[child] = parts
        if merged != live:
            rolls = resource is DEPLOYMENTS and merged.get("spec") != (live or {}).get("spec")
            self._keep(resource, merged, generations=int(rolls))
        return deepcopy(merged)

    def _keep(self, resource: Resource, body: JsonObject, generations: int = 0) -> None:
        """The next version of an object, so many generations later."""
        self.version += 1
        metadata = body["metadata"]
        metadata["resourceVersion"] = str(self.version)
        if generations:
            metadata["generation"] = metadata.get("generation", 0) + generations
        self.objects[resource, ObjectKey.of(body)] = body

    async def set_managers(
        self, resource: Resource, live: JsonObject, managed: list[JsonObject]
    ) -> None:
        """As Kube."""
        key, version = ObjectKey.of(live), live["metadata"]["resourceVersion"]
        body = self.objects[resource, key]
        if body["metadata"]["resourceVersion"] != version:
            raise ConflictError(f"{resource.kind} {key}: it has been modified", 409)
        self._write("managers", f"{resource.kind}/{key.name}")
        body["metadata"]["managedFields"] = managed
        self._keep(resource, body)

    async def apply_status(
        self, key: ObjectKey, uid: str, status: JsonObject, manager: str
    ) -> None:
        """As Kube: what this manager applied before and does not now is gone.

        Fields are owned one by one, conditions by type; no two managers here share one.
        """
        found = self.objects.get((BATCHED_APIS, key))
        if found is None or found["metadata"]["uid"] != uid:
            raise ApplyError(f"status of {key}: the one with uid {uid} is gone", 404)
        self._write("status", manager)
        self.statuses.append((manager, status))
        body = self.objects[BATCHED_APIS, key]
        applied = _fields(status)
        dropped = self.applied.get((key, manager), {}).keys() - applied.keys()
        self.applied[key, manager] = applied
        kept = {p: v for p, v in _fields(body.get("status", {})).items() if p not in dropped}
        status_after = _status_of(kept | applied)
        if status_after != body.get("status"):
            metadata = {**body["metadata"]}
            others = [one for one in metadata.get("managedFields", ()) if one["manager"] != manager]
            ours = {"manager": manager, "subresource": "status", "time": rfc3339(self.wall())}
            metadata["managedFields"] = [*others, ours]
            self._keep(BATCHED_APIS, {**body, "metadata": metadata, "status": status_after})

    async def scale(
        self, key: ObjectKey, replicas: int, *, uid: str, version: str | None = None
    ) -> None:
        """As Kube."""
        if (DEPLOYMENTS, key) not in self.objects:
            raise ApplyError(f"scale of {key}: not found", 404)
        self._same(DEPLOYMENTS, key, uid)
        body = self.objects[DEPLOYMENTS, key]
        if version not in {None, body["metadata"].get("resourceVersion", "")}:
            raise ConflictError(f"scale of {key}: it has been modified", 409)
        self._write("scale", str(replicas))
        others = [
            one for one in body["metadata"].get("managedFields", ())
            if one.get("manager") != contract.AUTOSCALER_FIELD_MANAGER
        ]  # fmt: skip
        ours = {
            "manager": contract.AUTOSCALER_FIELD_MANAGER, "operation": "Apply",
            "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }  # fmt: skip
        managed = [*others, ours]
        changed = body["spec"].get("replicas") != replicas
        if changed or managed != body["metadata"].get("managedFields"):
            body["spec"]["replicas"] = replicas
            body["metadata"]["managedFields"] = managed
            self._keep(DEPLOYMENTS, body, generations=int(changed))

    async def scale_api(self, key: ObjectKey, replicas: int, *, version: str) -> None:
        """As Kube."""
        body = self.objects[BATCHED_APIS, key]
        if version != body["metadata"]["resourceVersion"]:
            raise ConflictError(f"scale of {key}: it has been modified", 409)
        self._write("scale_api", str(replicas))
        self._keep(BATCHED_APIS, {**body, "spec": {**body["spec"], "replicas": replicas}}, 1)

    async def delete(self, resource: Resource, key: ObjectKey, uid: str) -> None:
        """As Kube."""
        if (resource, key) in self.objects:
            self._same(resource, key, uid)
        self._write("delete", f"{resource.kind}/{key.name}")
        self.objects.pop((resource, key), None)

    async def create_event(self, body: JsonObject) -> None:
        """As Kube."""
        failure = self.fail("event", body["reason"])
        if failure is not None:
            raise failure
        self.events.append(body)


@dataclass
class MemoryLeases:
    """Leases and claims, as an apiserver keeps them; `silent` for a while."""

    silent: bool = False
    kept: dict[tuple[Resource, ObjectKey], JsonObject] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    versions: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def _asked(self) -> None:
        if self.silent:
            raise ApplyError("no answer", 0)

    def _keep(self, resource: Resource, body: JsonObject) -> JsonObject:
        metadata = {**body["metadata"], "resourceVersion": str(next(self.versions))}
        at = resource, ObjectKey.of(body)
        self.kept[at] = deepcopy({**body, "metadata": metadata})
        return deepcopy(self.kept[at])

    async def read_lock(
        self,
        resource: Resource,
        key: ObjectKey,
        *,
        seconds: float,  # noqa: ARG002
    ) -> JsonObject | None:
        """As `Kube` has it."""
        self._asked()
        return deepcopy(self.kept.get((resource, key)))

    async def create_lock(
        self,
        resource: Resource,
        body: JsonObject,
        *,
        seconds: float,  # noqa: ARG002
    ) -> JsonObject:
        """As `Kube` has it."""
        self._asked()
        if (resource, ObjectKey.of(body)) in self.kept:
            raise ConflictError("it exists", 409)
        return self._keep(resource, body)

    async def change_lock(
        self,
        resource: Resource,
        body: JsonObject,
        *,
        seconds: float,  # noqa: ARG002
    ) -> JsonObject:
        """As `Kube` has it."""
        self._asked()
        before = self.kept.get((resource, ObjectKey.of(body)))
        if before is None:
            raise ApplyError("there is none", 404)
        if before["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ConflictError("it has changed", 409)
        told = "spec" if resource is LEASES else "data"
        return self._keep(resource, {**body, told: {**before[told], **body[told]}})

    async def claims(self, label: str, *, seconds: float) -> list[JsonObject]:  # noqa: ARG002
        """As `Kube` has it."""
        self._asked()
        return [
            deepcopy(one)
            for (resource, _), one in self.kept.items()
            if resource is CONFIG_MAPS and _labelled(one, *label.partition("=")[::2])
        ]

    async def create_event(self, body: JsonObject) -> None:
        """Keeps the sentence alone."""
        self.events.append(body["note"])


async def deliver_all(outbox: Outbox) -> None:
    """Whatever may be sent now, one after the other."""
    while (address := outbox.take(outbox._monotonic())) is not None:
        await outbox.deliver(address)
