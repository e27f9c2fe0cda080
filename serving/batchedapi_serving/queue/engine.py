"""The engine of a web process whose queue is shared: requests are handed in, answers come back.

Each request is answered exactly once: by a worker, at its deadline, or with 503 when the queue
cannot be reached for too long. Until then its entry is held here, so that it can be handed in again
if the queue was lost, or its answer with a connection. An answer to a request that is held no more
is dropped: it was run twice.
"""

import asyncio
import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from batchedapi_core.batching import Client, Request
from batchedapi_core.contract import MAX_METHODS
from batchedapi_core.shared_queue import (
    LOOK_SECONDS,
    HeldRow,
    RowsARequest,
    Worker,
    admits,
    again,
    expected_seconds,
    signature_in_use,
)
from batchedapi_serving.codecs import Codec, DecodedRequest, codec_for
from batchedapi_serving.dispatch.engine import (
    CLIENT_LEFT,
    STOPPED,
    Caller,
    MethodTable,
    RequestHandle,
    ServedMethod,
)
from batchedapi_serving.dispatch.messages import learn
from batchedapi_serving.dispatch.requests import Clock, Deadlines, InFlightRequest, InFlightRequests
from batchedapi_serving.errors import (
    DeadlineExceededError,
    DrainingError,
    LateError,
    NotReadyError,
    QueueFullError,
    ServingError,
)
from batchedapi_serving.metrics.recorder import MethodRecorder, Recorder
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.queue.broker import (
    Broker,
    BrokerDownError,
    BrokerFullError,
    BrokerLook,
    Depth,
)
from batchedapi_serving.queue.entries import (
    Methods,
    WrittenAnswer,
    read_answers,
    together,
    write_entry,
)
from batchedapi_serving.queue.fields import UNREADABLE, UnreadableError
from batchedapi_serving.queue.line import Line
from batchedapi_serving.queue.unreadable import Unreadable
from batchedapi_serving.settings import ReplicaSettings, Role

log = logging.getLogger(__name__)

_HELD_SECONDS: Final = 5.0
"""Requests wait so long for a queue that is away, as for a web process that is replaced."""
_WAIT_SECONDS: Final = 2.0
"""One question for answers waits so long."""
_AT_ONCE: Final = 256
"""Requests handed in with one command line to Redis, which does nothing else meanwhile."""
_REPLACED_LOOKS: Final = 6
"""Looks in a row at rows that no worker can run, while others run: 1.8 s."""
_SAYS: Final = b"web"
_UNREACHABLE: Final = (
    "the queue (serverSideBatching.queue) cannot be reached; try again in a moment"
)
"""Without the reason: names and rights in Redis are not for every client."""
_LOST: Final = "the queue was lost, and nothing is run twice (onItemError: FailBatch); try again"
_REPLACED: Final = "the model was replaced by another before this was run; try again"
_NOT_UNDERSTOOD: Final = "the worker's answer was not understood; it may be of another release"
_NO_MEMORY: Final = "Redis has no memory left (its maxmemory); give it more, or lower maxLength"


