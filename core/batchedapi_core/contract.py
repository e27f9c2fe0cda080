"""Every name that two parts of the product, or a user and the product, agree on.

Ports, paths, labels, metric names and bucket edges are written here once; nothing else spells them.
So is how the sentences of status, log and command line word a figure.
"""

from typing import Final

# ---------------------------------------------------------------- the custom resource
GROUP: Final = "batchedapi.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "BatchedAPI"
PLURAL: Final = "batchedapis"
SINGULAR: Final = "batchedapi"
SHORT_NAME: Final = "bapi"

# ---------------------------------------------------------------- labels and annotations
LABEL_API: Final = f"{GROUP}/api"
"""On every child and pod: the name of the BatchedAPI it belongs to."""
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_ROLE: Final = f"{GROUP}/role"
"""On the Deployments and pods of an API with a queue: ROLE_WEB or ROLE_WORKER; and ROLE_CANARY on
those of a canary."""
ROLE_WEB: Final = "web"
ROLE_CANARY: Final = "canary"
ROLE_WORKER: Final = "worker"
ROLE_REPLICA: Final = "replica"
"""Both in one: an API without a queue."""
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "batchedapi-operator"
ANNOTATION_POD: Final = f"{GROUP}/pod"
"""On a Deployment: the defaults that its pods were made with, and a digest of their setting."""
ANNOTATION_SETTING: Final = f"{GROUP}/setting"
"""On a revision's ConfigMap: a digest of the setting of its pods."""
ANNOTATION_SPEC: Final = f"{GROUP}/spec"
"""On a Deployment, which copies it to its ReplicaSets: what of the spec its revision is made of."""
ANNOTATION_GIVEN_UP: Final = f"{GROUP}/given-up"
"""On a Deployment: the rollout that it went back from by itself."""
ANNOTATION_PROMOTE: Final = f"{GROUP}/promote"
"""On a BatchedAPI: REVISION@canarySince, as its status has them, of the canary that is promoted
whatever it has shown. One that is left over says nothing of the same revision, tried again."""

FIELD_MANAGER: Final = "batchedapi-operator"
"""Server-side apply of children and of the reconciler's part of the status."""
AUTOSCALER_FIELD_MANAGER: Final = "batchedapi-autoscaler"
"""Writes /scale of Deployments and the autoscaler's part of the status."""

LABEL_LEASE: Final = f"{GROUP}/operator-lease"
"""On every Lease and claim of an operator."""
ANNOTATION_CLAIM: Final = f"{GROUP}/claim"
"""On these: whether the holder wants to act, or does."""
ANNOTATION_NAMESPACES: Final = f"{GROUP}/namespaces"
"""On these: those that the holder serves."""
CLAIM: Final = "batchedapi-claim"
"""A ConfigMap in each namespace that an operator serves by its name: one at a time holds it."""

# ---------------------------------------------------------------- ports and paths of a replica
HTTP_PORT: Final = 8080
ADMIN_PORT: Final = 8081
GRPC_PORT: Final = 9000
"""gRPC port of the container and of the Service; KServe's runtimes use the same."""
SERVICE_PORT: Final = 80
HTTP_PORT_NAME: Final = "http"
ADMIN_PORT_NAME: Final = "admin"
GRPC_PORT_NAME: Final = "grpc"

OPERATOR_ADMIN_PORT: Final = 8081
OPERATOR_DECISIONS_PORT: Final = 8082
"""Port of the operator, on loopback alone: whoever may forward to its pod may ask there."""
PATH_DECISIONS: Final = "/decisions"
"""On that port, before /NAMESPACE/NAME: the last decisions about that API."""
DECISIONS_KEPT: Final = 64
"""Decisions kept of each API: those that may be asked for."""
PATH_FLEET: Final = "/fleet"
"""On that port too: what the page about all APIs shows; `api=NAMESPACE/NAME` is looked at."""
SELECTOR_OF_OPERATOR: Final = "app.kubernetes.io/name=batchedapi-operator"
"""Selects the operator's pods."""

PATH_PREDICT: Final = "/predict"
PATH_METRICS: Final = "/metrics"
QUERY_SCALING: Final = "view=scaling"
"""Query of PATH_METRICS: a page of SCALING_SERIES alone, which is all that the operator asks for.

A query rather than a path: replicas that do not know it answer with the whole page.
"""
PATH_LIVE: Final = "/livez"
PATH_READY: Final = "/readyz"
PATH_STARTUP: Final = "/startupz"
PATH_RECENT: Final = "/recent"
"""On the admin port, for pods of the same API alone: recent rows and their answers, in frames."""
PATH_QUEUE: Final = "/queue"
"""On the admin port of web pods; `wait=SECONDS` answers as soon as there are rows, or then: a JSON
object {"rows", "oldest_seconds", "requests"}."""

