"""The dashboards and recorded series over a real deployment under load: no panel may be empty."""

import math
import time
from collections.abc import Iterator
from typing import Final

import pytest
from crds.alerts import RECORDS

import cluster
import dashboards
from prometheus import Prometheus, Sample
from watched_replicas import SLEEPY_CAPACITY

pytestmark = pytest.mark.cluster

RATE_INTERVAL: Final = "30s"
"""Many scrapes of the test's one-second interval, as Grafana's own choice is at least four."""
FILL_SECONDS: Final = 60.0
"""The operator decides every few seconds and exposes a decision only then."""
POLL_SECONDS: Final = 1.0
LOAD_SECONDS: Final = 180.0
"""An upper bound: the load ends with the tests."""


@pytest.fixture(scope="module")
def loaded_sleepy(deployed_sleepy: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """(namespace, name) of 02-sleepy with a third of a replica's worth of requests."""
    namespace, name = deployed_sleepy
    load = cluster.Load(cluster.service_url(name, namespace), 0.3 * SLEEPY_CAPACITY, LOAD_SECONDS)
    yield deployed_sleepy
    load.stop()


@pytest.fixture
def variables(loaded_sleepy: tuple[str, str]) -> dict[str, str]:
    """The variables that a user chooses at the top of the dashboard."""
    namespace, name = loaded_sleepy
    return {
        "namespace": namespace,
        "name": name,
        "method": ".*",
        "__rate_interval": RATE_INTERVAL,
    }


ONE_QUEUE: Final = "With one queue for all replicas:"
"""How the description of a panel begins that is empty without one; the API here has none."""
LENGTHS: Final = "With rows of different lengths:"
"""The same of a panel that is 0 of 0 without such rows; the API here pads none."""


def drawn(samples: list[Sample]) -> bool:
    """Whether Grafana would draw anything: a quantile of no observations is not a number."""
    return any(not math.isnan(sample.value) for sample in samples)


def panels(condition: str) -> set[str]:
    """Panels of an API whose description begins with the condition under which they draw."""
    return {
        panel["title"]
        for panel in dashboards.graphs(dashboards.load("api"))
        if panel.get("description", "").startswith(condition)
    }


def have_reconciled(namespace: str, name: str) -> None:
    """Change what is nobody's: of an API that nobody touches no reconciliation takes any time."""
    mark = f"tests.batchedapi.dev/turn={time.time_ns()}"
    cluster.kubectl("annotate", "service", name, "-n", namespace, "--overwrite", mark)


def test_no_panel_is_empty_under_load(
    prometheus: Prometheus, loaded_sleepy: tuple[str, str], variables: dict[str, str]
) -> None:
    """Names, labels and relabelling fit together: chart, replica, operator and dashboard."""
    without_queue = panels(ONE_QUEUE)
    assert len(without_queue) == 2
    exprs = {
        query: dashboards.substitute(query.expr, variables)
        for query in dashboards.queries()
        if query.panel not in without_queue
    }
    not_a_number = {str(query) for query in exprs if query.panel in panels(LENGTHS)}
    assert len(not_a_number) == 1
    waiting = {str(query): expr for query, expr in exprs.items()}
    waiting |= {record.name: record.expr for record in RECORDS}
    deadline = time.monotonic() + FILL_SECONDS

    while waiting and time.monotonic() < deadline:
        have_reconciled(*loaded_sleepy)
        found = {query: prometheus.query(expr) for query, expr in waiting.items()}
        waiting = {
            query: expr
            for query, expr in waiting.items()
            if not (found[query] if query in not_a_number else drawn(found[query]))
        }
        time.sleep(POLL_SECONDS if waiting else 0)

    assert {} == waiting, prometheus.scrape_errors()


def test_a_replica_is_found_by_the_name_of_its_api(
    prometheus: Prometheus, deployed_sleepy: tuple[str, str]
) -> None:
    """The documented relabelling, on real pods: namespace, pod and api on every series."""
    namespace, name = deployed_sleepy

    samples = prometheus.wait_for(
        f'batchedapi_lanes{{namespace="{namespace}",api="{name}"}}', FILL_SECONDS
    )

    assert samples, prometheus.scrape_errors()
    assert all(sample.labels["pod"].startswith(f"{name}-") for sample in samples)


def test_fill_is_a_share_of_the_full_batch(
    prometheus: Prometheus, variables: dict[str, str]
) -> None:
    """More than 100 % would mean that rows and maxBatchSize do not count the same thing."""
    (query,) = [one for one in dashboards.queries("api") if one.panel == "Fill"]

    samples = prometheus.wait_for(dashboards.substitute(query.expr, variables), FILL_SECONDS)

    assert samples
    assert all(0 < sample.value <= 1 for sample in samples if not math.isnan(sample.value))
