"""Large bodies are taken apart in another process, and no client is forgotten there."""

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, DecodedRequest, RequestHead, Wire
from batchedapi_serving.codecs.open_inference_grpc import asked_of
from batchedapi_serving.codecs.open_inference_pb2 import ModelInferRequest
from batchedapi_serving.dispatch.engine import Caller, RequestHandle, ServedMethod
from batchedapi_serving.errors import (
    DeadlineExceededError,
    PredictorError,
    QueueFullError,
    ServingError,
)
from batchedapi_serving.ipc import FrameReader, Meta
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.web import large_bodies
from batchedapi_serving.web.large_bodies import CodecQueue, is_large, is_large_beside
from batchedapi_serving.web.large_request import LargeBody, next_of
from batchedapi_serving.web.limits import BodyBudget, HeldBodies

KIB = 1024
MIB = 1024 * KIB
PIXELS = MethodSpec("pixels", batched=True, inputs={"x": Tensor("UINT8", ["bytes"])})
ITEMS = MethodSpec("items", batched=True)
looptime = pytest.mark.looptime
RAW_HEADER = b"inference-header-content-length"


def head(content_type: str, described: int | None = None) -> RequestHead:
    """The head of a body whose first `described` bytes are JSON, if any are."""
    headers = [] if described is None else [(RAW_HEADER, b"%d" % described)]
    return RequestHead(content_type.encode(), b"", headers)


@pytest.mark.parametrize(
    ("method", "content_type", "described", "length", "expected"),
    [
        pytest.param(PIXELS, "application/json", None, 64 * KIB, False, id="JSON that is short"),
        pytest.param(PIXELS, "application/json", None, 64 * KIB + 1, True, id="JSON"),
        pytest.param(PIXELS, "application/msgpack", None, 16 * KIB + 1, True, id="msgpack"),
        pytest.param(PIXELS, "application/x-npy", None, 1024 * KIB, False, id="npy"),
        pytest.param(PIXELS, "application/x-npy", None, 1024 * KIB + 1, True, id="npy, long"),
        pytest.param(ITEMS, "application/x-npy", None, 16 * KIB + 1, True, id="npy to items"),
        pytest.param(PIXELS, "application/octet-stream", 200, 600 * KIB, False, id="raw"),
        pytest.param(PIXELS, "application/octet-stream", 200, 1024 * KIB + 1, True, id="raw, long"),
        pytest.param(PIXELS, "application/octet-stream", 17 * KIB, 90 * KIB, True, id="its head"),
        pytest.param(ITEMS, "application/octet-stream", 200, 17 * KIB, True, id="raw to items"),
        pytest.param(PIXELS, "application/octet-stream", 10**9, 17 * KIB, True, id="no such head"),
    ],
)
def test_a_body_is_large_by_what_of_it_is_parsed(
    method: MethodSpec, content_type: str, described: int | None, length: int, *, expected: bool
) -> None:
    """An image of 600 KiB of raw numbers takes less time than 64 KiB of JSON."""
    assert expected is is_large(method, head(content_type, described), bytes(length))


@pytest.mark.parametrize("datatype", [b"BYTES", b"\\u0042YTES"], ids=["plain", "escaped"])
def test_raw_texts_are_parsed(datatype: bytes) -> None:
    """Each of them becomes an object, however short it is."""
    text = b'{"inputs":[{"datatype":"%b"}]}' % datatype

    large = is_large(PIXELS, head("application/octet-stream", len(text)), text + bytes(17 * KIB))

    assert large


@pytest.mark.parametrize(("datatype", "expected"), [("UINT8", False), ("BYTES", True)])
def test_of_a_message_raw_tensors_are_not_parsed(datatype: str, *, expected: bool) -> None:
    """The same over gRPC, where what describes them may stand behind them."""
    message = ModelInferRequest(model_name="api", raw_input_contents=[bytes(300 * KIB)] * 2)
    message.inputs.add(name="x", datatype=datatype, shape=[2])
    body = message.SerializeToString()

    large = is_large_beside(PIXELS, len(body), asked_of(body).raw)

    assert expected is large


class Pipe:
    """The transport to a codec process that the test plays."""

    def __init__(self) -> None:
        self.sent: list[Meta] = []
        self.bodies: list[bytes] = []
        self.ended = asyncio.Event()
        self._reader = FrameReader()

    def write(self, data: bytes) -> None:
        """Frames, and bodies after those that announce them."""
        for meta, payload in self._reader.feed(data):
            self.sent.append(meta)
            self.bodies.append(payload)

    def abort(self) -> None:
        """It is ended."""
        self.ended.set()


