"""What may come next on a command line: kubectl asks on Tab, and click knows the commands."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from batchedapi_core import contract
from batchedapi_operator.plugin.cluster import connect
from batchedapi_operator.plugin.logs import revisions

_SECONDS: Final = 3.0
"""Whoever pressed Tab waits."""
_NO_FILES: Final = ":4"
"""Cobra's ShellCompDirectiveNoFileComp, which kubectl reads from the last line."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def print_completions(command: click.Command, words: Sequence[str]) -> None:
    """As kubectl reads them: one a line, what it is after a tab, and what to do with them.

    Args:
        command: What is being written.
        words: After `kubectl batchedapi`; the last is what is being written, maybe empty.
    """
    *args, incomplete = words or [""]
    shell = ShellComplete(command, {}, "kubectl batchedapi", "")
    for item in shell.get_completions(args, incomplete):
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES)


def _quietly(find: Callable[[click.Context], Sequence[str]]) -> Complete:
    """Of names that a cluster has; none where it does not say them."""

    def complete(
        context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = find(context)
        except (click.ClickException, client.ApiException, HTTPError, config.ConfigException):
            return []  # a list cannot say why it is short
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]

    return complete


def _namespace(context: click.Context) -> str:
    current = connect(context.params.get("context"))
    return context.params.get("namespace") or current


def _apis(context: click.Context) -> Sequence[str]:
    found: Any = client.CustomObjectsApi(_client(context)).list_namespaced_custom_object(
        contract.GROUP,
        contract.VERSION,
        _namespace(context),
        contract.PLURAL,
        _request_timeout=_SECONDS,
    )
    return [str(one["metadata"]["name"]) for one in found["items"]]


def _namespaces(context: click.Context) -> Sequence[str]:
    found: Any = client.CoreV1Api(_client(context)).list_namespace(_request_timeout=_SECONDS)
    return [str(one.metadata.name) for one in found.items]


def _revisions(context: click.Context) -> Sequence[str]:
    return sorted(revisions(_namespace(context), context.params["name"]))


def _contexts(_context: click.Context) -> Sequence[str]:
    known, _ = config.list_kube_config_contexts()  # type: ignore[no-untyped-call] # no types
    return [str(one["name"]) for one in known]


def _client(context: click.Context) -> client.ApiClient:
    """One that gives up at once: who pressed Tab presses it again."""
    connect(context.params.get("context"))
    configuration = client.Configuration.get_default_copy()
    configuration.retries = 0
    return client.ApiClient(configuration)


complete_api: Final = _quietly(_apis)
complete_namespace: Final = _quietly(_namespaces)
complete_revision: Final = _quietly(_revisions)
complete_context: Final = _quietly(_contexts)
