"""A real Prometheus beside the cluster, scraping its pods as the reference page documents."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import prometheus as support
import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
LOCAL_KUBECONFIG: Final = ROOT / ".run" / "cluster" / "kubeconfig"
"""Where `make cluster-up` leaves it."""


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[support.Prometheus]:
    """Scrapes replicas and operator of the cluster that KUBECONFIG or `make cluster-up` names."""
    kubeconfig = Path(os.environ.get("KUBECONFIG") or LOCAL_KUBECONFIG)
    folder = tmp_path_factory.mktemp("prometheus")
    with support.running_prometheus(support.cluster_config(kubeconfig), folder) as running:
        yield running