class Codec:
    """A codec process without a process: it says what the test has it say, and lives until then."""

    def __init__(self) -> None:
        self.lives: list[Pipe] = []
        self.broken: Exception | None = None
        self.starts: list[float] = []
        self._user: CodecQueue

    async def live(self, user: CodecQueue, runtime: str) -> None:
        """See large_bodies.live."""
        del runtime
        self.starts.append(asyncio.get_running_loop().time())
        if self.broken is not None:
            raise self.broken
        self._user = user
        pipe = Pipe()
        self.lives.append(pipe)
        user.connected(pipe)
        try:
            await pipe.ended.wait()
        finally:
            user.lost()

    @property
    def pipe(self) -> Pipe:
        """To the newest."""
        return self.lives[-1]

    def says(self, meta: Meta, payload: bytes = b"") -> None:
        """Messages from the process; one that makes no sense ends it, as a transport would."""
        try:
            self._user.take(meta, payload)
        except Exception:  # noqa: BLE001 - as asyncio does with a protocol that raises
            self.pipe.abort()

    def decoded(self) -> None:
        """A row."""
        self.says({"rows": 1, "sizes": None, "shapes": None, "payload": 1}, b"7")

    def wrote(self, status: int = 200) -> None:
        """A response."""
        self.says({"status": status, "content_type": "text/plain", "retry_after": 0, "headers": []})


class Slip:
    """See RequestHandle."""

    def __init__(self, caller: Caller, timeout: float | None) -> None:
        self.caller = caller
        self.timeout = timeout
        self.done = False

    def answered(self) -> None:
        """With something that the codec process has to write."""
        self.done = True
        reply: Any = self.caller
        self.caller.deliver(reply.problem(PredictorError("raised"), None))


class Engine:
    """Has everything in it until the test says otherwise; see engine.Engine."""

    def __init__(self) -> None:
        self.methods = {"items": ITEMS}
        self.default = "items"
        self.slips: list[Slip] = []
        self.cancelled: list[tuple[Slip, int]] = []
        self.gone: list[Client] = []
        self.broken: Exception | None = None

    def served(self, method: str | None) -> Any:
        """See Engine."""
        return SimpleNamespace(spec=self.methods[method or "items"])

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> RequestHandle:
        """See Engine."""
        del served, decoded, client
        if self.broken is not None:
            raise self.broken
        self.slips.append(Slip(caller, timeout))
        return self.slips[-1]

    def cancel(self, handle: RequestHandle, status: int = 499) -> None:
        """See Engine."""
        assert isinstance(handle, Slip)
        handle.done = True
        self.cancelled.append((handle, status))

    def taken(self, handle: RequestHandle, items: int) -> None:
        """See Engine."""
        raise AssertionError((handle, items))

    def disconnected(self, client: Client) -> None:
        """See Engine."""
        self.gone.append(client)


class Caller:
    """A client with one request."""

    span = None

    def __init__(
        self,
        world: "World",
        body: bytes,
        timeout: float | None,
        held: HeldBodies | None = None,
        *,
        packed: bool = False,
    ) -> None:
        self.answers: list[tuple[float, int, str]] = []
        """When, and status and text."""
        self.client = Client()
        asked = LargeBody(
            world.engine.served(None), Wire.PLAIN, head("application/json"), body,
            self.client, self, timeout, self.problem_of, held, packed,
        )  # fmt: skip
        self.handle = world.large.submit(asked)

    @staticmethod
    def problem_of(error: ServingError) -> Answer:
        """Its text."""
        return Answer(error.status, b"", f"{error.code}: {error}".encode())

    def request_id(self) -> str | None:
        """See Caller."""
        return None

    def deliver(self, answer: Answer) -> None:
        """See Caller."""
        now = asyncio.get_running_loop().time()
        self.answers.append((round(now, 2), answer.status, answer.body.decode()))

    @property
    def answer(self) -> tuple[float, int]:
        """When, and which status; there is one answer."""
        ((at, status, _),) = self.answers
        return at, status


class World:
    """Large bodies of a replica, at a time that stands still while nobody sleeps."""

    def __init__(self, timeout: float | None = 30.0, max_concurrency: int = 100) -> None:
        settings: Any = SimpleNamespace(
            timeout=timeout, max_concurrency=max_concurrency, runtime="nowhere", max_body_bytes=MIB
        )
        self.engine = Engine()
        self.codec = Codec()
        self.codes: list[int] = []
        self.large = CodecQueue(settings, self.engine, self.codes.append, self.codec.live)

    def ask(self, length: int = 100, timeout: float | None = None) -> Caller:
        """A request arrives now."""
        return Caller(self, b"1" * length, timeout)

    def ask_packed(self, size: int, budget: BodyBudget) -> Caller:
        """The same of one that says that `size` bytes come of it."""
        held = HeldBodies(budget, "somebody")
        return Caller(self, size.to_bytes(4, "little"), None, held, packed=True)


