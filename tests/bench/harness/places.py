"""Where a replica that records runs, and its load beside it: processes here, or pods."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from batchedapi_core import contract
from harness import metrics, servers
from harness.metrics import Samples

GENERATOR: Final = servers.BENCH / "poisson.py"
_NAMESPACE: Final = "simulated"
_RECORD: Final = "/tmp/record.jsonl"  # noqa: S108 - inside the pod, which nobody shares
_READY_SECONDS: Final = 120
_MANIFEST: Final = f"{contract.MANIFEST_DIRECTORY}/{contract.MANIFEST_FILE}"


class Place(Protocol):
    """One replica, ready."""

    def load(self, *arguments: str) -> Mapping[str, Any]:
        """What poisson.py prints with these options."""

    def samples(self) -> Samples:
        """Its counters now."""

    def record(self) -> list[str]:
        """The lines that it recorded so far."""


class _Processes:
    def __init__(self, port: int, file: Path) -> None:
        self._port = port
        self._file = file

    def load(self, *arguments: str) -> Mapping[str, Any]:
        where = (servers.HOST, str(self._port), contract.PATH_PREDICT)
        return _parsed(_run([sys.executable, str(GENERATOR), *where, *arguments]))

    def samples(self) -> Samples:
        return metrics.read(self._port + 1)

    def record(self) -> list[str]:
        return self._file.read_text().splitlines()


@contextlib.contextmanager
def processes(manifest: Path, port: int) -> Iterator[Place]:
    """`batchedapi serve --record` on this machine."""
    with tempfile.TemporaryDirectory(prefix="bench-record-") as folder:
        file = Path(folder) / "record.jsonl"
        command = [*servers.serve_command(manifest, port), "--record", str(file)]
        with servers.running(command, {}) as (process, log):
            servers.wait_until(lambda: servers.is_ready(port + 1), process, log)
            yield _Processes(port, file)


class _Pods:
    def __init__(self, address: str) -> None:
        self._address = address

    def load(self, *arguments: str) -> Mapping[str, Any]:
        where = (self._address, str(contract.HTTP_PORT), contract.PATH_PREDICT)
        command = ("exec", "-i", "client", "--", "python", "-", *where, *arguments)
        return _parsed(_kubectl(*command, stdin=GENERATOR.read_text()))

    def samples(self) -> Samples:
        url = f"http://{self._address}:{contract.ADMIN_PORT}{contract.PATH_METRICS}"
        code = f"import urllib.request as u; print(u.urlopen({url!r}).read().decode())"
        return metrics.parse(_kubectl("exec", "client", "--", "python", "-c", code))

    def record(self) -> list[str]:
        return _kubectl("exec", "replica", "--", "cat", _RECORD).splitlines()


@contextlib.contextmanager
def pods(manifest: Path, image: str) -> Iterator[Place]:
    """The same in a pod, admitted as `restricted`, of the cluster that KUBECONFIG names.

    Everything is in a namespace of its own, which is deleted before and afterwards.
    """
    gone = ("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait")
    _kubectl(*gone)
    try:
        _kubectl("apply", "-f", "-", stdin=json.dumps(_objects(manifest.read_text(), image)))
        _kubectl("wait", "--for=condition=Ready", "pod", "--all", f"--timeout={_READY_SECONDS}s")
        time.sleep(1.0)  # of rest, after two starts
        address = _kubectl("get", "pod", "replica", "-o", "jsonpath={.status.podIP}")
        yield _Pods(address.strip())
    finally:
        _kubectl(*gone)


def _objects(manifest: str, image: str) -> Mapping[str, Any]:
    serve = [
        "serve", "-f", _MANIFEST, "--host", "0.0.0.0",
        "--record", _RECORD,
    ]  # fmt: skip
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    items = [
        {"kind": "Namespace", "metadata": {"name": _NAMESPACE, "labels": label}},
        {
            "kind": "ConfigMap",
            "metadata": {"name": "manifest"},
            "data": {contract.MANIFEST_FILE: manifest},
        },
        _pod("replica", image, {"args": serve, "readinessProbe": _READINESS}),
        _pod("client", image, {"command": ["sleep", "3600"]}),
    ]
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [{"apiVersion": "v1", **item} for item in items],
    }


_READINESS: Final = {
    "httpGet": {"path": contract.PATH_READY, "port": contract.ADMIN_PORT},
    "periodSeconds": 1,
}


def _pod(name: str, image: str, container: Mapping[str, Any]) -> dict[str, Any]:
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": name,
                "image": image,
                "resources": {"requests": {"cpu": "400m"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
                "volumeMounts": [
                    {"name": "manifest", "mountPath": contract.MANIFEST_DIRECTORY},
                    {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 - inside the pod
                ],
                **container,
            }
        ],
        "volumes": [
            {"name": "manifest", "configMap": {"name": "manifest"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    return {"kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _kubectl(*arguments: str, stdin: str = "") -> str:
    return _run(["kubectl", "--namespace", _NAMESPACE, *arguments], stdin)


def _run(command: Sequence[str], stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def _parsed(text: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(text)
    return found