class QueueMethod:
    """A method whose requests wait in one stream; see ServedMethod and requests.Queue."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        spec: MethodSpec,
        codec: Codec,
        recorder: MethodRecorder,
        stream: str,
        target: float | None,
        held: "HeldRequests",
    ) -> None:
        self.spec = spec
        self.codec: Codec = codec
        self.recorder = recorder
        self.stream: Final = stream
        self.target: Final = target
        """Seconds; None: nobody is refused for being late."""
        self.scheduler = held


class HeldRequest(InFlightRequest):
    """A request with its entry, until it is answered."""

    __slots__ = ("entry", "place", "sent", "stream")

    entry: bytes
    stream: str
    place: str | None
    """In the queue, once Redis has said it."""
    sent: bool
    """It was handed in, or perhaps was."""


class HeldRequests:
    """Requests that are not answered, and which of them are to go into the queue or out of it."""

    def __init__(self) -> None:
        self.by_number: dict[int, HeldRequest] = {}
        self.outbox: list[HeldRequest] = []
        """To be handed in, the oldest first."""
        self.over: list[tuple[str, str]] = []
        """(stream, place) of requests to be taken out of the queue."""
        self.kick: Final = asyncio.Event()
        """There is something to be told to Redis."""

    def add(self, held: HeldRequest) -> None:
        """It was admitted."""
        self.by_number[held.request.id] = held
        self.outbox.append(held)
        self.kick.set()

    def again(self, numbers: Iterable[int]) -> None:
        """These alone are to be handed in, as if they never had been."""
        self.outbox = [self.by_number[number] for number in numbers]
        for held in self.outbox:
            held.place, held.sent = None, False
        self.kick.set()

    def next_together(self) -> list[HeldRequest]:
        """The requests that are handed in next with one command; empty: there are none."""
        first = self.outbox[:_AT_ONCE]
        first = first[: together(len(one.entry) for one in first)]
        del self.outbox[: len(first)]
        return first

    def outbox_by_stream(self) -> Counter[str]:
        """How many are to be handed in to each stream."""
        return Counter(one.stream for one in self.outbox)

    def lost(self, depths: Mapping[str, Depth]) -> bool:
        """Whether requests were in a stream that is there no more."""
        gone = {name for name, depth in depths.items() if not depth.exists and not depth.length}
        return any(one.place is not None and one.stream in gone for one in self.by_number.values())

    def cancel(self, request: Request) -> int:
        """See requests.Cancels. A request that a worker has taken is run all the same."""
        held = self.by_number.pop(request.id)
        if held.place is not None:
            self.withdraw(held.stream, held.place)
        return request.rows

    def withdraw(self, stream: str, place: str) -> None:
        """Take a request out of the queue."""
        self.over.append((stream, place))
        self.kick.set()


class Hold:
    """Requests wait for a queue that is away, but not for too long."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        """`give_up` is called once it has been away for too long."""
        self.given_up: Final = asyncio.Event()
        """Requests are refused."""
        self.facts: Mapping[str, int] = {}
        """How many were handed in again as it came back, for the log."""
        self._give_up = give_up
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """It is away, perhaps since before."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_HELD_SECONDS, self._over)

    def _over(self) -> None:
        self.given_up.set()
        self._give_up()

    def end(self) -> Mapping[str, int] | None:
        """It is there again; the facts, if it was away."""
        self.given_up.clear()
        if self._timer is None:
            return None
        self._timer.cancel()
        self._timer = None
        return self.facts


class StreamLengths:
    """Requests in each stream, as far as is known, with those that are to be handed in.

    A look that began while something was handed in may be older than the lengths that Redis told
    as it took it, and is not believed.
    """

    def __init__(self) -> None:
        self.rows: Final = RowsARequest()
        self._lengths: dict[str, int] = {}
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()

    def of(self, stream: str) -> int:
        """The requests in a stream."""
        return self._lengths.get(stream, 0)

    def waiting_rows(self, requests: int) -> int:
        """About as many rows as so many requests have."""
        return round(requests * self.rows.mean)

    def came(self, stream: str, rows: int) -> None:
        """One more, of so many rows."""
        self.rows.learn(rows)
        self._lengths[stream] = self.of(stream) + 1

    def left(self, stream: str) -> None:
        """One less."""
        self._lengths[stream] = max(0, self.of(stream) - 1)

    def handing_in(self, streams: Iterable[str]) -> None:
        """Requests are on their way to these streams."""
        self._begun.update(streams)

    def handed_in(self, streams: Iterable[str]) -> None:
        """They are there, or lost."""
        self._ended.update(streams)

    def told(self, lengths: Mapping[str, int], outbox: Counter[str]) -> None:
        """Take the lengths that Redis said as it took requests; the outbox came since."""
        self._lengths |= {stream: length + outbox[stream] for stream, length in lengths.items()}

    def mark(self) -> Mapping[str, int]:
        """The present, for `looked`."""
        return self._ended.copy()

    def looked(
        self, mark: Mapping[str, int], lengths: Mapping[str, int], outbox: Counter[str]
    ) -> None:
        """Take the lengths that a look found which began at `mark`."""
        self._lengths = {
            stream: length + outbox[stream]
            if self._begun[stream] == mark.get(stream, 0)
            else self.of(stream)
            for stream, length in lengths.items()
        }


