"""Who is let in: the hard limit of requests in a replica, and the expected time to an answer."""

from batchedapi_core.batching import Admission, Batcher, retry_after
from batchedapi_serving.errors import LateError, QueueFullError
from batchedapi_serving.metrics.recorder import MethodRecorder


class Door:
    """Of one method; asked once for every request, before it is queued."""

    def __init__(self, limit: int, max_latency: float | None, recorder: MethodRecorder) -> None:
        """`limit` is of requests in the whole replica, `max_latency` in seconds."""
        self._limit = limit
        self._admission = Admission(max_latency) if max_latency else None
        self._recorder = recorder

    def check(self, batcher: Batcher, in_flight: int, rows: int, size: int, now: float) -> None:
        """Let a request of `rows` rows pass.

        Raises:
            QueueFullError: `in_flight` requests are as many as may be in this replica.
            LateError: it would miss `maxLatency`.
        """
        if in_flight >= self._limit:
            self._recorder.rejected("queue_full", rows)
            raise QueueFullError(
                f"{self._limit} requests are in this replica (overload.maxReplicaConcurrency)",
                retry_after(batcher),
            )
        if self._admission is not None and not self._admission.accepts(batcher, size, now):
            self._recorder.rejected("latency", rows)
            raise LateError(
                "the answer is expected to take longer than serverSideBatching.maxLatency;"
                " relax it, or add replicas",
                retry_after(batcher),
            )
