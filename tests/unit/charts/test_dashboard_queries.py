"""The dashboards' queries on a real Prometheus that scrapes a page with every published metric."""

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import pytest
from crds.alerts import RECORDS, Record
from crds.metrics import LABEL_API, ONE_QUEUE, OPERATOR, SERVING, Metric
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

import dashboards
import prometheus
from batchedapi_core import contract
from ports import free_port

VALUES: Final = {"namespace": "team", "name": "iris", "method": ".*", "__rate_interval": "10s"}
FILL_SECONDS: Final = 10.0
"""Longest wait for the two scrapes that a rate needs."""
LABEL_VALUES: Final = {
    "method": "predict", "reason": "full", "code": "200", "role": "web", "result": "success",
    "namespace": "team", "name": "iris", "process": "0", "term": "row",
}  # fmt: skip

Made = Counter | Gauge | Histogram


class Page:
    """Metrics as the contract publishes them, counting up while it is open."""

    def __init__(self, metrics: Sequence[Metric], role: str = "web") -> None:
        self._values = {**LABEL_VALUES, "role": role}
        self.registry = CollectorRegistry()
        self._made = [self._make(metric) for metric in metrics]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._count_up)
        server, thread = start_http_server(0, addr="127.0.0.1", registry=self.registry)
        self._server, self._server_thread = server, thread
        self.address = f"127.0.0.1:{server.server_port}"
        self._thread.start()

    def close(self) -> None:
        """Stop counting and answering."""
        self._closing.set()
        self._thread.join()
        self._server.shutdown()
        self._server.server_close()
        self._server_thread.join()

    def _make(self, metric: Metric) -> Made:
        kinds: dict[str, type[Made]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
        made: Made = kinds[metric.kind](
            metric.name.removesuffix("_total"), "test", metric.labels, registry=self.registry
        )
        values = [self._values[label] for label in metric.labels]
        child: Made = made.labels(*values) if values else made
        return child

    def _count_up(self) -> None:
        while not self._closing.wait(0.05):
            for metric in self._made:
                match metric:
                    case Counter() | Gauge():
                        metric.inc()
                    case Histogram():
                        metric.observe(0.01)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[prometheus.Prometheus]:
    """A Prometheus with two scrapes of the operator's page and of three pods'.

    Two of them are web pods and tell of one queue; the third is a replica of another API.
    """
    web, operator = Page((*SERVING, *ONE_QUEUE)), Page(OPERATOR)
    replica = Page((*SERVING, *ONE_QUEUE), role="replica")
    pods = {"iris-0": web, "iris-1": web, "plain-0": replica}
    config = prometheus.static_config(
        {
            "batchedapi-serving": [
                {
                    "targets": [page.address],
                    "labels": {"namespace": "team", "pod": pod, LABEL_API: pod.split("-")[0]},
                }
                for pod, page in pods.items()
            ],
            "batchedapi-operator": [
                {"targets": [operator.address], "labels": {"pod": "operator-0"}}
            ],
        }
    )
    try:
        folder = tmp_path_factory.mktemp("prometheus")
        with prometheus.running_prometheus(config, folder, free_port()) as running:
            for name in (contract.METRIC_ROWS_RECEIVED, contract.OPERATOR_DECISIONS):
                assert running.wait_for(f"rate({name}[10s])", FILL_SECONDS), running.scrape_errors()
            yield running
    except prometheus.PrometheusUnavailableError as error:
        pytest.skip(str(error))
    finally:
        for page in (web, replica, operator):
            page.close()


@pytest.mark.parametrize("query", dashboards.queries(), ids=str)
def test_a_query_finds_the_published_metrics_by_the_documented_labels(
    scraped: prometheus.Prometheus, query: dashboards.PanelQuery
) -> None:
    """A label that no series carries leaves a panel empty although the metric is there."""
    apis = (VALUES | {"name": name} for name in ("iris", "plain"))
    samples = [
        sample
        for values in apis
        for sample in scraped.query(dashboards.substitute(query.expr, values))
    ]

    assert [sample for sample in samples if not math.isnan(sample.value)]


WAITING: Final = [
    query for query in dashboards.queries() if f"{contract.METRIC_QUEUE_ROWS}{{" in query.expr
]


@pytest.mark.parametrize("query", WAITING, ids=str)
def test_the_one_queue_is_not_added_up_over_the_pods_that_tell_of_it(
    scraped: prometheus.Prometheus, query: dashboards.PanelQuery
) -> None:
    """Each web pod says how many rows are in it."""
    expr = dashboards.substitute(query.expr, VALUES)
    largest = f'max({contract.METRIC_QUEUE_ROWS}{{{LABEL_API}="iris"}})'

    shares = scraped.query(f"({expr}) / scalar({largest})")

    of_iris = [one for one in shares if one.labels.get(LABEL_API, "iris") == "iris"]
    assert not of_iris or 1.0 == sum(one.value for one in of_iris)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_recorded_series_has_values(scraped: prometheus.Prometheus, record: Record) -> None:
    """An alert on a series without any never fires."""
    samples = scraped.query(record.expr)

    assert [sample for sample in samples if not math.isnan(sample.value)]


def test_another_api_of_the_same_metrics_is_not_mixed_in(scraped: prometheus.Prometheus) -> None:
    """Every query about one BatchedAPI selects it: two in one line would mean nothing."""
    other = VALUES | {"name": "other"}

    answers = [
        scraped.query(dashboards.substitute(query.expr, other))
        for query in dashboards.queries("api", "autoscaling")
    ]

    assert [] == [answer for answer in answers if answer]


def test_an_expression_that_cannot_be_parsed_is_an_error(scraped: prometheus.Prometheus) -> None:
    """An empty answer to a wrong query would let every test above pass."""
    with pytest.raises(prometheus.QueryError, match="parse error"):
        scraped.query("sum(")
