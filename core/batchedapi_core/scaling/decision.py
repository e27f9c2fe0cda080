"""A decision and everything it was made from."""

from dataclasses import dataclass
from enum import StrEnum

from batchedapi_core.scaling.forecast import Recurrence
from batchedapi_core.scaling.schedule import Expected
from batchedapi_core.service_model import ONE_ROW, RequestRows, ServiceTime


class Cause(StrEnum):
    """Why there are as many replicas as there are; part of the API's status."""

    DEMAND = "Demand"
    TREND = "Trend"
    OVERLOAD = "Overload"
    SCHEDULE = "LearnedSchedule"
    BACKLOG = "Backlog"
    MARGIN = "Margin"
    HOT_REPLICA = "HotReplica"
    WITHIN_TOLERANCE = "WithinTolerance"
    SCALE_DOWN = "ScaleDown"
    SCALE_DOWN_STABILIZING = "ScaleDownStabilizing"
    SCALE_UP_STABILIZING = "ScaleUpStabilizing"
    BURSTS = "Bursts"
    SURGE_LIMITED = "SurgeLimited"
    MIN_REPLICAS = "MinReplicas"
    MAX_REPLICAS = "MaxReplicas"
    IDLE = "Idle"
    FIRST_REPLICA = "FirstReplica"
    PAUSED = "Paused"
    NO_READY_PODS = "NoReadyPods"
    NO_METRICS = "NoMetrics"
    PARTIAL_METRICS = "PartialMetrics"
    MODEL_UNKNOWN = "ModelUnknown"
    LATENCY_TARGET_INFEASIBLE = "LatencyTargetInfeasible"

    @property
    def is_hold(self) -> bool:
        """Whether nothing moves for want of knowledge."""
        return self in {Cause.NO_METRICS, Cause.NO_READY_PODS, Cause.MODEL_UNKNOWN}


class ClampName(StrEnum):
    """A rule that can change or hold the number that the formula gave."""

    WITHIN_TOLERANCE = "WithinTolerance"
    MIN_REPLICAS = "MinReplicas"
    MAX_REPLICAS = "MaxReplicas"
    SURGE_LIMITED = "SurgeLimited"
    PARTIAL_METRICS = "PartialMetrics"
    SCALE_DOWN_STABILIZING = "ScaleDownStabilizing"
    SCALE_UP_STABILIZING = "ScaleUpStabilizing"
    BURSTS = "Bursts"
    SCALE_DOWN_RATE = "ScaleDownRate"
    IDLE = "Idle"
    FIRST_REPLICA = "FirstReplica"
    PAUSED = "Paused"
    NO_READY_PODS = "NoReadyPods"
    NO_METRICS = "NoMetrics"
    MODEL_UNKNOWN = "ModelUnknown"


@dataclass(frozen=True, slots=True)
class Clamp:
    """One rule that bound; a hold for want of knowledge has `before` equal to `after`."""

    name: ClampName
    before: int  # replicas
    after: int
    detail: str  # the numbers that it compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a decision depends on beside the policy; a replay starts from it."""

    ready: int  # pods
    current: int  # replicas asked for so far
    coverage: float  # of the ready pods, seen; 0..1
    arrival_now: float | None  # rows/s over the last interval; None: too few pods seen
    arrival_window: float | None  # rows/s over the window
    level: float | None  # rows/s that arrive at present, beyond doubt
    interval: float | None  # seconds
    queue_rows: float  # in all pods
    waiting_rows: float  # of those, in pods where more wait than should
    service: ServiceTime | None  # None: too few batches seen
    mean_batch: float | None  # rows, over the window, as the next three
    fill: float | None  # mean batch / largest batch, in what its size counts
    full_share: float | None  # of the batches, released because full; 0..1
    busy: float | None  # of the lanes' time; 0..1
    held: int  # highest recommendation that still holds a scale-down; 0: none
    settled: bool  # all recommendations of one scale-down stabilization window are known
    shrunk_from: tuple[int, ...]  # for each policy of scale-down, most replicas in its period
    grown_from: tuple[int, ...]  # for each policy of scale-up, replicas when its period began
    lowest: int | None = None  # recommendation that still holds a scale-up
    settled_up: bool = True  # as `settled`, of the scale-up stabilization window
    trend: float = 0.0  # rows/s each second, beyond doubt
    margin_share: float = 0.0  # of the demand, that forecasts were too low by
    highest: float = 0.0  # rows/s, of the last minutes
    recurring: tuple[Recurrence, ...] = ()  # bursts
    expected: Expected | None = None  # by the clock
    slowdown: float = 1.0  # times longer than learned that batches take
    trust: float = 1.0  # in the capacity, by how long requests wait
    start_up: float = 30.0  # seconds, of a replica that has a node
    placement: float = 0.0  # seconds that one waits for a node
    wanted: int = 0  # places for which pods of other APIs wait
    unschedulable: int = 0  # pods that were ordered and for which no node has room
    failing: int = 0  # pods that were ordered and cannot start
    oldest_start: float = 0.0  # seconds since the first pod was created that never was ready
    late_after: float = 120.0  # seconds after which that is longer than it should be
    waited_for_node: bool = False  # some ordered pod did lately
    hedged: int = 0  # highest order of a hedge that may still hold a scale-down; 0: none
    imbalance: float = 1.0  # on the need, for the hottest replica
    requests: RequestRows = ONE_ROW
    in_flight: float | None = None  # requests, over the window
    idle_for: float | None = None  # seconds since there may have been rows; None: no one queue
    oldest: float = 0.0  # seconds for which the oldest row of the one queue has waited
    told: bool = True  # web pods know what the methods are like

    @property
    def lead(self) -> float:
        """Seconds from an order until the replica is ready, its wait for a node included."""
        return self.start_up + self.placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Evidence):
    """Evidence and every intermediate result.

    CapacitySLO: need = max((base + max(forecast, margin) + backlog) * boost, floor) * imbalance
        / (target * trust * capacity).
    Concurrency: need = in_flight / target.
    """

    base: float  # rows/s to plan for
    forecast: float  # rows/s more, by the time that a replica started now is ready
    margin: float  # rows/s more, for forecasts that are too low
    backlog: float  # rows/s more, for what waits to be gone soon
    floor: float  # rows/s at least, as most hours or days brought them at this second
    capacity: float  # rows/s of one replica within the latency target, at present; 0: unknown
    capacity_batch: int  # rows of a batch at which it does that; 0: unknown
    feasible: bool  # some batch size meets the latency target
    target: float  # share of the capacity to use, or requests in flight of a replica
    boost: float  # overload factor, 1 without overload
    hedge: float  # the largest that it may be at present
    hedge_rule: str  # that says so
    need: float  # replicas, a fraction
    raw: int  # replicas, before clamps
    recommended: int  # after tolerance, min and max: what stabilization remembers
    steady: int  # the same without boost, forecast and floor


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """How many replicas, and why."""

    desired: int
    reason: Cause
    terms: Terms
    clamps: tuple[Clamp, ...]  # that bound, in order applied
    bound: str  # name of the last of them, or ""

    @property
    def is_hold(self) -> bool:
        """Whether the measurements were too few to decide by, whatever else bound."""
        return any(clamp.name in _HOLDS for clamp in self.clamps)


_HOLDS = (ClampName.NO_READY_PODS, ClampName.NO_METRICS, ClampName.MODEL_UNKNOWN)
