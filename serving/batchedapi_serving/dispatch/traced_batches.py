"""Spans of the batches in which traced requests ride, and what those requests learn of them.

A batch is a child of the first traced request in it, and linked to all of them, as they are to it:
a trace shows one tree, and each request of a batch leads to what ran it.
"""

import math
from typing import Final, TypeAlias

from batchedapi_core.batching import Batch
from batchedapi_serving.dispatch.requests import InFlightRequest
from batchedapi_serving.ipc import Meta
from batchedapi_serving.tracing.spans import QUEUE_WAIT, Span, Tracer, Value

_MOST_LINKS: Final = 128
"""Links of one span, as SDKs have it (OTEL_SPAN_LINK_COUNT_LIMIT)."""

Riders: TypeAlias = dict[InFlightRequest, Span]
"""The traced requests of a batch, or of which parts are in it, and their spans."""


class TracedBatches:
    """Spans of one executor's batches; asked as one with a traced request begins and ends."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._sent: dict[Batch, tuple[Span, Riders]] = {}
        """Batches that are not over, and their spans."""

    def sent(self, batch: Batch, riders: Riders, meta: Meta) -> None:
        """Put into the frame's meta the trace for the predictor."""
        first = next(iter(riders.values()))
        span = self._tracer.of_method("batch", batch.method, first.context)
        self._sent[batch] = span, riders
        meta["trace"] = span.context.headers()

    def over(self, batch: Batch, now: float, error: str | None, worker: int | None = None) -> None:
        """It ran until `now`, in seconds of the dispatcher's clock.

        `error` is why it failed; `worker` the model process that answered, if any did.
        """
        found = self._sent.pop(batch, None) if self._sent else None
        if found is None:
            return
        span, riders = found
        facts: dict[str, Value] = {
            "batchedapi.batch.rows": batch.rows,
            "batchedapi.batch.requests": len(batch.requests),
            "batchedapi.batch.reason": batch.reason,
        }
        span.attributes.update(facts)
        if worker is not None:
            span.attributes["batchedapi.model_process"] = worker
        for rider, of_request in riders.items():
            if len(span.links) < _MOST_LINKS:
                span.links.append(of_request.context)
            if rider.done:  # its span is over, and not ours any more
                continue
            if not of_request.links:  # else it is a rerun or a later part, and waited before
                waited = max(0.0, batch.started - rider.request.arrived)
                of_request.attributes[QUEUE_WAIT] = waited
            of_request.attributes.update(facts)
            of_request.links.append(span.context)
        self._tracer.ends(span, error, now - batch.started)

    def lost_ahead(self, pid: int) -> None:
        """Forget the batches that a process had not begun: their requests are queued again."""
        gone = [
            batch for batch in self._sent if batch.started == math.inf and batch.lane.process == pid
        ]
        for batch in gone:
            del self._sent[batch]
