"""A worker's end of the shared queue: takes requests when its lanes have room, and answers them.

What is taken waits in the worker's own dispatcher, whose scheduler forms batches of it as of any
other requests; so little is taken that it is what the lanes run next (core's `rows_to_take`).
"""

import asyncio
import functools
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from batchedapi_core import contract
from batchedapi_core.batching import Client, ItemErrorPolicy
from batchedapi_core.shared_queue import (
    LOOK_SECONDS,
    Fate,
    Hand,
    Lanes,
    Living,
    RowsARequest,
    Worker,
    fate,
    rows_to_take,
)
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.engine import RequestHandle
from batchedapi_serving.dispatch.executor import DIED, Executor, MethodQueue
from batchedapi_serving.dispatch.messages import stand_in
from batchedapi_serving.dispatch.outcomes import Awaited, Outcome
from batchedapi_serving.errors import NotReadyError, PredictorError, ServingError
from batchedapi_serving.processes import Backoff, came, first_of
from batchedapi_serving.queue.broker import (
    Broker,
    BrokerDownError,
    BrokerUnfitError,
    Look,
    QueueGoneError,
    QueueSpoiltError,
    Taken,
)
from batchedapi_serving.queue.entries import (
    Entry,
    Methods,
    joined_answers,
    read_entry,
    together,
    write_answer,
    write_methods,
    write_worker,
)
from batchedapi_serving.queue.fields import UnreadableError
from batchedapi_serving.queue.unreadable import Unreadable
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 1.0
"""That one question for requests waits; what there is room for is thought over after it."""
_ROOM_SECONDS: Final = 0.25
"""Between looks for room that nobody told of: a lane more, or one less."""
_GIVEN_SECONDS: Final = 5.0
"""That a worker which is to stop waits to be told what Redis gave it as the connection broke. Web
processes hold requests for as long, and have refused them after it."""
_NO_MEMORY_SECONDS: Final = 0.1
"""Until answers are written again for which Redis had no memory."""
_CLIENTS: Final = 8192
"""Connections of web processes that are remembered, the newest."""
_REVISIONS: Final = 8
"""Whose methods stay published, the newest."""
_SAID_AGAIN_SECONDS: Final = 10.0
"""After which a worker says again what it serves: whoever may write to Redis may delete it."""
_REFUSED: Final = (
    "the worker that ran this died, and nothing is run twice (onItemError: FailBatch); try again"
)
_NOT_UNDERSTOOD: Final = (
    "the request was not understood by its worker, which may be of another release"
)
_RESTORED: Final = (
    "Redis was started anew, and nothing is run twice (onItemError: FailBatch); try again"
)


class TakenRequest:
    """A request of a web process while it is here."""

    __slots__ = ("entry", "handle", "places", "span")

    def __init__(self, entry: Entry, place: tuple[str, str]) -> None:
        self.entry = entry
        self.places = [place]
        """(stream, place) in the queue; several if it was handed in again meanwhile."""
        self.handle: RequestHandle | None = None
        self.span = stand_in(entry.trace)
        """For the one that the web process has; None: the request is not traced."""


