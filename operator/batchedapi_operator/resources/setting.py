"""What a replica runs with beside its revision's files: its environment and its resources.

The same code serves faster or slower with another setting, so another setting is another revision.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_core.manifest import (
    CPU_COUNT,
    BatchedAPI,
    UnitError,
    format_quantity,
    parse_quantity,
)
from batchedapi_operator.cluster import JsonObject

GPU: Final = "nvidia.com/gpu"
_KINDS: Final = ("requests", "limits")


@dataclass(frozen=True, slots=True)
class Stored:
    """The setting of a serving container as the apiserver keeps it."""

    parts: Mapping[str, str]
    """As `parts_of` gives them."""
    ours: frozenset[str] | None
    """Parts that our manager owns; None: nobody wrote down who owns what."""

    @classmethod
    def of(cls, container: Mapping[str, Any], managed: Iterable[Mapping[str, Any]]) -> "Stored":
        """From a container and the `managedFields` of its Deployment."""
        applied = [one for one in managed if one.get("manager") == contract.FIELD_MANAGER]
        owned = [_owned(one.get("fieldsV1") or {}, container["name"]) for one in applied]
        return cls(parts_of(container), frozenset().union(*owned) if owned else None)

    def is_that_of(self, api: BatchedAPI) -> bool:
        """Whether applying `api` would change nothing of it.

        What others have added, a webhook or `kubectl set env`, an apply leaves alone.
        """
        asked = parts_of(setting_of(api))
        return asked == {
            part: value
            for part, value in self.parts.items()
            if part in asked or self.ours is None or part in self.ours
        }


@dataclass(frozen=True, slots=True)
class Running:
    """What the pods of an API are made with at present."""

    digest: str
    """Of their revision."""
    setting: Stored | None
    """None: there is no Deployment left to tell."""


def setting_of(api: BatchedAPI) -> JsonObject:
    """The fields `env` and `resources` of the serving container."""
    compute = api.spec.compute
    told = {entry.name: entry.value for entry in api.spec.predictor.env}
    if api.spec.predictor.processes_per_replica == CPU_COUNT:
        told[contract.ENV_CPU_REQUEST] = compute.cpu
    env = [{"name": name, "value": value} for name, value in told.items()]
    # no CPU limit: a throttled batch makes every request in it late
    requests: JsonObject = {"cpu": compute.cpu}
    limits: JsonObject = {}
    if compute.mem is not None:
        requests["memory"] = limits["memory"] = compute.mem
    if compute.gpu:
        limits[GPU] = str(compute.gpu)
    resources = {"requests": requests, **({"limits": limits} if limits else {})}
    return {**({"env": env} if env else {}), "resources": resources}


def parts_of(container: Mapping[str, Any]) -> dict[str, str]:
    """Each part of the setting of a container, one that we built or one that is stored.

    The apiserver writes quantities its own way and leaves empty values out; nor does it keep the
    order of variables in every merge.
    """
    resources = container.get("resources") or {}
    quantities = {
        f"{kind}/{name}": _plain(value)
        for kind in _KINDS
        for name, value in (resources.get(kind) or {}).items()
    }
    env = {
        f"env/{one['name']}": json.dumps([one.get("value", ""), one.get("valueFrom")])
        for one in container.get("env") or ()
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
