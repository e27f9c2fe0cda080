"""The command line of `kubectl batchedapi`; reads with the user's kubeconfig and rights.

`python -m batchedapi_operator.plugin` is the same, for where the script is not on the PATH.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from batchedapi_core import contract
from batchedapi_core.scaling.minutes import MINUTES_A_DAY
from batchedapi_operator.cluster import rfc3339, section
from batchedapi_operator.plugin.cluster import (
    annotate,
    connect,
    read_api,
    read_decisions,
    replace_sections,
)
from batchedapi_operator.plugin.minutes import cost_rows, cost_table, read_minutes, time_of
from batchedapi_operator.plugin.replicas import copy_of_files, read_revisions, see
from batchedapi_operator.plugin.revisions import (
    NoWayBackError,
    as_rows,
    as_table,
    changes,
    chosen,
    sections_of,
)
from batchedapi_operator.plugin.screen import Terminal, as_json, screen
from batchedapi_operator.plugin.ui import HOST, operator_in, page_server
from batchedapi_operator.plugin.why import (
    NoDecisionError,
    explain_decision,
    history_table,
    joined,
    newest,
    padding,
    recommendation,
    standing_aside,
)
from batchedapi_operator.reconcile.canary import promotion
from batchedapi_operator.resources.revised import revised

# What may come next on a command line: kubectl asks on Tab, and click knows the commands.

_TAB_SECONDS: Final = 3.0
"""Seconds, since a user who pressed Tab waits."""
_NO_FILES: Final = ":4"
"""Cobra's ShellCompDirectiveNoFileComp, which kubectl reads from the last line."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def print_completions(command: click.Command, words: Sequence[str]) -> None:
    """As kubectl reads them: one a line, what it is after a tab, and what to do with them.

    Args:
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


def _client(context: click.Context) -> client.ApiClient:
    """One that gives up at once: who pressed Tab presses it again."""
    connect(context.params.get("context"))
    configuration = client.Configuration.get_default_copy()
    configuration.retries = 0
    return client.ApiClient(configuration)


@_quietly
def complete_api(context: click.Context) -> Sequence[str]:
    """Names of the APIs there."""
    found: Any = client.CustomObjectsApi(_client(context)).list_namespaced_custom_object(
        contract.GROUP,
        contract.VERSION,
        _namespace(context),
        contract.PLURAL,
        _request_timeout=_TAB_SECONDS,
    )
    return [str(one["metadata"]["name"]) for one in found["items"]]


@_quietly
def complete_namespace(context: click.Context) -> Sequence[str]:
    """Names of all."""
    found: Any = client.CoreV1Api(_client(context)).list_namespace(_request_timeout=_TAB_SECONDS)
    return [str(one.metadata.name) for one in found.items]


@_quietly
def complete_context(_context: click.Context) -> Sequence[str]:
    """Names of the kubeconfig's."""
    known, _ = config.list_kube_config_contexts()  # type: ignore[no-untyped-call] # no types
    return [str(one["name"]) for one in known]


@click.group()
@click.version_option(package_name="batchedapi", prog_name="kubectl batchedapi")
def main() -> None:
    """See into BatchedAPIs.

    \b
    Example:
      kubectl batchedapi status sleepy -n demo
    """


_NAME: Final = click.argument("name", shell_complete=complete_api)
_NAMESPACE: Final = click.option(
    "-n", "--namespace", default=None, shell_complete=complete_namespace,
    help="Absent: that of the context.",
)  # fmt: skip
_CONTEXT: Final = click.option(
    "--context", default=None, shell_complete=complete_context, help="Of the kubeconfig."
)
_OUTPUT: Final = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
_OPERATOR: Final = click.option(
    "--operator-namespace", default="batchedapi-system", show_default=True,
    shell_complete=complete_namespace,
    help="Where the operator runs; it is asked by a port-forward.",
)  # fmt: skip


