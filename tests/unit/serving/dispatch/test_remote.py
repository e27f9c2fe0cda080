"""Web processes that forward: one queue for all, and an answer for everybody, over real sockets."""

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from batchedapi_core.batching import Client, Receipts
from batchedapi_serving.codecs import (
    Answer,
    DecodedRequest,
    Receipt,
    RequestHead,
    Results,
    Wire,
    codec_for,
)
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.results import (
    ItemResults,
)
from batchedapi_serving.dispatch import remote
from batchedapi_serving.dispatch.engine import Caller, Reader, RequestHandle, ServedMethod
from batchedapi_serving.dispatch.engine_server import EngineServer
from batchedapi_serving.dispatch.remote import RemoteEngine, RemoteMethod
from batchedapi_serving.errors import (
    NoSuchRouteError,
    NotReadyError,
    QueueFullError,
    ServingError,
)
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import ReplicaSettings
from plain_settings import plain_settings

HEAD = RequestHead(b"application/json", b"", ())
RECEIPT = Receipt("b-1", 2, 2, 1, 0.001, 0.002, "size", "replica-0", 0)


def settings_in(runtime: str, **changes: object) -> ReplicaSettings:
    """Settings of a replica with two web processes."""
    values: dict[str, object] = {
        "name": "test", "endpoint": "/test", "web_processes": 2, "timeout": None,
        "max_concurrency": 100, "runtime": runtime,
    }  # fmt: skip
    return plain_settings(**{**values, **changes})


class Slip:
    """A request at the engine under test."""

    def __init__(self, decoded: DecodedRequest, client: Client, caller: Caller) -> None:
        self.decoded = decoded
        self.client = client
        self.caller = caller
        self.done = False

    def answer(self, receipt: Receipt | None = None) -> None:
        """Answer each row with itself."""
        items = ItemResults([Item(200, "json", row) for row in self.decoded.payload])
        self.done = True
        self.caller.deliver(self.decoded.reply.answer(items, 0, self.decoded.rows, receipt))

    def fail(self, error: ServingError) -> None:
        """Answer with an error."""
        self.done = True
        self.caller.deliver(self.decoded.reply.problem(error, self.caller.request_id()))


class FirstDesk:
    """The engine of the first web process, which answers when the test says so."""

    def __init__(self, settings: ReplicaSettings) -> None:
        spec = MethodSpec("predict", batched=True, max_batch_size=8)
        codec = codec_for(spec, settings.of_method("predict"), settings.name)
        self.methods: Mapping[str, MethodSpec] = {"predict": spec}
        self.default: str | None = "predict"
        self._line = RemoteMethod(spec, codec)
        self.slips: list[Slip] = []
        self.cancelled: list[Slip] = []
        self.told: list[int] = []
        """Of the cancelled ones, what is counted."""
        self.taken_items: list[int] = []
        self.gone: list[Client] = []
        self.refuse: ServingError | None = None
        self.on_submit: Callable[[Slip], None] = lambda _: None

    def served(self, method: str | None) -> ServedMethod:
        """See Engine."""
        if method not in {None, "predict"}:
            raise NoSuchRouteError(f"no {method}")
        return self._line

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> RequestHandle:
        """See Engine."""
        del served, timeout
        if self.refuse is not None:
            raise self.refuse
        slip = Slip(decoded, client, caller)
        self.slips.append(slip)
        self.on_submit(slip)
        return slip

    def cancel(self, handle: RequestHandle, status: int = 499) -> None:
        """See Engine."""
        assert isinstance(handle, Slip)
        handle.done = True
        self.told.append(status)
        self.cancelled.append(handle)

    def taken(self, handle: RequestHandle, items: int) -> None:
        """See Engine."""
        assert isinstance(handle, Slip)
        self.taken_items.append(items)

    def disconnected(self, client: Client) -> None:
        """See Engine."""
        self.gone.append(client)


class Waiting:
    """A client's connection, and how often it was answered."""

    def __init__(self) -> None:
        self.items: list[tuple[str, bytes]] = []
        self.answers: list[Answer] = []
        self.answered = asyncio.Event()
        self.span = None

    def item(self, kind: str, body: bytes) -> None:
        """See Reader."""
        self.items.append((kind, body))

    def deliver(self, answer: Answer) -> None:
        """See Caller."""
        self.answers.append(answer)
        self.answered.set()

    def request_id(self) -> str | None:
        """See Caller."""
        return "r-1"

    async def answer(self) -> Answer:
        """The answer, when it is there."""
        await asyncio.wait_for(self.answered.wait(), 60)
        (answer,) = self.answers
        return answer


