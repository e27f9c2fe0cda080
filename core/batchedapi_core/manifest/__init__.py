"""The BatchedAPI resource: what may be written in a manifest, its rules, its status, its schema.

The models are the single source: the CRD is generated from them, the operator and
`batchedapi serve -f` parse with them.
"""

from batchedapi_core.manifest.autoscaling import (
    Autoscaling,
    ScalingBehavior,
    ScalingMode,
    ScalingRules,
    ScalingStep,
    Slo,
)
from batchedapi_core.manifest.batching import (
    MethodBatching,
    QueueSpec,
    Redis,
    ServerSideBatching,
    WebSpec,
)
from batchedapi_core.manifest.document import (
    ManifestError,
    UnknownFields,
    parse_api,
    serving_slice,
    with_changes,
)
from batchedapi_core.manifest.exposure import GatewaySpec
from batchedapi_core.manifest.parts import Compute, Networking, Overload, UpdateStrategy
from batchedapi_core.manifest.pod import PLATFORM, SPREAD, Pod, as_written, pod_defaults
from batchedapi_core.manifest.predictor import (
    AUTO,
    CPU_COUNT,
    LogLevel,
    ModelSpec,
    Predictor,
    PredictorEnv,
    PredictorMethod,
    Source,
    WarmUpSpec,
)
from batchedapi_core.manifest.reasons import REASONS
from batchedapi_core.manifest.rules import Rule
from batchedapi_core.manifest.scaling_policy import (
    InEffect,
    behaviors_of,
    has_gpus,
    model_processes,
    scaling_policy_of,
)
from batchedapi_core.manifest.spec import BatchedAPI, BatchedAPISpec, Metadata
from batchedapi_core.manifest.status import BatchedAPIStatus, ConditionType, Phase
from batchedapi_core.manifest.units import (
    UnitError,
    format_duration,
    format_quantity,
    parse_duration,
    parse_quantity,
)
