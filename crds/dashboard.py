"""The Grafana dashboard: how well batching works, first; then traffic, latency, replicas."""

import json
from typing import Any, Final

from batchedapi_core import contract as c
from crds.grafana import SCHEMA_VERSION, Look, Panel, Query, Section, place
from crds.metrics import LABEL_API

_SERVING: Final = f'namespace="$namespace",{LABEL_API}="$name"'
_METHOD: Final = f'{_SERVING},method=~"$method"'
_OPERATOR: Final = 'namespace="$namespace",name="$name"'
_RATE: Final = "$__rate_interval"


def _rate(metric: str, by: str = "", selector: str = _METHOD) -> str:
    """Per-second increase, summed over replicas and, with `by`, kept apart by labels."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{{selector}}}[{_RATE}]))"


def _quantile(share: float, histogram: str) -> str:
    return f"histogram_quantile({share:g}, {_rate(f'{histogram}_bucket', 'le')})"


def _quantiles(histogram: str, *shares: float) -> tuple[Query, ...]:
    return tuple(Query(_quantile(share, histogram), f"p{share * 100:g}") for share in shares)


def _mean(histogram: str, by: str = "") -> str:
    return f"{_rate(f'{histogram}_sum', by)} / {_rate(f'{histogram}_count', by)}"


def _gauge(metric: str, how: str, by: str = "", selector: str = _METHOD) -> str:
    grouping = f" by ({by})" if by else ""
    return f"{how}{grouping} ({metric}{{{selector}}})"


BATCHING: Final = Section("Batching", (
    Panel("Batch size",
          "Batches per second by their number of rows. Look for the brightest band: at the top edge"
          " (maxBatchSize) replicas are loaded and fill their batches; at 1 there is no one to"
          " share a batch with, or batchInterval is too short for this traffic.",
          "suffix: batches/s",
          (Query(_rate(f"{c.METRIC_BATCH_ROWS}_bucket", "le"), "{{le}}"),),
          Look.HEATMAP, width=16, height=10),
    Panel("Fill",
          "Mean size of a batch divided by maxBatchSize, in its unit: rows, requests or cost. Low"
          " is no fault while latency is good: at low traffic small batches answer sooner. Low at"
          " high busy time means that rows wait for a lane and not for company: add threads,"
          " processes or replicas.",
          "percentunit",
          (Query(f"{_rate(c.METRIC_BATCH_SIZE, 'method')}"
                 f" / {_rate(f'{c.METRIC_BATCH_ROWS}_count', 'method')}"
                 f" / {_gauge(c.METRIC_MAX_BATCH_SIZE, 'max', 'method')}", "{{method}}"),),
          height=10, maximum=1),
    Panel("Mean batch",
          "Rows and requests of the mean batch. Requests near 1 while rows are many: clients send"
          " batches of their own, and batching across clients adds little.",
          "short",
          (Query(_mean(c.METRIC_BATCH_ROWS, "method"), "rows {{method}}"),
           Query(_mean(c.METRIC_BATCH_REQUESTS, "method"), "requests {{method}}"),
           Query(_gauge(c.METRIC_MAX_BATCH_SIZE, "max", "method"), "maxBatchSize {{method}}"))),
    Panel("Release reasons",
          "Share of batches by what released them. full: a whole batch was waiting. interval:"
          " batchInterval ended. early: waiting longer was not expected to help. Much interval with"
          " small batches: time is spent waiting for rows that do not come.",
          "suffix: batches/s",
          (Query(_rate(c.METRIC_BATCHES, "reason"), "{{reason}}"),), Look.SHARES),
    Panel("Busy lanes",
          "Share of time in which lanes ran batches of each method; methods that share lanes add"
          " up. Near 100 % with full batches is saturation; near 100 % with small ones means that"
          " the model costs most per call, not per row.",
          "percentunit",
          (Query(f"{_rate(c.METRIC_LANE_BUSY_SECONDS, 'method')}"
                 f" / {_gauge(c.METRIC_LANES, 'sum', 'method')}", "{{method}}"),),
          maximum=1),
))  # fmt: skip

TRAFFIC: Final = Section("Traffic", (
    Panel("Rows received",
          "Rows arriving per second, refused ones included: what replicas are sized for.",
          "suffix: rows/s", (Query(_rate(c.METRIC_ROWS_RECEIVED, "method"), "{{method}}"),)),
    Panel("Requests by status",
          "Requests per second by the status they ended with. 429: would have missed maxLatency."
          " 503: the queue was full or the replica was stopping. 504: over timeout. 499: the client"
          " left first.",
          "reqps", (Query(_rate(c.METRIC_REQUESTS, "code"), "{{code}}"),), Look.STACKED),
    Panel("Rows rejected",
          "Rows that were not run, or not in time, by reason. Anything but a flat zero is demand"
          " that was not served: compare with desired and ready replicas below.",
          "suffix: rows/s",
          (Query(_rate(c.METRIC_ROWS_REJECTED, "reason"), "{{reason}}"),), Look.STACKED),
    Panel("Waiting and in flight",
          "Rows waiting for a batch and requests not answered yet, all replicas together. A queue"
          " that only grows is overload; one that swings with batchInterval is batching at work.",
          "short",
          (Query(_gauge(c.METRIC_QUEUE_ROWS, "sum"), "rows waiting"),
           Query(_gauge(c.METRIC_IN_FLIGHT_REQUESTS, "sum"), "requests in flight")),
          Look.STEPS, width=12),
    Panel("Process restarts",
          "Processes that died and were replaced in the last interval. Clients do not notice one;"
          " a model process that dies again and again has a cause in its log.",
          "short",
          (Query(f"sum by (role) (increase({c.METRIC_PROCESS_RESTARTS}{{{_SERVING}}}[{_RATE}]))",
                 "{{role}}"),), Look.STEPS, width=12),
))  # fmt: skip

LATENCY: Final = Section("Latency", (
    Panel("Request latency",
          "From a complete request until its answer. p99 far above p50 with a calm queue: a few"
          " large batches or pauses of the model; with a growing queue: too few replicas.",
          "s", _quantiles(c.METRIC_REQUEST_SECONDS, 0.5, 0.95, 0.99)),
    Panel("Queue wait",
          "From arrival in the queue until dispatch. With a free lane it stays below batchInterval;"
          " above it, rows wait for a lane: more replicas or lanes, not a shorter interval.",
          "s",
          (*_quantiles(c.METRIC_QUEUE_WAIT_SECONDS, 0.5, 0.99),
           Query(_gauge(c.METRIC_BATCH_INTERVAL_SECONDS, "max"), "batchInterval"))),
    Panel("Batch execution",
          "Time one batch takes in the model. If it hardly grows with the batch size, larger"
          " batches are nearly free: raise maxBatchSize.",
          "s",
          (*_quantiles(c.METRIC_BATCH_SECONDS, 0.5, 0.99),
           Query(_mean(c.METRIC_BATCH_SECONDS), "mean"))),
))  # fmt: skip

REPLICAS: Final = Section("Replicas", (
    Panel("Replicas",
          "What the autoscaler asked for and what answers. Ready below desired for minutes: pods do"
          " not start; kubectl describe bapi says why.",
          "short",
          (Query(_gauge(c.OPERATOR_DESIRED_REPLICAS, "max", selector=_OPERATOR), "desired"),
           Query(_gauge(c.OPERATOR_READY_REPLICAS, "max", selector=_OPERATOR), "ready")),
          Look.STEPS),
    Panel("Why this many",
          "Share of scaling decisions by the reason that settled the count. kubectl batchedapi why"
          " shows the last one with all its figures.",
          "suffix: decisions/s",
          (Query(_rate(c.OPERATOR_DECISIONS, "reason", _OPERATOR), "{{reason}}"),), Look.SHARES),
    Panel("Demand and capacity",
          "Rows arriving against rows that the ready replicas can serve within the latency target."
          " Demand above capacity is a backlog in the making; replicas are added before that, at"
          " targetUtilizationPercent.",
          "suffix: rows/s",
          (Query(_gauge(c.OPERATOR_DEMAND, "max", selector=_OPERATOR), "demand"),
           Query(f"max ({c.OPERATOR_CAPACITY}{{{_OPERATOR}}})"
                 f" * max ({c.OPERATOR_READY_REPLICAS}{{{_OPERATOR}}})",
                 "capacity of ready replicas"))),
))  # fmt: skip

SECTIONS: Final = (BATCHING, TRAFFIC, LATENCY, REPLICAS)


def dashboard_json() -> str:
    """The dashboard as Grafana's sidecar or its import page reads it."""
    return json.dumps(_dashboard(), indent=2, ensure_ascii=False) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "title": "BatchedAPI",
        "uid": "batchedapi",
        "description": "Generated by crds/generate.py (make generate); do not edit.",
        "tags": ["batchedapi"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": place(SECTIONS),
    }


def _variables() -> list[dict[str, Any]]:
    lanes = c.METRIC_LANES
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
            "options": [],
        },
        _label_variable("namespace", "Namespace", f"label_values({lanes}, namespace)"),
        _label_variable(
            "name", "BatchedAPI", f'label_values({lanes}{{namespace="$namespace"}}, {LABEL_API})'
        ),
        _label_variable("method", "Method", f"label_values({lanes}{{{_SERVING}}}, method)")
        | {"multi": True, "includeAll": True, "allValue": ".*"},
    ]


def _label_variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A choice among values of a label, read again when the time range changes."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
    }