class Offered:
    """The methods that workers offer, and which of them are served."""

    def __init__(self, settings: ReplicaSettings, unreadable: Unreadable) -> None:
        self._settings = settings
        self._unreadable = unreadable
        self.workers: Sequence[Worker] = ()
        """The workers that live."""
        self.counted: Final[dict[str, MethodSpec]] = {}
        """Every method that was ever served, in the order of their blocks in the metrics."""
        self._known: dict[str, Methods] = {}
        self._signature: str | None = None
        self._homeless_looks = 0

    async def choose(self, look: BrokerLook, broker: Broker) -> Methods | None:
        """The methods that are served from now on; None: the same as before."""
        self.workers = list(self._unreadable.workers(look.workers).values())
        published: dict[str, tuple[str, float]] = {}
        alive = {worker.signature for worker in self.workers}
        if not alive or alive - self._known.keys():
            found = self._unreadable.methods(await broker.published())
            for revision, (methods, at) in found.items():
                self._known[methods.signature] = methods
                published[revision] = (methods.signature, at)
        if self._settings.role is Role.REPLICA:  # its own worker starts beside it, and will say
            published = {}
        revision = self._settings.revision
        chosen = signature_in_use(self.workers, revision, published, self._signature)
        if chosen is None or chosen == self._signature or chosen not in self._known:
            return None
        self._signature = chosen
        for spec in self._known[chosen].specs:
            if spec.name in self.counted or len(self.counted) < MAX_METHODS:
                self.counted[spec.name] = spec
        return self._known[chosen]

    def homeless(self, held: Iterable[HeldRequest]) -> list[HeldRequest]:
        """Requests of methods that no worker has any more, while there are workers.

        They will never run, unless a worker lives of which nobody can read what it has.
        """
        alive = {worker.signature for worker in self.workers}
        homeless = [one for one in held if _signature_of(one.stream) not in alive]
        never = bool(alive and homeless and not self._unreadable.workers_unread)
        self._homeless_looks = self._homeless_looks + 1 if never else 0
        return homeless if self._homeless_looks >= _REPLACED_LOOKS else []


def _signature_of(stream: str) -> str:
    return stream.split(":", 1)[0]