@pytest.fixture
async def worlds() -> AsyncIterator[Callable[..., World]]:
    """Makes worlds, which end with the test."""
    made: list[World] = []

    def world(**settings: Any) -> World:
        made.append(World(**settings))
        return made[-1]

    yield world
    for each in made:
        await each.large.close()


WORLDS = Callable[..., World]


@looptime
@pytest.mark.parametrize(
    ("replica", "own", "expected"),
    [(30.0, None, 30.0), (30.0, 2.0, 2.0), (1.0, 2.0, 1.0), (None, 2.0, 2.0)],
)
async def test_whoever_waits_for_the_codec_process_waits_no_longer_than_its_timeout(
    worlds: WORLDS, replica: float | None, own: float | None, expected: float
) -> None:
    """Whether it is being taken apart or waits for that; its rows are not queued afterwards."""
    world = worlds(timeout=replica)
    active = world.ask(timeout=own)
    await asyncio.sleep(0.1)
    waiting = world.ask(timeout=own)
    await asyncio.sleep(29.8)

    if expected < 29:
        world.codec.decoded()
    await asyncio.sleep(2)

    assert [(expected, 504), (expected + 0.1, 504)] == [active.answer, waiting.answer]
    assert [504, 504] == world.codes
    assert [] == world.engine.slips
    whose = "as the request asked" if own == expected else "(overload.timeout)"
    assert active.answers[0][2] == f"deadline_exceeded: no answer within {expected:g} s {whose}"


@looptime
async def test_packed_bodies_wait_for_rows_of_others_to_be_answered(worlds: WORLDS) -> None:
    """Rows of many small packed bodies would take all memory; whoever sent them is not refused."""
    world, budget = worlds(), BodyBudget(MIB)
    rows = 600 * KIB
    world.large._most_unpacked = MIB
    packed = [world.ask_packed(rows, budget) for _ in range(2)]
    await asyncio.sleep(0.1)
    world.ask()
    world.codec.says({"rows": 1, "sizes": None, "shapes": None, "payload": rows}, bytes(rows))
    world.codec.decoded()
    held = budget.held
    await asyncio.sleep(1)
    first = [meta["packed"] for meta in world.codec.pipe.sent]
    world.engine.slips[0].answered()
    world.codec.wrote()

    assert ([True, False], rows) == (first, held)
    assert {"packed": True} == {k: v for k, v in world.codec.pipe.sent[-1].items() if k == "packed"}
    assert [[200], []] == [[status for _, status, _ in one.answers] for one in packed]


@looptime
async def test_rows_that_do_not_fit_are_refused(worlds: WORLDS) -> None:
    """Whoever says that less comes of a packed body than does takes no more than there is."""
    world, budget = worlds(), BodyBudget(MIB)
    world.ask_packed(10, budget)
    await asyncio.sleep(0.1)
    budget.held = budget.most - 1000
    world.codec.says({"rows": 1, "sizes": None, "shapes": None, "payload": 2000}, bytes(2000))

    assert ([], [503]) == (world.engine.slips, world.codes)
    assert "bodies_full" == world.codec.pipe.sent[-1]["error"]["code"]


@looptime
async def test_who_has_no_timeout_waits(worlds: WORLDS) -> None:
    """Where neither the replica nor the client has one, nothing is cut off but a step."""
    world = worlds(timeout=None)
    caller = world.ask()
    await asyncio.sleep(29)
    world.codec.decoded()
    await asyncio.sleep(1000)

    assert [] == caller.answers
    assert [None] == [slip.timeout for slip in world.engine.slips]


@looptime
async def test_the_desk_gets_what_is_left_of_the_time(worlds: WORLDS) -> None:
    """Not another whole timeout; and the error it ends with names the whole."""
    world = worlds(timeout=30.0)
    caller = world.ask()
    await asyncio.sleep(20)
    world.codec.decoded()
    (slip,) = world.engine.slips
    assert slip.timeout == pytest.approx(10, abs=0.01)

    reply: Any = slip.caller
    slip.done = True
    slip.caller.deliver(reply.problem(DeadlineExceededError("no answer within 10 s"), None))

    assert (
        "no answer within 30 s (overload.timeout)" == world.codec.pipe.sent[-1]["error"]["message"]
    )
    assert [] == caller.answers


