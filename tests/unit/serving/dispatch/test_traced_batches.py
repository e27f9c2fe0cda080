"""Spans of batches, and what requests learn of those they rode in; time is virtual."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.predictor.api import TRACE_HEADERS
from batchedapi_serving.tracing.spans import QUEUE_WAIT, Span, Tracer
from dispatching import DiedError, World, echo

pytestmark = pytest.mark.looptime

CALL = MethodSpec("predict", batched=False, is_async=True)
STREAM = MethodSpec("predict", batched=False, is_async=True, streams=True)
SYNC = MethodSpec("embed", batched=True, max_batch_size=4)


class Traced:
    """A tracer in virtual time, and the spans that are over."""

    def __init__(self) -> None:
        self.over: list[tuple[Span, str | None]] = []
        loop = asyncio.get_running_loop()
        self.tracer = Tracer(
            1.0, self, source=random.Random(1), now=lambda: round(1e9 * loop.time())
        )

    def __call__(self, span: Span) -> None:
        """See Finished."""
        self.over.append((span, span.error))
        assert span.ended == self.tracer.now()

    def request(self) -> Span:
        """One that came just now."""
        span = self.tracer.begins(b"", b"")
        assert span is not None
        return span

    @property
    def batches(self) -> list[Span]:
        """Spans of the batches that are over."""
        return [span for span, _ in self.over]


async def test_a_batch_is_a_child_of_the_first_traced_request_and_linked_with_all() -> None:
    """One tree to look at, and each request leads to what ran it."""
    traced = Traced()
    world = World(tracer=traced.tracer, max_batch_size=4, seconds=lambda _: 0.5)
    first, second = traced.request(), traced.request()

    world.ask(0)  # it runs alone, and the others wait for it
    await asyncio.sleep(0.1)
    for value, span in ((1, None), (2, first), (3, second), (4, None)):
        world.ask(value, span=span)
    await asyncio.sleep(2)

    ((batch, error),) = traced.over
    assert ("batch predict", None) == (batch.name, error)
    assert (first.context.trace_id, first.context.span_id) == (
        batch.context.trace_id, batch.parent_id,
    )  # fmt: skip
    assert [first.context, second.context] == batch.links
    assert [[batch.context], [batch.context]] == [first.links, second.links]
    facts = {
        "batchedapi.batch.rows": 4, "batchedapi.batch.requests": 4,
        "batchedapi.batch.reason": "full",
    }  # fmt: skip
    assert (
        facts | {"batchedapi.method": "predict", "batchedapi.model_process": 0} == batch.attributes
    )
    for span in (first, second):
        learned = dict(span.attributes)
        assert pytest.approx(0.4, abs=0.1) == learned.pop(QUEUE_WAIT)
        assert facts == learned
    assert pytest.approx(0.5e9, abs=1e8) == batch.started


async def test_batches_without_a_traced_request_have_no_span() -> None:
    """Nor does their frame carry a trace."""
    traced = Traced()
    world = World(tracer=traced.tracer)
    world.ask(1)
    await asyncio.sleep(1)

    assert [] == traced.over


async def test_the_predictor_is_told_the_trace_of_its_batch() -> None:
    """So that what it asks of other services goes on in the same trace."""
    traced = Traced()
    seen: list[Any] = []

    async def call(payload: Any, _query: object, _headers: object) -> Any:
        return payload

    world = World(methods=[(CALL, call)], tracer=traced.tracer)
    world.began = lambda meta, _payload: seen.append(meta.get("trace"))  # type: ignore[method-assign]
    world.ask(1, span=traced.request())
    world.ask(2)
    await asyncio.sleep(1)

    (batch,) = traced.batches
    assert [batch.context.headers(), None] == seen
    assert None is TRACE_HEADERS.get()


async def test_a_stream_is_a_batch_whose_span_ends_with_it() -> None:
    """With what went wrong, and not before its last item."""
    traced = Traced()

    async def stream(payload: Any, *_: Any) -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(1)
        if payload == "wrong":
            raise ValueError

    world = World(methods=[(STREAM, stream)], tracer=traced.tracer)
    for payload in ("right", "wrong"):
        world.ask(payload, span=traced.request())
    await asyncio.sleep(0.5)
    early = list(traced.over)
    await asyncio.sleep(1)

    assert [] == early
    assert {None, "raised ValueError"} == {error for _, error in traced.over}
    assert len(traced.over) == 2


async def test_an_oversize_request_is_linked_to_every_batch_it_rode_in() -> None:
    """Its parts run apart; it waited until the first of them ran."""
    traced = Traced()
    world = World(tracer=traced.tracer, max_batch_size=2)
    span = traced.request()

    world.ask_rows([1, 2, 3, 4, 5], span=span)
    await asyncio.sleep(1)

    assert 3 == len(traced.batches)
    assert {batch.context for batch in traced.batches} == set(span.links)
    assert pytest.approx(0.0, abs=1e-3) == span.attributes[QUEUE_WAIT]


async def test_two_parts_in_one_batch_are_linked_with_it_once() -> None:
    """Rows of one shape that stood apart in the request: they are parts, and run together."""
    traced = Traced()
    world = World(tracer=traced.tracer, max_batch_size=8)
    span = traced.request()

    world.ask_rows([1, 2, 3], shapes=[(3,), (5,), (3,)], span=span)
    await asyncio.sleep(1)

    assert [2, 1] == sorted(
        (batch.attributes["batchedapi.batch.rows"] for batch in traced.batches), reverse=True
    )
    assert [[span.context]] * 2 == [batch.links for batch in traced.batches]
    assert {batch.context for batch in traced.batches} == set(span.links)
    assert 2 == len(span.links)


async def test_a_failed_batch_says_why_and_what_ran_again_has_spans_of_its_own() -> None:
    """Halves of a batch are batches; the culprit's request is linked to each that it was in."""
    traced = Traced()

    def fails_on_two(items: list[Any]) -> list[Any]:
        if 2 in items:
            raise ValueError("two")
        return items

    world = World(fails_on_two, tracer=traced.tracer, max_batch_size=4)
    world.ask(0)
    culprit = traced.request()
    for value in (1, 2, 3, 4):
        world.ask(value, span=culprit if value == 2 else None)
    await asyncio.sleep(1)

    errors = [error for _, error in traced.over]
    assert len(errors) == len(culprit.links) > 1
    assert {"raised ValueError"} == set(errors)
    for span in (traced.batches[-1], culprit):
        assert "retry" == span.attributes["batchedapi.batch.reason"]
        assert 1 == span.attributes["batchedapi.batch.rows"]