MANIFEST_DIRECTORY: Final = "/etc/batchedapi"
"""Where the revision ConfigMap is mounted in a pod: the serving slice and the user's files."""
MANIFEST_FILE: Final = "batchedapi.yaml"
"""The serving slice inside it: what `batchedapi serve -f` is given."""
RECORD_KEY: Final = "minutes"
"""What each minute brought, in the ConfigMap NAME-record."""
KEYS_DIRECTORY: Final = "/etc/batchedapi-keys"
"""Where the operator mounts the Secret of `networking.apiKeys`."""
MODEL_DIRECTORY: Final = "/mnt/model"
"""Where the operator mounts a model, read-only: a claim or an image; or the claim of its cache."""
TERMINATION_LOG: Final = "/dev/termination-log"
"""Where a failed start says why, as one JSON object {"reason", "message"}."""

# ---------------------------------------------------------------- environment of a replica
METHOD_BATCH: Final = ".batch"
"""Behind the name of a method that decodes or encodes: what its rows are batched under, in metrics
and logs. No client can name it."""
ENV_BATCH_SIZE: Final = "DYNAMIC_BATCHER__BATCH_SIZE"
"""maxBatchSize where the manifest does not say it."""
ENV_BATCH_TIME: Final = "DYNAMIC_BATCHER__BATCH_TIME"
"""batchInterval, in seconds, where the manifest does not say it."""
ENV_REDIS_HOST: Final = "REDIS__HOST"
ENV_REDIS_PORT: Final = "REDIS__PORT"
ENV_REDIS_DB: Final = "REDIS__DB"
ENV_REDIS_USERNAME: Final = "REDIS__USERNAME"
ENV_REDIS_PASSWORD: Final = "REDIS__PASSWORD"  # noqa: S105 - the name of a variable
"""queue.redis where the manifest does not say it; a cluster fills the last two from Secrets."""
DEFAULT_REDIS_HOST: Final = "localhost"
DEFAULT_REDIS_PORT: Final = 6379
ENV_CPU_REQUEST: Final = "BATCHEDAPI_CPU_REQUEST"
"""spec.compute.cpu, for `processesPerReplica: cpu_count`; a container cannot read its request."""
ENV_COMPARE: Final = "BATCHEDAPI_COMPARE"
"""`updateStrategy.compare` as the replica needs it: a JSON object of `peers`, the name of all ready
pods of the API, `port`, where they are asked, `token`, which all of them know, `revision`, its own,
and the shares `slower` and `differ`."""
ENV_SOURCES: Final = "BATCHEDAPI_ENV_SOURCES"
"""`predictor.envFrom` as the replica needs it: a JSON object of `sources`, how each is
called, and `env`, names that beat theirs."""


def source_prefix(index: int) -> str:
    """Before the keys of that source, until the replica has looked at them.

    A PYTHONHOME would keep the interpreter from starting, which could not say why.
    """
    return f"BATCHEDAPI_SOURCE_{index}_"


# ---------------------------------------------------------------- content types
JSON: Final = "application/json"
NPY: Final = "application/x-npy"

