"""Talks to the cluster that KUBECONFIG names, the way a user does: kubectl, helm, HTTP."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from batchedapi_core.manifest import parse_quantity
from ports import HOST, free_port

ROOT: Final = Path(__file__).resolve().parents[2]
SYSTEM_NAMESPACE: Final = "batchedapi-system"
T = TypeVar("T")


def run(*command: object, stdin: str | None = None) -> str:
    """Output of a command.

    Raises:
        AssertionError: it failed; with what it printed.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words, input=stdin, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def kubectl(*arguments: object, stdin: str | None = None) -> str:
    """The output of kubectl."""
    return run("kubectl", *arguments, stdin=stdin)


@contextlib.contextmanager
def proxy() -> Iterator[str]:
    """URL at which `kubectl proxy` answers for the apiserver: a look by kubectl costs a process."""
    port = free_port()
    process = subprocess.Popen(["kubectl", "proxy", f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: listens(HOST, port), 30, "kubectl proxy")
        yield f"http://{HOST}:{port}/"
    finally:
        process.terminate()
        process.wait(30)


def listens(host: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), 1.0).close()
        return True
    return False


def get(kind: str, name: str, namespace: str) -> dict[str, Any]:
    """One object."""
    found: dict[str, Any] = json.loads(kubectl("get", kind, name, "-n", namespace, "-o", "json"))
    return found


def get_all(kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
    """Objects of a namespace, by label."""
    listed = kubectl("get", kind, "-n", namespace, "-l", selector, "-o", "json")
    items: list[dict[str, Any]] = json.loads(listed)["items"]
    return items


def apply(manifest: dict[str, Any] | Path, namespace: str) -> None:
    """Apply a file or an object."""
    if isinstance(manifest, Path):
        kubectl("apply", "-n", namespace, "-f", manifest)
    else:
        kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))


def wait_for(condition: Callable[[], T | None], seconds: float, what: str) -> T:
    """The first true value of `condition`, asked twice a second.

    Raises:
        AssertionError: none within `seconds`.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.5)
    raise AssertionError(f"not within {seconds} s: {what}")


def skip_without_cpu(wanted: float, namespace: str) -> None:
    """Skip a test where pods of other namespaces leave fewer CPUs than `wanted` to this one.

    Its pods would stay Pending: kind's own ask for 0.95 CPU.
    """
    nodes, pods = (
        json.loads(kubectl("get", kind, "-A", "-o", "json"))["items"] for kind in ("nodes", "pods")
    )
    room = sum(parse_quantity(one["status"]["allocatable"]["cpu"]) for one in nodes)
    for pod in pods:
        if pod["metadata"]["namespace"] != namespace:
            asked = (one["resources"].get("requests", {}) for one in pod["spec"]["containers"])
            room -= sum(parse_quantity(one["cpu"]) for one in asked if "cpu" in one)
    if room < wanted:
        pytest.skip(f"wants {wanted:g} CPUs, and the node has {room:.2f} to give")


def condition_of(api: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition of a BatchedAPI; empty if it has none of that type."""
    for condition in api.get("status", {}).get("conditions", ()):
        if condition["type"] == kind:
            found: dict[str, Any] = condition
            return found
    return {}


def address_of(name: str, namespace: str, port: int = 80) -> str:
    """HOST:PORT of this machine that leads to a port of an API's Service.

    A node port, for which the API is asked: no cluster address is routed here from a kind cluster.
    """
    patch_api(name, namespace, {"networking": {"service": {"type": "NodePort"}}})

    def node_port() -> int | None:
        services = get_all("service", namespace, f"batchedapi.dev/api={name}")
        own = (one for one in services if one["metadata"]["name"] == name)
        ports = (one for service in own for one in service["spec"]["ports"])
        return next((one.get("nodePort") for one in ports if one["port"] == port), None)

    return f"127.0.0.1:{wait_for(node_port, 60, f'a node port of service {name}')}"


