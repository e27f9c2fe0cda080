"""Spans of the batches in which traced requests ride, and what those requests learn of them.

A batch is a child of the first traced request in it, and linked to all of them, as they are to it:
a trace shows one tree, and each request of a batch leads to what ran it.
"""

import math
from typing import Final, TypeAlias

from batchedapi_core.batching import Batch, Request
from batchedapi_serving.dispatch.requests import InFlightRequest
from batchedapi_serving.ipc import Meta
from batchedapi_serving.tracing.spans import Attributes, Span, Tracer, method_form

_WAIT: Final = "batchedapi.queue_wait_seconds"
_MOST_LINKS: Final = 128
"""Of one span, as SDKs have it (OTEL_SPAN_LINK_COUNT_LIMIT)."""


Rider: TypeAlias = tuple[Request, InFlightRequest, Span]
"""A traced request of a batch, or a part of it, and its span."""


class TracedBatches:
    """Of one executor. Asked for each batch in which a traced request rides, and at its end."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._sent: dict[Batch, tuple[Span, list[Rider]]] = {}
        """Those that are not over, and their spans."""

    def sent(self, batch: Batch, riders: list[Rider], meta: Meta) -> None:
        """Put into the frame's meta the trace for the predictor."""
        _, _, first = riders[0]
        span = self._tracer.batch(method_form("batch", batch.method), first)
        self._sent[batch] = span, riders
        meta["trace"] = span.headers

    def over(self, batch: Batch, now: float, error: str | None, worker: int | None = None) -> None:
        """It ran until `now`, in seconds of the dispatcher's clock.

        `error` is why it failed; `worker` the model process that answered, if any did.
        """
        found = self._sent.pop(batch, None) if self._sent else None
        if found is None:
            return
        span, riders = found
        span.started = self._tracer.now() - int(1e9 * (now - batch.started))
        facts = batch_facts(batch)
        span.facts += facts
        if worker is not None:
            span.facts.append(("batchedapi.model_process", worker))
        for request, pending, of_request in riders:
            if len(span.links) < _MOST_LINKS:
                span.links.append(of_request.context)
            if pending.done:  # its span is over, and not ours any more
                continue
            if not of_request.links:  # else it is a rerun, and waited before
                of_request.facts.append((_WAIT, batch.started - request.arrived))
            of_request.facts += facts
            of_request.links.append(span.context)
        self._tracer.ends(span, error)

    def lost_ahead(self, pid: int) -> None:
        """What a process had not begun is gone with it: those requests are queued again."""
        gone = [
            batch for batch in self._sent if batch.started == math.inf and batch.lane.process == pid
        ]
        for batch in gone:
            del self._sent[batch]


def batch_facts(batch: Batch) -> Attributes:
    """What a batch and each of its requests have."""
    return (
        ("batchedapi.batch.rows", batch.rows),
        ("batchedapi.batch.requests", len(batch.requests)),
        ("batchedapi.batch.reason", batch.reason),
    )