# ---------------------------------------------------------------- metrics of a replica
# Label `method` unless stated. The names are public: renaming one breaks users' dashboards.
METRIC_BATCH_ROWS: Final = "batchedapi_batch_rows"
METRIC_BATCH_REQUESTS: Final = "batchedapi_batch_requests"
METRIC_BATCH_SECONDS: Final = "batchedapi_batch_seconds"
METRIC_QUEUE_WAIT_SECONDS: Final = "batchedapi_queue_wait_seconds"
METRIC_REQUEST_SECONDS: Final = "batchedapi_request_seconds"
METRIC_BATCHES: Final = "batchedapi_batches_total"
METRIC_REQUESTS: Final = "batchedapi_requests_total"
METRIC_ROWS_RECEIVED: Final = "batchedapi_rows_received_total"
METRIC_REQUEST_ROWS_SQUARED: Final = "batchedapi_request_rows_squared_total"
METRIC_ROWS_REJECTED: Final = "batchedapi_rows_rejected_total"
METRIC_BATCH_SIZE: Final = "batchedapi_batch_size_total"
"""In the unit of maxBatchSize: rows, requests or the method's own cost."""
METRIC_BATCH_LENGTHS: Final = "batchedapi_batch_lengths_total"
METRIC_BATCH_PADDED_LENGTHS: Final = "batchedapi_batch_padded_lengths_total"
"""Both zero where rows have no lengths."""
METRIC_BATCH_ROWS_SQUARED: Final = "batchedapi_batch_rows_squared_total"
METRIC_BATCH_ROW_SECONDS: Final = "batchedapi_batch_row_seconds_total"
METRIC_LANE_BUSY_SECONDS: Final = "batchedapi_lane_busy_seconds_total"
METRIC_QUEUE_ROWS: Final = "batchedapi_queue_rows"
METRIC_QUEUE_OLDEST_SECONDS: Final = "batchedapi_queue_oldest_seconds"
METRIC_ROWS_RETAKEN: Final = "batchedapi_rows_retaken_total"
METRIC_QUEUE_UNREADABLE: Final = "batchedapi_queue_unreadable_total"
"""No label. Of requests, answers and what processes say of themselves, in the queue of all
replicas: what this pod could not read, and passed over."""
METRIC_ROLE: Final = "batchedapi_role"
"""Label `role`, no method. 1 of what the pod is: `web`, `worker` or `replica`."""
METRIC_PROCESS_CPU_SECONDS: Final = "process_cpu_seconds_total"
"""No label. CPU seconds of all processes of the pod."""
METRIC_IN_FLIGHT_REQUESTS: Final = "batchedapi_in_flight_requests"
METRIC_LANES: Final = "batchedapi_lanes"
METRIC_MAX_BATCH_SIZE: Final = "batchedapi_max_batch_size"
METRIC_BATCH_INTERVAL_SECONDS: Final = "batchedapi_batch_interval_seconds"
METRIC_SERVICE_TIME: Final = "batchedapi_service_time_seconds"
"""Label `term`, see SERVICE_TIME_TERMS: what the replica has learned of t(n, L)."""
SERVICE_TIME_TERMS: Final = ("batch", "row", "length")
"""Of rows that are L long, n take: batch + n * (row + L * length)."""
METRIC_ONE_BY_ONE: Final = "batchedapi_one_by_one"
"""1 where batches of the method are run request by request, else 0."""
METRIC_PROCESS_RESTARTS: Final = "batchedapi_process_restarts_total"
"""Label `role`: `web` or `model`."""
METRIC_WEB_CPU_SECONDS: Final = "batchedapi_web_cpu_seconds_total"
"""Label `process`: its number from 0. The Python of a process runs on one core at a time."""
METRIC_MODEL_PROCESS_MEMORY_BYTES: Final = "batchedapi_model_process_memory_bytes"
"""No label. Resident memory of the largest model process."""
METRIC_SPANS_DROPPED: Final = "batchedapi_spans_dropped_total"
"""No label. Of traces, for which the collector was away or too slow."""
METRIC_PREDICTOR_UPDATES_DROPPED: Final = "batchedapi_predictor_updates_dropped_total"
"""No label. Of the predictor's own metrics, beyond the limit on series."""
METRIC_PROCESS_START_TIME: Final = "process_start_time_seconds"
"""No label. Unix time at which the replica's supervisor started: its counters count from here."""

SCALING_SERIES: Final = frozenset(
    {
        METRIC_BATCHES,
        METRIC_REQUESTS,
        METRIC_ROWS_RECEIVED,
        METRIC_REQUEST_ROWS_SQUARED,
        METRIC_ROWS_REJECTED,
        METRIC_BATCH_SIZE,
        METRIC_BATCH_LENGTHS,
        METRIC_BATCH_PADDED_LENGTHS,
        METRIC_BATCH_ROWS_SQUARED,
        METRIC_BATCH_ROW_SECONDS,
        METRIC_QUEUE_ROWS,
        METRIC_QUEUE_OLDEST_SECONDS,
        METRIC_ROWS_RETAKEN,
        METRIC_ROLE,
        METRIC_PROCESS_CPU_SECONDS,
        METRIC_IN_FLIGHT_REQUESTS,
        METRIC_LANES,
        METRIC_MAX_BATCH_SIZE,
        METRIC_BATCH_INTERVAL_SECONDS,
        METRIC_SERVICE_TIME,
        METRIC_ONE_BY_ONE,
        METRIC_PROCESS_START_TIME,
        METRIC_MODEL_PROCESS_MEMORY_BYTES,
        METRIC_WEB_CPU_SECONDS,
        f"{METRIC_REQUEST_SECONDS}_bucket",
        f"{METRIC_BATCH_REQUESTS}_sum",
        *(
            f"{name}_{part}"
            for name in (
                METRIC_BATCH_ROWS,
                METRIC_BATCH_SECONDS,
                METRIC_QUEUE_WAIT_SECONDS,
                METRIC_REQUEST_SECONDS,
            )
            for part in ("sum", "count")
        ),
    }
)
"""Series that scaling and its explanations use; the operator reads no others."""
SCALING_PAGE_BYTES: Final = 16 * 1024
SCALING_PAGE_BYTES_A_METHOD: Final = 6 * 1024
"""Together the most that a page of SCALING_SERIES has, if names of methods are not very long."""

