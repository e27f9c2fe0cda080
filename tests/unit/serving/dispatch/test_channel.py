"""The dispatcher's end of a channel: calls, and what predictors submit, over a real socket."""

import asyncio
import contextlib
import math
import random
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from batchedapi_core.batching import Batch, Client, Request
from batchedapi_serving.codecs import DecodedRequest, codec_for
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.results import (
    ItemResults,
)
from batchedapi_serving.dispatch.channel import ModelChannel
from batchedapi_serving.dispatch.engine import Caller, RequestHandle, ServedMethod
from batchedapi_serving.dispatch.executor import Runner
from batchedapi_serving.dispatch.remote import RemoteMethod
from batchedapi_serving.errors import NoSuchRouteError, QueueFullError, ServingError
from batchedapi_serving.ipc import (
    BrokenFrameError,
    Frame,
    FrameReader,
    Meta,
    encode_frame,
)
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.settings import BatchingSettings, MethodSettings

NOW = 1000.0
PAIR = Tensor("FP32", [2])
SPECS = {
    "items": MethodSpec("items", batched=True, max_batch_size=8),
    "pairs": MethodSpec(
        "pairs", batched=True, inputs={"input": PAIR}, single_input=True, max_batch_size=8
    ),
}


def line_of(spec: MethodSpec) -> ServedMethod:
    """As an engine has it."""
    settings = MethodSettings(spec.name, None, None, BatchingSettings())
    return RemoteMethod(spec, codec_for(spec, settings, "api"))


class Slip:
    """A request at the engine."""

    def __init__(
        self, decoded: DecodedRequest, client: Client, caller: Caller, timeout: float | None
    ) -> None:
        self.decoded = decoded
        self.client = client
        self.caller = caller
        self.timeout = timeout
        self.done = False

    def answer(self) -> None:
        """Answer each row with its number."""
        items = [Item(200, "json", b"%d" % i) for i in range(self.decoded.rows)]
        self.done = True
        reply = self.decoded.reply
        self.caller.deliver(reply.answer(ItemResults(items), 0, self.decoded.rows, None))


class Owner:
    """The dispatcher, as far as a channel needs one: it answers when the test says so."""

    def __init__(self) -> None:
        self.methods: Mapping[str, MethodSpec] = SPECS
        self.default: str | None = None
        self.slips: list[Slip] = []
        self.cancelled: list[RequestHandle] = []
        self.gone: list[Client] = []
        self.finished: list[tuple[Batch, Meta, bytes]] = []
        self.callers: dict[int, Caller | None] = {}
        self.refuse: ServingError | None = None

    def served(self, method: str | None) -> ServedMethod:
        """See Engine."""
        if method not in SPECS:
            raise NoSuchRouteError(f"there is no method {method!r}")
        return line_of(SPECS[method])

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> RequestHandle:
        """See Engine."""
        del served
        if self.refuse is not None:
            raise self.refuse
        self.slips.append(Slip(decoded, client, caller, timeout))
        return self.slips[-1]

    def cancel(self, handle: RequestHandle, status: int = 499) -> None:
        """See Engine."""
        assert status == 499
        assert isinstance(handle, Slip)
        handle.done = True
        self.cancelled.append(handle)

    def taken(self, handle: RequestHandle, items: int) -> None:
        """See Engine."""
        raise AssertionError((handle, items))

    def disconnected(self, client: Client) -> None:
        """See Engine."""
        self.gone.append(client)

    def run_finished(self, runner: Runner, batch: Batch, meta: Meta, payload: bytes) -> None:
        """See Done."""
        assert (runner.worker_index, runner.pid) == (3, 77)
        self.finished.append((batch, meta, payload))

    def caller_of(self, request: Request) -> Caller | None:
        """The asker of a request of a call."""
        return self.callers[request.id]


