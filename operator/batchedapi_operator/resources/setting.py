"""What a replica runs with beside its revision's files: its environment and its resources.

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
    UnitError,
    format_quantity,
    parse_quantity,
)
from batchedapi_operator.keys import JsonObject

GPU: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Running:
    """What the pods of an API are made with at present."""

    digest: str
    """Of their revision."""
    setting: str | None
    """As `digest_of` gives it; None: there is no Deployment left to tell."""


def setting_of(api: BatchedAPI) -> JsonObject:
    """The fields `env` and `resources` of the serving container."""
    env = _environment(api)
    return {**({"env": env} if env else {}), "resources": _resources(api.spec.compute)}


def digest_of(container: Mapping[str, Any]) -> str:
    """Of the setting of a container, one that we built or one that the apiserver has stored.

    The apiserver writes quantities its own way and leaves empty values out; nor does it keep the
    order of variables in every merge.
    """
    resources = container.get("resources") or {}
    quantities = {
        kind: {name: _plain(value) for name, value in (resources.get(kind) or {}).items()}
        for kind in ("requests", "limits")
    }
    env = sorted(
        (one["name"], one.get("value", ""), json.dumps(one.get("valueFrom"), sort_keys=True))
        for one in container.get("env") or ()
    )
    text = json.dumps([quantities, env], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> str:
    """A quantity as we would write it; those that we never write stay as they are."""
    try:
        return format_quantity(parse_quantity(str(value)))
    except UnitError:
        return str(value)


def _environment(api: BatchedAPI) -> list[JsonObject]:
    told = {entry.name: entry.value for entry in api.spec.predictor.env}
    if api.spec.predictor.processes_per_replica == CPU_COUNT:
        told[contract.ENV_CPU_REQUEST] = api.spec.compute.cpu
    return [{"name": name, "value": value} for name, value in told.items()]


def _resources(compute: Compute) -> JsonObject:
    """No CPU limit: a throttled batch makes every request in it late."""
    requests: JsonObject = {"cpu": compute.cpu}
    limits: JsonObject = {}
    if compute.mem is not None:
        requests["memory"] = limits["memory"] = compute.mem
    if compute.gpu:
        limits[GPU] = str(compute.gpu)
    return {"requests": requests, **({"limits": limits} if limits else {})}