RELEASE_REASONS: Final = ("full", "interval", "early", "shape", "deadline", "retry", "drain")
"""Why a batch was dispatched, exactly one a batch: `batchedapi_batches_total{reason}`."""
REJECTION_REASONS: Final = ("latency", "queue_full", "draining", "expired", "disconnected")
STATUS_CODES: Final = (
    200, 400, 401, 404, 405, 406, 408, 413, 415, 422, 429, 431, 499, 500, 501, 503, 504,
)  # fmt: skip
"""Codes a request can end with; 499 is a client that left before its answer and is never sent."""
FAILED_CODES: Final = ("500", "501", "504")
REFUSED_CODES: Final = ("429", "503")
"""As labels: those that a revision can be to blame for. A page of SCALING_SERIES has no others."""

# ---------------------------------------------------------------- metrics of the operator
# Labels `namespace`, `name` unless stated.
OPERATOR_DESIRED_REPLICAS: Final = "batchedapi_operator_desired_replicas"
OPERATOR_READY_REPLICAS: Final = "batchedapi_operator_ready_replicas"
OPERATOR_DEMAND: Final = "batchedapi_operator_demand_rows_per_second"
OPERATOR_CAPACITY: Final = "batchedapi_operator_capacity_rows_per_second"
OPERATOR_DECISIONS: Final = "batchedapi_operator_decisions_total"
OPERATOR_SCRAPES: Final = "batchedapi_operator_scrapes_total"
OPERATOR_RECONCILES: Final = "batchedapi_operator_reconciles_total"
OPERATOR_RECONCILE_SECONDS: Final = "batchedapi_operator_reconcile_seconds"
OPERATOR_LEADER: Final = "batchedapi_operator_leader"
"""No label. 1 of the replica that may write, else 0."""

LATENCY_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
)  # fmt: skip
"""Upper edges in seconds of every duration histogram, without +Inf."""

MAX_BATCH_SIZE_LIMIT: Final = 65536
MAX_PROCESSES: Final = 64
MAX_WEB_PROCESSES: Final = 16
MAX_CPU_THREADS: Final = 256
MAX_METHODS: Final = 32
MAX_NESTING: Final = 64
"""Levels of arrays and objects in a JSON body."""
MAX_VALUES: Final = 4 * 1024 * 1024
"""Numbers, texts, names, arrays and objects that one body is taken apart into: as many numbers of
eight bytes as are 32 MiB. Tensors that travel raw are not taken apart and not counted."""
MAX_CONTAINERS: Final = 1024 * 1024
"""Arrays and objects among them: an empty one takes 64 bytes where its text takes two."""
MAX_MESSAGE_FIELDS: Final = 16384
"""Fields of a gRPC request outside of its tensors' contents."""
MAX_HEADER_BYTES: Final = 65536
HEADER_ARRIVAL_SECONDS: Final = 10.0
BODY_ARRIVAL_SECONDS: Final = 30.0
TERMINATION_MARGIN_SECONDS: Final = 10.0
"""terminationGracePeriodSeconds = drainDelay + timeout + this."""
UNLIMITED_REQUEST_SECONDS: Final = 600
"""How long a stopping replica is given where `spec.overload.timeout` sets no limit."""
DEFAULT_BATCHED_MAX_BATCH_SIZE: Final = 32
"""For a method with @batched when nothing says otherwise; 1 for a method without."""


def batch_size_buckets(max_batch_size: int) -> tuple[int, ...]:
    """Upper edges of the batch-size histograms: 1, 2, 4, ... below the maximum, then the maximum.

    The last edge is the maximum itself, so that full batches are visible in a histogram.
    """
    edges = []
    edge = 1
    while edge < max_batch_size:
        edges.append(edge)
        edge *= 2
    return (*edges, max_batch_size)


# ---------------------------------------------------------------- figures in sentences
SMALL_RATE: Final = 10.0
"""Rows per second; below, one decimal is kept, so that little is not shown as nothing."""


def ms(seconds: float) -> str:
    """Three figures: 0.25 ms, 20 ms, 1280 ms."""
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"  # noqa: PLR2004 - three figures


def percent(share: float) -> str:
    """A share 0..1 in percent."""
    return f"{100 * share:.0f} %"


def per_second(rows: float) -> str:
    """The bare number of a rate: the unit is left to the sentence."""
    return f"{rows:.{0 if rows >= SMALL_RATE else 1}f}"


def rate(rows_per_second: float) -> str:
    """With its unit."""
    return f"{per_second(rows_per_second)} rows/s"


def size(number: float) -> str:
    """A mean size of batches, as people read it."""
    return f"{number:.1f}"
