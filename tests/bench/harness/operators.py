"""The operator as it runs for users, beside a control plane, and what it has made there."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio import client, config

from batchedapi_core import contract
from batchedapi_core.manifest.crd import crd
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    SERVICES,
    JsonObject,
    ObjectKey,
    Resource,
)
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube
from batchedapi_operator.reconcile.status import OUR_CONDITIONS
from ports import free_port

from .control_plane import ADMIN, ControlPlane

NAMESPACES: Final = Resource("v1", "Namespace", "namespaces")
CHILDREN: Final = (DEPLOYMENTS, SERVICES, CONFIG_MAPS, DISRUPTION_BUDGETS, NETWORK_POLICIES)
START_SECONDS: Final = 120.0
"""For an operator to be ready, on a machine that has much else to do."""
RECONCILED: Final = {kind.value for kind in OUR_CONDITIONS}
"""Conditions that do not depend on when the autoscaler has looked."""
_OPERATIONS: Final = "application/json-patch+json"
_MERGE: Final = "application/merge-patch+json"


async def until(check: Callable[[], Awaitable[bool]], seconds: float, every: float = 0.1) -> float:
    """Seconds until the answer was yes.

    Raises:
        TimeoutError: It never was.
    """
    began = time.monotonic()
    while not await check():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not so after {seconds:g} s")
        await asyncio.sleep(every)
    return time.monotonic() - began


@dataclass
class Operator:
    """One process, that can be killed and started again."""

    kubeconfig: Path
    namespace: str
    """Empty: all of them."""
    log: Path
    admin_peers: str = ""
    """JSON list of who reaches the admin ports of replicas; empty: no NetworkPolicies."""
    process: "subprocess.Popen[bytes] | None" = None
    port: int = 0

    def start(self) -> None:
        """Begin; `ready` waits for it."""
        self.port = free_port()
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "BATCHEDAPI_WATCH_NAMESPACE": self.namespace,
            "BATCHEDAPI_SERVING_IMAGE": "serving:bench",
            "BATCHEDAPI_ADMIN_PEERS": self.admin_peers,
            "BATCHEDAPI_ADMIN_HOST": "127.0.0.1",
            "BATCHEDAPI_ADMIN_PORT": str(self.port),
            "BATCHEDAPI_DECISIONS_PORT": str(free_port()),
            # those of different namespaces side by side are no replicas of one release
            "BATCHEDAPI_LEASE_NAME": f"operator-of-{self.namespace or 'all'}",
        }
        with self.log.open("ab") as stream:
            command = [sys.executable, "-m", "batchedapi_operator"]
            self.process = subprocess.Popen(command, env=environment, stderr=stream)

    async def ready(self) -> None:
        """Wait for /readyz."""

        async def answers() -> bool:
            with suppress(aiohttp.ClientError, TimeoutError):
                url = f"http://127.0.0.1:{self.port}/readyz"
                timeout = aiohttp.ClientTimeout(total=5)
                async with aiohttp.ClientSession(timeout=timeout) as asks, asks.get(url) as found:
                    return found.status == 200
            return False

        await until(answers, START_SECONDS)

    def kill(self) -> None:
        """SIGKILL, as a node that dies would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


