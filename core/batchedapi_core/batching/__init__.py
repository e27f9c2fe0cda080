"""Forming batches: a queue, what is learned about its traffic, and the decision when to dispatch.

Everything is told the time, nothing asks for it. Times are seconds on one monotonic clock of the
caller's; sizes are rows, or requests under `SizeUnit.REQUESTS`.
"""

from batchedapi_core.batching.actions import Action, Dispatch, Idle, WaitUntil
from batchedapi_core.batching.adaptive import Effective
from batchedapi_core.batching.admission import Admission, Backlog, retry_after
from batchedapi_core.batching.batcher import Batcher
from batchedapi_core.batching.choice import Choice, choose, wait_is_over
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
from batchedapi_core.batching.entry import Client, Entry, Taken
from batchedapi_core.batching.isolation import Isolation, Parts, Search
from batchedapi_core.batching.lanes import Lanes
from batchedapi_core.batching.policy import BatchPolicy
from batchedapi_core.batching.splitting import Span, split_parts, split_rows

__all__ = [
    "Action",
    "Admission",
    "Backlog",
    "BatchPolicy",
    "Batcher",
    "Choice",
    "Client",
    "Dispatch",
    "Effective",
    "Entry",
    "Idle",
    "Isolation",
    "ItemErrorPolicy",
    "LaneChoice",
    "Lanes",
    "Parts",
    "QueueOrder",
    "Receipts",
    "Search",
    "ShapePolicy",
    "SizeUnit",
    "Span",
    "Strategy",
    "Taken",
    "View",
    "WaitUntil",
    "choose",
    "next_action",
    "retry_after",
    "split_parts",
    "split_rows",
    "wait_is_over",
]