class Replica:
    """A first web process, as far as its engine goes, and one further."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self.settings = settings
        self.engine = FirstDesk(settings)
        self.codes: list[int] = []
        self.known = asyncio.Event()
        self.remote = RemoteEngine(settings, self.known.set)
        self.server = EngineServer(self.engine, self.codes.append)
        self._listening: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen."""
        self.settings.engine_path.unlink(missing_ok=True)
        self._listening = await asyncio.get_running_loop().create_unix_server(
            self.server.protocol, str(self.settings.engine_path)
        )

    async def end(self) -> None:
        """The first web process ends at once."""
        if self._listening is not None:
            self._listening.close()
            for connection in list(self.server.connections):
                connection.transport.abort()
        await until(lambda: not self.server.connections)

    def ask(self, body: bytes, client: Client | None = None) -> tuple[Waiting, RequestHandle]:
        """A client's request at the further web process."""
        caller = Waiting()
        served = self.remote.served(None)
        decoded = served.codec.decode(Wire.PLAIN, HEAD, body)
        return caller, self.remote.submit(served, decoded, client or Client(), caller)

    def all_answered(self, handles: list[RequestHandle]) -> bool:
        """Answer what the first web process has been asked; some may still be on its way."""
        for slip in self.engine.slips:
            if not slip.done:
                slip.answer()
        return all(handle.done for handle in handles)


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that comes soon."""
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - of code under test that sets no event
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def replica(**changes: object) -> AsyncIterator[Replica]:
    """Both, connected."""
    with tempfile.TemporaryDirectory() as runtime:
        both = Replica(settings_in(runtime, **changes))
        await both.open()
        running = asyncio.create_task(both.remote.run())
        await asyncio.wait_for(both.known.wait(), 60)
        try:
            yield both
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await both.end()


async def test_a_forwarded_request_is_answered_as_its_client_asked() -> None:
    """N13, D05: decoded and encoded where the client is, batched where the queue is."""
    async with replica() as both:
        caller, handle = both.ask(b'{"instances": [{"a": 1}, 2]}')
        await until(lambda: bool(both.engine.slips))
        both.engine.slips[0].answer()

        answer = await caller.answer()

        assert (200, b'{"predictions":[{"a":1},2]}') == (answer.status, answer.body)
        assert handle.done
        assert 2 == both.engine.slips[0].decoded.rows


async def test_requests_of_all_web_processes_are_at_one_engine() -> None:
    """D18, N15: one queue, so that one batch holds rows of all."""
    async with replica() as both:
        second = RemoteEngine(both.settings, lambda: None)
        running = asyncio.create_task(second.run())
        await until(lambda: bool(second.methods))
        served = second.served("predict")
        caller = Waiting()

        second.submit(served, served.codec.decode(Wire.PLAIN, HEAD, b"1"), Client(), caller)
        both.ask(b"2")
        await until(lambda: len(both.engine.slips) == 2)

        assert [[b"1"], [b"2"]] == sorted(slip.decoded.payload for slip in both.engine.slips)
        running.cancel()


async def test_a_receipt_reaches_the_client() -> None:
    """F8: which batch a request rode in is known where the queue is."""
    async with replica(receipts=Receipts.ALL) as both:
        caller, _ = both.ask(b"1")
        await until(lambda: bool(both.engine.slips))
        both.engine.slips[0].answer(RECEIPT)

        answer = await caller.answer()

        assert (b"x-batchedapi-batch-id", b"b-1") in answer.headers


async def test_an_error_has_its_status_and_retry_after_and_the_clients_request_id() -> None:
    """B21: a client cannot tell which web process it is connected to."""
    async with replica() as both:
        caller, _ = both.ask(b"1")
        await until(lambda: bool(both.engine.slips))
        both.engine.slips[0].fail(QueueFullError("full", 7))

        answer = await caller.answer()

        assert (503, 7) == (answer.status, answer.retry_after)
        assert b'"request_id":"r-1"' in answer.body


async def test_a_refused_request_is_answered_and_counted_there() -> None:
    """Metrics have one writer: what the engine refuses and does not count itself, it is told."""
    async with replica() as both:
        both.engine.refuse = QueueFullError("full", 3)
        caller, _ = both.ask(b"1")

        answer = await caller.answer()

        assert (503, 3) == (answer.status, answer.retry_after)
        assert [503] == both.codes


async def test_an_answer_inside_submit_is_an_answer() -> None:
    """An engine may answer before submit returns: nothing may be left to cancel afterwards."""
    async with replica() as both:
        both.engine.on_submit = Slip.answer
        caller, _ = both.ask(b"1")

        assert 200 == (await caller.answer()).status
        await both.end()
        assert [] == both.engine.cancelled


async def test_errors_decided_here_are_counted_there() -> None:
    """Counts equal the clients', whichever web process answered 422."""
    async with replica() as both:
        both.remote.answered(422)
        both.remote.answered(404)

        await until(lambda: both.codes == [422, 404])