@main.command()
@_NAME
@_NAMESPACE
@_CONTEXT
@click.option(
    "--last",
    type=click.IntRange(1, contract.DECISIONS_KEPT),
    default=None,
    help="So many decisions, the newest first; those in a row that came to the same are one.",
)
@_OUTPUT
@_OPERATOR
def why(
    name: str,
    *,
    namespace: str | None,
    context: str | None,
    last: int | None,
    output: str,
    operator_namespace: str,
) -> None:
    """Say why the BatchedAPI NAME has as many replicas as it has, and which batching would do more.

    \b
    Examples:
      kubectl batchedapi why sleepy
      kubectl batchedapi why sleepy -n demo --last 20
    """
    current = connect(context)
    place = namespace or current
    status = section(read_api(place, name), "status")
    try:
        decision = newest(name, status)
    except NoDecisionError as error:
        raise click.ClickException(error.message) from error
    # The autoscaler names the policy that it decides by in every report but those in which it
    # stands aside: then others decide by now.
    decides = section(status, "autoscaling").get("policy")
    aside = "" if decides else standing_aside(status)
    if aside and output == "text":
        click.echo(f"nothing is decided now: {aside}; the last decision:")
    if last is None:
        if output == "json":
            click.echo(_json(decision))
            return
        told = [text for text in (padding(status), recommendation(status)) if text]
        click.echo("\n".join((explain_decision(decision), *(("", *told) if told else ()))))
        return
    older = read_decisions(operator_namespace, place, name, last)
    decisions = joined(decision, older)[:last]
    if output == "json":
        click.echo(_json(decisions))
        return
    click.echo("\n".join((explain_decision(decisions[0]), "", *history_table(decisions))))


@main.command()
@_NAME
@_NAMESPACE
@_CONTEXT
@_OUTPUT
def status(name: str, *, namespace: str | None, context: str | None, output: str) -> None:
    """Show the BatchedAPI NAME on one screen.

    Replicas by revision, conditions, batch sizes as bars, queue, rates and latencies of the next
    two seconds, and why it has as many replicas as it has.

    \b
    Examples:
      kubectl batchedapi status sleepy -n demo
      kubectl batchedapi status sleepy -o json
    """
    current = connect(context)
    seen = see(namespace or current, name)
    if output == "json":
        click.echo(_json(as_json(seen)))
        return
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    block = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    click.echo(screen(seen, Terminal(width, colour, block)))


@main.command()
@_NAME
@_NAMESPACE
@_CONTEXT
@_OUTPUT
def history(name: str, *, namespace: str | None, context: str | None, output: str) -> None:
    """List revisions of the BatchedAPI NAME, the newest first.

    With their number, how many of their pods are ready, and what of the spec changed.

    \b
    Example:
      kubectl batchedapi history sleepy -n demo
    """
    current = connect(context)
    place = namespace or current
    status = section(read_api(place, name), "status")
    rows = as_rows(read_revisions(place, name), status)
    click.echo(_json(rows) if output == "json" else "\n".join(as_table(rows)))


@main.command()
@_NAME
@_NAMESPACE
@_CONTEXT
@click.option(
    "--to",
    metavar="REVISION",
    default=None,
    help="Its number or digest. Absent: the newest that is not what the spec asks for.",
)
def rollback(name: str, *, namespace: str | None, context: str | None, to: str | None) -> None:
    """Give the BatchedAPI NAME the spec of an earlier revision.

    Autoscaling, update strategy, addresses and the like stay as they are. Where the manifest is in
    Git, change it there too, or it comes back.

    \b
    Examples:
      kubectl batchedapi rollback sleepy -n demo
      kubectl batchedapi rollback sleepy --to 3
    """
    current = connect(context)
    place = namespace or current
    api = read_api(place, name)
    spec = section(api, "spec")
    try:
        revision = chosen(read_revisions(place, name), api, to)
    except NoWayBackError as error:
        raise click.ClickException(f"{name}: {error}") from error
    copy = copy_of_files(place, name, revision)
    wanted = sections_of(spec, revision, copy)
    changed = changes(revised(spec), revised(wanted))
    if changed:
        replace_sections(place, name, wanted)
    told = ", ".join(changed) or "nothing had to be changed"
    click.echo(f"{name} has the spec of revision {revision.number} ({revision.digest}): {told}")
    if copy is not None:
        click.echo(f"its files are no longer in the ConfigMap of its source, but in {copy}")
    click.echo("if the manifest is applied from Git, change it there too, or it comes back")


