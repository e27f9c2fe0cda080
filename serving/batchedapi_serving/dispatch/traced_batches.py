"""Spans of the batches in which traced requests ride, and what those requests learn of them.

A batch is a child of the first traced request in it, and linked to all of them, as they are to it:
a trace shows one tree, and each request of a batch leads to what ran it.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from batchedapi_core.batching import Batch, Request
from batchedapi_serving.dispatch.requests import InFlightRequests
from batchedapi_serving.ipc import Meta
from batchedapi_serving.tracing.spans import Span, Tracer, method_form

_WAIT: Final = "batchedapi.queue_wait_seconds"
_MOST_LINKS: Final = 128
"""Of one span, as SDKs have it (OTEL_SPAN_LINK_COUNT_LIMIT)."""


class TracedBatches:
    """Of one executor. Asked once for each batch that is sent, and once when it is over."""

    def __init__(self, tracer: Tracer, in_flight: InFlightRequests) -> None:
        self._tracer = tracer
        self._in_flight = in_flight
        self._sent: dict[Batch, tuple[Span, list[tuple[Request, Span]]]] = {}
        """Those with a traced request that are not over: their spans, and the requests'."""

    def sent(self, batch: Batch, meta: Meta) -> Meta:
        """The frame's meta, with the trace for the predictor where there is one."""
        traced = self._in_flight.traced
        if not traced:
            return meta
        riders = [
            (request, traced[request.id]) for request in batch.requests if request.id in traced
        ]
        if not riders:
            return meta
        (_, first), *_ = riders
        span = self._tracer.child(method_form("batch", batch.method), first.context)
        self._sent[batch] = span, riders
        return {**meta, "trace": span.context.headers()}

    def over(self, batch: Batch, now: float, error: str | None, worker: int | None = None) -> None:
        """It ran until `now`, in seconds of the dispatcher's clock.

        `error` is why it failed; `worker` the model process that answered, if any did.
        """
        found = self._sent.pop(batch, None)
        if found is None:
            return
        span, riders = found
        span.started = self._tracer.now() - round(1e9 * (now - batch.started))
        facts = batch_facts(batch)
        span.facts |= facts
        if worker is not None:
            span.facts["batchedapi.model_process"] = worker
        for request, of_request in riders:
            if request.id not in self._in_flight.by_id:  # its span is over, and not ours any more
                continue
            if _WAIT not in of_request.facts:  # else it is a rerun, and waited before
                of_request.facts[_WAIT] = batch.started - request.arrived
            of_request.facts |= facts
            if span.context not in of_request.links:
                of_request.links.append(span.context)
        span.links += dict.fromkeys(one.context for _, one in riders[:_MOST_LINKS])
        self._tracer.ends(span, error)

    def lost_ahead(self, pid: int) -> None:
        """What a process had not begun is gone with it: those requests are queued again."""
        gone = [
            batch for batch in self._sent if batch.started == math.inf and batch.lane.process == pid
        ]
        for batch in gone:
            del self._sent[batch]


def batch_facts(batch: Batch) -> Mapping[str, Any]:
    """Attributes that a batch and each of its requests have."""
    return {
        "batchedapi.batch.rows": batch.rows,
        "batchedapi.batch.requests": len(batch.requests),
        "batchedapi.batch.reason": batch.reason,
    }
