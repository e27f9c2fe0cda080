"""A worker's end of the shared queue: takes requests when its lanes have room, and answers them.

What is taken waits in the worker's own dispatcher, whose scheduler forms batches of it as of any
other requests; so little is taken that it is what the lanes run next (core's `rows_to_take`).
"""

import asyncio
import logging
import time
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

from batchedapi_core import contract
from batchedapi_core.batching import Client
from batchedapi_core.shared_queue import (
    LOOK_SECONDS,
    Fate,
    Hand,
    Living,
    RowsARequest,
    Worker,
    WorkerLanes,
    fate,
    rows_to_take,
)
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.engine import RequestHandle
from batchedapi_serving.dispatch.executor import DIED, Executor, MethodQueue
from batchedapi_serving.dispatch.messages import stand_in
from batchedapi_serving.dispatch.outcomes import Awaited, Outcome
from batchedapi_serving.errors import NotReadyError, PredictorError, ServingError
from batchedapi_serving.processes import came
from batchedapi_serving.queue.answers import UnwrittenAnswers
from batchedapi_serving.queue.broker import Broker, BrokerLook, QueueGoneError, TakenEntry
from batchedapi_serving.queue.entries import (
    Entry,
    Methods,
    read_entry,
    write_answer,
    write_methods,
    write_worker,
)
from batchedapi_serving.queue.fields import UnreadableError
from batchedapi_serving.queue.line import Line
from batchedapi_serving.queue.unreadable import Unreadable
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 1.0
"""One question for requests waits so long; what there is room for is thought over after it."""
_ROOM_SECONDS: Final = 0.25
"""Between looks for room that nobody told of: a lane more, or one less."""
_GIVEN_SECONDS: Final = 5.0
"""A worker that is to stop waits so long to be told what Redis gave it as the connection broke. Web
processes hold requests for as long, and have refused them after it."""
_CLIENTS: Final = 8192
"""Connections of web processes that are remembered, the newest."""
_REVISIONS: Final = 8
"""So many revisions stay published, the newest."""
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


class Others:
    """The other processes on the queue: workers, and web processes with the clients behind them."""

    def __init__(self, broker: Broker, now: Callable[[], float]) -> None:
        self._broker = broker
        self._now = now
        self._taken: dict[str, float] = {}
        """When something was last taken of each that lives."""
        self.dead: frozenset[str] = frozenset()
        """Web processes that are dead."""
        self.workers: Final = Living()
        self._web = Living()
        self._clients: OrderedDict[tuple[str, int], Client] = OrderedDict()

    @property
    def alive(self) -> Collection[str]:
        """Web processes that live, as far as is known."""
        return self._taken.keys()

    def took(self, web: str) -> None:
        """Something of it was taken."""
        self._taken[web] = self._now()

    async def meet(self, webs: Iterable[str]) -> None:
        """Find out whether those that are not known live."""
        strangers = set(webs) - self._taken.keys()
        if strangers:
            look = await self._broker.look((), strangers)
            self.dead = (self.dead - look.alive) | (strangers - look.alive)
            self._taken |= dict.fromkeys(look.alive, self._now())

    def look(self, alive: frozenset[str]) -> frozenset[str]:
        """The newly dead, by a look that found `alive`; who sent nothing for long is forgotten."""
        dead = self._web.look(self._taken, alive)
        oldest = self._now() - 60.0
        self._taken = {
            web: last for web, last in self._taken.items() if web not in dead and last > oldest
        }
        self.dead |= dead
        return dead

    def client(self, web: str, number: int) -> Client:
        """The client that a web process gave that number."""
        client = self._clients.pop((web, number), None) or Client()
        self._clients[web, number] = client
        if len(self._clients) > _CLIENTS:
            self._clients.popitem(last=False)
        return client