@main.command()
@_NAME
@_NAMESPACE
@_CONTEXT
def promote(name: str, *, namespace: str | None, context: str | None) -> None:
    """Roll out the revision of the BatchedAPI NAME whose canary runs, whatever that has shown.

    \b
    Example:
      kubectl batchedapi promote sleepy -n demo
    """
    current = connect(context)
    place = namespace or current
    api = read_api(place, name)
    status = section(api, "status")
    revision = section(status, "revision").get("canary", "")
    named = promotion(revision, status)
    if named is None:
        raise click.ClickException(f"{name}: no canary runs")
    if section(api, "spec").get("paused"):
        raise click.ClickException(
            f"{name}: nothing is rolled out while spec.paused is true; set it to false first"
        )
    annotate(place, name, {contract.ANNOTATION_PROMOTE: named})
    click.echo(f"{name}: revision {revision} will be rolled out")


@main.command()
@_NAME
@_NAMESPACE
@_CONTEXT
@click.option(
    "--price", type=click.FloatRange(min=0.0), default=None,
    help="Of a replica for an hour, in whichever currency.",
)  # fmt: skip
@_OUTPUT
def cost(
    name: str, *, namespace: str | None, context: str | None, price: float | None, output: str
) -> None:
    """Show what the BatchedAPI NAME took by day: replicas, for 1000 rows, and how idle they were.

    Of up to ten days, as the operator recorded them; days are those of UTC.

    \b
    Examples:
      kubectl batchedapi cost sleepy -n demo
      kubectl batchedapi cost sleepy --price 0.35
    """
    current = connect(context)
    rows = cost_rows(read_minutes(namespace or current, name), price)
    click.echo(_json(rows) if output == "json" else "\n".join(cost_table(rows)))


@main.command()
@_NAME
@_NAMESPACE
@_CONTEXT
@click.option(
    "--set", "settings", metavar="autoscaling.FIELD=VALUE", required=True, multiple=True,
    help="As in a manifest, such as autoscaling.slo.latency=200ms; several times for several.",
)  # fmt: skip
@click.option(
    "--days", type=click.FloatRange(0.01, 10.0), default=1.0, show_default=True,
    help="So many of the latest; a day takes minutes, a day of many rows hours.",
)  # fmt: skip
@_OUTPUT
def whatif(
    name: str,
    *,
    namespace: str | None,
    context: str | None,
    settings: tuple[str, ...],
    days: float,
    output: str,
) -> None:
    """Replay the demand of the BatchedAPI NAME, with its settings and with other ones.

    The demand is what the operator recorded, and the autoscaler the one that it runs, in virtual
    time. Changes nothing. Needs numpy.

    \b
    Example:
      kubectl batchedapi whatif sleepy --set autoscaling.maxReplicas=5
    """
    try:
        import batchedapi_operator.plugin.whatif as simulated  # noqa: PLC0415 - it alone needs numpy
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; pip install numpy") from error
    current = connect(context)
    place = namespace or current
    api, minutes = read_api(place, name), read_minutes(place, name)
    minutes = minutes[-max(1, round(days * MINUTES_A_DAY)) :]
    try:
        found = simulated.compared(api, settings, minutes)
    except simulated.REFUSALS as error:
        raise click.ClickException(f"{name}: {error}") from error
    if output == "json":
        click.echo(_json(found))
        return
    since = rfc3339(time_of(minutes[0]))
    click.echo(f"{len(minutes)} minutes from {since} on, {found['rows']:.0f} rows, one a request;")
    click.echo(f"replicas start in {found['startup']}, and batches take what was learned of them\n")
    click.echo("\n".join(simulated.compared_table(found)))


@main.command()
@_CONTEXT
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8088, show_default=True, help="On loopback."
)
@_OPERATOR
def ui(*, context: str | None, port: int, operator_namespace: str) -> None:
    """Serve a page about all BatchedAPIs on this machine, until Ctrl-C.

    \b
    Example:
      kubectl batchedapi ui --port 8090
    """
    connect(context)
    ask = operator_in(operator_namespace)
    try:
        server = page_server(port, ask)
    except OSError as error:
        raise click.ClickException(f"--port {port}: {error.strerror}; choose another") from error
    with server:
        click.echo(f"http://{HOST}:{server.server_port}/   (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


_NARROWEST: Final = 40
"""Columns: narrower terminals break the lines themselves."""


def _json(what: Any) -> str:
    return json.dumps(what, indent=2)


if __name__ == "__main__":
    main(prog_name="kubectl batchedapi")
