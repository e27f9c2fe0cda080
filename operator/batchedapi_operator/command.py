"""The command line of the operator."""

import asyncio
import json
import platform
import re
from importlib.metadata import version

import click

from batchedapi_core import contract
from batchedapi_core.manifest import SPREAD, Pod, pod_defaults
from batchedapi_operator import logs
from batchedapi_operator.cluster import JsonObject, Namespaces
from batchedapi_operator.errors import OperatorError
from batchedapi_operator.logs import LogFormat
from batchedapi_operator.process import Settings, run
from batchedapi_operator.resources.exposure import EXPOSURE
from batchedapi_operator.resources.policies import Policies

ENVIRONMENT_PREFIX = "BATCHEDAPI"
_NAME = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LEVELS = ("debug", "info", "warning", "error")


def default_serving_image() -> str:
    """The serving image of the same release as this operator."""
    return f"batchedapi-serving:{version('batchedapi')}"


def _names(_context: object, _option: object, given: tuple[str, ...]) -> tuple[str, ...]:
    """Namespaces to watch, each once; an empty one, as a chart may set it, is none."""
    names = tuple(dict.fromkeys(name for name in given if name))
    for name in names:
        if not _NAME.fullmatch(name):
            raise click.BadParameter(
                f"expected the name of a namespace (a-z, 0-9 and '-', at most 63), got {name!r};"
                " name each with a flag of its own, or with spaces between in the environment"
            )
    return names


def _peers(_context: object, _option: object, given: str) -> tuple[JsonObject, ...]:
    """NetworkPolicyPeers; what one may say, the apiserver checks."""
    try:
        peers = json.loads(given or "[]")
    except ValueError:
        peers = given
    if not isinstance(peers, list) or not all(isinstance(one, dict) and one for one in peers):
        example = '[{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]'
        raise click.BadParameter(f"expected a JSON list such as {example}, got {given!r}")
    return tuple(peers)


class _PodDefaults(click.ParamType[Pod]):
    name = "json"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Pod:
        """Settings of pods; every value that is wrong is named."""
        try:
            written = json.loads(str(value))
            if not isinstance(written, dict):
                self.fail(f"defaults.pod: expected an object, got {value!r:.100}", param, ctx)
            return pod_defaults(written)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(context_settings={"auto_envvar_prefix": ENVIRONMENT_PREFIX, "show_default": True})
@click.option(
    "--serving-image",
    default=default_serving_image,
    show_default="batchedapi-serving:<version>",
    show_envvar=True,
    help="Image of replicas whose manifest names none; running revisions keep theirs.",
)
@click.option(
    "--pod-defaults",
    type=_PodDefaults(),
    default="{}",
    show_envvar=True,
    help="JSON as of spec.pod, for what an API does not say; from its next revision on.",
)
@click.option(
    "--image-volumes/--no-image-volumes",
    default=False,
    envvar=f"{ENVIRONMENT_PREFIX}_IMAGE_VOLUMES",
    show_envvar=True,
    help="Whether models at oci:// are volumes of kind image. Absent: replicas pull them.",
)
@click.option(
    "--watch-namespace",
    "namespaces",
    multiple=True,
    callback=_names,
    envvar=f"{ENVIRONMENT_PREFIX}_WATCH_NAMESPACE",
    show_default=False,
    show_envvar=True,
    help="Only this one; once for each, or in the environment all with spaces between. Absent:"
    " all but kube-system.",
)
@click.option(
    "--pod-disruption-budgets/--no-pod-disruption-budgets",
    "disruption_budgets",
    default=True,
    envvar=f"{ENVIRONMENT_PREFIX}_POD_DISRUPTION_BUDGETS",
    show_envvar=True,
    help="Whether each API has one. Pods with two cannot be evicted at all.",
)
@click.option(
    "--admin-peers",
    default="",
    callback=_peers,
    show_envvar=True,
    help="Who reaches the admin port of replicas, as a JSON list of NetworkPolicyPeers; with it"
    " each API has a NetworkPolicy.",
)
@click.option(
    "--exposure",
    multiple=True,
    type=click.Choice(list(EXPOSURE)),
    envvar=f"{ENVIRONMENT_PREFIX}_EXPOSURE",
    show_default=False,
    show_envvar=True,
    help="What an API may be given in spec.networking: needs rights, and for routes the Gateway"
    " API's resource definitions.",
)
@click.option(
    "--lease-name",
    default=contract.MANAGED_BY,
    show_envvar=True,
    help="Lease that the replicas of one release share; whoever holds it acts.",
)
@click.option(
    "--lease-namespace",
    default="default",
    show_envvar=True,
    help="Where that Lease lies: the operator's own namespace.",
)
@click.option(
    "--pod-name",
    default=platform.node,
    show_default="the host's name",
    show_envvar=True,
    help="How the Lease names its holder.",
)
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_envvar=True)
@click.option(
    "--log-format",
    type=click.Choice([style.value for style in LogFormat]),
    default="json",
    show_envvar=True,
)
@click.option("--admin-host", default="", show_envvar=True, help="Empty: every interface.")
@click.option(
    "--admin-port",
    type=click.IntRange(1, 65535),
    default=contract.OPERATOR_ADMIN_PORT,
    show_envvar=True,
    help="Of /livez, /readyz and /metrics.",
)
@click.option(
    "--decisions-port",
    type=click.IntRange(1, 65535),
    default=contract.OPERATOR_DECISIONS_PORT,
    show_envvar=True,
    help="Of /decisions, on loopback alone: reached by kubectl port-forward.",
)
def main(
    *,
    serving_image: str,
    pod_defaults: Pod,
    image_volumes: bool,
    namespaces: tuple[str, ...],
    disruption_budgets: bool,
    admin_peers: tuple[JsonObject, ...],
    exposure: tuple[str, ...],
    lease_name: str,
    lease_namespace: str,
    pod_name: str,
    log_level: str,
    log_format: str,
    admin_host: str,
    admin_port: int,
    decisions_port: int,
) -> None:
    """Run the batchedapi operator until it is sent SIGTERM."""
    settings = Settings(
        serving_image=serving_image,
        pod_defaults=pod_defaults.over(SPREAD),
        image_volumes=image_volumes,
        namespaces=Namespaces(namespaces),
        policies=Policies(
            disruption_budgets,
            admin_peers,
            tuple(kind for word in dict.fromkeys(exposure) for kind in EXPOSURE[word]),
        ),
        lease_name=lease_name,
        lease_namespace=lease_namespace,
        pod_name=pod_name,
        log_level=log_level,
        log_format=LogFormat(log_format),
        admin_host=admin_host,
        admin_port=admin_port,
        decisions_port=decisions_port,
    )
    logs.set_up(settings.log_level, settings.log_format)
    try:
        asyncio.run(run(settings))
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
