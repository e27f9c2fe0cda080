"""Short words for what the contract tests do in a cluster."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    ObjectKey,
    Resource,
)
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube

CUSTOM_RESOURCES: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMESPACES: Final = "/api/v1/namespaces"
CHILDREN: Final = (DEPLOYMENTS, SERVICES, CONFIG_MAPS, DISRUPTION_BUDGETS, NETWORK_POLICIES)
PATIENCE: Final = 60.0
"""Seconds: nothing here takes five, but the machine may be busy."""

Body = dict[str, Any]

NAMED: Final[Body] = {"networking": {"allowFrom": [{"podSelector": {}}]}}
"""Of an API that has a NetworkPolicy."""


async def until(check: Callable[[], Awaitable[bool]], what: str, seconds: float = PATIENCE) -> None:
    """Ask until the answer is yes."""
    deadline = time.monotonic() + seconds
    while not await check():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.1)


@dataclass(frozen=True)
class World:
    """One namespace of a real cluster."""

    kube: Kube
    namespace: str

    async def create(self, resource: Resource, body: Body) -> Body:
        """POST, as a user's tool would."""
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        path = resource.path(self.namespace)
        return await self.kube._request("POST", path, {}, full)

    async def create_api(self, name: str, spec: Body) -> Body:
        """A BatchedAPI."""
        return await self.create(BATCHED_APIS, {"metadata": {"name": name}, "spec": spec})

    async def patch(self, resource: Resource, name: str, body: Body, sub: str = "") -> Body:
        """JSON merge patch."""
        path = resource.path(self.namespace, name, sub)
        query = {"fieldManager": "contract-tests"}
        return await self.kube._request(
            "PATCH", path, query, body, content_type="application/merge-patch+json"
        )

    async def delete(self, resource: Resource, name: str) -> None:
        """Delete in the background."""
        await self.kube._request("DELETE", resource.path(self.namespace, name), {})

    async def get(self, resource: Resource, name: str) -> Body | None:
        """The object, or None."""
        return await self.kube.get(resource, ObjectKey(self.namespace, name))

    async def api(self, name: str) -> Body:
        """The BatchedAPI; it must exist."""
        found = await self.get(BATCHED_APIS, name)
        assert found is not None
        return found

    async def deployment(self, name: str) -> Body:
        """The Deployment, as soon as there is one."""
        return await self.appears(DEPLOYMENTS, name)

    async def appears(self, resource: Resource, name: str) -> Body:
        """The object, as soon as there is one."""
        found: list[Body] = []

        async def there() -> bool:
            body = await self.get(resource, name)
            found.extend([body] if body is not None else [])
            return bool(found)

        await until(there, f"{resource.kind} {name}")
        return found[0]

    async def condition(self, name: str, kind: str) -> Body:
        """A condition of an API; empty while there is none."""
        status = (await self.api(name)).get("status") or {}
        return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})

    async def until_condition(self, name: str, kind: str, reason: str) -> Body:
        """The condition, as soon as it has that reason."""

        async def reached() -> bool:
            return (await self.condition(name, kind)).get("reason") == reason

        await until(reached, f"{kind} of {name} to be {reason}")
        return await self.condition(name, kind)

    async def make_ready(self, pods: Iterable[Body]) -> None:
        """Mark pods ready, as their kubelet would; a controller may have removed one in between."""
        ready = {"type": "Ready", "status": "True", "reason": "Test"}
        status = {"phase": "Running", "podIP": "127.77.0.1", "conditions": [ready]}
        for pod in pods:
            try:
                await self.patch(PODS, pod["metadata"]["name"], {"status": status}, "status")
            except ApplyError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise

    async def revisions(self, name: str) -> dict[str, Body]:
        """Revision ConfigMaps by name."""
        selector = f"batchedapi.dev/api={name}"
        found = await self.kube.find(CONFIG_MAPS, self.namespace, selector)
        return {body["metadata"]["name"]: body for body in found}

    async def children(self, name: str) -> dict[str, Body]:
        """Everything that the operator made for an API, by kind and name."""
        selector = f"batchedapi.dev/api={name}"
        children = {}
        for resource in CHILDREN:
            for body in await self.kube.find(resource, self.namespace, selector):
                children[f"{resource.kind}/{body['metadata']['name']}"] = body
        return children
