"""What each metric means, how pods are scraped, and the page that says both.

The scrape configuration is data: it is printed on the page, written to a file that a Prometheus
reads as it is, and used by the tests that scrape real pods.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from batchedapi_core import contract as c
from crds.markdown import HEADER, code, table

LABEL_API: Final = "api"
"""On every scraped series of a replica: the BatchedAPI's name."""
OPERATOR_NAME: Final = "batchedapi-operator"
"""`app.kubernetes.io/name` of the operator's pod."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as the page describes it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


METHOD: Final = ("method",)
API: Final = ("namespace", "name")

SERVING: Final = (
    Metric(c.METRIC_BATCH_ROWS, "histogram", METHOD,
           "Rows of each batch that ran. Edges 1, 2, 4, ... and maxBatchSize itself."),
    Metric(c.METRIC_BATCH_REQUESTS, "histogram", METHOD,
           "Requests whose rows were in each batch: what batching across clients brought."),
    Metric(c.METRIC_BATCH_SECONDS, "histogram", METHOD, "Time one batch took in the model."),
    Metric(c.METRIC_QUEUE_WAIT_SECONDS, "histogram", METHOD,
           "From a request's arrival in the queue until its batch was dispatched."),
    Metric(c.METRIC_REQUEST_SECONDS, "histogram", METHOD,
           "From a complete request until its answer."),
    Metric(c.METRIC_BATCHES, "counter", (*METHOD, "reason"),
           "Batches by what released them; every batch has exactly one reason: "
           + ", ".join(code(reason) for reason in c.RELEASE_REASONS) + "."),
    Metric(c.METRIC_REQUESTS, "counter", (*METHOD, "code"),
           "Requests by the status they ended with; 499 is a client that left first."),
    Metric(c.METRIC_ROWS_RECEIVED, "counter", METHOD,
           "Rows that arrived, those refused included: the demand."),
    Metric(c.METRIC_REQUEST_ROWS_SQUARED, "counter", METHOD,
           "Sum of the squares of rows of those requests: divided by the rows received, how many"
           " rows come together with the mean row, and queue behind each other."),
    Metric(c.METRIC_ROWS_REJECTED, "counter", (*METHOD, "reason"),
           "Rows that were not run, or not in time: "
           + ", ".join(code(reason) for reason in c.REJECTION_REASONS) + "."),
    Metric(c.METRIC_BATCH_SIZE, "counter", METHOD,
           "Sum of the sizes of batches in the unit of maxBatchSize: rows, requests (`sizeUnit`) or"
           " what rows cost (`size_of`). Divided by batches and maxBatchSize it is the fill."),
    Metric(c.METRIC_BATCH_LENGTHS, "counter", METHOD,
           "Sum of the lengths of rows in batches: of their padded dimensions, or what `size_of`"
           " says of JSON items. Zero where rows have none."),
    Metric(c.METRIC_BATCH_PADDED_LENGTHS, "counter", METHOD,
           "The same with each row as long as the longest of its batch: 1 - lengths / padded"
           " lengths is the share of padding."),
    Metric(c.METRIC_BATCH_ROWS_SQUARED, "counter", METHOD,
           "Sum of the squares of rows of batches: with the next one, t(n) = a + b n is learned."),
    Metric(c.METRIC_BATCH_ROW_SECONDS, "counter", METHOD,
           "Sum over batches of rows times seconds."),
    Metric(c.METRIC_LANE_BUSY_SECONDS, "counter", METHOD, "Time lanes spent running batches."),
    Metric(c.METRIC_QUEUE_ROWS, "gauge", METHOD, "Rows waiting now."),
    Metric(c.METRIC_IN_FLIGHT_REQUESTS, "gauge", METHOD, "Requests not answered yet."),
    Metric(c.METRIC_LANES, "gauge", METHOD,
           "Batches that can run at once: processesPerReplica x threadsPerProcess, for all methods"
           " together. An async method without batching occupies no lane: as many calls of it run"
           " as requests are let in."),
    Metric(c.METRIC_MAX_BATCH_SIZE, "gauge", METHOD,
           "maxBatchSize in effect, in rows, requests or cost."),
    Metric(c.METRIC_BATCH_INTERVAL_SECONDS, "gauge", METHOD, "batchInterval in effect."),
    Metric(c.METRIC_SERVICE_TIME, "gauge", (*METHOD, "term"),
           "What was learned of the time of a batch: n rows take batch + n * row, and where they"
           " have a length L, batch + n * (row + L * length). `row` is of rows in any case, of the"
           " mean one where batches are counted in requests (`sizeUnit`) or costs (`size_of`)."),
    Metric(c.METRIC_ONE_BY_ONE, "gauge", METHOD,
           "1 where the method takes one request at a time and maxBatchSize is above 1: what waited"
           " together is then run request by request, and nothing is gained. Else 0."),
    Metric(c.METRIC_PROCESS_RESTARTS, "counter", ("role",),
           "Processes that died and were replaced; `role` is `web` or `model`."),
    Metric(c.METRIC_WEB_CPU_SECONDS, "counter", ("process",),
           "CPU time of a web process and of those that it replaced; `process` is its number from"
           " 0, and 0 has the queue. One that uses a whole core can do no more: raise"
           " `webProcesses`."),
    Metric(c.METRIC_MODEL_PROCESS_MEMORY_BYTES, "gauge", (),
           "Memory of the largest model process; pages that processes share count once."),
    Metric(c.METRIC_SPANS_DROPPED, "counter", (),
           "Spans that were not sent, as the collector of traces was away or too slow."),
    Metric(c.METRIC_PREDICTOR_UPDATES_DROPPED, "counter", (),
           "Updates of the predictor's own metrics (`context.metrics`, behind these on the page)"
           " that were dropped, as there were too many series."),
    Metric(c.METRIC_PROCESS_START_TIME, "gauge", (),
           "Unix time at which the replica started; its counters count from here."),
)  # fmt: skip

ONE_QUEUE: Final = (
    Metric(c.METRIC_ROLE, "gauge", ("role",),
           "1, with what the pod is: `web` or `worker` of an API with one queue, else `replica`."),
    Metric(c.METRIC_PROCESS_CPU_SECONDS, "counter", (),
           "CPU time of all processes of the pod; web pods are scaled by it."),
    Metric(c.METRIC_QUEUE_OLDEST_SECONDS, "gauge", METHOD,
           f"On web pods: how long the oldest row of all has waited. As {code(c.METRIC_QUEUE_ROWS)}"
           " there it is of the one queue, and each web pod says the same: take the largest."),
    Metric(c.METRIC_ROWS_RETAKEN, "counter", METHOD,
           "On workers: rows taken up again after the worker that had them was gone."),
    Metric(c.METRIC_QUEUE_UNREADABLE, "counter", (),
           "What others wrote to the queue and this pod could not read, and passed over: requests,"
           " answers, signs of life. Another release, or somebody else who may write to Redis; the"
           " log says once what it was."),
)  # fmt: skip
"""Of pods of an API with one queue for all replicas, beside those that every replica has. A web pod
counts what arrives, a worker what is run."""

OPERATOR: Final = (
    Metric(c.OPERATOR_DESIRED_REPLICAS, "gauge", API, "Replicas the last decision asked for."),
    Metric(c.OPERATOR_READY_REPLICAS, "gauge", API, "Replicas that answer."),
    Metric(c.OPERATOR_DEMAND, "gauge", API, "Rows arriving per second, all replicas together."),
    Metric(c.OPERATOR_CAPACITY, "gauge", API,
           "Rows per second that one replica can serve within the latency target, as learned."),
    Metric(c.OPERATOR_DECISIONS, "counter", (*API, "reason"),
           "Scaling decisions by the reason that settled the count."),
    Metric(c.OPERATOR_SCRAPES, "counter", (*API, "result"),
           "Reads of a replica's metrics by the operator."),
    Metric(c.OPERATOR_RECONCILES, "counter", ("result",), "Reconciliations by outcome."),
    Metric(c.OPERATOR_RECONCILE_SECONDS, "histogram", (), "Time one reconciliation took."),
    Metric(c.OPERATOR_LEADER, "gauge", (), "1 of the replica that acts, 0 of one that stands by."),
)  # fmt: skip

_META: Final = "__meta_kubernetes_pod"

_INTRODUCTION: Final = (
    f"Every replica answers `GET :{c.ADMIN_PORT}{c.PATH_METRICS}`: one page for all its processes."
    " The operator answers the same on its own port. No Prometheus is needed to scale: the operator"
    f" reads the replicas itself, from `{c.PATH_METRICS}?{c.QUERY_SCALING}`: the series that it"
    " decides by, without comments and with requests of all codes but those of failures in one, at"
    f" most {c.SCALING_PAGE_BYTES // 1024} KiB and {c.SCALING_PAGE_BYTES_A_METHOD // 1024} KiB for"
    " each method. A replica that does not know the query answers with the whole page.\n"
)
_SCRAPING_IS_TESTED = (
    "<!-- run by tests/e2e/prometheus/test_dashboard.py"
    "::test_a_replica_is_found_by_the_name_of_its_api -->"
)
_ABOUT_ROLES: Final = (
    "Pods of both roles have the metrics above; a web pod counts requests and what arrives, a"
    " worker batches and what is run.\n"
)
_ABOUT_SCRAPING: Final = (
    "With prometheus-operator: `--set serviceMonitor.enabled=true` on the chart. Without: these"
    " jobs, also in [prometheus.yaml](prometheus.yaml); a Prometheus outside the cluster adds"
    " `kubeconfig_file`. Both put the same labels on the series, and the dashboards need them:\n"
)
_ABOUT_HONOR_LABELS: Final = (
    "The operator's series are scraped with `honor_labels`, so that `namespace` is the one of the"
    " BatchedAPI and not the operator's own.\n"
)


def label_meta(key: str) -> str:
    """The name under which Prometheus offers the pod label `key` to relabelling."""
    return f"{_META}_label_{''.join(ch if ch.isalnum() else '_' for ch in key)}"


API_RELABELLING: Final[dict[str, Any]] = {
    "source_labels": [label_meta(c.LABEL_API)],
    "target_label": LABEL_API,
}
"""The one relabelling that is ours; a PodMonitor adds namespace and pod by itself."""


def scrape_jobs() -> list[dict[str, Any]]:
    """Jobs of a Prometheus that runs in the cluster, or outside it with `kubeconfig_file` added."""
    common = [
        {"source_labels": [f"{_META}_phase"], "regex": "Failed|Succeeded", "action": "drop"},
        {
            "source_labels": [f"{_META}_container_port_name"],
            "regex": c.ADMIN_PORT_NAME,
            "action": "keep",
        },
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{_META}_name"], "target_label": "pod"},
    ]
    serving = {"source_labels": [label_meta(c.LABEL_API)], "regex": ".+", "action": "keep"}
    operator = {
        "source_labels": [label_meta("app.kubernetes.io/name")],
        "regex": OPERATOR_NAME,
        "action": "keep",
    }
    discovery = [{"role": "pod"}]
    return [
        {
            "job_name": "batchedapi-serving",
            "kubernetes_sd_configs": discovery,
            "relabel_configs": [serving, *common, API_RELABELLING],
        },
        {
            "job_name": "batchedapi-operator",
            # its series carry the namespace of the BatchedAPI that they are about
            "honor_labels": True,
            "kubernetes_sd_configs": discovery,
            "relabel_configs": [operator, *common],
        },
    ]


def scrape_yaml() -> str:
    """A configuration file that Prometheus reads as it is."""
    header = "# Generated by crds/generate.py (make generate); do not edit.\n"
    return header + _dump({"scrape_configs": scrape_jobs()})


def page() -> str:
    """The reference page of metrics and scraping."""
    return "\n".join(
        (
            f"{HEADER}# Metrics\n",
            _INTRODUCTION,
            "## Replica\n",
            table(("metric", "kind", "labels", "meaning"), _rows(SERVING)),
            "Duration histograms have the edges (seconds) "
            + ", ".join(f"{edge:g}" for edge in c.LATENCY_BUCKETS)
            + ".\n",
            "## With one queue for all replicas\n",
            _ABOUT_ROLES,
            table(("metric", "kind", "labels", "meaning"), _rows(ONE_QUEUE)),
            "## Operator\n",
            table(("metric", "kind", "labels", "meaning"), _rows(OPERATOR)),
            "## Scraping\n",
            _ABOUT_SCRAPING,
            table(("label", "on", "from"), _label_rows()),
            _ABOUT_HONOR_LABELS,
            f"{_SCRAPING_IS_TESTED}\n```yaml\n{_dump({'scrape_configs': scrape_jobs()})}```\n",
        )
    )


def _rows(metrics: tuple[Metric, ...]) -> Iterator[tuple[str, ...]]:
    for metric in metrics:
        labels = ", ".join(code(label) for label in metric.labels)
        yield code(metric.name), metric.kind, labels, metric.meaning


def _label_rows() -> Iterator[tuple[str, ...]]:
    yield code("namespace"), "replicas and operator", "the pod; on operator series the BatchedAPI"
    yield code("pod"), "replicas and operator", "the pod"
    yield code(LABEL_API), "replicas", f"the pod's label {code(c.LABEL_API)}: the BatchedAPI's name"


class _NoAliases(yaml.SafeDumper):
    """Writes shared parts out in full: `&id001` is no help to a reader."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def _dump(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_NoAliases, sort_keys=False, width=100)
