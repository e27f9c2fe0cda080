"""Tells Prometheus which pods exist, in the words of its own Kubernetes discovery.

Debian's Prometheus is built without `kubernetes_sd_configs`. Its HTTP discovery takes the same
labels, so that the documented relabelling is applied, by Prometheus, to real pods. It reads them
through `kubectl proxy`: no pod's address is routed to this machine from a kind cluster.
"""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

_META: Final = "__meta_kubernetes"
_KUBECTL_SECONDS: Final = 20

TargetGroup = dict[str, Any]


def targets(pods: list[dict[str, Any]], proxy: str) -> list[TargetGroup]:
    """One target for each container port of each pod that has an address, behind HOST:PORT."""
    return [
        {
            "targets": [proxy],
            "labels": _pod_labels(pod)
            | {
                "__metrics_path__": _path(pod["metadata"], port["containerPort"]),
                f"{_META}_pod_container_name": container["name"],
                f"{_META}_pod_container_port_name": port.get("name", ""),
            },
        }
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
    ]


def _path(metadata: dict[str, Any], port: int) -> str:
    pod = f"{metadata['name']}:{port}"
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{pod}/proxy/metrics"


def _pod_labels(pod: dict[str, Any]) -> dict[str, str]:
    metadata = pod["metadata"]
    labels = {
        f"{_META}_pod_label_{''.join(ch if ch.isalnum() else '_' for ch in key)}": value
        for key, value in metadata.get("labels", {}).items()
    }
    return labels | {
        f"{_META}_namespace": metadata["namespace"],
        f"{_META}_pod_name": metadata["name"],
        f"{_META}_pod_phase": pod["status"]["phase"],
    }


def _pods(kubeconfig: Path) -> list[dict[str, Any]]:
    command = ["kubectl", f"--kubeconfig={kubeconfig}", "get", "pods", "-A", "-o", "json"]
    answer = subprocess.run(command, check=True, capture_output=True, timeout=_KUBECTL_SECONDS)
    items: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
    return items


@contextmanager
def _api_proxy(kubeconfig: Path) -> Iterator[str]:
    """HOST:PORT at which the API server answers without a certificate."""
    command = ["kubectl", f"--kubeconfig={kubeconfig}", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]  # Starting to serve on HOST:PORT
        finally:
            process.terminate()


@contextmanager
def pod_discovery(kubeconfig: Path) -> Iterator[str]:
    """Address of a discovery that lists the pods of a cluster, for as long as the block runs."""
    with _api_proxy(kubeconfig) as proxy, _discovery(kubeconfig, proxy) as url:
        yield url


@contextmanager
def _discovery(kubeconfig: Path, proxy: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the pods as they are now; Prometheus keeps its last list on a 503."""
            try:
                body = json.dumps(targets(_pods(kubeconfig), proxy)).encode()
            except subprocess.SubprocessError as error:
                self.send_error(503, str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: one line every few seconds helps nobody."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
