"""Requests of the command line to a cluster, with the user's kubeconfig and rights."""

import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import click
from kubernetes import client, config
from kubernetes.stream import portforward
from urllib3.exceptions import HTTPError

from batchedapi_core import contract
from batchedapi_operator.cluster import JsonObject

NOT_FOUND: Final = 404
REFUSED: Final = (401, 403)
SECONDS: Final = 15.0
_MANAGER: Final = "kubectl-batchedapi"
_RELEASE: Final = "batchedapi-operator"
_LEASE_NAME: Final = "BATCHEDAPI_LEASE_NAME"
_DROPPED_BYTES: Final = 1 << 16  # at once
_HANDSHAKE: Final = re.compile(r"Handshake status ([0-9]{3})")
"""All that the client says of a forward that the API server refused."""


@dataclass(frozen=True, slots=True)
class OperatorPod:
    """A pod of an operator, whose decisions port is forwarded to."""

    namespace: str
    name: str
    release: str
    """Name of the operator, which its Lease has and the chart's Roles begin with."""

    def __str__(self) -> str:
        port = contract.OPERATOR_DECISIONS_PORT
        return f"port {port} of pod {self.name!r} in namespace {self.namespace!r}"


class NotReadError(click.ClickException):
    """An object that cannot be read; the text says why, and what to do about it."""


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


def read_api(namespace: str, name: str) -> JsonObject:
    """A BatchedAPI.

    Raises:
        ClickException: There is no such API, or the apiserver does not say.
    """
    apis, place = client.CustomObjectsApi(), f"BatchedAPI {name!r} in namespace {namespace!r}"
    api = answered(
        lambda: apis.get_namespaced_custom_object(
            contract.GROUP, contract.VERSION, namespace, contract.PLURAL, name,
            _request_timeout=SECONDS,
        ),
        f"{place}: that takes `get` on {contract.PLURAL}",
    )  # fmt: skip
    if api is None:
        raise click.ClickException(
            f"there is no {place}; kubectl get {contract.SHORT_NAME} -A lists all"
        )
    return api


def replace_sections(namespace: str, name: str, sections: JsonObject) -> None:
    """Give the spec of a BatchedAPI those sections.

    Raises:
        ClickException: The apiserver refuses it, or does not answer.
    """
    steps = [{"op": "add", "path": f"/spec/{one}", "value": sections[one]} for one in sections]
    _patch(namespace, name, steps, "application/json-patch+json")


def annotate(namespace: str, name: str, annotations: JsonObject) -> None:
    """Give a BatchedAPI those annotations.

    Raises:
        ClickException: The apiserver refuses it, or does not answer.
    """
    patch = {"metadata": {"annotations": annotations}}
    _patch(namespace, name, patch, "application/merge-patch+json")


def _patch(namespace: str, name: str, patch: Any, content_type: str) -> None:
    try:
        client.CustomObjectsApi().patch_namespaced_custom_object(
            contract.GROUP, contract.VERSION, namespace, contract.PLURAL, name, patch,
            field_manager=_MANAGER, _content_type=content_type, _request_timeout=SECONDS,
        )  # fmt: skip
    except client.ApiException as error:
        if error.status in REFUSED:
            raise click.ClickException(
                f"you may not change BatchedAPI {name!r} in namespace {namespace!r}: that takes"
                f" `patch` on {contract.PLURAL}, which whoever has the ClusterRole edit there has"
            ) from error
        told = error.reason
        with contextlib.suppress(ValueError, KeyError, TypeError):  # not the apiserver's own answer
            told = json.loads(error.body or "")["message"]
        raise click.ClickException(f"apiserver: {error.status} {told}") from error
    except HTTPError as error:
        raise click.ClickException(f"apiserver: {error}") from error


def answered(ask: Callable[[], Any], what: str) -> JsonObject | None:
    """The API server's answer; None: there is no such object.

    Raises:
        NotReadError: It does not say; `what` is read, and the right that it takes.
    """
    try:
        found: JsonObject = ask()
    except client.ApiException as error:
        if error.status == NOT_FOUND:
            return None
        if error.status in REFUSED:
            text = f"you may not read {what}, which whoever has the ClusterRole view there has"
            raise NotReadError(text) from error
        raise NotReadError(f"apiserver: {error.status} {error.reason}") from error
    except (HTTPError, ValueError) as error:
        raise NotReadError(f"apiserver: {error}") from error
    return found


def read_decisions(
    operator_namespace: str, namespace: str, name: str, last: int
) -> list[dict[str, Any]]:
    """Decisions that the operator remembers of an API, the newest first.

    Where several operators run in the namespace, the one that decides about the API answers.

    Raises:
        ClickException: The operator cannot be asked; the message says what to do about it.
    """
    path = f"{contract.PATH_DECISIONS}/{quote(namespace)}/{quote(name)}?last={last}"
    for pod, status, payload in operators_answers(operator_namespace, path):
        if status == NOT_FOUND:  # it may be another that decides
            continue
        try:
            found: list[dict[str, Any]] = json.loads(payload)["decisions"]
        except (ValueError, KeyError, TypeError) as error:
            message = f"{pod}: expected decisions, got {status} {payload[:200]!r}"
            raise click.ClickException(message) from error
        return found
    return []


