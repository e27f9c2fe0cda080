"""What the command line asks of a cluster, with the user's kubeconfig and rights."""

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import click
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from batchedapi_core import contract
from batchedapi_operator.settings import PATH_DECISIONS

NOT_FOUND: Final = 404
_REFUSED: Final = (401, 403)
_UNREACHABLE: Final = (502, 503, 504)
SECONDS: Final = 15.0
PORT: Final = "admin"
"""Name of the port of the operator's Service."""


@dataclass(frozen=True, slots=True)
class OperatorAddress:
    """Where the operator's admin port is found."""

    namespace: str
    service: str

    def path(self, api_namespace: str, api_name: str) -> str:
        """Of the decisions about an API, through the apiserver's proxy."""
        service = f"/api/v1/namespaces/{quote(self.namespace)}/services/{quote(self.service)}"
        return f"{service}:{PORT}/proxy{PATH_DECISIONS}/{quote(api_namespace)}/{quote(api_name)}"


def connect(context: str | None) -> str:
    """Read the kubeconfig; returns the namespace of the context.

    Raises:
        ClickException: There is none, or not that context.
    """
    try:
        config.load_kube_config(context=context)  # type: ignore[no-untyped-call] # no types
        known, current = config.list_kube_config_contexts()  # type: ignore[no-untyped-call] # same
    except config.ConfigException as error:
        raise click.ClickException(f"kubeconfig: {error}") from error
    meant = current if context is None else next(c for c in known if c["name"] == context)
    return str(meant.get("context", {}).get("namespace") or "default")


def read_status(namespace: str, name: str) -> dict[str, Any]:
    """The status of a BatchedAPI; empty while it has none.

    Raises:
        ClickException: There is no such API, or the apiserver does not say.
    """
    try:
        found: Any = client.CustomObjectsApi().get_namespaced_custom_object(
            contract.GROUP, contract.VERSION, namespace, contract.PLURAL, name
        )
    except client.ApiException as error:
        if error.status == NOT_FOUND:
            raise click.ClickException(
                f"there is no BatchedAPI {name!r} in namespace {namespace!r}"
            ) from error
        raise click.ClickException(f"apiserver: {error.status} {error.reason}") from error
    except HTTPError as error:
        raise click.ClickException(f"apiserver: {error}") from error
    status: dict[str, Any] = found.get("status") or {}
    return status


def read_decisions(
    operator: OperatorAddress, namespace: str, name: str, last: int
) -> list[dict[str, Any]]:
    """What the operator remembers of an API, the newest first; nothing if it knows nothing.

    Raises:
        ClickException: The operator cannot be asked; the message says what to do about it.
    """
    api = client.ApiClient()
    request = api.param_serialize(
        "GET",
        operator.path(namespace, name),
        query_params=[("last", str(last))],
        header_params={"Accept": contract.JSON},
        auth_settings=["BearerToken"],
    )
    try:
        answer: Any = api.call_api(*request, _request_timeout=SECONDS)
        payload: bytes = answer.read()
    except HTTPError as error:
        raise click.ClickException(f"apiserver: {error}") from error
    if answer.status == NOT_FOUND and _is_ours(payload):
        return []
    if answer.status != 200:  # noqa: PLR2004 - HTTP: OK
        raise click.ClickException(_refusal(operator, answer.status, payload))
    try:
        found: list[dict[str, Any]] = json.loads(payload)["decisions"]
    except (ValueError, KeyError, TypeError) as error:
        message = f"{operator.path(namespace, name)}: expected decisions, got {payload[:200]!r}"
        raise click.ClickException(f"{message}: {_remedy(operator)}") from error
    return found


def _is_ours(payload: bytes) -> bool:
    """Whether the operator said that, and not the apiserver in front of it."""
    try:
        return "error" in json.loads(payload)
    except (ValueError, TypeError):
        return False


def _refusal(operator: OperatorAddress, status: int, payload: bytes) -> str:
    where = f"service {operator.service!r} in namespace {operator.namespace!r}"
    if status in _REFUSED:
        return (
            f"you may not ask the {where}: that takes `get` on services/proxy there. The chart has"
            " a Role for it; an administrator gives it with: kubectl create rolebinding"
            f" decisions-reader -n {operator.namespace} --user=YOU"
            f" --role={operator.service.removesuffix('-metrics')}-decisions-view."
            " Without --last, the newest decision is read from the API itself"
        )
    if status == NOT_FOUND:
        return f"there is no {where}: {_remedy(operator)}"
    if status in _UNREACHABLE:
        return (
            f"the {where} does not answer ({status}): is the operator running?"
            f" kubectl get pods -n {operator.namespace}"
        )
    return f"the {where} answered {status}: {payload[:200].decode(errors='replace')}"


def _remedy(operator: OperatorAddress) -> str:
    return (
        "name the operator's with --operator-namespace and --operator-service; kubectl get services"
        " -A -l app.kubernetes.io/name=batchedapi-operator lists it"
        f" (looked for {operator.namespace}/{operator.service})"
    )
