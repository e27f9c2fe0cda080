"""The engine of a web process whose queue is shared: requests are handed in, answers come back.

Each request is answered exactly once: by a worker, at its deadline, or with 503 when the queue
cannot be reached for too long. Until then its entry is held here, so that it can be handed in again
if the queue was lost, or its answer with a connection. An answer to a request that is held no more
is dropped: it was run twice.
"""

import asyncio
import itertools
import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from batchedapi_core.batching import Client, ItemErrorPolicy, Request
from batchedapi_core.contract import MAX_METHODS
from batchedapi_core.shared_queue import (
    LOOK_SECONDS,
    Again,
    Kept,
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
from batchedapi_serving.processes import Backoff, first_of
from batchedapi_serving.queue.broker import (
    Broker,
    BrokerDownError,
    BrokerFullError,
    BrokerUnfitError,
    Depth,
    QueueSpoiltError,
)
from batchedapi_serving.queue.entries import (
    Methods,
    WrittenAnswer,
    read_answers,
    together,
    write_entry,
)
from batchedapi_serving.queue.fields import UNREADABLE, UnreadableError
from batchedapi_serving.queue.unreadable import Unreadable
from batchedapi_serving.settings import ReplicaSettings, Role

log = logging.getLogger(__name__)

_HELD_SECONDS: Final = 5.0
"""That requests wait for a queue that cannot be reached, as for a web process that is replaced."""
_WAIT_SECONDS: Final = 2.0
"""That one question for answers waits."""
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
        recalls: "Recalls",
    ) -> None:
        self.spec = spec
        self.codec: Codec = codec
        self.recorder = recorder
        self.stream: Final = stream
        self.target: Final = target
        """Seconds; None: nobody is refused for being late."""
        self.scheduler = recalls


class HeldRequest(InFlightRequest):
    """A request with its entry, until it is answered."""

    __slots__ = ("entry", "place", "sent")

    entry: bytes
    place: str | None
    """In the queue, once Redis has said it."""
    sent: bool
    """It was handed in, or perhaps was."""


class Recalls:
    """Requests that are held, and those of them that nobody waits for any more."""

    def __init__(self, kick: Callable[[], None]) -> None:
        self.held: dict[int, HeldRequest] = {}
        self.over: list[tuple[str, str]] = []
        """(stream, place) of requests to be taken out of the queue."""
        self._kick = kick

    def cancel(self, request: Request) -> int:
        """See requests.Cancels. What a worker has taken is run all the same."""
        held = self.held.pop(request.id)
        if held.place is not None:
            self.withdraw(held, held.place)
        return request.rows

    def withdraw(self, held: HeldRequest, place: str) -> None:
        """Take it out of the queue."""
        queue = held.queue
        if isinstance(queue, QueueMethod):
            self.over.append((queue.stream, place))
            self._kick()