def operators_answers(namespace: str, path: str) -> Iterator[tuple[OperatorPod, int, bytes]]:
    """Status and body of a GET from each operator there.

    Raises:
        ClickException: At the end, if one did not answer; or none runs.
    """
    failure: click.ClickException | None = None
    for pod in operator_pods(namespace):
        try:
            answer = ask_operator(pod, path)
        except click.ClickException as error:
            failure = failure or error
        else:
            yield pod, *answer
    if failure is not None:
        raise failure


def operator_pods(namespace: str) -> list[OperatorPod]:
    """Running pods of operators that are to stay.

    Raises:
        ClickException: There is none, or the user may not look for them.
    """
    try:
        found: Any = client.CoreV1Api().list_namespaced_pod(
            namespace, label_selector=contract.SELECTOR_OF_OPERATOR, _request_timeout=SECONDS
        )
    except client.ApiException as error:
        text = _refusal(namespace, _RELEASE, error.status, error.reason)
        raise click.ClickException(text) from error
    except HTTPError as error:
        raise click.ClickException(f"apiserver: {error}") from error
    running = [
        pod
        for pod in found.items
        if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
    ]
    if not running:
        raise click.ClickException(
            f"no operator runs in namespace {namespace!r}: name the operator's with"
            " --operator-namespace;"
            f" kubectl get pods -A -l {contract.SELECTOR_OF_OPERATOR} lists it"
        )
    return [OperatorPod(namespace, pod.metadata.name, _release_of(pod)) for pod in running]


def _release_of(pod: Any) -> str:
    variables = pod.spec.containers[0].env or ()
    return next((one.value for one in variables if one.name == _LEASE_NAME), _RELEASE)


def ask_operator(pod: OperatorPod, path: str) -> tuple[int, bytes]:
    """Status and body of a GET through a port-forward."""
    try:
        return get_forwarded(
            pod.namespace, pod.name, contract.OPERATOR_DECISIONS_PORT, path, seconds=SECONDS
        )
    except ForwardError as error:
        if error.status is not None:
            text = _refusal(pod.namespace, pod.release, error.status, error.why)
        else:
            text = f"{pod} does not answer: {error.why}"
            if error.opened:
                text += "; is that operator older than this command?"
        raise click.ClickException(text) from error


@dataclass(frozen=True, slots=True)
class ForwardError(Exception):
    """Nothing was answered through a port-forward."""

    why: str
    status: int | None = None
    """The API server's, where it refused the forward."""
    opened: bool = False
    """The forward was opened, but the port behind it says nothing."""

    @property
    def is_refusal(self) -> bool:
        """Whether it is a right that is missing."""
        return self.status in REFUSED


def get_forwarded(
    namespace: str, pod: str, port: int, path: str, *, seconds: float, most: int = -1
) -> tuple[int, bytes]:
    """Status and body of a GET to a port of a pod, by the API server, with the user's rights.

    Args:
        port: Of the pod; loopback is enough.
        seconds: That opening, asking and each read may take.
        most: Bytes of the body to read; -1: all.

    Raises:
        ForwardError: The forward was refused, or nobody answered in time.
    """
    forward = _forwarded(namespace, pod, port, seconds)
    connection = http.client.HTTPConnection("localhost", timeout=seconds)
    connection.sock = ours = forward.socket(port)
    ours.settimeout(seconds)
    try:
        connection.request("GET", path, headers={"Accept": f"{contract.JSON}, text/plain"})
        answer = connection.getresponse()
        return answer.status, answer.read(None if most < 0 else most)
    except (OSError, http.client.HTTPException) as error:
        why = forward.error(port) or repr(error)
        raise ForwardError(why.strip(), opened=True) from error
    finally:
        # Closed with bytes unread it resets the other end, whose thread would print a traceback.
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_WR)
            while ours.recv(_DROPPED_BYTES):
                pass
        forward.close()


def _forwarded(namespace: str, pod: str, port: int, seconds: float) -> Any:
    """A port-forward to the pod; in a thread, since the client's handshake has no time limit."""
    made: Future[Any] = Future()

    def connect() -> None:
        # a client of its own: one that hangs must not be shared with the next forward
        api = client.CoreV1Api(client.ApiClient())
        asked = api.connect_get_namespaced_pod_portforward
        try:
            made.set_result(portforward(asked, pod, namespace, ports=str(port)))
        except client.ApiException as error:
            made.set_exception(error)

    threading.Thread(target=connect, name=f"forward to {pod}", daemon=True).start()
    try:
        return made.result(seconds)
    except TimeoutError as error:
        raise ForwardError(f"no port-forward in {seconds:g} s") from error
    except client.ApiException as error:
        told = _HANDSHAKE.search(str(error.reason))
        status = int(told[1]) if told is not None else error.status
        raise ForwardError(str(error.reason), status) from error


def _refusal(namespace: str, release: str, status: int, reason: object) -> str:
    if status in REFUSED:
        return (
            f"you may not forward to the operator's pod in namespace {namespace!r}: that takes"
            " `list` on pods, and `get` and `create` on pods/portforward there. The chart has a"
            " Role for it; an administrator gives it with: kubectl create rolebinding"
            f" decisions-reader -n {namespace} --user=YOU"
            f" --role={release}-decisions-view."
            " `why` without --last reads the newest decision from the API itself"
        )
    return f"apiserver, asked to forward to the operator's pod in {namespace!r}: {status} {reason}"
