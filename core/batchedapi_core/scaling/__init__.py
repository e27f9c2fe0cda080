"""How many replicas: rows that arrive / (93 % of what one replica serves within the target).

What one replica serves is learned from the batch histogram: the sums of batch sizes and durations
that every replica exports. `step` is the whole of it, a function of values; docs/decisions/0003
has the formulas.

    scrapes -> observe -> LoadWindow -> decide -> ScalingDecision -> explain, record
"""

from batchedapi_core.scaling.decide import decide, step
from batchedapi_core.scaling.decision import (
    Clamp,
    ClampName,
    Evidence,
    Reason,
    ScalingDecision,
    Terms,
)
from batchedapi_core.scaling.load import BatchingWindow, batch_rows_quantile
from batchedapi_core.scaling.observe import Demand, LoadWindow, in_rows, observe
from batchedapi_core.scaling.policy import (
    SECONDS_BETWEEN_LOOKS,
    Behavior,
    PolicyKind,
    ScalingPolicy,
    Select,
    StepKind,
    StepPolicy,
    default_behaviors,
)
from batchedapi_core.scaling.record import essence, explain, record, replay, taken_again
from batchedapi_core.scaling.samples import (
    RETENTION,
    Observation,
    PodChange,
    PodSample,
    Unready,
    fell,
)
from batchedapi_core.scaling.state import ScalingState

__all__ = [
    "RETENTION",
    "SECONDS_BETWEEN_LOOKS",
    "BatchingWindow",
    "Behavior",
    "Clamp",
    "ClampName",
    "Demand",
    "Evidence",
    "LoadWindow",
    "Observation",
    "PodChange",
    "PodSample",
    "PolicyKind",
    "Reason",
    "ScalingDecision",
    "ScalingPolicy",
    "ScalingState",
    "Select",
    "StepKind",
    "StepPolicy",
    "Terms",
    "Unready",
    "batch_rows_quantile",
    "decide",
    "default_behaviors",
    "essence",
    "explain",
    "fell",
    "in_rows",
    "observe",
    "record",
    "replay",
    "step",
    "taken_again",
]