class HandInClock:
    """Counts when requests were handed in to each stream: a look that began before is older."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()

    def begun(self, streams: Iterable[str]) -> None:
        """Requests are on their way to these streams."""
        self._begun.update(streams)

    def ended(self, streams: Iterable[str]) -> None:
        """The requests are there, or lost."""
        self._ended.update(streams)

    def mark(self) -> Mapping[str, int]:
        """The present, for `none_since`."""
        return self._ended.copy()

    def none_since(self, mark: Mapping[str, int], stream: str) -> bool:
        """Whether nothing was on its way to a stream at `mark`, or since then."""
        return self._begun[stream] == mark.get(stream, 0)


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
        self.web: Final = uuid.uuid4().hex
        self._settings = settings
        self._broker = broker
        self._recorder = recorder
        self._unreadable = Unreadable(recorder.unreadable)
        self._loop = loop
        self._ready = ready
        self._now = now
        self._runs_again = settings.item_errors is ItemErrorPolicy.ISOLATE
        self._kick = asyncio.Event()
        self._recalls = Recalls(self._kick.set)
        self._in_flight = InFlightRequests(settings.timeout or math.inf)
        clock = Clock(loop, now)
        self._deadlines = Deadlines(clock, self._in_flight, list, _Nobody())
        self._ids = itertools.count(1)
        self._clients: dict[Client, int] = {}
        self._outbox: list[HeldRequest] = []
        self._unreachable = unreachable
        self.given_up: Final = asyncio.Event()
        """Requests are refused: the queue was not reached for too long."""
        self._hold: asyncio.TimerHandle | None = None
        self._why: Exception | None = None
        """That the queue cannot be used, while it cannot."""
        self.reached = False
        """Redis is connected to, whatever it allows."""
        self._backoff = Backoff()
        self._verdict = Again((), ())
        """On what was held as it was last connected to."""
        self._known: dict[str, Methods] = {}
        self._signature: str | None = None
        self._counted: dict[str, MethodSpec] = {}
        """Every method that was ever served, in the order of their blocks in the metrics."""
        self._workers: Sequence[Worker] = ()
        self._lengths: dict[str, int] = {}
        """Requests in each stream, as far as is known, with those that are to be handed in."""
        self._hand_ins = HandInClock()
        self._rows = RowsARequest()
        self._homeless = 0

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
        number = next(self._ids)
        known = self._clients.setdefault(client, number)
        left = None if seconds == math.inf else seconds
        entry = write_entry(self.web, number, known, left, decoded, span=caller.span)
        request = Request(number, served.spec.name, rows, rows, client, now, now + seconds)
        held = HeldRequest(served, request, decoded._replace(payload=None), caller, hurried=hurried)
        held.entry, held.place, held.sent = entry, None, False
        in_flight.add(held)
        if request.deadline < self._deadlines.at:
            self._deadlines.look_at(request.deadline, now)
        self._recalls.held[number] = held
        self._rows.learn(rows)
        self._lengths[served.stream] = self._lengths.get(served.stream, 0) + 1
        self._outbox.append(held)
        self._kick.set()
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
        if self.given_up.is_set():
            raise self.refusal()
        length = self._lengths.get(served.stream, 0)
        waiting = round(length * self._rows.mean)
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
        signature = served.stream.split(":", 1)[0]
        return expected_seconds(self._workers, served.spec.name, signature, rows)

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
        for held in list(self._recalls.held.values()):
            self._in_flight.fail(held, error, self._now(), rejected)

    # ------------------------------------------------------------ the connection

    async def run(self) -> None:
        """Hand in, and take answers, until cancelled."""
        while True:
            try:
                await self._connect()
                await first_of(self._push(), self._receive(), self._look())
            except (BrokerDownError, BrokerUnfitError) as error:
                if isinstance(error, QueueSpoiltError):
                    self._unreadable.came(str(error))
                if str(error) != str(self._why):
                    log.warning("the queue cannot be reached", extra={"error": str(error)})
                self._why, self.reached = error, False
                if self._hold is None:
                    self._hold = self._loop.call_later(_HELD_SECONDS, self._give_up)
            await asyncio.sleep(min(1.0, self._backoff.take()))

    async def close(self) -> None:
        """Whoever waits has been answered: nothing is kept for this process."""
        if self._hold is not None:
            self._hold.cancel()
        if self.reached:  # else nothing is kept, or it ends by itself
            try:
                await self._broker.gone(self.web)
            except BrokerDownError as error:
                log.debug("left without a word", extra={"error": str(error)})
        await self._broker.close()

    def _give_up(self) -> None:
        self.given_up.set()
        log.error("requests are refused", extra={"error": str(self._why)})
        self._fail_all(self.refusal(), "queue_full")

    @property
    def unusable(self) -> bool:
        """It failed when it was last tried; `refusal` says why."""
        return self._why is not None

    def refusal(self) -> ServingError:
        """What is told to who asks, once it is unusable."""
        if isinstance(self._why, BrokerFullError):
            return QueueFullError(_NO_MEMORY)
        return NotReadyError(self._unreachable.format(why=self._why))

    async def _connect(self) -> None:
        """Connect, and put right what happened meanwhile."""
        await self._broker.connect()
        self.reached = True
        await self._broker.sign(self.web, _SAYS)
        held = self._recalls.held
        placed = [
            (one.queue.stream, one.place)
            for one in held.values()
            if one.place is not None and isinstance(one.queue, QueueMethod)
        ]
        # Also where Redis lived on: answers that it gave to the connection before may be lost.
        # Asked before the answers are fetched: a row leaves the queue as its answer is written.
        there = await self._broker.there(placed)
        while packs := await self._broker.answers(self.web, 0.0):
            self._take_packs(packs)
        kept = [Kept(number, one.sent, one.place) for number, one in held.items()]
        self._verdict = again(kept, there, runs_again=self._runs_again)
        for number in self._verdict.refuse:
            self._in_flight.fail(held[number], NotReadyError(_LOST), self._now(), "queue_full")
        self._outbox = [held[number] for number in self._verdict.hand_in]
        for one in self._outbox:
            one.place, one.sent = None, False
        self._kick.set()

    async def _push(self) -> None:
        """Hand in what came while the last was under way."""
        while True:
            await self._kick.wait()
            self._kick.clear()
            while self._outbox:
                first = self._outbox[:_AT_ONCE]
                first = first[: together(len(one.entry) for one in first)]
                del self._outbox[: len(first)]
                held = [one for one in first if not one.done]
                await self._hand_in(held)
            if self._recalls.over:
                over, self._recalls.over = self._recalls.over, []
                await self._broker.withdraw(over)

    async def _hand_in(self, held: Sequence[HeldRequest]) -> None:
        rows = []
        for one in held:
            one.sent = True
            if isinstance(one.queue, QueueMethod):
                rows.append((one.queue.stream, one.entry))
        if not rows:
            return
        streams = {stream for stream, _ in rows}
        self._hand_ins.begun(streams)
        try:
            told = await self._broker.hand_in(rows)
        finally:
            self._hand_ins.ended(streams)
        self._lengths |= self._with_outbox(told.lengths)
        for one, place in zip(held, told.places, strict=True):
            one.place = place
            if place is None:
                self._in_flight.fail(one, QueueFullError(_NO_MEMORY), self._now(), "queue_full")
            elif one.done:
                self._recalls.withdraw(one, place)
        if not self._workers:
            self._update_gauges(
                {stream: Depth(length, None, length, exists=True)
                 for stream, length in self._lengths.items()},
                0.0,
            )  # fmt: skip

    def _with_outbox(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """What Redis says, and what came since."""
        waiting = Counter(
            one.queue.stream for one in self._outbox if isinstance(one.queue, QueueMethod)
        )
        return {stream: length + waiting[stream] for stream, length in lengths.items()}

    async def _receive(self) -> None:
        while True:
            self._take_packs(await self._broker.answers(self.web, _WAIT_SECONDS))

    def _take_packs(self, packs: Iterable[bytes]) -> None:
        for pack in packs:
            answers, broken = read_answers(pack)
            if broken:
                self._unreadable.came("an answer that does not say of what", broken)
            for answer in answers:
                self._take_answer(answer)

    def _take_answer(self, given: WrittenAnswer) -> None:
        held = self._recalls.held.get(given.number)
        if held is None:  # its client left, it was answered, or somebody ran it twice
            return
        queue, now, answer = held.queue, self._now(), None
        if isinstance(queue, QueueMethod):
            self._lengths[queue.stream] = max(0, self._lengths.get(queue.stream, 0) - 1)
        if given.unread:
            self._unreadable.came(f"an answer whose {', '.join(given.unread)} cannot be read")
        learn(held.caller.span, given.trace)
        try:
            rows = held.request.rows
            results = given.results(held.queue.codec, rows)
            answer = held.reply.answer(results, 0, rows, given.receipt)
        except DeadlineExceededError:
            self._recalls_nothing(held)
            self._in_flight.expire(held, now)
        except ServingError as error:
            self._recalls_nothing(held)
            self._in_flight.fail(held, error, now)
        except UNREADABLE as error:
            known = isinstance(error, UnreadableError)
            self._unreadable.came(str(error) if known else "an answer with another text than JSON")
            self._recalls_nothing(held)
            self._in_flight.fail(held, ServingError(_NOT_UNDERSTOOD), now)
        else:
            del self._recalls.held[held.request.id]
            self._in_flight.answer([(held, answer)], now)

    @staticmethod
    def _recalls_nothing(held: HeldRequest) -> None:
        """Its worker has taken it out of the queue."""
        held.place = None

    # ------------------------------------------------------------ who lives, and what waits

    async def _look(self) -> None:
        while True:
            if not await self._broker.sign(self.web, _SAYS):
                raise BrokerDownError("this process was taken for dead")
            streams = {served.stream for served in self._served.values()}
            streams |= {
                one.queue.stream
                for one in self._recalls.held.values()
                if isinstance(one.queue, QueueMethod)
            }
            mark = self._hand_ins.mark()
            look = await self._broker.look(streams)
            # Of streams to which something was handed in since then, the look may be older than
            # what Redis said as it took it.
            told = self._with_outbox({name: depth.length for name, depth in look.depths.items()})
            for stream in look.depths:
                if not self._hand_ins.none_since(mark, stream):
                    told[stream] = self._lengths.get(stream, 0)
            self._lengths = told
            self._workers = list(self._unreadable.workers(look.workers).values())
            await self._choose()
            self._update_gauges(look.depths, look.time)
            depths = look.depths.items()
            gone = {name for name, depth in depths if not depth.exists and not depth.length}
            if gone and any(
                one.place is not None
                and isinstance(one.queue, QueueMethod)
                and one.queue.stream in gone
                for one in self._recalls.held.values()
            ):
                raise BrokerDownError("the queue was emptied")
            self._refuse_homeless()
            await asyncio.sleep(LOOK_SECONDS)
            # It is reached, and not only connected to: each right has been used.
            if self._hold is not None:
                self._hold.cancel()
                self._hold = None
                handed_in, refused = len(self._verdict.hand_in), len(self._verdict.refuse)
                facts = {"handed_in_again": handed_in, "refused": refused}
                log.warning("the queue is reached again", extra=facts)
                self._backoff.reset()
            self._why = None
            self.given_up.clear()

    async def _choose(self) -> None:
        """Serve the methods that are to be served now."""
        published: dict[str, tuple[str, float]] = {}
        alive = {worker.signature for worker in self._workers}
        if not alive or alive - self._known.keys():
            found = self._unreadable.methods(await self._broker.published())
            for revision, (methods, at) in found.items():
                self._known[methods.signature] = methods
                published[revision] = (methods.signature, at)
        if self._settings.role is Role.REPLICA:  # its own worker starts beside it, and will say
            published = {}
        revision = self._settings.revision
        chosen = signature_in_use(self._workers, revision, published, self._signature)
        if chosen is not None and chosen != self._signature and chosen in self._known:
            self._signature = chosen
            methods, settings = self._known[chosen], self._settings
            for spec in methods.specs:
                if spec.name in self._counted or len(self._counted) < MAX_METHODS:
                    self._counted[spec.name] = spec
            places = {name: place for place, name in enumerate(self._counted)}
            self._served = {}
            for spec in methods.specs:
                own = settings.of_method(spec.name)
                self._served[spec.name] = QueueMethod(
                    spec,
                    codec_for(spec, own, settings.name, settings.receipts),
                    self._recorder.method(places.get(spec.name, 0)),
                    methods.stream(spec.name),
                    own.batching.max_latency,
                    self._recalls,
                )
            self._default = methods.default
            facts = {"signature": methods.signature, "methods": list(self._served)}
            log.info("methods", extra=facts)
            self._recorder.ready()
            self._ready(list(self._counted.values()), methods.default)

    def _refuse_homeless(self) -> None:
        """Rows of methods that no worker has any more, while there are workers, will never run.

        Unless a worker lives of which nobody can read what it has.
        """
        alive = {worker.signature for worker in self._workers}
        homeless = [
            one
            for one in self._recalls.held.values()
            if isinstance(one.queue, QueueMethod) and one.queue.stream.split(":", 1)[0] not in alive
        ]
        never = bool(alive and homeless and not self._unreadable.workers_unread)
        self._homeless = self._homeless + 1 if never else 0
        if self._homeless >= _REPLACED_LOOKS:
            for one in homeless:
                self._in_flight.fail(one, NotReadyError(_REPLACED), self._now(), "queue_full")

    def _update_gauges(self, depths: Mapping[str, Depth], time_there: float) -> None:
        in_flight = self._in_flight.by_queue()
        for served in self._served.values():
            depth = depths.get(served.stream)
            requests = 0 if depth is None else depth.requests
            oldest = None if depth is None else depth.oldest
            served.recorder.queued(
                requests,
                round(requests * self._rows.mean),
                0.0 if oldest is None else max(0.0, time_there - oldest),
                in_flight[served],
            )


class _Nobody:
    """See requests.HangWatch: whoever hangs is a worker's to replace."""

    def replace(self, pid: int) -> None:
        """Nothing runs here."""
