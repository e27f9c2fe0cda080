"""Forming batches: a queue, what is learned about its traffic, and the decision when to dispatch.

Everything is told the time, nothing asks for it. Times are seconds on one monotonic clock of the
caller's; sizes are rows, or requests under `SizeUnit.REQUESTS`.
"""

from batchedapi_core.batching.batcher import Admission, Batcher, retry_after
from batchedapi_core.batching.decision import Action, Idle, Release, WaitUntil, next_action
from batchedapi_core.batching.lanes import RETRY, Batch, Lane, LanePool, Lanes
from batchedapi_core.batching.lengths import lengths_in, lengths_of, padding_class
from batchedapi_core.batching.policy import (
    BatchPolicy,
    Effective,
    ItemErrorPolicy,
    LaneChoice,
    QueueOrder,
    Receipts,
    SizeUnit,
    Strategy,
)
from batchedapi_core.batching.request import (
    Handout,
    Isolation,
    Parts,
    Request,
    RowSpan,
    Search,
    split_parts,
    split_rows,
)
from batchedapi_core.batching.reruns import Trial
from batchedapi_core.batching.scheduler import (
    Ahead,
    BatchEnd,
    Begins,
    Decision,
    Dispatch,
    Expired,
    Result,
    ScheduledMethod,
    Scheduler,
    process_lost,
)
from batchedapi_core.batching.traffic import Client