def service_url(name: str, namespace: str, path: str | None = None) -> str:
    """URL of an API's Service as this machine reaches it.

    Waits for an answer of any status: kube-proxy hears of ready pods up to a second after the
    client that waits for them. Docker accepts connections to a port of kind's without one.
    """
    address = address_of(name, namespace)

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"http://{address}/", timeout=1.0).close()
        except urllib.error.HTTPError:
            return True
        except (OSError, HTTPException):
            return False
        return True

    wait_for(answers, 180, f"an answer of service {name}")
    return f"http://{address}{path or '/' + name}"


def post(url: str, body: object, timeout: float = 5.0) -> tuple[int, Any]:
    """(status, JSON answer); (0, reason) if there is no answer at all."""
    request = urllib.request.Request(  # noqa: S310 - an address of the cluster under test
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")
    except OSError as error:
        return 0, str(error)


class Load:
    """The open-loop generator of the examples, in the background."""

    def __init__(self, url: str, rate: float, seconds: float) -> None:
        script = ROOT / "examples" / "load.py"
        self._process = subprocess.Popen(
            [sys.executable, str(script), url, "--rate", str(rate), "--seconds", str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )

        self._report: dict[str, Any] | None = None

    def stop(self) -> dict[str, Any]:
        """End it, if it still runs, and wait for the last answers; its report."""
        if self._report is None:
            self._process.terminate()
            output, _ = self._process.communicate(timeout=60)
            self._report = json.loads(output)
        return self._report or {}


def install_chart(*settings: str) -> None:
    """The operator with the images of this checkout, restarted so that it runs just those."""
    values = (
        "image.tag=dev",
        "servingImage.tag=dev",
        "dashboards.enabled=true",
        "imageVolumes=true",
    )
    run(
        "helm", "upgrade", "--install", "batchedapi", ROOT / "charts/batchedapi",
        "--namespace", SYSTEM_NAMESPACE, "--create-namespace",
        "--take-ownership",  # of a resource definition that other tests installed
        "--set", ",".join((*values, *settings)),
    )  # fmt: skip
    kubectl("rollout", "restart", "deployment", "-n", SYSTEM_NAMESPACE)
    kubectl("rollout", "status", "deployment", "-n", SYSTEM_NAMESPACE, "--timeout=180s")


def uninstall_chart() -> None:
    """Take the operator away; the resource definition stays, as the chart promises."""
    run("helm", "uninstall", "batchedapi", "--namespace", SYSTEM_NAMESPACE, "--wait")


def patch_api(name: str, namespace: str, spec: dict[str, Any]) -> None:
    """Merge into the spec of a BatchedAPI; None takes a field out."""
    patch = json.dumps({"spec": spec})
    kubectl("patch", "bapi", name, "-n", namespace, "--type=merge", "-p", patch)


def pods_of(name: str, namespace: str, role: str) -> list[dict[str, Any]]:
    """Pods of an API that have a role, those that end included; without a queue they have none."""
    of_role = f"batchedapi.dev/role={role}" if role else "!batchedapi.dev/role"
    return get_all("pod", namespace, f"batchedapi.dev/api={name},{of_role}")


def operator_pod() -> dict[str, Any]:
    """The running pod of the operator."""

    def running() -> dict[str, Any] | None:
        pods = [
            pod
            for pod in get_all("pod", SYSTEM_NAMESPACE)
            if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)
        ]
        return pods[0] if len(pods) == 1 else None

    return wait_for(running, 180, "one operator pod ready")


def sigkill(pod: dict[str, Any], seconds: float) -> None:
    """SIGKILL to all that a pod of the local cluster runs; wait until it is ready once more.

    To delete a pod with no grace is something else: the kubelet asks first, and waits for 2 s.
    """
    metadata, before = pod["metadata"], _restarts(pod)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            words = (folder / "cmdline").read_bytes().split(b"\0")
            group = (folder / "cgroup").read_text().replace("_", "-")
            if metadata["uid"] in group and b"/pause" not in words:
                os.kill(int(folder.name), signal.SIGKILL)

    def again() -> bool:
        now = get("pod", metadata["name"], metadata["namespace"])
        return _restarts(now) > before and is_ready(now)

    wait_for(again, seconds, f"{metadata['name']} once more")


def _restarts(pod: dict[str, Any]) -> int:
    return sum(one["restartCount"] for one in pod.get("status", {}).get("containerStatuses", ()))


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod's Ready condition is True."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
