"""Setting of a replica beside its revision's files: environment, resources, volumes, node.

The same code serves faster or slower with another setting, so another setting is another revision.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_core.manifest import (
    CPU_COUNT,
    BatchedAPI,
    Compute,
    Pod,
    QueueSpec,
    Redis,
    UnitError,
    WebSpec,
    as_written,
    format_quantity,
    parse_quantity,
    pod_defaults,
)
from batchedapi_operator.cluster import JsonObject, listed, section
from batchedapi_operator.resources import REVISION_DIGITS

NO_DEFAULTS: Final = Pod()
_PLACING: Final = (
    "nodeSelector", "tolerations", "affinity", "runtimeClassName", "sharedMemory", "volumes",
    "volumeMounts", "resourceClaims",
)  # fmt: skip
"""Settings of pods with which the same code may be faster or slower."""
_DISK: Final = "ephemeral-storage"
_KINDS: Final = ("requests", "limits")


@dataclass(frozen=True, slots=True)
class Stored:
    """The setting of the replicas as the apiserver keeps it."""

    parts: Mapping[str, str]
    """As `parts_of` gives them."""
    ours: frozenset[str] | None
    """Parts that our manager owns; None: nobody wrote down who owns what."""
    digest: str = ""
    """Digest of the setting that was asked for; empty: the Deployment is older than the record."""
    defaults: Pod = NO_DEFAULTS
    """Defaults under the settings of its pods."""

    @classmethod
    def of(
        cls,
        container: Mapping[str, Any],
        metadata: Mapping[str, Any],
        of_pods: Mapping[str, Any],
    ) -> "Stored":
        """From a container, and the metadata of its Deployment and of that one's pods.

        Both have the record, so that one is left when somebody changes the other.
        """
        managed = listed(metadata, "managedFields")
        applied = [one for one in managed if one.get("manager") == contract.FIELD_MANAGER]
        owned = [_owned(section(one, "fieldsV1"), container["name"]) for one in applied]
        told = (section(one, "annotations") for one in (metadata, of_pods))
        records = [_recorded(one.get(contract.ANNOTATION_POD, "")) for one in told]
        digest, defaults = next((one for one in records if one[0]), records[0])
        ours = frozenset().union(*owned) if owned else None
        return cls(parts_of(container), ours, digest, defaults)

    def is_that_of(self, api: BatchedAPI) -> bool:
        """Whether applying `api`, defaults included, would change nothing of it.

        What others have added, a webhook or `kubectl set env`, an apply leaves alone.
        """
        if self.digest:
            return self.digest == setting_digest(api)
        asked = asked_parts(api)
        return asked == {
            part: value
            for part, value in self.parts.items()
            if part in asked or self.ours is None or part in self.ours
        }


@dataclass(frozen=True, slots=True)
class Running:
    """Revision and setting of the pods of an API at present."""

    digest: str
    """Digest of their revision."""
    setting: Stored | None
    """None: as was asked for. There is no Deployment to tell otherwise, or others changed it."""
    defaults: Pod | None = None
    """Defaults under the settings of the pods; None: nothing tells."""


def setting_of(api: BatchedAPI) -> JsonObject:
    """The fields `env`, `envFrom` and `resources` of the serving container."""
    compute, predictor = api.spec.compute, api.spec.predictor
    told: dict[str, JsonObject] = {entry.name: {"value": entry.value} for entry in predictor.env}
    told |= {
        entry.name: {"valueFrom": as_written(entry.value_from)}
        for entry in predictor.env
        if entry.value_from is not None
    }
    told |= _credentials(api)  # what the manifest says beats a variable of that name
    if predictor.processes_per_replica == CPU_COUNT:
        told[contract.ENV_CPU_REQUEST] = {"value": compute.cpu}
    sources, called = _sources(api)
    if sources:
        about = {"sources": called, "env": [entry.name for entry in predictor.env]}
        told[contract.ENV_SOURCES] = {"value": json.dumps(about)}
    env = [{"name": name, **value} for name, value in told.items()]
    requests, limits = _cpu_and_memory(compute)
    if compute.ephemeral_storage is not None:
        requests[_DISK] = limits[_DISK] = compute.ephemeral_storage
    if compute.gpu:
        limits[compute.gpu_resource] = str(compute.gpu)
    claims = [{"name": one.name} for one in api.spec.pod.resource_claims]
    resources = {
        "requests": requests,
        **({"limits": limits} if limits else {}),
        **({"claims": claims} if claims else {}),
    }
    return {
        **({"env": env} if env else {}),
        **({"envFrom": sources} if sources else {}),
        "resources": resources,
    }


def _credentials(api: BatchedAPI) -> dict[str, JsonObject]:
    """Variables of the queue's Redis that are in Secrets."""
    queue = api.spec.server_side_batching.queue
    if queue is None:
        return {}
    secrets = {
        contract.ENV_REDIS_USERNAME: queue.redis.username_secret,
        contract.ENV_REDIS_PASSWORD: queue.redis.password_secret,
    }
    return {
        name: {"valueFrom": {"secretKeyRef": as_written(secret)}}
        for name, secret in secrets.items()
        if secret is not None
    }


