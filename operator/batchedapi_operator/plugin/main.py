"""The command line of `kubectl batchedapi`; reads with the user's kubeconfig and rights."""

import json
from typing import Any, Final

import click
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from batchedapi_core import contract
from batchedapi_operator.plugin.why import NoDecisionError, explain_status

NOT_FOUND: Final = 404


@click.group()
def main() -> None:
    """See into BatchedAPIs."""


@main.command()
@click.argument("name")
@click.option("-n", "--namespace", default=None, help="Absent: that of the current context.")
@click.option("--context", default=None, help="Of the kubeconfig.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def why(name: str, namespace: str | None, context: str | None, output: str) -> None:
    """Say why the BatchedAPI NAME has as many replicas as it has."""
    status = _status(name, namespace, context)
    try:
        told = explain_status(name, status)
    except NoDecisionError as error:
        raise click.ClickException(error.message) from error
    if output == "json":
        told = json.dumps(status["autoscaling"]["lastDecision"], indent=2)
    click.echo(told)


def _status(name: str, namespace: str | None, context: str | None) -> dict[str, Any]:
    try:
        config.load_kube_config(context=context)  # type: ignore[no-untyped-call] # no types
        _, current = config.list_kube_config_contexts()  # type: ignore[no-untyped-call] # no types
    except config.ConfigException as error:
        raise click.ClickException(f"kubeconfig: {error}") from error
    place = namespace or current.get("context", {}).get("namespace") or "default"
    try:
        found: Any = client.CustomObjectsApi().get_namespaced_custom_object(
            contract.GROUP, contract.VERSION, place, contract.PLURAL, name
        )
    except client.ApiException as error:
        if error.status == NOT_FOUND:
            raise click.ClickException(
                f"there is no BatchedAPI {name!r} in namespace {place!r}"
            ) from error
        raise click.ClickException(f"apiserver: {error.status} {error.reason}") from error
    except HTTPError as error:
        raise click.ClickException(f"apiserver: {error}") from error
    status: dict[str, Any] = found.get("status") or {}
    return status