@looptime
async def test_no_more_bodies_wait_than_requests_may_be_in_the_replica(worlds: WORLDS) -> None:
    """Whatever they do: wait, are taken apart, or are at the engine; who is answered is not."""
    world = worlds(max_concurrency=3)
    for _ in range(3):
        world.ask()
    await asyncio.sleep(0)
    world.codec.decoded()

    with pytest.raises(QueueFullError, match="3 requests are in this replica"):
        world.ask()

    world.engine.slips[0].answered()
    world.codec.decoded()
    world.codec.wrote()
    world.ask()


@looptime
async def test_at_the_end_whoever_waits_for_the_codec_process_is_told(worlds: WORLDS) -> None:
    """A request that is at the engine is answered there."""
    world = worlds()
    at_the_engine, active, waiting = [world.ask() for _ in range(3)]
    await asyncio.sleep(0)
    world.codec.decoded()

    world.large.abandon()
    world.codec.decoded()
    await asyncio.sleep(100)

    assert [(0.0, 503)] * 2 == [active.answer, waiting.answer]
    assert active.answers[0][2].startswith("draining")
    assert [503, 503] == world.codes
    assert [] == at_the_engine.answers
    assert 1 == len(world.engine.slips)


@looptime
async def test_with_the_codec_process_goes_everything_that_it_had(worlds: WORLDS) -> None:
    """Nobody waits for rows whose answer nobody can write; each is counted once."""
    world = worlds()
    answered, running, active, waiting = [world.ask() for _ in range(4)]
    await asyncio.sleep(0)
    world.codec.decoded()
    world.codec.decoded()
    world.engine.slips[0].answered()  # counted there; it waits to be written

    world.codec.pipe.abort()
    await asyncio.sleep(1)

    assert [(0.0, 503)] * 3 == [answered.answer, running.answer, active.answer]
    assert [(world.engine.slips[1], 503)] == world.engine.cancelled
    assert [503] == world.codes
    assert [] == waiting.answers
    assert 2 == len(world.codec.lives)


@looptime
@pytest.mark.parametrize("said", [
    {"rows": 1, "sizes": None, "shapes": None, "payload": 2},
    {"rows": 1},
    {"error": {}},
    {"status": 200},
])  # fmt: skip
async def test_what_makes_no_sense_leaves_nobody_waiting(
    worlds: WORLDS, said: dict[str, Any]
) -> None:
    """It ends the process, and so its requests."""
    world = worlds()
    caller = world.ask()
    await asyncio.sleep(0)

    world.codec.says(said, b"7")
    await asyncio.sleep(1)

    assert (0.0, 503) == caller.answer
    assert [503] == world.codes


@looptime
async def test_a_desk_that_fails_leaves_nobody_waiting(worlds: WORLDS) -> None:
    """A bug of ours is no error of the request's, and yet it is answered."""
    world = worlds()
    caller = world.ask()
    await asyncio.sleep(0)
    world.engine.broken = TypeError("not a line")

    world.codec.decoded()
    await asyncio.sleep(1)

    assert (0.0, 503) == caller.answer
    assert [503] == world.codes


@looptime
async def test_a_client_that_left_is_not_awaited(worlds: WORLDS) -> None:
    """Whatever was being done for it; what the engine has counted is not counted again."""
    world = worlds()
    callers = [world.ask() for _ in range(4)]
    await asyncio.sleep(0)
    world.codec.decoded()
    world.codec.decoded()
    written, running, active, waiting = callers
    world.engine.slips[0].answered()

    for caller in callers:
        world.large.cancel(caller.handle)
    world.codec.decoded()
    await asyncio.sleep(50)

    assert [written.client, active.client, waiting.client] == world.engine.gone
    assert [(world.engine.slips[1], 499)] == world.engine.cancelled
    assert [499, 499] == world.codes
    assert [] == [caller.answers for caller in callers if caller.answers]
    forgotten = [meta["forget"] for meta in world.codec.pipe.sent if "forget" in meta]
    assert [written.handle.number, running.handle.number, active.handle.number] == forgotten


@looptime
async def test_a_process_that_worked_dies_for_the_first_time_again(worlds: WORLDS) -> None:
    """Only deaths one after the other make the next start wait longer."""
    world = worlds(timeout=None)
    for _ in range(20):
        world.ask()
    for _ in range(6):
        await asyncio.sleep(0.2)
        world.codec.decoded()
        world.codec.pipe.abort()
    await asyncio.sleep(0.2)

    assert 7 == len(world.codec.lives)


