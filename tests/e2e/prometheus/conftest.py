"""A real Prometheus beside the cluster, scraping its pods as the reference page documents."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import cluster
import prometheus as support
from pod_discovery import pod_discovery
from watched_replicas import SLEEPY_CAPACITY

ROOT: Final = Path(__file__).resolve().parents[3]
LOCAL_KUBECONFIG: Final = ROOT / ".run" / "cluster" / "kubeconfig"
"""Where `make cluster-up` leaves it."""


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[support.Prometheus]:
    """Scrapes replicas and operator of the cluster that KUBECONFIG or `make cluster-up` names."""
    kubeconfig = Path(os.environ.get("KUBECONFIG") or LOCAL_KUBECONFIG)
    folder = tmp_path_factory.mktemp("prometheus")
    with pod_discovery(kubeconfig) as url:
        config = support.cluster_config(url)
        with support.running_prometheus(config, folder) as running:
            yield running


@pytest.fixture(scope="module", autouse=True)
def load(deployed_sleepy: tuple[str, str]) -> Iterator[None]:
    """Enough requests for every panel to have something to show; too few for a second replica."""
    url = cluster.service_url("sleepy", deployed_sleepy[0])
    load = cluster.Load(url, 0.4 * SLEEPY_CAPACITY, seconds=240)
    yield
    load.stop()