async def test_a_client_that_left_is_cancelled_and_forgotten_there() -> None:
    """Its rows are not run, and the queue does not wait for its return."""
    async with replica() as both:
        client = Client()
        caller, handle = both.ask(b"1", client)
        await until(lambda: bool(both.engine.slips))

        both.remote.cancel(handle)
        both.remote.cancel(handle)  # twice is harmless
        await until(lambda: bool(both.engine.gone))

        assert both.engine.slips == both.engine.cancelled
        assert [both.engine.slips[0].client] == both.engine.gone
        assert [] == caller.answers


async def test_who_was_answered_without_the_queue_is_cancelled_there_and_awaited() -> None:
    """It counts as what it was told, and its connection is there: it may return."""
    async with replica() as both:
        _, handle = both.ask(b"1")
        await until(lambda: bool(both.engine.slips))

        both.remote.cancel(handle, 503)
        await until(lambda: both.engine.told == [503])

        assert [] == both.engine.gone


async def test_a_client_that_returns_is_the_same_one_there() -> None:
    """The queue learns when clients return; each request with a new face would teach it nothing."""
    async with replica() as both:
        both.engine.on_submit = Slip.answer
        mine, other = Client(), Client()
        for client in (mine, other, mine):
            caller, _ = both.ask(b"1", client)
            await caller.answer()
        both.remote.disconnected(mine)
        both.remote.disconnected(mine)
        await until(lambda: bool(both.engine.gone))

        first, second, third = (slip.client for slip in both.engine.slips)
        assert first is third
        assert first is not second
        assert [first] == both.engine.gone


async def test_requests_outlive_the_process_with_the_queue() -> None:
    """S23: those that were there are handed to its replacement, and so are new ones."""
    async with replica() as both:
        before, _ = both.ask(b"1")
        left, handle = both.ask(b"2")
        await until(lambda: len(both.engine.slips) == 2)
        await both.end()
        after, _ = both.ask(b"3")
        both.remote.cancel(handle)
        both.engine.on_submit = Slip.answer

        await both.open()

        assert [b"1", b"3"] == [(await one.answer()).body for one in (before, after)]
        assert [] == left.answers


async def test_a_request_in_two_deaths_of_the_queue_is_not_tried_again() -> None:
    """It may be what the process dies of."""
    async with replica() as both:
        caller, handle = both.ask(b"1")
        await until(lambda: len(both.engine.slips) == 1)
        await both.end()
        await both.open()
        await until(lambda: len(both.engine.slips) == 2)
        await both.end()

        answer = await caller.answer()

        assert (503, True) == (answer.status, answer.retry_after >= 1)
        assert handle.done


async def test_who_cannot_wait_for_a_replacement_is_told_at_once() -> None:
    """503 with Retry-After now is of more use than 504 later."""
    async with replica(timeout=3.0) as both:
        caller, _ = both.ask(b"1")
        await until(lambda: bool(both.engine.slips))

        await both.end()

        assert 503 == (await caller.answer()).status
        with pytest.raises(NotReadyError):
            both.ask(b"2")