@looptime
async def test_a_process_that_cannot_be_started_was_not_restarted(worlds: WORLDS) -> None:
    """The message tells what really happened."""
    world = worlds()
    world.codec.broken = OSError("no process left")
    caller = world.ask()
    await asyncio.sleep(1)

    assert (0.0, 503) == caller.answer
    assert "could not be started" in caller.answers[0][2]


async def test_a_process_that_cannot_be_spoken_with_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would live on, and nobody would know of it."""
    child = MagicMock(ended=AsyncMock(return_value=0))
    ours, theirs = MagicMock(), MagicMock()
    refuse = AsyncMock(side_effect=OSError("no descriptor left"))
    monkeypatch.setattr(large_bodies, "Child", lambda *_: child)
    monkeypatch.setattr(large_bodies.socket, "socketpair", lambda: (ours, theirs))

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "create_connection", refuse)
        with pytest.raises(OSError, match="no descriptor left"):
            await large_bodies.live(World().large, "nowhere")

    child.signal.assert_called_once_with(signal.SIGKILL)
    child.ended.assert_awaited_once()
    ours.close.assert_called_once()


KB, MB = 1000, 1000 * 1000


@pytest.mark.parametrize(
    ("lengths", "passed_over", "timeout", "expected"),
    [
        pytest.param([5], 0.0, 30.0, 0, id="the only one"),
        pytest.param([32 * MB, 70 * KB], 0.0, 30.0, 1, id="the smallest"),
        pytest.param([32 * MB, 70 * KB, 70 * KB], 0.0, 30.0, 1, id="the older of the smallest"),
        pytest.param([32 * MB, 70 * KB], 0.99, 30.0, 1, id="not yet"),
        pytest.param([32 * MB, 70 * KB], 1.0, 30.0, 0, id="the oldest, after a second"),
        pytest.param([32 * MB, 70 * KB], 0.5, 2.0, 0, id="after a quarter of its time"),
        pytest.param([32 * MB, 70 * KB], 0.49, 2.0, 1, id="before a quarter of its time"),
        pytest.param([32 * MB, 70 * KB], 1.0, math.inf, 0, id="without a timeout"),
    ],
)
def test_the_smallest_is_next_and_the_oldest_is_not_passed_over_for_long(
    lengths: list[int], passed_over: float, timeout: float, expected: int
) -> None:
    """The next body depends on the lengths and on how long the oldest was passed over."""
    assert expected == next_of(lengths, passed_over, timeout)


async def taken_apart(world: World, seconds: Callable[[int], float], until: float) -> None:
    """Play the process, which takes `seconds(length)` for each body."""
    loop = asyncio.get_running_loop()
    seen = 0
    while loop.time() < until:
        if len(world.codec.pipe.sent) == seen:
            await asyncio.sleep(0.01)
            continue
        length = len(world.codec.pipe.bodies[seen])
        seen += 1
        await asyncio.sleep(seconds(length))
        world.codec.decoded()


@looptime
async def test_large_bodies_of_one_client_do_not_hold_up_small_ones_of_others(
    worlds: WORLDS,
) -> None:
    """Each waits for one at most, however many were there before."""
    world = worlds(timeout=None)
    for _ in range(8):
        world.ask(length=320 * KB)  # a second each
    await asyncio.sleep(0)
    work = asyncio.create_task(taken_apart(world, lambda n: n / (320 * KB), 20))
    waits = []
    for _ in range(5):
        await asyncio.sleep(1.3)
        asked, before = asyncio.get_running_loop().time(), len(world.engine.slips)
        small = world.ask(length=KB)
        while not small.handle.handle:  # noqa: ASYNC110 - the engine here has no event
            await asyncio.sleep(0.01)
        waits.append(asyncio.get_running_loop().time() - asked)
        assert len(world.engine.slips) <= before + 2

    assert max(waits) < 1.1
    await work
    assert 13 == len(world.engine.slips)


@looptime
async def test_small_bodies_do_not_pass_a_large_one_for_long(worlds: WORLDS) -> None:
    """However many of them come: it has its turn after a second."""
    world = worlds(timeout=None)
    world.ask(length=KB)
    large = world.ask(length=320 * KB)
    await asyncio.sleep(0)
    work = asyncio.create_task(taken_apart(world, lambda _: 0.1, 3))
    for _ in range(20):
        world.ask(length=KB)

    await work

    at = [len(body) for body in world.codec.pipe.bodies].index(320 * KB)
    assert 9 < at < 14
    assert large.handle.handle is not None