class Question:
    """A question for requests, which may bring some.

    It counts as open also if the connection broke under it, until Redis has said what it gave or
    that has been waited for long enough.
    """

    def __init__(self) -> None:
        self.open = False
        self._until: float | None = None

    def broke(self, now: float) -> None:
        """The connection is gone; this is said again as long as it is."""
        if self.open and self._until is None:
            self._until = now + _GIVEN_SECONDS

    def time_is(self, now: float) -> None:
        """It is not waited for any more once that took long enough."""
        if self._until is not None and now >= self._until:
            self.open = False

    def answered(self) -> None:
        """Whatever it brought is in hand."""
        self.open, self._until = False, None


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
        self.line: Final = Line(uuid.uuid4().hex, broker, Unreadable(unreadable), self._lost)
        self._settings = settings
        self._dispatcher = dispatcher
        self._connected = connected
        self._now = now
        self._started = unix_time()
        self._streams: dict[str, str] = {}
        """By method, those that clients can name."""
        self._rows: defaultdict[str, RowsARequest] = defaultdict(RowsARequest)
        """By stream."""
        self._hand: dict[tuple[str, int], TakenRequest] = {}
        """By web process and number."""
        self._state = Hand()
        self._free = asyncio.Event()
        """Ends the rest between two looks. What is to be run alone is claimed at a look, and only
        with nothing in hand: set when the last request left the hand while one waits for that."""
        self._answers = UnwrittenAnswers(broker)
        self._room, self._stopped = asyncio.Event(), asyncio.Event()
        self._others = Others(broker, now)
        self._question = Question()

    # ------------------------------------------------------------ the life of a worker

    async def run(self) -> None:
        """Take, and answer, until cancelled; once the dispatcher's methods are known."""
        methods = Methods.of(list(self._dispatcher.methods.values()), self._dispatcher.default)
        self._streams = {
            spec.name: methods.stream(spec.name)
            for spec in methods.specs
            if not spec.name.endswith(contract.METHOD_BATCH)
        }
        await self.line.keep(
            partial(self._connect, methods),
            self._take,
            partial(self._answers.write, lambda: self._others.dead),
            partial(self._watch, methods),
        )

    def _lost(self) -> None:
        self._question.broke(self._now())
        self._connected(False)
        self._stop_if_idle()

    def drain(self) -> None:
        """Take no more, unless nobody else could; run what is here."""
        self._state = self._state._replace(draining=True)
        self._dispatcher.drain()
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        """While the queue is not reached nobody knows whether something waits in it."""
        self._question.time_is(self._now())
        if self._state.draining and not self.line.reached and self._idle:
            self._stopped.set()

    @property
    def _idle(self) -> bool:
        """Nothing is here, nor on its way from Redis or to it."""
        return not (self._question.open or self._hand or self._answers.waiting)

    async def drained(self) -> None:
        """Wait until nothing is in hand and all answers are written, then leave in order."""
        await self._stopped.wait()
        await self.line.leave()

    async def _connect(self, methods: Methods) -> None:
        broker, streams = self.line.broker, self._streams.values()
        await broker.open(streams)
        await self._publish(methods)
        await broker.register(self.line.name, streams)
        await self._sign(methods)
        # What was given to this worker while the connection broke; nobody else will ever take it.
        await self._accept(await broker.mine(self.line.name, streams))
        self._question.answered()

    async def _publish(self, methods: Methods) -> None:
        """Say what is served here; the oldest of others, and what cannot be read, go first."""
        published = await self.line.broker.published()
        known = self.line.unreadable.methods(published)
        others = published.keys() - {self._settings.revision}
        ages = sorted((known[one][1] if one in known else 0.0, one) for one in others)
        forget = [one for _, one in ages[: max(0, len(ages) + 1 - _REVISIONS)]]
        says = write_methods(methods, self._started)
        await self.line.broker.publish(self._settings.revision, says, forget)

    async def _sign(self, methods: Methods) -> None:
        capacity = {}
        for name in self._streams:
            queue = self._queue(name)
            size = queue.batcher.policies.largest(None)
            capacity[name] = queue.executor.at_once, size, _full_seconds(queue)
        worker = Worker(
            methods.signature,
            self._settings.revision,
            self._started,
            self._state.draining,
            capacity,
        )
        await self.line.broker.sign(self.line.name, write_worker(worker))

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
            self._question.open = True  # until what came is in hand
            taken = await self.line.broker.take(self.line.name, wanted, _WAIT_SECONDS)
            if taken:
                await self._accept(taken)
            self._question.answered()
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
                requests = self._rows[self._streams[name]].requests(
                    min(rows, self._room_behind(name))
                )
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

    async def _accept(self, taken: Sequence[TakenEntry]) -> None:
        entries = []
        for one in taken:
            try:
                entries.append((one, read_entry(one.entry)))
            except UnreadableError as error:  # nobody could be told
                self.line.unreadable.came(str(error))
                self._answers.over([(one.stream, one.place)])
        await self._others.meet(entry.web for _, entry in entries)
        for one, entry in entries:
            self._accept_one(one, entry)
        self._dispatcher.decide()

    def _accept_one(self, taken: TakenEntry, entry: Entry) -> None:
        place = (taken.stream, taken.place)
        same = self._hand.get((entry.web, entry.number))
        if same is not None:  # the queue was lost, and it was handed in again
            if place not in same.places:
                same.places.append(place)
            return
        if self._answers.is_over(*place):  # its answer is to be written
            return
        if entry.web in self._others.dead:
            self._answers.over([place])
            return
        self._others.took(entry.web)
        if entry.unread:
            self.line.unreadable.came(f"a request whose {', '.join(entry.unread)} cannot be read")
        method = taken.stream.split(":", 1)[1]
        self._rows[taken.stream].learn(max(1, entry.rows))
        if (
            taken.restored and not self._settings.runs_again
        ):  # perhaps it ran, and Redis has forgotten that
            self._over(TakenRequest(entry, place), NotReadyError(_RESTORED))
        elif taken.deaths:
            self._queue(method).recorder.retaken(entry.rows)
            self._retake(entry, place, taken.deaths)
        else:
            self._run(entry, place)

    def _retake(self, entry: Entry, place: tuple[str, str], deaths: int) -> None:
        """It killed so many workers, or was beside what did."""
        match fate(deaths, runs_again=self._settings.runs_again):
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
        waited = max(0.0, self._now() + self.line.offset - int(name.split("-")[0]) / 1000)
        left = None if entry.timeout is None else entry.timeout - waited
        request = TakenRequest(entry, place)
        asked = Awaited(partial(self._over, request), request.span)
        if left is not None and left <= 0.0:  # its client was told so
            self._answers.over([place])
            return
        self._hand[entry.web, entry.number] = request
        try:
            queue = self._queue(stream.split(":", 1)[1])
            decoded = entry.decoded(asked, queue.codec)
            # A stranger, for whom nobody waits, if others may answer it next.
            known = not self._state.others
            client = self._others.client(entry.web, entry.client) if known else Client()
            request.handle = self._dispatcher.take(queue, decoded, client, asked, waited, left)
        except UnreadableError as error:
            if not entry.unread:
                self.line.unreadable.came(str(error))
            self._over(request, ServingError(_NOT_UNDERSTOOD))

    # ------------------------------------------------------------ answering

    def _over(self, request: TakenRequest, outcome: Outcome) -> None:
        """It is answered, and leaves the queue."""
        answer = write_answer(request.entry.number, outcome, span=request.span)
        self._answers.add(request.entry.web, answer)
        self._leaves(request)

    def _leaves(self, request: TakenRequest) -> None:
        self._hand.pop((request.entry.web, request.entry.number), None)
        self._answers.over(request.places)
        self._room.set()
        if not self._hand and (self._state.alone or self._state.suspect):
            self._state = self._state._replace(alone=False)
            self._free.set()

    # ------------------------------------------------------------ who lives

    async def _watch(self, methods: Methods) -> None:
        said = self._now()
        while True:
            self._free.clear()
            await self._sign(methods)
            if self._now() - said > _SAID_AGAIN_SECONDS:
                await self._publish(methods)
                said = self._now()
            await self._look(methods)
            if self._state.leaves and self._idle:
                self._stopped.set()
            await came(self._free, within=LOOK_SECONDS)
            if not self.line.reached:  # after a whole look this worker is ready, and not before
                self.line.is_reached()
                self._connected(True)

    async def _look(self, methods: Methods) -> None:
        broker, name, streams = self.line.broker, self.line.name, self._streams.values()
        await broker.register(name, streams)
        look = await broker.look(streams, self._others.alive)
        if not all(depth.exists for depth in look.depths.values()):
            raise QueueGoneError("the queue was emptied")
        self.line.offset = look.time - self._now()
        others = self.line.unreadable.workers(look.workers)
        others.pop(name, None)
        staying = [
            one
            for one in others.values()
            if one.signature == methods.signature and not one.draining
        ]
        quiet = not self._hand and not any(depth.requests for depth in look.depths.values())
        looks = self._state.quiet_looks + 1 if quiet else 0
        self._state = self._state._replace(others=len(staying), quiet_looks=looks)
        await self._take_over(look)
        self._forget_dead_web(look)

    async def _take_over(self, look: BrokerLook) -> None:
        """Claim requests of workers that are dead."""
        alive = {name for name, says in look.workers.items() if says is not None}
        owners = await self.line.broker.owners(self._streams.values())
        dead = self._others.workers.look(owners | look.workers.keys(), alive | {self.line.name})
        if dead:
            await self.line.broker.forget(dead)
        left = [
            row
            for name in sorted(dead & owners)
            for row in await self.line.broker.left(name, self._streams.values())
        ]
        busy = bool(self._hand) or self._question.open
        self._state = self._state._replace(busy=busy)
        claim = self._state.claim(
            [row.deaths for row in left], runs_again=self._settings.runs_again
        )
        self._state = self._state._replace(suspect=claim.alone > 0)
        claimed = [left[place] for place in claim.places]
        taken = await self.line.broker.claim(self.line.name, claimed) if claimed else ()
        if taken:
            log.warning("taken from dead workers", extra={"requests": len(taken)})
            await self._accept(taken)
        if claim.alone and not busy:  # it is here, or another worker has it: that holds nobody up
            self._state = self._state._replace(suspect=bool(taken) and claim.alone > 1)
            self._room.set()

    def _forget_dead_web(self, look: BrokerLook) -> None:
        """Requests of web processes that are dead are not run."""
        dead = self._others.look(look.alive)
        for request in [one for one in self._hand.values() if one.entry.web in dead]:
            if request.handle is not None:
                self._dispatcher.cancel(request.handle)
            self._leaves(request)


def _lanes(executor: Executor) -> WorkerLanes:
    scheduler, queues = executor.scheduler, executor.queues.values()
    return WorkerLanes(
        free=scheduler.lanes.free,
        total=scheduler.lanes.total,
        max_batch_size=max(queue.batcher.policies.largest(None) for queue in queues),
        full_seconds=max(_full_seconds(queue) for queue in queues),
        held=sum(scheduler.waiting_rows(queue.name) for queue in queues),
    )


def _full_seconds(queue: MethodQueue) -> float:
    service = queue.batcher.service
    return service.at_least(queue.batcher.policies.largest(None)) if service.known else 0.0
