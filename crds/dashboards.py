"""The Grafana dashboards: one API, how it is scaled, all APIs, and the operator itself.

They read what pods publish and no recorded series, so that they need no rules.
"""

from typing import Final

from batchedapi_core import contract as c
from crds.grafana import Choice, Dashboard, Drawing, Panel, Query, Section
from crds.metrics import LABEL_API

_SERVING: Final = f'namespace="$namespace",{LABEL_API}="$name"'
_METHOD: Final = f'{_SERVING},method=~"$method"'
_OPERATOR: Final = 'namespace="$namespace",name="$name"'
_OBJECT: Final = ("namespace", "name")
_FAILED: Final = ',code=~"5.."'
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


_ONE_POD: Final = "namespace, pod"


_IS_WEB: Final = f'on ({_ONE_POD}) {c.METRIC_ROLE}{{role="{c.ROLE_WEB}"}}'


def _of_web(metric: str, selector: str = _METHOD) -> str:
    """Series of web pods alone: each of them tells of the one queue."""
    return f"{metric}{{{selector}}} and {_IS_WEB}"


def _one_queue(by: str = "", selector: str = _METHOD) -> str:
    """Rows in the one queue, as the web pod says that knows of most; nothing without one."""
    pods, grouping = f"{by}, pod" if by else _ONE_POD, f" by ({by})" if by else ""
    return f"max{grouping} (sum by ({pods}) ({_of_web(c.METRIC_QUEUE_ROWS, selector)}))"


def _waiting(by: str = "", selector: str = _METHOD) -> str:
    """Rows in the one queue, else in those of all replicas."""
    return f"{_one_queue(by, selector)} or {_gauge(c.METRIC_QUEUE_ROWS, 'sum', by, selector)}"