async def test_nobody_waits_for_ever_for_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that stops replaces nothing; what was told is counted once there is an engine."""
    monkeypatch.setattr(remote, "_HELD_SECONDS", 0.1)
    async with replica() as both:
        caller, _ = both.ask(b"1")
        await until(lambda: bool(both.engine.slips))
        await both.end()
        held, _ = both.ask(b"2")

        assert [503, 503] == [(await one.answer()).status for one in (caller, held)]
        with pytest.raises(NotReadyError):
            both.ask(b"3")
        both.remote.answered(503)  # as the web does for what is raised
        await both.open()
        await until(lambda: both.codes == [503] * 3)


async def test_when_a_web_process_dies_its_requests_are_not_run() -> None:
    """Nobody waits for them, and its clients are not awaited."""
    async with replica() as both:
        both.ask(b"1")
        both.ask(b"2")
        await until(lambda: len(both.engine.slips) == 2)

        await both.end()

        assert both.engine.slips == both.engine.cancelled
        assert {id(slip.client) for slip in both.engine.slips} == {id(c) for c in both.engine.gone}


async def test_the_last_web_process_to_go_ends_the_drain() -> None:
    """The process with the queue stops last: others still have answers to come."""
    async with replica() as both:
        drained = asyncio.create_task(both.server.drained())
        await asyncio.sleep(0.01)
        before = drained.done()

        await both.end()
        await asyncio.wait_for(drained, 60)

        assert not before


async def test_methods_are_told_once_they_are_known() -> None:
    """Web processes start before the model is loaded: 503 until then, and no restart needed."""
    with tempfile.TemporaryDirectory() as runtime:
        both = Replica(settings_in(runtime))
        methods, both.engine.methods = both.engine.methods, {}
        await both.open()
        running = asyncio.create_task(both.remote.run())
        await until(lambda: bool(both.server.connections))
        with pytest.raises(NotReadyError):
            both.remote.served(None)
        assert {} == both.remote.methods

        both.engine.methods = methods
        both.server.ready()
        await asyncio.wait_for(both.known.wait(), 60)

        assert methods == both.remote.methods
        assert "predict" == both.remote.default
        with pytest.raises(NoSuchRouteError, match="no method 'other'; there are predict"):
            both.remote.served("other")
        running.cancel()
        await both.end()


async def test_more_than_the_replica_takes_is_refused_without_being_copied() -> None:
    """B21: in an overload the connection to the queue must not become the queue."""
    async with replica(max_concurrency=2) as both:
        both.ask(b"1")
        both.ask(b"2")

        with pytest.raises(QueueFullError):
            both.ask(b"3")


@pytest.mark.parametrize("seed", range(5))
async def test_every_request_is_answered_exactly_once(seed: int) -> None:
    """Law: whatever the order of answers, departures and deaths of the process with the queue."""
    rng = random.Random(seed)
    async with replica() as both:
        asked: list[tuple[Waiting, RequestHandle]] = []
        left: set[int] = set()
        for step in range(150):
            match rng.choice(["ask", "ask", "ask", "answer", "leave", "rest", "die"]):
                case "ask":
                    with contextlib.suppress(ServingError):
                        asked.append(both.ask(b"%d" % step))
                case "answer":
                    waiting = [slip for slip in both.engine.slips if not slip.done]
                    if waiting:
                        rng.choice(waiting).answer()
                case "leave" if asked:
                    i = rng.randrange(len(asked))
                    if not asked[i][1].done:
                        left.add(i)
                    both.remote.cancel(asked[i][1])
                case "die" if rng.random() < 0.2:
                    await both.end()
                    both.known.clear()
                    await both.open()
                    await asyncio.wait_for(both.known.wait(), 60)
                case _:
                    await asyncio.sleep(0.001)

        await until(lambda: both.all_answered([handle for _, handle in asked]))

        counts = [len(caller.answers) for caller, _ in asked]
        assert [0 if i in left else 1 for i in range(len(asked))] == counts
        assert not both.remote._forwarded


async def test_a_tensor_goes_there_as_its_bytes(tmp_path: Path) -> None:
    """N14: many rows in one call are forwarded in one piece, however they were sent."""
    del tmp_path
    async with replica() as both:
        body = b'{"instances": [%b]}' % b",".join(b'"%04d"' % i for i in range(1000))
        caller, _ = both.ask(body)
        await until(lambda: bool(both.engine.slips))

        assert 1000 == both.engine.slips[0].decoded.rows
        assert b'"0999"' == both.engine.slips[0].decoded.payload[-1]
        both.engine.slips[0].answer()
        assert 200 == (await caller.answer()).status


def test_results_join() -> None:
    """The kind of Results used above is the one that dispatch joins and cuts."""
    results: Results = ItemResults([Item(200, "json", b"1")])

    assert ({"kind": "items", "items": [[200, "json", 1]]}, [b"1"]) == results.to_frame(0, 1)


async def test_a_stream_crosses_item_by_item_and_so_does_what_was_taken() -> None:
    """Its client's pace holds up the generator, wherever the connection is."""
    async with replica() as both:
        caller, handle = both.ask(b"1")
        await until(lambda: bool(both.engine.slips))
        slip = both.engine.slips[0]
        assert isinstance(slip.caller, Reader)
        slip.caller.item("json", b"1")
        slip.caller.item("text", b" a")
        await until(lambda: len(caller.items) == 2)
        both.remote.taken(handle, 2)
        await until(lambda: bool(both.engine.taken_items))
        slip.answer()

        assert 200 == (await caller.answer()).status
        assert [("json", b"1"), ("text", b" a")] == caller.items
        assert [2] == both.engine.taken_items


async def test_a_stream_that_began_ends_with_the_first_web_process() -> None:
    """Others are handed to the next one; its client would get the beginning twice."""
    async with replica() as both:
        begun, _ = both.ask(b"1")
        waiting, handle = both.ask(b"2")
        await until(lambda: len(both.engine.slips) == 2)
        streaming = both.engine.slips[0].caller
        assert isinstance(streaming, Reader)
        streaming.item("json", b"1")
        await until(lambda: bool(begun.items))

        await both.end()
        answer = await begun.answer()
        both.engine.slips.clear()
        await both.open()
        await until(lambda: both.all_answered([handle]))

        assert 503 == answer.status
        assert b"the process with the queue was restarted" in answer.body
        assert 200 == (await waiting.answer()).status
