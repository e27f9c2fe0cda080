"""What the command line asks of a cluster, with the user's kubeconfig and rights."""

import http.client
import json
import re
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import click
from kubernetes import client, config
from kubernetes.stream import portforward
from urllib3.exceptions import HTTPError

from batchedapi_core import contract

NOT_FOUND: Final = 404
_REFUSED: Final = (401, 403)
SECONDS: Final = 15.0
_RELEASE: Final = "batchedapi-operator"
_HANDSHAKE: Final = re.compile(r"Handshake status ([0-9]{3})")
"""All that the client says of a forward that the API server refused."""


@dataclass(frozen=True, slots=True)
class OperatorPod:
    """A pod of an operator, whose decisions port is forwarded to."""

    namespace: str
    name: str
    release: str
    """Name of its service account; the chart names everything after it."""

    def __str__(self) -> str:
        port = contract.OPERATOR_DECISIONS_PORT
        return f"port {port} of pod {self.name!r} in namespace {self.namespace!r}"


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
    operator_namespace: str, namespace: str, name: str, last: int
) -> list[dict[str, Any]]:
    """What the operator remembers of an API, the newest first; nothing if it knows nothing.

    Where several operators run in the namespace, the one that decides about the API answers.

    Raises:
        ClickException: The operator cannot be asked; the message says what to do about it.
    """
    path = f"{contract.PATH_DECISIONS}/{quote(namespace)}/{quote(name)}?last={last}"
    failure: click.ClickException | None = None
    for pod in operator_pods(operator_namespace):
        try:
            status, payload = _ask(pod, path)
        except click.ClickException as error:
            failure = failure or error  # it may be another that decides
            continue
        if status == NOT_FOUND:
            continue
        try:
            found: list[dict[str, Any]] = json.loads(payload)["decisions"]
        except (ValueError, KeyError, TypeError) as error:
            message = f"{pod}: expected decisions, got {status} {payload[:200]!r}"
            raise click.ClickException(message) from error
        return found
    if failure is not None:
        raise failure
    return []


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
    return [
        OperatorPod(namespace, pod.metadata.name, pod.spec.service_account_name or _RELEASE)
        for pod in running
    ]


def _ask(pod: OperatorPod, path: str) -> tuple[int, bytes]:
    """Status and body of a GET through a port-forward."""
    forward = _forwarded(pod)
    connection = http.client.HTTPConnection("localhost", timeout=SECONDS)
    connection.sock = forward.socket(contract.OPERATOR_DECISIONS_PORT)
    connection.sock.settimeout(SECONDS)
    try:
        connection.request("GET", path, headers={"Accept": contract.JSON})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        why = forward.error(contract.OPERATOR_DECISIONS_PORT) or repr(error)
        text = f"{pod} does not answer: {why.strip()}; is that operator older than this command?"
        raise click.ClickException(text) from error
    finally:
        forward.close()


def _forwarded(pod: OperatorPod) -> Any:
    """A port-forward to the pod; in a thread, since the client's handshake has no time limit."""
    made: Future[Any] = Future()

    def connect() -> None:
        # a client of its own: one that hangs must not be shared with the next forward
        api = client.CoreV1Api(client.ApiClient())
        asked = api.connect_get_namespaced_pod_portforward
        port = str(contract.OPERATOR_DECISIONS_PORT)
        try:
            made.set_result(portforward(asked, pod.name, pod.namespace, ports=port))
        except client.ApiException as error:
            made.set_exception(error)

    threading.Thread(target=connect, name=f"forward to {pod.name}", daemon=True).start()
    try:
        return made.result(SECONDS)
    except TimeoutError as error:
        text = f"{pod} does not answer: no port-forward in {SECONDS:g} s"
        raise click.ClickException(text) from error
    except client.ApiException as error:
        told = _HANDSHAKE.search(str(error.reason))
        status = int(told[1]) if told is not None else error.status
        text = _refusal(pod.namespace, pod.release, status, error.reason)
        raise click.ClickException(text) from error


def _refusal(namespace: str, release: str, status: int, reason: object) -> str:
    if status in _REFUSED:
        return (
            f"you may not forward to the operator's pod in namespace {namespace!r}: that takes"
            " `list` on pods, and `get` and `create` on pods/portforward there. The chart has a"
            " Role for it; an administrator gives it with: kubectl create rolebinding"
            f" decisions-reader -n {namespace} --user=YOU"
            f" --role={release}-decisions-view."
            " Without --last, the newest decision is read from the API itself"
        )
    return f"apiserver, asked to forward to the operator's pod in {namespace!r}: {status} {reason}"