class QueueEngine(MethodTable[QueueMethod]):
    """See Engine. Runs on one event loop."""

    def __init__(  # noqa: PLR0917 - the parts of a web process, put together in one place
        self,
        settings: ReplicaSettings,
        broker: Broker,
        recorder: Recorder,
        loop: asyncio.AbstractEventLoop,
        ready: Callable[[Sequence[MethodSpec], str | None], None],
        now: Callable[[], float] = time.monotonic,
        *,
        unreachable: str = _UNREACHABLE,
    ) -> None:
        """`ready` is told when other methods are served: all that ever were, and the default.

        `unreachable` is what who asks is told where Redis cannot be used; {why} is the reason.
        """
        super().__init__()
        unreadable = Unreadable(recorder.unreadable)
        self.hold: Final = Hold(self._give_up)
        self.line: Final = Line(uuid.uuid4().hex, broker, unreadable, self.hold.begin)
        self._settings = settings
        self._recorder = recorder
        self._ready = ready
        self._now = now
        self._held = HeldRequests()
        self._in_flight = InFlightRequests(settings.timeout or math.inf)
        self._deadlines = Deadlines(Clock(loop, now), self._in_flight, list, lambda _: None)
        self._clients: dict[Client, int] = {}
        self._unreachable = unreachable
        self._lengths = StreamLengths()
        self._offered = Offered(settings, unreadable)

    # ------------------------------------------------------------ the engine

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> RequestHandle:
        """See Engine.

        Raises:
            TooLargeError: its rows are too many bytes for the queue.
            NotReadyError: the queue was not reached for too long.
            QueueFullError: it has no room, in length or in memory.
        """
        if not isinstance(served, QueueMethod):
            raise TypeError(f"expected a method of this engine, got {type(served).__name__}")
        now, in_flight, rows = self._now(), self._in_flight, decoded.rows
        served.recorder.received(rows)
        self._check_admission(served, rows)
        hurried = timeout is not None and timeout < in_flight.timeout
        seconds = timeout if timeout is not None and hurried else in_flight.timeout
        number = next(in_flight.ids)
        known = self._clients.setdefault(client, number)
        left = None if seconds == math.inf else seconds
        entry = write_entry(self.line.name, number, known, left, decoded, span=caller.span)
        request = Request(number, served.spec.name, rows, rows, client, now, now + seconds)
        held = HeldRequest(served, request, decoded._replace(payload=None), caller, hurried=hurried)
        held.entry, held.stream, held.place, held.sent = entry, served.stream, None, False
        in_flight.add(held)
        if request.deadline < self._deadlines.at:
            self._deadlines.look_at(request.deadline, now)
        self._lengths.came(served.stream, rows)
        self._held.add(held)
        return held

    def _check_admission(self, served: QueueMethod, rows: int) -> None:
        """Refuse a request of so many rows that cannot be taken, and count it.

        Raises:
            OverloadedError: one of those that `submit` names.
        """
        try:
            self._admit(served, rows)
        except ServingError as error:
            late = isinstance(error, LateError)
            served.recorder.rejected("latency" if late else "queue_full", rows)
            raise

    def _admit(self, served: QueueMethod, rows: int) -> None:
        limit, queue = self._settings.max_concurrency, self._settings.queue
        if len(self._in_flight.by_id) >= limit:
            raise QueueFullError.of_replica(limit)
        if self.hold.given_up.is_set():
            raise self.refusal()
        length = self._lengths.of(served.stream)
        waiting = self._lengths.waiting_rows(length)
        if queue is not None and length >= queue.max_length:
            raise QueueFullError(
                f"{length} requests are in the queue (serverSideBatching.queue.redis.maxLength)",
                self._expected(served, waiting),
            )
        if served.target is not None:
            expected = self._expected(served, waiting + rows)
            if not admits(served.target, expected, waiting):
                raise LateError.expected(expected)

    def _expected(self, served: QueueMethod, rows: int) -> float:
        signature = _signature_of(served.stream)
        return expected_seconds(self._offered.workers, served.spec.name, signature, rows)

    def cancel(self, handle: RequestHandle, status: int = CLIENT_LEFT) -> None:
        """See Engine."""
        if isinstance(handle, HeldRequest) and not handle.done:
            self._in_flight.left(handle, status)
            if status == CLIENT_LEFT:
                self.disconnected(handle.request.client)

    def taken(self, handle: RequestHandle, items: int) -> None:
        """See Engine. No worker starts with a method that streams."""

    def disconnected(self, client: Client) -> None:
        """See Engine."""
        self._clients.pop(client, None)

    def abandon(self) -> None:
        """The time to stop is over: answer 503 to whoever is still waiting."""
        self._fail_all(DrainingError(STOPPED), "draining")

    def _fail_all(self, error: ServingError, rejected: str) -> None:
        for held in list(self._held.by_number.values()):
            self._in_flight.fail(held, error, self._now(), rejected)

    # ------------------------------------------------------------ the connection

    async def run(self) -> None:
        """Hand in, and take answers, until cancelled."""
        await self.line.keep(self._connect, self._push, self._receive, self._look)

    async def close(self) -> None:
        """Whoever waits has been answered: nothing is kept for this process."""
        self.hold.end()
        await self.line.leave()

    def _give_up(self) -> None:
        log.error("requests are refused", extra={"error": str(self.line.why)})
        self._fail_all(self.refusal(), "queue_full")

    def refusal(self) -> ServingError:
        """The error for who asks while the queue cannot be used."""
        if isinstance(self.line.why, BrokerFullError):
            return QueueFullError(_NO_MEMORY)
        return NotReadyError(self._unreachable.format(why=self.line.why))

    async def _connect(self) -> None:
        """Put right what happened while there was no connection."""
        broker, held = self.line.broker, self._held.by_number
        await broker.sign(self.line.name, _SAYS)
        placed = [(one.stream, one.place) for one in held.values() if one.place is not None]
        # Also where Redis lived on: answers that it gave to the connection before may be lost.
        # Asked before the answers are fetched: a row leaves the queue as its answer is written.
        there = await broker.there(placed)
        while packs := await broker.answers(self.line.name, 0.0):
            self._take_packs(packs)
        kept = [HeldRow(number, one.sent, one.place) for number, one in held.items()]
        verdict = again(kept, there, runs_again=self._settings.runs_again)
        for number in verdict.refuse:
            self._in_flight.fail(held[number], NotReadyError(_LOST), self._now(), "queue_full")
        self._held.again(verdict.hand_in)
        self.hold.facts = {"handed_in_again": len(verdict.hand_in), "refused": len(verdict.refuse)}

    async def _push(self) -> None:
        """Hand in what came while the last was under way."""
        held = self._held
        while True:
            await held.kick.wait()
            held.kick.clear()
            while first := held.next_together():
                await self._hand_in([one for one in first if not one.done])
            if held.over:
                over, held.over = held.over, []
                await self.line.broker.withdraw(over)

    async def _hand_in(self, held: Sequence[HeldRequest]) -> None:
        if not held:
            return
        for one in held:
            one.sent = True
        streams = {one.stream for one in held}
        self._lengths.handing_in(streams)
        try:
            told = await self.line.broker.hand_in([(one.stream, one.entry) for one in held])
        finally:
            self._lengths.handed_in(streams)
        self._lengths.told(told.lengths, self._held.outbox_by_stream())
        for one, place in zip(held, told.places, strict=True):
            one.place = place
            if place is None:
                self._in_flight.fail(one, QueueFullError(_NO_MEMORY), self._now(), "queue_full")
            elif one.done:
                self._held.withdraw(one.stream, place)
        if not self._offered.workers:
            streams = {served.stream for served in self._served.values()}
            self._update_gauges({stream: (self._lengths.of(stream), 0.0) for stream in streams})

    async def _receive(self) -> None:
        while True:
            self._take_packs(await self.line.broker.answers(self.line.name, _WAIT_SECONDS))

    def _take_packs(self, packs: Iterable[bytes]) -> None:
        for pack in packs:
            answers, broken = read_answers(pack)
            if broken:
                self.line.unreadable.came("an answer that does not say of what", broken)
            for answer in answers:
                self._take_answer(answer)

    def _take_answer(self, given: WrittenAnswer) -> None:
        held = self._held.by_number.get(given.number)
        if held is None:  # its client left, it was answered, or somebody ran it twice
            return
        now = self._now()
        self._lengths.left(held.stream)
        if given.unread:
            self.line.unreadable.came(f"an answer whose {', '.join(given.unread)} cannot be read")
        held.place = None  # its worker has taken it out of the queue
        learn(held.caller.span, given.trace)
        try:
            rows = held.request.rows
            results = given.results(held.queue.codec, rows)
            answer = held.reply.answer(results, 0, rows, given.receipt)
        except DeadlineExceededError:
            self._in_flight.expire(held, now)
        except ServingError as error:
            self._in_flight.fail(held, error, now)
        except UNREADABLE as error:
            known = isinstance(error, UnreadableError)
            self.line.unreadable.came(
                str(error) if known else "an answer with another text than JSON"
            )
            self._in_flight.fail(held, ServingError(_NOT_UNDERSTOOD), now)
        else:
            del self._held.by_number[held.request.id]
            self._in_flight.answer([(held, answer)], now)

    # ------------------------------------------------------------ who lives, and what waits

    async def _look(self) -> None:
        while True:
            await self._look_once()
            await asyncio.sleep(LOOK_SECONDS)
            self.line.is_reached()
            handed_in_again = self.hold.end()
            if handed_in_again is not None:
                log.warning("the queue is reached again", extra=handed_in_again)

    async def _look_once(self) -> None:
        broker, held = self.line.broker, self._held.by_number
        if not await broker.sign(self.line.name, _SAYS):
            raise BrokerDownError("this process was taken for dead")
        streams = {served.stream for served in self._served.values()}
        streams |= {one.stream for one in held.values()}
        mark = self._lengths.mark()
        look = await broker.look(streams)
        lengths = {stream: depth.length for stream, depth in look.depths.items()}
        self._lengths.looked(mark, lengths, self._held.outbox_by_stream())
        methods = await self._offered.choose(look, broker)
        if methods is not None:
            self._serve(methods)
        self._update_gauges(
            {
                stream: (depth.requests, 0.0 if depth.oldest is None else look.time - depth.oldest)
                for stream, depth in look.depths.items()
            }
        )
        if self._held.lost(look.depths):
            raise BrokerDownError("the queue was emptied")
        for one in self._offered.homeless(held.values()):
            self._in_flight.fail(one, NotReadyError(_REPLACED), self._now(), "queue_full")

    def _serve(self, methods: Methods) -> None:
        counted, settings = self._offered.counted, self._settings
        places = {name: place for place, name in enumerate(counted)}
        self._served = {}
        for spec in methods.specs:
            own = settings.of_method(spec.name)
            self._served[spec.name] = QueueMethod(
                spec,
                codec_for(spec, own, settings.name, settings.receipts),
                self._recorder.method(places.get(spec.name, 0)),
                methods.stream(spec.name),
                own.batching.max_latency,
                self._held,
            )
        self._default = methods.default
        facts = {"signature": methods.signature, "methods": list(self._served)}
        log.info("methods", extra=facts)
        self._recorder.ready()
        self._ready(list(counted.values()), methods.default)

    def _update_gauges(self, waiting: Mapping[str, tuple[int, float]]) -> None:
        """`waiting`: by stream, requests that no worker has taken, and seconds of the first."""
        in_flight = self._in_flight.by_queue()
        for served in self._served.values():
            requests, seconds = waiting.get(served.stream, (0, 0.0))
            rows = self._lengths.waiting_rows(requests)
            served.recorder.queued(requests, rows, max(0.0, seconds), in_flight[served])
