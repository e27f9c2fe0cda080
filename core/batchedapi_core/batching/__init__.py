"""Forming batches: a queue, what is learned about its traffic, and the decision when to dispatch.

Everything is told the time, nothing asks for it. Times are seconds on one monotonic clock of the
caller's; sizes are rows, or requests under `SizeUnit.REQUESTS`.
"""

from batchedapi_core.batching.actions import Action, Idle, Release, WaitUntil
from batchedapi_core.batching.adaptive import Effective
from batchedapi_core.batching.admission import Admission, Backlog, retry_after
from batchedapi_core.batching.batcher import Batcher
from batchedapi_core.batching.choices import (
    ItemErrorPolicy,
    LaneChoice,
    QueueOrder,
    Receipts,
    ShapePolicy,
    SizeUnit,
    Strategy,
)
from batchedapi_core.batching.decision import View, next_action
from batchedapi_core.batching.isolation import Isolation, Parts, Search
from batchedapi_core.batching.lanes import Lane, LanePool, Lanes
from batchedapi_core.batching.policy import BatchPolicy
from batchedapi_core.batching.request import Client, Request, Taken
from batchedapi_core.batching.reruns import RETRY, Batch, Trial
from batchedapi_core.batching.scheduler import (
    Decision,
    Dispatch,
    Expired,
    Method,
    Result,
    Scheduler,
    Verdict,
    process_lost,
)
from batchedapi_core.batching.splitting import Span, split_parts, split_rows

__all__ = [
    "RETRY",
    "Action",
    "Admission",
    "Backlog",
    "Batch",
    "BatchPolicy",
    "Batcher",
    "Client",
    "Decision",
    "Dispatch",
    "Effective",
    "Expired",
    "Idle",
    "Isolation",
    "ItemErrorPolicy",
    "Lane",
    "LaneChoice",
    "LanePool",
    "Lanes",
    "Method",
    "Parts",
    "QueueOrder",
    "Receipts",
    "Release",
    "Request",
    "Result",
    "Scheduler",
    "Search",
    "ShapePolicy",
    "SizeUnit",
    "Span",
    "Strategy",
    "Taken",
    "Trial",
    "Verdict",
    "View",
    "WaitUntil",
    "next_action",
    "process_lost",
    "retry_after",
    "split_parts",
    "split_rows",
]