def web_spec(api: BatchedAPI) -> WebSpec:
    """The fields `queue.web` of an API that has a queue, or has had one."""
    queue = api.spec.server_side_batching.queue or QueueSpec(redis=Redis())
    return queue.web


def web_resources(api: BatchedAPI) -> JsonObject:
    """Resources of the serving container of a web pod, whose API has a queue."""
    requests, limits = _cpu_and_memory(web_spec(api))
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _cpu_and_memory(of: Compute | WebSpec) -> tuple[JsonObject, JsonObject]:
    """(requests, limits)."""
    requests: JsonObject = {"cpu": of.cpu}
    limits: JsonObject = {} if of.cpu_limit is None else {"cpu": of.cpu_limit}
    if of.mem is not None:
        requests["memory"] = limits["memory"] = of.mem
    return requests, limits


def _sources(api: BatchedAPI) -> tuple[list[JsonObject], list[str]]:
    """`envFrom` of the container, and what the replica calls each source."""
    sources, called = [], []
    for index, source in enumerate(api.spec.predictor.env_from):
        written = as_written(source)
        sources.append({**written, "prefix": contract.source_prefix(index) + (source.prefix or "")})
        kind = "ConfigMap" if source.secret_ref is None else "Secret"
        (name,) = (one["name"] for key, one in written.items() if key != "prefix")
        called.append(f"spec.predictor.envFrom[{index}], {kind} {name}")
    return sources, called


def asked_parts(api: BatchedAPI) -> dict[str, str]:
    """Each part of the setting that `api` asks for."""
    setting, pod = setting_of(api), as_written(api.spec.pod)
    further = {name: pod[name] for name in _PLACING if pod.get(name)}
    if "envFrom" in setting:
        further["envFrom"] = setting["envFrom"]
    return parts_of(setting) | {
        f"pod/{name}": json.dumps(value, sort_keys=True) for name, value in further.items()
    }


def digest_of(hashed: object) -> str:
    """Digest of a JSON value; short enough for names."""
    text = json.dumps(hashed, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:REVISION_DIGITS]


def setting_digest(api: BatchedAPI) -> str:
    """Tells one setting from another."""
    return digest_of(asked_parts(api))


def record(api: BatchedAPI, defaults: Pod) -> str:
    """The record of `api`, defaults included, on its Deployment; empty: none.

    Of an API that has no setting of its pods and no default nothing is said, as once nothing was:
    an upgrade touches no Deployment.
    """
    under = as_written(defaults)
    if not under and asked_parts(api) == parts_of(setting_of(api)):
        return ""
    return json.dumps({"defaults": under, "setting": setting_digest(api)}, sort_keys=True)


def _recorded(text: str) -> tuple[str, Pod]:
    """Digest and defaults; what somebody else has written there says nothing."""
    try:
        said = json.loads(text)
        return str(said["setting"]), pod_defaults(said["defaults"])
    except (ValueError, KeyError, TypeError):
        return "", NO_DEFAULTS


def parts_of(container: Mapping[str, Any]) -> dict[str, str]:
    """Each part of the setting of a container, one that we built or one that is stored.

    The apiserver writes quantities its own way and leaves empty values out; nor does it keep the
    order of variables in every merge.
    """
    resources = section(container, "resources")
    quantities = {
        f"{kind}/{name}": _plain(value)
        for kind in _KINDS
        for name, value in (resources.get(kind) or {}).items()
    }
    env = {
        f"env/{one['name']}": json.dumps([one.get("value", ""), one.get("valueFrom")])
        for one in listed(container, "env")
        if one["name"] != contract.ENV_COMPARE  # a replica serves as fast with it
    }
    return quantities | env


def _owned(fields: Mapping[str, Any], container: str) -> set[str]:
    """The same parts, out of `fieldsV1` of a Deployment."""
    for name in ("f:spec", "f:template", "f:spec", "f:containers", f'k:{{"name":"{container}"}}'):
        fields = fields.get(name) or {}
    resources = fields.get("f:resources") or {}
    quantities = {
        f"{kind}/{name.removeprefix('f:')}"
        for kind in _KINDS
        for name in resources.get(f"f:{kind}") or {}
    }
    keys = (name for name in fields.get("f:env") or {} if name.startswith("k:"))
    return quantities | {f"env/{json.loads(key.removeprefix('k:'))['name']}" for key in keys}


def _plain(value: object) -> str:
    """A quantity as we would write it; those that we never write stay as they are."""
    try:
        return format_quantity(parse_quantity(str(value)))
    except UnitError:
        return str(value)
