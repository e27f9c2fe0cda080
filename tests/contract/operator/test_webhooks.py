"""A webhook of somebody else's is down: told as such, with the apiserver's words, until it is not.

Configurations of webhooks are the cluster's; these are about the namespace of the tests alone.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from tests.contract.operator.world import NAMED, World, until

from batchedapi_operator.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Resource,
)
from batchedapi_operator.errors import ApplyError, WebhookError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SPEC: Final[dict[str, Any]] = {"predictor": {"path": "model:Iris"}, **NAMED}
BLOCKED: Final = (DEPLOYMENTS, SERVICES, CONFIG_MAPS, DISRUPTION_BUDGETS, NETWORK_POLICIES, PODS)


@asynccontextmanager
async def down(world: World, resource: Resource, subresource: str = "") -> AsyncIterator[str]:
    """A webhook that nobody listens for is asked about objects of that kind; its name."""
    name = f"{resource.plural}.{world.namespace}.example.com"
    rule = {
        "apiGroups": [resource.group],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [f"{resource.plural}{subresource}"],
    }
    webhook = {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 2,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "rules": [rule],
        "clientConfig": {"url": "https://127.0.0.1:1/mutate"},
    }
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }
    await world.kube._request("POST", CONFIGURATIONS, {}, body)
    try:
        yield name
    finally:
        await world.kube._request("DELETE", f"{CONFIGURATIONS}/{name}", {})


async def until_asked(world: World, resource: Resource) -> None:
    """Each apiserver takes a new configuration a moment later."""

    async def asked() -> bool:
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": "probe"},
        }
        try:
            path = resource.path(world.namespace)
            await world.kube._request("POST", path, {"dryRun": "All"}, body)
        except WebhookError:
            return True
        except ApplyError:
            return False
        return False

    await until(asked, f"the webhook of {resource.plural} to be asked")


@pytest.mark.parametrize("resource", BLOCKED, ids=lambda one: one.kind)
async def test_a_webhook_that_is_down_is_named_in_the_status_of_a_new_api_until_it_is_not(
    world: World, resource: Resource
) -> None:
    """An empty status, or one that blames the manifest, sends its user the wrong way."""
    api = f"held-{resource.plural}"
    async with down(world, resource) as name:
        await until_asked(world, resource)
        await world.create_api(api, SPEC)

        progressing = await world.until_condition(api, "Progressing", "WebhookFailed")
        status = (await world.api(api))["status"]

    assert f'failed calling webhook "{name}"' in progressing["message"]
    assert "127.0.0.1:1: connect: connection refused" in status["message"]
    told = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert ("True", "WebhookFailed") == told["Reconciling"]
    assert ("False", "WebhookFailed") == told["Ready"]
    assert ("True", "Accepted") == told["SpecValid"]
    assert "Stalled" not in told
    await world.until_condition(api, "Progressing", "NewRevision")
    assert 5 == len(await world.children(api))
