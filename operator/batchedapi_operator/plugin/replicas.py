"""Reads an API, its Deployment, its revisions, its pods and their pages, with the user's rights."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import click
from kubernetes import client

from batchedapi_core import contract
from batchedapi_operator.autoscaling.metrics_page import MAX_BYTES
from batchedapi_operator.cluster import JsonObject, section
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.plugin.cluster import (
    SECONDS,
    ForwardError,
    NotReadError,
    answered,
    get_forwarded,
    read_api,
)
from batchedapi_operator.plugin.pages import Page, Reading, figures_of, parse_page
from batchedapi_operator.plugin.revisions import RolledOut, files_of, rolled_out
from batchedapi_operator.plugin.screen import ReplicaRow, ScreenData
from batchedapi_operator.resources import revision_name, selector_text

BETWEEN_SECONDS: Final = 2.0
"""From one page of a replica to the next: some batches even of a quiet API, and soon over."""
_PAGE_SECONDS: Final = 5.0
_AT_ONCE: Final = 16
"""Forwards; the API server holds each open."""


def see(namespace: str, name: str) -> ScreenData:
    """Everything that `status` shows; takes two seconds and a little.

    Raises:
        ClickException: There is no such API, or it cannot be read. What is missing of the rest is
            said in the answer.
    """
    api = read_api(namespace, name)
    missing: list[str] = []
    deployment: JsonObject | None = None
    pods: tuple[ReplicaRow, ...] = ()
    try:
        deployment = read_deployment(namespace, name)
    except NotReadError as error:
        missing.append(f"{error.message}; the counts above are of the operator's last report")
    try:
        pods = tuple(map(ReplicaRow.of, list_pods(namespace, name)))
    except NotReadError as error:
        missing.append(f"pods, and so their batch sizes, queues and rates: {error.message}")
    # web pods run no batches, and each of them tells of the one queue
    replicas = tuple(one for one in pods if one.view.role != contract.ROLE_WEB)
    readings, failures = read_pages(namespace, [one.view.name for one in replicas if one.running])
    missing += failures
    return ScreenData(
        api=api,
        deployment=deployment,
        replicas=replicas,
        window=figures_of(readings),
        pages=len(readings),
        missing=tuple(missing),
        web=tuple(one for one in pods if one.view.role == contract.ROLE_WEB),
    )


def read_deployment(namespace: str, name: str) -> JsonObject | None:
    """The Deployment of an API; None: there is none (yet)."""
    ask = client.AppsV1Api().read_namespaced_deployment
    return _read(ask, namespace, name, "Deployment")


def list_pods(namespace: str, name: str) -> Sequence[JsonObject]:
    """The pods of an API, by name."""
    pods = _listed(client.CoreV1Api().list_namespaced_pod, namespace, name, "pods")
    return sorted(pods, key=lambda one: str(one["metadata"]["name"]))


def read_revisions(namespace: str, name: str) -> list[RolledOut]:
    """Revisions that the Deployment of an API has had, the newest first.

    Raises:
        NotReadError: The apiserver does not say.
    """
    ask = client.AppsV1Api().list_namespaced_replica_set
    return rolled_out(_listed(ask, namespace, name, "replicasets"), name)


def _read(ask: Callable[..., Any], namespace: str, name: str, kind: str) -> JsonObject | None:
    """An object of that kind; None: there is none."""
    return answered(
        lambda: _json(ask(name, namespace, _preload_content=False, _request_timeout=SECONDS)),
        f"{kind} {name!r} in namespace {namespace!r}: that takes `get` on {kind.lower()}s",
    )


def _listed(ask: Callable[..., Any], namespace: str, name: str, kind: str) -> Sequence[JsonObject]:
    """Objects of that kind, its plural, which have the labels of an API."""
    found = answered(
        lambda: _json(
            ask(
                namespace,
                label_selector=selector_text(name),
                _preload_content=False,
                _request_timeout=SECONDS,
            )
        ),
        f"{kind} in namespace {namespace!r}: that takes `list` on {kind}",
    )
    items: list[JsonObject] = (found or {}).get("items") or []
    return items


def copy_of_files(namespace: str, name: str, revision: RolledOut) -> str | None:
    """The ConfigMap that keeps the files of a revision.

    Returns:
        None where it had no files, or its source still has them.

    Raises:
        ClickException: Nobody has them any more, or the apiserver does not say.
    """
    source = section(section(revision.spec or {}, "predictor"), "source").get("configMap")
    if source is None:
        return None
    copy = revision_name(name, revision.digest)
    files = _files(namespace, copy)
    if files is None:
        raise click.ClickException(f"ConfigMap {copy!r}, which had the files, is gone")
    return None if files == _files(namespace, source) else copy


def _files(namespace: str, name: str) -> list[JsonObject] | None:
    found = read_config_map(namespace, name)
    return None if found is None else files_of(found)


def read_config_map(namespace: str, name: str) -> JsonObject | None:
    """A ConfigMap; None: there is none.

    Raises:
        NotReadError: The apiserver does not say.
    """
    return _read(client.CoreV1Api().read_namespaced_config_map, namespace, name, "ConfigMap")


def _json(answer: Any) -> Any:
    return json.loads(answer.data)


def read_pages(namespace: str, pods: Sequence[str]) -> tuple[list[Reading], list[str]]:
    """Two pages of each pod, and what is missing in a sentence for each reason."""
    if not pods:
        return [], []
    failures: dict[str, str] = {}

    def read(pod: str) -> tuple[Page, float] | None:
        try:
            return _page(namespace, pod), time.monotonic()
        except ForwardError as error:
            failures[pod] = error.why
            if error.is_refusal:
                failures[pod] = (
                    f"you may not forward to pods in namespace {namespace!r}: that takes `get`"
                    " and `create` on pods/portforward, which whoever has the ClusterRole edit"
                    " there has"
                )
        except MetricsUnavailableError as error:
            failures[pod] = str(error)
        return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        began = time.monotonic()
        first = dict(zip(pods, pool.map(read, pods), strict=True))
        answering = [pod for pod, page in first.items() if page is not None]
        if answering:
            time.sleep(max(0.0, began + BETWEEN_SECONDS - time.monotonic()))
        second = dict(zip(answering, pool.map(read, answering), strict=True))
    now = time.time()
    readings = [
        Reading(before[0], after[0], after[1] - before[1], now)
        for pod in answering
        if (before := first[pod]) is not None and (after := second[pod]) is not None
    ]
    return readings, _missing(failures, len(pods))


def _missing(failures: Mapping[str, str], pods: int) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for pod, why in sorted(failures.items()):
        by_reason.setdefault(why, []).append(pod)
    return [
        f"batch sizes, queue and rates of {len(found)} of {pods} pods ({found[0]}"
        f"{', ...' if len(found) > 1 else ''}): {why}"
        for why, found in by_reason.items()
    ]


def _page(namespace: str, pod: str) -> Page:
    port, path = contract.ADMIN_PORT, contract.PATH_METRICS
    status, body = get_forwarded(
        namespace, pod, port, path, seconds=_PAGE_SECONDS, most=MAX_BYTES + 1
    )
    if status != _OK:
        raise MetricsUnavailableError("status", f"expected 200, got {status}")
    if len(body) > MAX_BYTES:
        raise MetricsUnavailableError("too_large", f"a page of more than {MAX_BYTES} bytes")
    return parse_page(body.decode(errors="replace"))


_OK: Final = 200