BATCHING: Final = Section("Batching", (
    Panel("Batch size",
          "Batches per second by their number of rows. Look for the brightest band: at the top edge"
          " (maxBatchSize) replicas are loaded and fill their batches; at 1 there is no one to"
          " share a batch with, or batchInterval is too short for this traffic.",
          "suffix: batches/s",
          (Query(_rate(f"{c.METRIC_BATCH_ROWS}_bucket", "le"), "{{le}}"),),
          Drawing.HEATMAP, width=16, height=10),
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
    Panel("Padding",
          "With rows of different lengths: share of what batches compute that is padding. Batches"
          " are formed by what they were measured to take, so some padding is what costs least,"
          " and at low busy time much of it is no fault. Empty without such rows.",
          "percentunit",
          (Query(f"1 - {_rate(c.METRIC_BATCH_LENGTHS, 'method')}"
                 f" / {_rate(c.METRIC_BATCH_PADDED_LENGTHS, 'method')}", "{{method}}"),),
          maximum=1),
    Panel("Release reasons",
          "Share of batches by what released them. full: a whole batch was waiting. interval:"
          " batchInterval ended. early: waiting longer was not expected to help. Much interval with"
          " small batches: time is spent waiting for rows that do not come.",
          "suffix: batches/s",
          (Query(_rate(c.METRIC_BATCHES, "reason"), "{{reason}}"),), Drawing.SHARES),
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
          "reqps", (Query(_rate(c.METRIC_REQUESTS, "code"), "{{code}}"),), Drawing.STACKED),
    Panel("Rows rejected",
          "Rows that were not run, or not in time, by reason. Anything but a flat zero is demand"
          " that was not served: compare with desired and ready replicas below.",
          "suffix: rows/s",
          (Query(_rate(c.METRIC_ROWS_REJECTED, "reason"), "{{reason}}"),), Drawing.STACKED),
    Panel("Waiting and in flight",
          "Rows waiting for a batch and requests not answered yet, all replicas together. A queue"
          " that only grows is overload; one that swings with batchInterval is batching at work.",
          "short",
          (Query(_waiting(), "rows waiting"),
           Query(_gauge(c.METRIC_IN_FLIGHT_REQUESTS, "sum"), "requests in flight")),
          Drawing.STEPS, width=12),
    Panel("One queue",
          "With one queue for all replicas: rows in it, and how long the oldest has waited. Rows"
          " that stay, and one that gets older: replicas are missing, or none runs; see the"
          " dashboard of its scaling. Empty without such a queue.",
          "short",
          (Query(_one_queue(), "rows"),
           Query(f"max ({_of_web(c.METRIC_QUEUE_OLDEST_SECONDS)})", "seconds of the oldest")),
          Drawing.STEPS, width=12),
    Panel("Rows taken again",
          "With one queue for all replicas: rows per second that a replica took up after the one"
          " that had them was gone. Now and then is a node that went; always is a replica that"
          " dies of what it is asked.",
          "suffix: rows/s",
          (Query(_rate(c.METRIC_ROWS_RETAKEN, "method"), "{{method}}"),), width=12),
    Panel("Process restarts",
          "Processes that died and were replaced in the last interval. Clients do not notice one;"
          " a model process that dies again and again has a cause in its log.",
          "short",
          (Query(f"sum by (role) (increase({c.METRIC_PROCESS_RESTARTS}{{{_SERVING}}}[{_RATE}]))",
                 "{{role}}"),), Drawing.STEPS, width=12),
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

_LANES_OF: Final = f'{c.METRIC_LANES}{{namespace="$namespace"}}'
_NAMESPACE: Final = Choice("namespace", "Namespace", f"label_values({c.METRIC_LANES}, namespace)")
_NAME: Final = Choice("name", "BatchedAPI", f"label_values({_LANES_OF}, {LABEL_API})")

API: Final = Dashboard(
    "batchedapi-api",
    "BatchedAPI / API",
    (
        _NAMESPACE,
        _NAME,
        Choice(
            "method",
            "Method",
            f"label_values({c.METRIC_LANES}{{{_SERVING}}}, method)",
            several=True,
        ),
    ),
    (BATCHING, TRAFFIC, LATENCY),
)

_PODS: Final = "pod"
AUTOSCALING: Final = Dashboard(
    "batchedapi-autoscaling", "BatchedAPI / Autoscaling", (_NAMESPACE, _NAME), (
    Section("Replicas", (
        Panel("Replicas",
              "What the autoscaler asked for and what answers. Ready below desired for minutes:"
              " pods do not start; kubectl describe bapi says why.",
              "short",
              (Query(_gauge(c.OPERATOR_DESIRED_REPLICAS, "max", selector=_OPERATOR), "desired"),
               Query(_gauge(c.OPERATOR_READY_REPLICAS, "max", selector=_OPERATOR), "ready")),
              Drawing.STEPS),
        Panel("Why this many",
              "Share of scaling decisions by the reason that settled the count. kubectl"
              " batchedapi why shows the last one with all its figures.",
              "suffix: decisions/s",
              (Query(_rate(c.OPERATOR_DECISIONS, "reason", _OPERATOR), "{{reason}}"),),
              Drawing.SHARES),
        Panel("Demand and capacity",
              "Rows arriving against rows that the ready replicas can serve within the latency"
              " target. Demand above capacity is a backlog in the making; replicas are added"
              " before that, at targetUtilizationPercent.",
              "suffix: rows/s",
              (Query(_gauge(c.OPERATOR_DEMAND, "max", selector=_OPERATOR), "demand"),
               Query(f"max ({c.OPERATOR_CAPACITY}{{{_OPERATOR}}})"
                     f" * max ({c.OPERATOR_READY_REPLICAS}{{{_OPERATOR}}})",
                     "capacity of ready replicas"))),
        Panel("Capacity of a replica",
              "Rows per second that one replica was seen to serve within the latency target. It"
              " is learned: it moves with a new revision, and should stand still otherwise.",
              "suffix: rows/s",
              (Query(_gauge(c.OPERATOR_CAPACITY, "max", selector=_OPERATOR), "one replica"),)),
        Panel("Age of replicas",
              "Time since each replica started; its counters count from there. Lines that fall"
              " back to zero together are a rollout, single ones are restarts.",
              "s",
              (Query(f"time() - max by ({_PODS}) ({c.METRIC_PROCESS_START_TIME}{{{_SERVING}}})",
                     "{{pod}}"),), Drawing.STEPS),
        Panel("Reads of replicas",
              "How often the operator read the metrics of replicas, by result. Others than"
              " success: it decides on what it knew before, and removes no replica.",
              "suffix: reads/s",
              (Query(_rate(c.OPERATOR_SCRAPES, "result", _OPERATOR), "{{result}}"),),
              Drawing.STACKED),
    )),
    Section("Each replica", (
        Panel("Rows of each replica",
              "Rows per second by replica. Far apart: connections stay where they were opened;"
              " networking.maxConnectionAge spreads them.",
              "suffix: rows/s",
              (Query(_rate(c.METRIC_ROWS_RECEIVED, _PODS, _SERVING), "{{pod}}"),)),
        Panel("Busy lanes of each replica",
              "Share of time in which the lanes of a replica ran batches. All near 100 %:"
              " replicas are missing; one alone: load is not spread.",
              "percentunit",
              (Query(f"{_rate(c.METRIC_LANE_BUSY_SECONDS, _PODS, _SERVING)}"
                     f" / max by ({_PODS}) ({c.METRIC_LANES}{{{_SERVING}}})", "{{pod}}"),),
              maximum=1),
        Panel("Rows waiting in each replica",
              "Rows in the queue by replica, and in the one queue where there is one for all. One"
              " that stays long while others are empty is a replica that is slower, or a client"
              " that sends to it alone.",
              "short",
              (Query(f"sum by ({_PODS}) ({c.METRIC_QUEUE_ROWS}{{{_SERVING}}} unless {_IS_WEB}) or"
                     f' label_replace({_one_queue(selector=_SERVING)}, "{_PODS}", "the one queue",'
                     f' "{_PODS}", "")', "{{pod}}"),),
              Drawing.STEPS),
        Panel("CPU of web processes",
              "Cores that each web process uses. Near 1 is all that one can use: raise"
              " webProcesses before replicas.",
              "short",
              (Query(_rate(c.METRIC_WEB_CPU_SECONDS, f"{_PODS}, process", _SERVING),
                     "{{pod}} {{process}}"),), width=12),
        Panel("Memory of model processes",
              "Memory of the largest model process of each replica. A line that only rises is a"
              " leak in the predictor; compare it with compute.mem.",
              "bytes",
              (Query(f"max by ({_PODS}) ({c.METRIC_MODEL_PROCESS_MEMORY_BYTES}{{{_SERVING}}})",
                     "{{pod}}"),), width=12),
    )),
))  # fmt: skip

_ALL: Final = 'namespace=~"$namespace"'
_EACH: Final = f"namespace, {LABEL_API}"
_EACH_LEGEND: Final = "{{namespace}}/{{" + LABEL_API + "}}"


_LATENCIES: Final = f"{c.METRIC_REQUEST_SECONDS}_bucket"


def _of_each(metric: str, further: str = "") -> str:
    return _rate(metric, further + _EACH, _ALL)


FLEET: Final = Dashboard(
    "batchedapi-fleet",
    "BatchedAPI / Fleet",
    (Choice("namespace", "Namespace", _NAMESPACE.query, several=True),), (
    Section("Now", (
        Panel("APIs",
              "BatchedAPIs that the operator scales now. Those that are paused, or scaled by"
              " others, are not among them.", "short",
              (Query(f"count ({c.OPERATOR_DESIRED_REPLICAS}{{{_ALL}}})", "APIs"),),
              Drawing.FIGURE, width=6, height=4),
        Panel("Replicas that answer",
              "Ready replicas of all of them. The next figure is what they do together.", "short",
              (Query(f"sum ({c.OPERATOR_READY_REPLICAS}{{{_ALL}}})", "ready"),),
              Drawing.FIGURE, width=6, height=4),
        Panel("Rows",
              "Rows that arrive per second at all replicas, those refused included. It falls with"
              " traffic, or with what is in front of the replicas.", "suffix: rows/s",
              (Query(_rate(c.METRIC_ROWS_RECEIVED, selector=_ALL), "rows"),),
              Drawing.FIGURE, width=6, height=4),
        Panel("Rows in a batch",
              "Rows of the mean batch over all APIs: what batching brings. Near 1 there is"
              " nothing to put together, or nothing that does it.", "short",
              (Query(f"{_rate(f'{c.METRIC_BATCH_ROWS}_sum', selector=_ALL)}"
                     f" / {_rate(f'{c.METRIC_BATCH_ROWS}_count', selector=_ALL)}", "rows"),),
              Drawing.FIGURE, width=6, height=4),
    )),
    Section("Each API", (
        Panel("Rows by API",
              "Rows that arrive per second, those refused included. The largest have most of the"
              " replicas below.", "suffix: rows/s",
              (Query(_of_each(c.METRIC_ROWS_RECEIVED), _EACH_LEGEND),)),
        Panel("Ready replicas by API",
              "Replicas that answer. Compare with those missing beside it: a pool of nodes that"
              " is full shows in several APIs at once.", "short",
              (Query(f"max by ({', '.join(_OBJECT)}) ({c.OPERATOR_READY_REPLICAS}{{{_ALL}}})",
                     "{{namespace}}/{{name}}"),), Drawing.STEPS),
        Panel("Missing replicas by API",
              "Desired less ready. Above zero for minutes: pods do not start, or no node has"
              " room; kubectl get bapi says which.", "short",
              (Query(f"max by ({', '.join(_OBJECT)}) ({c.OPERATOR_DESIRED_REPLICAS}{{{_ALL}}})"
                     f" - max by ({', '.join(_OBJECT)}) ({c.OPERATOR_READY_REPLICAS}{{{_ALL}}})",
                     "{{namespace}}/{{name}}"),), Drawing.STEPS),
        Panel("p99 by API",
              "Time from a complete request until its answer, of the slowest of a hundred. Open"
              " the API's own dashboard to see where it is spent.", "s",
              (Query(f"histogram_quantile(0.99, {_of_each(_LATENCIES, 'le, ')})", _EACH_LEGEND),)),
        Panel("Failed requests by API",
              "Share of requests that ended with 500 or above: failures of the predictor, and"
              " what an overloaded replica refuses.", "percentunit",
              (Query(f"{_rate(c.METRIC_REQUESTS, _EACH, _ALL + _FAILED)}"
                     f" / {_of_each(c.METRIC_REQUESTS)} or 0 * {_of_each(c.METRIC_REQUESTS)}",
                     _EACH_LEGEND),), maximum=1),
        Panel("Busy lanes by API",
              "Share of time in which lanes ran batches. Low with many replicas is money spent"
              " for nothing: lower minReplicas, or several models in a replica.",
              "percentunit",
              (Query(f"{_of_each(c.METRIC_LANE_BUSY_SECONDS)}"
                     f" / sum by ({_EACH}) (max by ({_EACH}, pod) ({c.METRIC_LANES}{{{_ALL}}}))",
                     _EACH_LEGEND),), maximum=1),
        Panel("Rows in a batch by API",
              "Rows of the mean batch. Near 1 under load: look at BatchingEffective in the status"
              " of the API.", "short",
              (Query(f"{_of_each(f'{c.METRIC_BATCH_ROWS}_sum')}"
                     f" / {_of_each(f'{c.METRIC_BATCH_ROWS}_count')}", _EACH_LEGEND),), width=12),
        Panel("Rows waiting by API",
              "Rows in the queues of all replicas, or in the one of all. One that only grows is"
              " overload, whatever the autoscaler may do.", "short",
              (Query(_waiting(_EACH, _ALL), _EACH_LEGEND),),
              Drawing.STEPS, width=12),
    )),
))  # fmt: skip


OPERATOR: Final = Dashboard("batchedapi-operator", "BatchedAPI / Operator", (), (
    Section("Operator", (
        Panel("Leader",
              "1 of the replica that acts, 0 of those that stand by. No 1: nothing is scaled and"
              " no manifest is applied; two releases that serve other namespaces have one each.",
              "short",
              (Query(f"max by (pod) ({c.OPERATOR_LEADER})", "{{pod}}"),), Drawing.STEPS),
        Panel("Reconciliations",
              "Manifests and children looked at per second, by result. Errors that stay are told"
              " in the operator's log with the API's name.",
              "suffix: reconciliations/s",
              (Query(_rate(c.OPERATOR_RECONCILES, "result", ""), "{{result}}"),), Drawing.STACKED),
        Panel("Time of a reconciliation",
              "Seconds of one. p99 above a second: the API server is slow, or sends the operator"
              " away (429).", "s",
              tuple(Query(f"histogram_quantile({share:g},"
                          f" {_rate(f'{c.OPERATOR_RECONCILE_SECONDS}_bucket', 'le', '')})",
                          f"p{share * 100:g}") for share in (0.5, 0.99))),
        Panel("Reads of all replicas",
              "Metrics pages of replicas read per second, by result. Others than success in all"
              " namespaces: a NetworkPolicy keeps the operator away.",
              "suffix: reads/s", (Query(_rate(c.OPERATOR_SCRAPES, "result", ""), "{{result}}"),),
              Drawing.STACKED),
        Panel("Decisions",
              "Scaling decisions per second by reason, over all APIs. Each API has one every two"
              " seconds; fewer mean that the operator is late.", "suffix: decisions/s",
              (Query(_rate(c.OPERATOR_DECISIONS, "reason", ""), "{{reason}}"),), Drawing.STACKED),
        Panel("Scaled APIs",
              "BatchedAPIs whose replicas the operator chooses, and the replicas that it asks"
              " for.", "short",
              (Query(f"count ({c.OPERATOR_DESIRED_REPLICAS})", "APIs"),
               Query(f"sum ({c.OPERATOR_DESIRED_REPLICAS})", "desired replicas")), Drawing.STEPS),
    )),
))  # fmt: skip

DASHBOARDS: Final = {
    "api": API, "autoscaling": AUTOSCALING, "fleet": FLEET, "operator": OPERATOR,
}  # fmt: skip
"""By the names of their files."""
