"""Recording rules and alerts as values, the rules that Prometheus reads, and the runbooks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from batchedapi_core import contract as c
from crds.markdown import HEADER, code, table
from crds.metrics import LABEL_API, OPERATOR_NAME

RUNBOOKS: Final = "RUNBOOKS"
"""In the file of rules: what the chart replaces by the value `prometheusRule.runbooks`."""


@dataclass(frozen=True, slots=True)
class Record:
    """A series that Prometheus computes beforehand."""

    name: str
    expr: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Alert:
    """What somebody is told, and what is to be done about it."""

    name: str
    expr: str
    lasts: str
    """How long it has to be so."""
    severity: str
    """`critical`: clients are failed now. `warning`: somebody should look today."""
    summary: str
    """One sentence with `{{ $labels.x }}`."""
    meaning: str
    remedies: tuple[str, ...]


_EACH: Final = f"namespace, {LABEL_API}"
_WINDOW: Final = "5m"
_FAILED: Final = 'code=~"500|501"'
_REFUSED: Final = 'reason!="disconnected"'


def _sum(metric: str, selector: str = "") -> str:
    chosen = f"{{{selector}}}" if selector else ""
    return f"sum by ({_EACH}) (rate({metric}{chosen}[{_WINDOW}]))"


RECORDS: Final = (
    Record("namespace_api:batchedapi_requests:rate5m", _sum(c.METRIC_REQUESTS),
           "Requests per second."),
    Record("namespace_api:batchedapi_request_failures:ratio_rate5m",
           f"({_sum(c.METRIC_REQUESTS, _FAILED)} or 0 * {_sum(c.METRIC_REQUESTS)})"
           f" / ({_sum(c.METRIC_REQUESTS)} > 0)",
           "Share of requests in which the predictor failed (500, 501)."),
    Record("namespace_api:batchedapi_rows_refused:ratio_rate5m",
           f"({_sum(c.METRIC_ROWS_REJECTED, _REFUSED)} or 0 * {_sum(c.METRIC_ROWS_RECEIVED)})"
           f" / ({_sum(c.METRIC_ROWS_RECEIVED)} > 0)",
           "Share of rows that were not run, or not in time, for want of capacity."),
    Record("namespace_api:batchedapi_request_seconds:p99_rate5m",
           f"histogram_quantile(0.99, sum by (le, {_EACH})"
           f" (rate({c.METRIC_REQUEST_SECONDS}_bucket[{_WINDOW}])))",
           "Time from a complete request until its answer."),
    Record("namespace_api:batchedapi_batch_rows:mean_rate5m",
           f"{_sum(f'{c.METRIC_BATCH_ROWS}_sum')} / ({_sum(f'{c.METRIC_BATCH_ROWS}_count')} > 0)",
           "Rows of the mean batch."),
    Record("namespace_api:batchedapi_lanes_busy:ratio_rate5m",
           f"{_sum(c.METRIC_LANE_BUSY_SECONDS)}"
           f" / sum by ({_EACH}) (max by ({_EACH}, pod) ({c.METRIC_LANES}))",
           "Share of time in which lanes ran batches."),
)  # fmt: skip
_FAILURES, _SHED = RECORDS[1].name, RECORDS[2].name
_OBJECT: Final = "namespace, name"
_API_TEXT: Final = "{{ $labels.namespace }}/{{ $labels." + LABEL_API + " }}"
_NAME_TEXT: Final = "{{ $labels.namespace }}/{{ $labels.name }}"
_SHARE: Final = "{{ $value | humanizePercentage }}"
_DESIRED, _READY = c.OPERATOR_DESIRED_REPLICAS, c.OPERATOR_READY_REPLICAS

ALERTS: Final = (
    Alert("BatchedAPIRequestsFail", f"{_FAILURES} > 0.05", "5m", "critical",
          f"{_SHARE} of the requests to {_API_TEXT} fail in the predictor.",
          "More than 5 % of requests ended with 500 or 501 in the last five minutes: user code"
          " raised, returned something else than it declares, or its process died.",
          (("`kubectl logs -l batchedapi.dev/api=NAME --prefix --tail=-1` has one line with the"
           " traceback for each kind of failure, and the request's id."),
           ("Did it begin with a rollout? `kubectl batchedapi history NAME` has the revisions;"
           " `rollback` goes back."),
           "`batchedapi check -f FILE` runs the predictor alone and in batches, on a laptop.")),
    Alert("BatchedAPIRowsRefused", f"{_SHED} > 0.05", "5m", "critical",
          f"{_SHARE} of the rows sent to {_API_TEXT} are refused or too late.",
          "More than 5 % of rows were refused (429, 503) or over their time (504) in the last five"
          " minutes. It is not told of rows whose client left.",
          (("`kubectl batchedapi status NAME` says by which reason: `latency` is maxLatency,"
           " `queue_full` maxReplicaConcurrency, `expired` the timeout."),
           "`kubectl batchedapi why NAME`: are replicas on their way? Is maxReplicas reached?",
           "`kubectl get bapi NAME` names the bottleneck; its advice is in the status.")),
    Alert("BatchedAPIReplicasMissing",
          f"max by ({_OBJECT}) ({_READY}) < max by ({_OBJECT}) ({_DESIRED})", "15m", "warning",
          f"{_NAME_TEXT} has " + "{{ $value }} replicas that answer, fewer than it needs.",
          "Fewer replicas answer than were asked for, for 15 minutes: longer than most models take"
          " to load.",
          (("`kubectl batchedapi status NAME` has a line for each pod that is not ready, and the"
           " conditions Scheduled and ModelLoaded say why."),
           ("`Unschedulable`: nodes, quota or `compute`. `CrashLooping`: the log of the last start"
           " (`kubectl logs POD --previous`)."),
           "A model that takes longer: `predictor.startupTimeout`.")),
    Alert("BatchedAPIAtMaxReplicas",
          f'sum by ({_OBJECT}) (rate({c.OPERATOR_DECISIONS}{{reason="MaxReplicas"}}[{_WINDOW}]))'
          f" / sum by ({_OBJECT}) (rate({c.OPERATOR_DECISIONS}[{_WINDOW}])) > 0.9",
          "15m", "warning",
          f"{_NAME_TEXT} needs more replicas than maxReplicas.",
          "For 15 minutes nine of ten decisions ended at `maxReplicas`: more were needed.",
          ("`kubectl batchedapi why NAME` has the number that is needed.",
           ("Raise `autoscaling.maxReplicas`, or serve more with each: `batchedapi check` prints"
           " t(n) with advice for maxBatchSize."))),
    Alert("BatchedAPIProcessesCrash",
          f"sum by ({_EACH}) (increase({c.METRIC_PROCESS_RESTARTS}[15m])) > 3", "0m", "warning",
          "{{ $value | humanize }} processes of " + f"{_API_TEXT} died in 15 minutes.",
          "More than three web or model processes died and were replaced within 15 minutes. Clients"
          " of a model process seldom notice; its batch is run again.",
          (("`kubectl logs -l batchedapi.dev/api=NAME --prefix --tail=-1` says how each ended:"
           " signal 9 is mostly memory (`compute.mem`), 11 a native library."),
           ("Memory of model processes is in the dashboard Autoscaling: a line that only rises is a"
           " leak."))),
    Alert("BatchedAPIWebProcessBusy",
          f"max by ({_EACH}) (rate({c.METRIC_WEB_CPU_SECONDS}[{_WINDOW}])) > 0.9", "10m", "warning",
          f"A web process of {_API_TEXT} uses a whole core.",
          "A web process uses more than 90 % of a core, which is all that its Python can use:"
          " requests wait there while lanes are idle.",
          ("Raise `predictor.webProcesses`, and `compute.cpu` with it.",
           "npy, msgpack or gRPC cost less to decode than JSON.")),
    Alert("BatchedAPIReplicasUnread",
          f'sum by ({_OBJECT}) (rate({c.OPERATOR_SCRAPES}{{result!="success"}}[{_WINDOW}]))'
          f" / sum by ({_OBJECT}) (rate({c.OPERATOR_SCRAPES}[{_WINDOW}])) > 0.5",
          "10m", "warning",
          f"The operator cannot read {_SHARE} of the metrics pages of {_NAME_TEXT}.",
          "The operator reads the metrics of replicas on port "
          f"{c.ADMIN_PORT}, and more than half of its reads fail. It removes no replica meanwhile,"
          " and adds some only by what it still sees.",
          ("The condition MetricsAvailable has the reason.",
           ("A NetworkPolicy of yours in that namespace has to let the operator in"
           f" ({c.ADMIN_PORT}/TCP)."))),
    Alert("BatchedAPIReplicasNotScraped",
          f"(max by ({_OBJECT}) ({_READY}) > 0) unless on ({_OBJECT})"
          f' label_replace({c.METRIC_LANES}, "name", "$1", "{LABEL_API}", "(.*)")',
          "15m", "warning",
          f"Prometheus has no series of the replicas of {_NAME_TEXT}.",
          "Replicas answer, says the operator, but this Prometheus does not scrape them: every"
          " other alert about them is blind.",
          (("Is the PodMonitor selected?"
            " [kube-prometheus-stack](../guides/looking.md#with-kube-prometheus-stack) needs a"
            " label, or its selectors opened."),
           ("A NetworkPolicy: `networkPolicies.monitoringNamespaces` of the chart has to name"
           " Prometheus' namespace."))),
    Alert("BatchedAPIReconcilesFail",
          f'sum (rate({c.OPERATOR_RECONCILES}{{result!="success"}}[{_WINDOW}]))'
          f" / sum (rate({c.OPERATOR_RECONCILES}[{_WINDOW}])) > 0.1",
          "15m", "warning",
          f"{_SHARE} of the operator's reconciliations fail.",
          "More than 10 % of reconciliations failed for 15 minutes: manifests are not, or not"
          " wholly, what runs.",
          (("The operator's log names each API and the answer of the API server; `Progressing:"
           " NotPermitted` in a status names a missing right."),
           "409 and 422: another controller, or an admission webhook, writes the same objects.")),
    Alert("BatchedAPIOperatorDown",
          f"absent({c.OPERATOR_LEADER} == 1)", "5m", "critical",
          "No operator of BatchedAPI acts: nothing is scaled.",
          "No replica of the operator says that it leads. What runs goes on answering, with as many"
          " replicas as it has; nothing is scaled, repaired or rolled out.",
          ((f"`kubectl get pods -A -l {c.SELECTOR_OF_OPERATOR}`, and the log of the one that is not"
           " ready."),
           ("`/readyz` of each says what is missing: the API server, a watch, or another release"
           " over the same namespaces."),
           (f"Is the operator scraped at all? Its pods have the label"
           f" `app.kubernetes.io/name={OPERATOR_NAME}`."))),
)  # fmt: skip


def rules_yaml() -> str:
    """Groups of rules as Prometheus reads them; the chart puts them into a PrometheusRule."""
    header = (
        "# Generated by crds/generate.py (make generate); do not edit.\n"
        f"# The chart replaces {RUNBOOKS} by the page that has the runbooks.\n"
    )
    recording = [{"record": one.name, "expr": one.expr} for one in RECORDS]
    alerting = [_rule(alert) for alert in ALERTS]
    groups = [
        {"name": "batchedapi.recording", "rules": recording},
        {"name": "batchedapi.alerts", "rules": alerting},
    ]
    return header + yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.meaning,
            "runbook_url": f"{RUNBOOKS}#{alert.name.lower()}",
        },
    }


_INTRODUCTION: Final = """\
`--set prometheusRule.enabled=true` on the chart makes a PrometheusRule of these;
[monitoring](../guides/looking.md#prometheus-and-grafana) has the rest. A Prometheus without
prometheus-operator reads [the same rules](../../charts/batchedapi/rules/batchedapi.yaml) by
`rule_files`. `critical`: clients are failed now. `warning`: somebody should look today.
"""


def page() -> str:
    """The page of alerts, each with its runbook."""
    return "\n".join(
        (
            f"{HEADER}# Alerts\n",
            _INTRODUCTION,
            *_runbooks(),
            "## Recording rules\n",
            (
                "The alerts read some of these; dashboards do not need them. All are by"
                f" {code('namespace')} and {code(LABEL_API)}, over five minutes.\n"
            ),
            table(("series", "what it is"), ((code(one.name), one.meaning) for one in RECORDS)),
        )
    )


_TEST_OF_ALERTS = "tests/unit/charts/test_alerts.py::test_an_alert_fires_alone_and_clears"


def _runbooks() -> Iterator[str]:
    for alert in ALERTS:
        lasts = "at once" if alert.lasts == "0m" else f"after {alert.lasts}"
        yield f"## {alert.name}\n"
        yield f"{alert.severity}, {lasts}. {alert.meaning}\n"
        yield "\n".join(f"- {remedy}" for remedy in alert.remedies) + "\n"
        yield f"<!-- run by {_TEST_OF_ALERTS} -->"
        yield f"```promql\n{alert.expr}\n```\n"