class Puller:
    """Owner of what this worker has taken and not answered."""

    def __init__(  # noqa: PLR0917 - the parts of a worker, put together in one place
        self,
        settings: ReplicaSettings,
        broker: Broker,
        dispatcher: Dispatcher,
        connected: Callable[[bool], None],
        now: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
        *,
        unreadable: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`connected` is told whether the queue is reached, `unreadable` of what cannot be read."""
        self.worker: Final = uuid.uuid4().hex
        self._settings = settings
        self._broker = broker
        self._dispatcher = dispatcher
        self._connected = connected
        self._unreadable = Unreadable(unreadable)
        self._now = now
        self._started = unix_time()
        self._runs_again = settings.item_errors is ItemErrorPolicy.ISOLATE
        self._methods: Methods | None = None
        self._streams: dict[str, str] = {}
        """Of each method, those that clients can name."""
        self._hand: dict[tuple[str, int], TakenRequest] = {}
        """By web process and number."""
        self._state = Hand()
        self._free = asyncio.Event()
        """Ends the rest between two looks. What is to be run alone is claimed at a look, and only
        with nothing in hand: set when the last request left the hand while one waits for that."""
        self._packs: dict[str, list[bytes]] = {}
        self._done: dict[str, list[str]] = {}
        self._writes = False
        """Answers are on their way to Redis."""
        self._kick = asyncio.Event()
        self._room, self._stopped = asyncio.Event(), asyncio.Event()
        self._rows: dict[str, RowsARequest] = {}
        self._clients: OrderedDict[tuple[str, int], Client] = OrderedDict()
        self._offset = 0.0
        """Redis' clock less ours, in seconds."""
        self._living, self._web_living = Living(), Living()
        self._web: dict[str, float] = {}
        """Web processes that live, and when something of them was last taken."""
        self._dead_web: frozenset[str] = frozenset()
        self._asks = False
        """A question for requests is under way, which may bring some, or it was as the connection
        broke, and Redis has not said since what it gave."""
        self._given_until: float | None = None
        """Until when such an end of it is waited for; None: it broke under no question."""
        self._backoff = Backoff()
        self._reached = False
        """The queue: whether all that is asked again and again was answered."""
        self._told = ""
        """Why it is not reached, as was last logged."""

    # ------------------------------------------------------------ the life of a worker

    async def run(self) -> None:
        """Take, and answer, until cancelled; once the dispatcher's methods are known."""
        methods = self._methods = Methods.of(
            list(self._dispatcher.methods.values()), self._dispatcher.default
        )
        self._streams = {
            spec.name: methods.stream(spec.name)
            for spec in methods.specs
            if not spec.name.endswith(contract.METHOD_BATCH)
        }
        self._rows = {name: RowsARequest() for name in self._streams}
        while True:
            try:
                await self._connect(methods)
                await first_of(self._take(), self._answer(), self._watch(methods))
            except (BrokerDownError, BrokerUnfitError) as error:
                if isinstance(error, QueueSpoiltError):
                    self._unreadable.came(str(error))
                if self._asks and self._given_until is None:
                    self._given_until = self._now() + _GIVEN_SECONDS
                self._reached = False
                self._connected(False)
                if str(error) != self._told:
                    log.warning("the queue cannot be reached", extra={"error": str(error)})
                self._told = str(error)
            await asyncio.sleep(min(1.0, self._backoff.take()))
            self._stop_if_idle()

    def drain(self) -> None:
        """Take no more, unless nobody else could; run what is here."""
        self._state = self._state._replace(draining=True)
        self._dispatcher.drain()
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        """While the queue is not reached nobody knows whether something waits in it."""
        if self._given_until is not None and self._now() >= self._given_until:
            self._asks = False
        if self._state.draining and not self._reached and self._idle:
            self._stopped.set()

    @property
    def _idle(self) -> bool:
        """Nothing is here, nor on its way from Redis or to it."""
        return not (self._asks or self._hand or self._packs or self._writes)

    async def drained(self) -> None:
        """Wait until nothing is in hand and all answers are written, then leave in order."""
        await self._stopped.wait()
        if self._reached:
            try:
                await self._broker.gone(self.worker)
            except BrokerDownError as error:
                log.debug("left without a word", extra={"error": str(error)})
        await self._broker.close()

    async def _connect(self, methods: Methods) -> None:
        await self._broker.connect()
        await self._broker.open(self._streams.values())
        await self._publish(methods)
        await self._broker.register(self.worker, self._streams.values())
        await self._sign(methods)
        # What was given to this worker while the connection broke; nobody else will ever take it.
        await self._accept(await self._broker.mine(self.worker, self._streams.values()))
        self._asks, self._given_until = False, None

    async def _publish(self, methods: Methods) -> None:
        """Say what is served here; the oldest of others, and what cannot be read, go first."""
        published = await self._broker.published()
        known = self._unreadable.methods(published)
        others = published.keys() - {self._settings.revision}
        ages = sorted((known[one][1] if one in known else 0.0, one) for one in others)
        forget = [one for _, one in ages[: max(0, len(ages) + 1 - _REVISIONS)]]
        says = write_methods(methods, self._started)
        await self._broker.publish(self._settings.revision, says, forget)

    async def _sign(self, methods: Methods) -> None:
        capacity = {}
        for name in self._streams:
            queue = self._queue(name)
            size = queue.batcher.effective.max_batch_size
            capacity[name] = queue.executor.at_once, size, _full_seconds(queue)
        worker = Worker(
            methods.signature,
            self._settings.revision,
            self._started,
            self._state.draining,
            capacity,
        )
        await self._broker.sign(self.worker, write_worker(worker))

    def _queue(self, method: str) -> MethodQueue:
        return self._dispatcher.served(method)

    # ------------------------------------------------------------ taking

    async def _take(self) -> None:
        while True:
            wanted = self._wanted()
            if not wanted:
                self._room.clear()
                await came(self._room, within=_ROOM_SECONDS)
                continue
            self._asks = True  # until what came is in hand
            taken = await self._broker.take(self.worker, wanted, _WAIT_SECONDS)
            if taken:
                await self._accept(taken)
            self._asks = False
            if self._state.suspect and not self._hand:
                self._free.set()

    def _wanted(self) -> dict[str, int]:
        """Requests that there is room for, by stream."""
        if not self._state.takes:
            return {}
        wanted = {}
        for executor in self._dispatcher.executors:
            named = [name for name in executor.queues if name in self._streams]
            rows = rows_to_take(_lanes(executor)) if named else 0
            for name in named:
                requests = self._rows[name].requests(min(rows, self._room_behind(name)))
                if requests > 0:
                    wanted[self._streams[name]] = requests
        return wanted

    def _room_behind(self, method: str) -> int:
        """Rows for which a method that decodes has room in its batches; of others, any number."""
        batched = method + contract.METHOD_BATCH
        if batched not in self._dispatcher.methods:
            return contract.MAX_BATCH_SIZE_LIMIT
        lanes = _lanes(self._queue(batched).executor)
        in_hand = sum(
            request.entry.rows
            for request in self._hand.values()
            if request.places[0][0] == self._streams[method]
        )
        return (lanes.total + 1) * lanes.max_batch_size - in_hand

    async def _accept(self, taken: Sequence[Taken]) -> None:
        entries = []
        for one in taken:
            try:
                entries.append((one, read_entry(one.entry)))
            except UnreadableError as error:  # nobody could be told
                self._unreadable.came(str(error))
                self._forget([(one.stream, one.place)])
        strangers = {entry.web for _, entry in entries} - self._web.keys()
        if strangers:
            look = await self._broker.look((), strangers)
            self._dead_web = (self._dead_web - look.alive) | (strangers - look.alive)
            self._web |= dict.fromkeys(look.alive, self._now())
        for one, entry in entries:
            self._accept_one(one, entry)
        self._dispatcher.decide()

    def _accept_one(self, taken: Taken, entry: Entry) -> None:
        place = (taken.stream, taken.place)
        same = self._hand.get((entry.web, entry.number))
        if same is not None:  # the queue was lost, and it was handed in again
            if place not in same.places:
                same.places.append(place)
            return
        if taken.place in self._done.get(taken.stream, ()):  # its answer is to be written
            return
        if entry.web in self._dead_web:
            self._forget([place])
            return
        self._web[entry.web] = self._now()
        if entry.unread:
            self._unreadable.came(f"a request whose {', '.join(entry.unread)} cannot be read")
        method = taken.stream.split(":", 1)[1]
        self._rows[method].learn(max(1, entry.rows))
        if taken.restored and not self._runs_again:  # perhaps it ran, and Redis has forgotten that
            self._over(TakenRequest(entry, place), NotReadyError(_RESTORED))
        elif taken.deaths:
            self._queue(method).recorder.retaken(entry.rows)
            self._retake(entry, place, taken.deaths)
        else:
            self._run(entry, place)

    def _retake(self, entry: Entry, place: tuple[str, str], deaths: int) -> None:
        """It killed so many workers, or was beside what did."""
        match fate(deaths, runs_again=self._runs_again):
            case Fate.IN_COMPANY:
                self._run(entry, place)
            case Fate.ALONE:
                self._run(entry, place)
                self._state = self._state._replace(alone=bool(self._hand))
            case Fate.FAILED:
                self._over(TakenRequest(entry, place), PredictorError.logged(DIED))
            case Fate.REFUSED:
                self._over(TakenRequest(entry, place), NotReadyError(_REFUSED))

    def _run(self, entry: Entry, place: tuple[str, str]) -> None:
        """Queue it here; `decide` is to follow."""
        stream, name = place
        waited = max(0.0, self._now() + self._offset - int(name.split("-")[0]) / 1000)
        left = None if entry.timeout is None else entry.timeout - waited
        request = TakenRequest(entry, place)
        asked = Awaited(functools.partial(self._over, request), request.span)
        if left is not None and left <= 0.0:  # its client was told so
            self._forget([place])
            return
        self._hand[entry.web, entry.number] = request
        try:
            queue = self._queue(stream.split(":", 1)[1])
            decoded = entry.decoded(asked, queue.codec)
            client = Client()  # a stranger, for whom nobody waits, if others may answer it next
            if not self._state.others:
                key = (entry.web, entry.client)
                client = self._clients.pop(key, client)
                self._clients[key] = client
                if len(self._clients) > _CLIENTS:
                    self._clients.popitem(last=False)
            request.handle = self._dispatcher.take(queue, decoded, client, asked, waited, left)
        except UnreadableError as error:
            if not entry.unread:
                self._unreadable.came(str(error))
            self._over(request, ServingError(_NOT_UNDERSTOOD))

    # ------------------------------------------------------------ answering

    def _over(self, request: TakenRequest, outcome: Outcome) -> None:
        """It is answered, and leaves the queue."""
        answer = write_answer(request.entry.number, outcome, span=request.span)
        self._packs.setdefault(request.entry.web, []).append(answer)
        self._leaves(request)

    def _leaves(self, request: TakenRequest) -> None:
        self._hand.pop((request.entry.web, request.entry.number), None)
        self._forget(request.places)
        self._room.set()
        if not self._hand and (self._state.alone or self._state.suspect):
            self._state = self._state._replace(alone=False)
            self._free.set()

    def _forget(self, places: Iterable[tuple[str, str]]) -> None:
        for stream, place in places:
            self._done.setdefault(stream, []).append(place)
        self._kick.set()

    async def _answer(self) -> None:
        """Write the answers that came while the last were under way."""
        written = True
        while True:
            await self._kick.wait()
            self._kick.clear()
            packs, self._packs = self._packs, {}
            done, self._done = self._done, {}
            unwritten = [
                (web, pack)
                for web, answers in packs.items()
                if web not in self._dead_web
                for pack in joined_answers(answers)
            ]
            lacked = not written
            self._writes = True
            try:
                written = await self._write(unwritten, done)
            except BaseException:
                self._put_back(unwritten, done)
                raise
            finally:
                self._writes = False
            if not written:
                if not lacked:
                    log.warning("no memory in Redis for answers")
                self._put_back(unwritten, {})
                await asyncio.sleep(_NO_MEMORY_SECONDS)

    async def _write(
        self, unwritten: list[tuple[str, bytes]], done: Mapping[str, Sequence[str]]
    ) -> bool:
        """Write answers, no more bytes in one command than a slow link takes in its time.

        What is written leaves `unwritten`. Requests leave the queue with the last answers, so that
        each is in the queue or its answer is on its way. False: no memory for some answers.
        """
        while True:
            first = unwritten[: together(len(pack) for _, pack in unwritten)]
            last = len(first) == len(unwritten)
            written = await self._broker.answer(first, done if last else {})
            if written:
                del unwritten[: len(first)]
            elif not last:  # what is over frees memory
                await self._broker.answer((), done)
            if last or not written:
                return written

    def _put_back(
        self, packs: Sequence[tuple[str, bytes]], done: Mapping[str, Sequence[str]]
    ) -> None:
        """What could not be written goes first the next time."""
        for web, pack in reversed(packs):
            self._packs[web] = [pack, *self._packs.get(web, ())]
        for stream, places in done.items():
            self._done[stream] = [*places, *self._done.get(stream, ())]
        self._kick.set()

    # ------------------------------------------------------------ who lives

    async def _watch(self, methods: Methods) -> None:
        said = self._now()
        while True:
            self._free.clear()
            await self._sign(methods)
            if self._now() - said > _SAID_AGAIN_SECONDS:
                await self._publish(methods)
                said = self._now()
            await self._broker.register(self.worker, self._streams.values())
            look = await self._broker.look(self._streams.values(), self._web)
            if not all(depth.exists for depth in look.depths.values()):
                raise QueueGoneError("the queue was emptied")
            self._offset = look.time - self._now()
            others = sum(
                one.signature == methods.signature and not one.draining
                for name, one in self._unreadable.workers(look.workers).items()
                if name != self.worker
            )
            quiet = not self._hand and not any(depth.requests for depth in look.depths.values())
            looks = self._state.quiet_looks + 1 if quiet else 0
            self._state = self._state._replace(others=others, quiet_looks=looks)
            await self._take_over(look)
            self._forget_dead_web(look)
            if self._state.leaves and self._idle:
                self._stopped.set()
            await came(self._free, within=LOOK_SECONDS)
            # After a whole look, and not as it is connected to, this worker is ready: every command
            # that is sent again and again was answered by then, so no right is missing.
            if not self._reached:
                self._reached, self._told = True, ""
                self._backoff.reset()
                self._connected(True)

    async def _take_over(self, look: Look) -> None:
        """What workers had that are dead."""
        alive = {name for name, says in look.workers.items() if says is not None}
        owners = await self._broker.owners(self._streams.values())
        dead = self._living.look(owners | look.workers.keys(), alive | {self.worker})
        if dead:
            await self._broker.forget(dead)
        left = [
            row
            for name in sorted(dead & owners)
            for row in await self._broker.left(name, self._streams.values())
        ]
        busy = bool(self._hand) or self._asks
        self._state = self._state._replace(busy=busy)
        claim = self._state.claim([row.deaths for row in left], runs_again=self._runs_again)
        self._state = self._state._replace(suspect=claim.alone > 0)
        claimed = [left[place] for place in claim.places]
        taken = await self._broker.claim(self.worker, claimed) if claimed else ()
        if taken:
            log.warning("taken from dead workers", extra={"requests": len(taken)})
            await self._accept(taken)
        if claim.alone and not busy:  # it is here, or another worker has it: that holds nobody up
            self._state = self._state._replace(suspect=bool(taken) and claim.alone > 1)
            self._room.set()

    def _forget_dead_web(self, look: Look) -> None:
        """Requests of web processes that are dead are not run."""
        dead = self._web_living.look(self._web, look.alive)
        oldest = self._now() - 60.0
        self._web = {
            web: last for web, last in self._web.items() if web not in dead and last > oldest
        }
        if not dead:
            return
        self._dead_web |= dead
        for request in [one for one in self._hand.values() if one.entry.web in dead]:
            if request.handle is not None:
                self._dispatcher.cancel(request.handle)
            self._leaves(request)


def _lanes(executor: Executor) -> Lanes:
    scheduler, queues = executor.scheduler, executor.queues.values()
    return Lanes(
        free=scheduler.lanes.free,
        total=scheduler.lanes.total,
        max_batch_size=max(queue.batcher.effective.max_batch_size for queue in queues),
        full_seconds=max(_full_seconds(queue) for queue in queues),
        held=sum(scheduler.waiting_rows(queue.name) for queue in queues),
    )


def _full_seconds(queue: MethodQueue) -> float:
    service = queue.batcher.service
    return service.at_least(queue.batcher.effective.max_batch_size) if service.known else 0.0