@dataclass(frozen=True)
class User:
    """What somebody with every right does in one namespace."""

    kube: Kube
    namespace: str

    async def create_namespace(self) -> None:
        """Itself."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        await self.kube._request("POST", NAMESPACES.path(None), {}, body)

    async def delete_namespace(self) -> None:
        """With all that is in it; its end is not waited for."""
        await self.kube._request("DELETE", NAMESPACES.path(None, self.namespace), {})

    async def create(self, resource: Resource, body: JsonObject) -> JsonObject:
        """As kubectl would."""
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self.kube._request("POST", resource.path(self.namespace), {}, full)

    async def merge(
        self, resource: Resource, name: str, body: JsonObject, sub: str = ""
    ) -> JsonObject:
        """A merge patch."""
        path, query = resource.path(self.namespace, name, sub), {"fieldManager": "somebody"}
        return await self.kube._request("PATCH", path, query, body, content_type=_MERGE)

    async def patch(self, resource: Resource, name: str, operations: Any) -> JsonObject:
        """A JSON patch."""
        path, query = resource.path(self.namespace, name), {"fieldManager": "somebody"}
        return await self.kube._request("PATCH", path, query, operations, content_type=_OPERATIONS)

    async def delete(self, resource: Resource, name: str) -> None:
        """In the background."""
        await self.kube._request("DELETE", resource.path(self.namespace, name), {})

    async def get(self, resource: Resource, name: str) -> JsonObject | None:
        """None without it."""
        return await self.kube.get(resource, ObjectKey(self.namespace, name))

    async def children(self, name: str = "") -> dict[str, JsonObject]:
        """By kind and name; of all APIs or of one."""
        selector = f"{contract.LABEL_API}={name}" if name else contract.LABEL_API
        return {
            f"{resource.kind}/{body['metadata']['name']}": body
            for resource in CHILDREN
            for body in await self.kube.find(resource, self.namespace, selector)
        }

    async def state(self, name: str) -> JsonObject:
        """The API and its children without what differs from one run to the next.

        Revisions but the current one are kept to go back to: whoever changes things one by one may
        have seen more of them on the way.
        """
        api = await self.get(BATCHED_APIS, name)
        children = await self.children(name)
        if api is None:
            return {"api": None, "children": sorted(children)}
        status = api.get("status") or {}
        current = (status.get("revision") or {}).get("current")
        return {
            "api": {
                "phase": status.get("phase"),
                "revision": status.get("revision"),
                "desired": status.get("desiredReplicas"),
                "observed": status.get("observedGeneration") == api["metadata"]["generation"],
                "conditions": sorted(
                    (one["type"], one["status"], one["reason"])
                    for one in status.get("conditions") or ()
                    if one["type"] in RECONCILED
                ),
            },
            "children": {
                key: _lasting(body, api["metadata"]["uid"])
                for key, body in children.items()
                if not key.startswith("ConfigMap/") or key == f"ConfigMap/{current}"
            },
        }


def _lasting(body: JsonObject, uid: str) -> JsonObject:
    """Of a child; the uid of its owner is told as `owner`."""
    metadata = body["metadata"]
    spec = {
        name: value
        for name, value in (body.get("spec") or {}).items()
        if name not in {"clusterIP", "clusterIPs"}
    }
    managers = sorted(
        (entry["manager"], entry["operation"], json.dumps(entry["fieldsV1"], sort_keys=True))
        for entry in metadata["managedFields"]
        if entry["manager"].startswith("batchedapi") and not entry.get("subresource")
    )
    found = {
        "labels": metadata["labels"],
        "owners": metadata.get("ownerReferences"),
        "spec": spec,
        "data": body.get("data"),
        "managers": managers,
    }
    lasting: JsonObject = json.loads(json.dumps(found).replace(uid, "owner"))
    return lasting


@asynccontextmanager
async def installed(plane: ControlPlane) -> AsyncIterator[Kube]:
    """Somebody with every right, once the CRD is served."""
    await config.load_kube_config(str(plane.kubeconfig(ADMIN)))  # type: ignore[no-untyped-call]
    async with client.ApiClient() as api:
        kube = Kube(api)
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await kube._request("POST", path, {}, crd())

        async def served() -> bool:
            try:
                await kube.find(BATCHED_APIS, "default")
            except ApplyError:
                return False
            return True

        await until(served, 60.0)
        await asyncio.sleep(1.0)  # each of its handlers takes the kind up on its own
        yield kube


def quantile(values: list[float], share: float) -> float:
    """The smallest that so many are no larger than."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