async def test_nothing_is_kept_of_traced_requests_that_are_over() -> None:
    """Answered, refused by the model, late, or left by their client; with a timeout or without."""
    traced = Traced()

    def fails_on_none(items: list[Any]) -> list[Any]:
        if None in items:
            raise ValueError("none")
        return items

    world = World(fails_on_none, tracer=traced.tracer, max_batch_size=2, seconds=lambda _: 0.5)
    kept = world.dispatcher._in_flight.by_id
    for value, timeout in ((1, None), (2, 10.0), (3, 0.1), (None, None), (4, None), (5, 20.0)):
        asked = world.ask(value, timeout=timeout, span=traced.request())
        if value in {4, 5}:
            world.cancel(asked)
    meanwhile = len(kept)
    await asyncio.sleep(5)

    (executor,) = world.dispatcher.executors
    assert executor._traced is not None
    assert (4, {}, {}) == (meanwhile, kept, executor._traced._sent)


async def test_a_batch_whose_process_died_has_a_span_and_runs_again_in_another() -> None:
    """The death is seen in the trace, and so is that nobody had to know of it."""
    traced = Traced()
    times = iter((True, False))

    def dies_once(items: list[Any]) -> list[Any]:
        if next(times):
            raise DiedError
        return items

    world = World(dies_once, tracer=traced.tracer)
    span = traced.request()
    asked = world.ask(1, span=span)
    await asyncio.sleep(3)

    assert 200 == asked.status
    assert ["died on this input", None] == [error for _, error in traced.over]
    assert [batch.context for batch in traced.batches] == span.links


async def test_a_batch_that_never_began_has_no_span() -> None:
    """It was ahead on a lane whose process died; its requests ride in another."""
    traced = Traced()
    times = iter((True, False, False, False))

    def dies_once(items: list[Any]) -> list[Any]:
        if next(times):
            raise DiedError
        return items

    world = World(dies_once, tracer=traced.tracer, max_batch_size=2, seconds=lambda _: 0.5)
    first = world.ask(1)
    await asyncio.sleep(0.1)
    span = traced.request()
    ahead = [world.ask(value, span=span if value == 2 else None) for value in (2, 3)]
    await asyncio.sleep(5)

    assert {200} == {one.status for one in (first, *ahead)}
    (batch,) = traced.batches
    assert [batch.context] == span.links
    assert {} == world.dispatcher.served(None).executor._traced._sent


async def test_submitted_rows_have_a_span_under_the_call_that_waits_for_them() -> None:
    """Request, call, rows, batch: the whole of a composition in one trace."""
    traced = Traced()

    async def composed(payload: Any, _query: object, _headers: object) -> Any:
        (channel,) = (process.channel for process in world.processes)
        (number,) = channel.calls
        channel._say({"submit": 1, "call": number, "method": "embed"}, [b"[1]"])
        return payload

    world = World(methods=[(CALL, composed), (SYNC, echo)], tracer=traced.tracer)
    channel = world.processes[0].channel
    taken = channel.write
    channel.write = lambda data: None if b"submitted" in data else taken(data)
    request = traced.request()
    world.ask(1, span=request)
    await asyncio.sleep(1)

    by_name = {span.name: span for span in traced.batches}
    assert {"batch predict", "submit embed", "batch embed"} == set(by_name)
    call, rows, batch = (by_name[name] for name in ("batch predict", "submit embed", "batch embed"))
    assert request.context.span_id == call.parent_id
    assert call.context.span_id == rows.parent_id
    assert rows.context.span_id == batch.parent_id
    assert [batch.context] == rows.links