class Ends:
    """A channel and the socket of the model process at its other end."""

    def __init__(
        self,
        owner: Owner,
        channel: ModelChannel,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.owner = owner
        self.channel = channel
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._read: list[Frame] = []

    async def frame(self) -> Frame:
        """The next frame that the model process gets."""
        while not self._read:
            data = await asyncio.wait_for(self._reader.read(1 << 16), 60)
            assert data, "the channel was closed"
            self._read += self._frames.feed(data)
        return self._read.pop(0)

    async def quiet(self) -> bool:
        """Whether nothing more comes."""
        with contextlib.suppress(TimeoutError):
            self._read += self._frames.feed(
                await asyncio.wait_for(self._reader.read(1 << 16), 0.05)
            )
        return not self._read

    def say(self, meta: Meta, payload: Sequence[bytes] = ()) -> None:
        """A frame of the model process, as Lane passes it on."""
        (frame,) = FrameReader().feed(encode_frame(meta, payload))
        self.channel.received(*frame)

    def submit(self, number: int, call: int | None = None, **meta: Any) -> None:
        """A predictor submits; JSON rows unless `meta` says otherwise."""
        frame = {"submit": number, "call": call, "method": "items", **meta}
        self.say(frame, [orjson.dumps([1, 2])] if "arrays" not in meta else [])


@contextlib.asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    """Both ends of a channel."""
    ours, theirs = socket.socketpair()
    loop, owner = asyncio.get_running_loop(), Owner()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    channel = ModelChannel(
        owner, owner.caller_of, transport, {"worker_index": 3, "pid": 77}, clock=lambda: NOW
    )
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        yield Ends(owner, channel, reader, writer)
    finally:
        channel.closed()
        transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that comes soon."""
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - of code under test that sets no event
            await asyncio.sleep(0.01)


def started(
    both: Ends, *callers: Caller | None, method: str = "outer", deadline: float = math.inf
) -> Batch:
    """A call of `method` that runs now, with one row of each caller."""
    requests = []
    for caller in callers or (None,):
        number = len(both.owner.callers)
        both.owner.callers[number] = caller
        requests.append(Request(number, method, 1, 1, Client(), NOW, deadline))
    batch = Batch(method, requests, "full")
    both.channel.run(batch, {"method": method, "rows": batch.rows}, [b"x"], both.owner.run_finished)
    return batch


async def test_results_go_to_the_call_they_are_of() -> None:
    """N09: calls end in any order; each batch gets its own."""
    async with ends() as both:
        batches = [started(both) for _ in range(3)]
        calls = [(await both.frame()).meta for _ in batches]
        for i in (1, 2, 0):
            both.say({"result": calls[i]["call"], "kind": "items", "items": []}, [b"%d" % i])

        assert [batches[i] for i in (1, 2, 0)] == [batch for batch, _, _ in both.owner.finished]
        assert [b"1", b"2", b"0"] == [payload for _, _, payload in both.owner.finished]
        assert {"outer"} == {meta["method"] for meta in calls}


@pytest.mark.parametrize(
    "meta", [{"result": 99}, {"result": "1"}, {}, {"submit": 1}], ids=["unknown", "text", "no", "?"]
)
async def test_a_frame_that_means_nothing_breaks_the_connection(meta: Meta) -> None:
    """A result nobody asked for means that both sides disagree about what runs."""
    async with ends() as both:
        with pytest.raises(BrokenFrameError):
            both.say(meta)


async def test_submitted_rows_are_a_request_like_any_other() -> None:
    """N28: JSON items or arrays, checked by the codec of their method."""
    async with ends() as both:
        pairs = np.array([[1, 2], [3, 4]], "<f4")
        both.submit(1)
        both.say(
            {
                "submit": 2, "call": None, "method": "pairs",
                "arrays": [["input", "<f4", [2, 2]]],
            },
            [pairs.tobytes()],
        )  # fmt: skip

        first, second = both.owner.slips
        assert (2, [b"1", b"2"]) == (first.decoded.rows, first.decoded.payload)
        assert (2, pairs.tobytes()) == (second.decoded.rows, second.decoded.payload)
        second.answer()
        frame = await both.frame()
        assert (2, "items", b"01") == (frame.meta["submitted"], frame.meta["kind"], frame.payload)


@pytest.mark.parametrize(
    ("refuse", "meta", "status", "words"),
    [
        (None, {"method": "absent"}, 404, "absent"),
        (None, {"method": "pairs"}, 422, "rows[0]"),
        (QueueFullError("full"), {}, 503, "full"),
    ],
    ids=["no method", "wrong rows", "full"],
)
async def test_a_refused_submit_is_answered_with_the_reason(
    refuse: ServingError | None, meta: Meta, status: int, words: str
) -> None:
    """The predictor gets the reason that a client would get, and decides what to do."""
    async with ends() as both:
        both.owner.refuse = refuse
        both.submit(5, **meta)

        answer = (await both.frame()).meta

        assert (5, "error", status) == (answer["submitted"], answer["kind"], answer["status"])
        assert words in answer["error"]


async def test_methods_that_would_wait_in_a_circle_are_refused() -> None:
    """Through any number of queues: who waits for a call is known from the rows in it."""
    async with ends() as both:
        started(both)
        outer = (await both.frame()).meta["call"]
        both.submit(1, outer)
        (slip,) = both.owner.slips
        started(both, None, slip.caller, method="items")  # runs it with somebody else's row
        inner = (await both.frame()).meta["call"]
        both.submit(2, inner, method="outer")

        answer = (await both.frame()).meta

        assert 422 == answer["status"]
        assert "outer -> items -> outer" in answer["error"]


async def test_a_submit_has_the_time_that_its_caller_has_left() -> None:
    """Rows that come too late for whoever waits are not worth running."""
    async with ends() as both:
        started(both, deadline=NOW + 7)
        started(both)
        timed, untimed = [(await both.frame()).meta["call"] for _ in range(2)]
        for number, call in enumerate((timed, untimed, None)):
            both.submit(number, call)

        assert [7.0, None, None] == [slip.timeout for slip in both.owner.slips]


async def test_a_call_is_cancelled_when_all_its_clients_are_gone() -> None:
    """And not before: one of two left is one who waits."""
    async with ends() as both:
        one, two = started(both, None, None).requests
        call = (await both.frame()).meta["call"]
        one.cancelled = True
        await asyncio.sleep(0.4)
        assert await both.quiet()

        two.cancelled = True
        frame = await both.frame()
        both.say({"result": call, "kind": "error", "error": "was cancelled"})

        assert {"cancel": call} == frame.meta
        assert 1 == len(both.owner.finished)
        await asyncio.sleep(0.4)
        assert await both.quiet()


async def test_what_a_cancelled_call_submitted_is_cancelled() -> None:
    """The rows leave the queue, and nobody is told."""
    async with ends() as both:
        both.submit(1)
        both.submit(2)
        both.say({"forget": 1})
        both.say({"forget": 1})

        assert [both.owner.slips[0]] == both.owner.cancelled


async def test_when_the_process_is_gone_so_is_what_it_submitted() -> None:
    """S1: its rows are not run for nobody, and its return is not awaited."""
    async with ends() as both:
        both.submit(1)
        both.submit(2)
        both.owner.slips[1].answer()
        both.channel.closed()

        assert [both.owner.slips[0]] == both.owner.cancelled
        assert {both.owner.slips[0].client} == set(both.owner.gone)


async def test_a_predictor_that_asks_again_and_again_is_one_client() -> None:
    """The queue learns when it returns, as it does of a connection."""
    async with ends() as both:
        for number in range(3):
            both.submit(number)
            both.owner.slips[-1].answer()

        assert 1 == len({id(slip.client) for slip in both.owner.slips})


@pytest.mark.parametrize("seed", range(5))
async def test_every_submit_is_answered_exactly_once(seed: int) -> None:
    """Law: answered, refused or forgotten, in any order, no number is answered twice or never."""
    rng = random.Random(seed)
    async with ends() as both:
        owner, forgotten, expected = both.owner, set[int](), set[int]()
        slips: dict[int, Slip] = {}
        for number in range(100):
            method = rng.choice(["items", "items", "absent"])
            before = len(owner.slips)
            both.submit(number, method=method)
            expected.add(number)
            if len(owner.slips) > before:
                slips[number] = owner.slips[-1]
            waiting = [n for n, slip in slips.items() if not slip.done]
            if waiting and rng.random() < 0.6:
                chosen = rng.choice(waiting)
                if rng.random() < 0.3:
                    forgotten.add(chosen)
                    both.say({"forget": chosen})
                else:
                    slips[chosen].answer()
        for slip in owner.slips:
            if not slip.done:
                slip.answer()

        answered = [(await both.frame()).meta["submitted"] for _ in expected - forgotten]

        assert sorted(expected - forgotten) == sorted(answered)
        assert await both.quiet()
        assert not both.channel._handles
