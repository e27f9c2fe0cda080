"""The stand-in for Prometheus' Kubernetes discovery, on a pod as the apiserver describes it."""

from typing import Any

from crds.metrics import label_meta

from batchedapi_core import contract
from pod_discovery import targets

PROXY = "127.0.0.1:8001"


def pod(**status: str) -> dict[str, Any]:
    """A replica of the API iris."""
    ports = [{"name": "http", "containerPort": 8080}, {"name": "admin", "containerPort": 8081}]
    return {
        "metadata": {"name": "iris-0", "namespace": "team", "labels": {contract.LABEL_API: "iris"}},
        "spec": {"containers": [{"name": "serving", "ports": ports}]},
        "status": status,
    }


def test_every_port_of_a_pod_is_a_target_with_the_labels_that_relabelling_reads() -> None:
    """The documented jobs choose the port by name, and take the API's name from the pod label."""
    http, admin = targets([pod(phase="Running", podIP="10.0.0.7")], PROXY)

    path = "/api/v1/namespaces/team/pods/iris-0:{}/proxy/metrics"
    assert path.format(8080) == http["labels"]["__metrics_path__"]
    assert {
        "targets": [PROXY],
        "labels": {
            "__metrics_path__": path.format(8081),
            label_meta(contract.LABEL_API): "iris",
            "__meta_kubernetes_namespace": "team",
            "__meta_kubernetes_pod_name": "iris-0",
            "__meta_kubernetes_pod_phase": "Running",
            "__meta_kubernetes_pod_container_name": "serving",
            "__meta_kubernetes_pod_container_port_name": "admin",
        },
    } == admin


def test_a_pod_without_an_address_is_no_target() -> None:
    """It has not started: there is nothing to scrape."""
    assert [] == targets([pod(phase="Pending")], PROXY)
