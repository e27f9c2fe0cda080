"""A worker's answers on their way to web processes, and the requests that leave the queue so."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from batchedapi_serving.queue.broker import Broker
from batchedapi_serving.queue.entries import joined_answers, together

log = logging.getLogger(__name__)

_NO_MEMORY_SECONDS: Final = 0.1
"""Until answers are written again for which Redis had no memory."""


class UnwrittenAnswers:
    """Answers by web process, and places of requests that are over by stream, until written."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._packs: dict[str, list[bytes]] = {}
        self._done: dict[str, list[str]] = {}
        self._writes = False
        self._kick = asyncio.Event()

    @property
    def waiting(self) -> bool:
        """Answers are to be written, or on their way to Redis."""
        return bool(self._packs) or self._writes

    def add(self, web: str, answer: bytes) -> None:
        """An answer for a web process; `over` is to follow."""
        self._packs.setdefault(web, []).append(answer)

    def over(self, places: Iterable[tuple[str, str]]) -> None:
        """Requests that leave the queue, each as (stream, place)."""
        for stream, place in places:
            self._done.setdefault(stream, []).append(place)
        self._kick.set()

    def is_over(self, stream: str, place: str) -> bool:
        """Whether that request is still to leave the queue."""
        return place in self._done.get(stream, ())

    async def write(self, dead: Callable[[], Collection[str]]) -> None:
        """Write answers that came while the last were under way, until cancelled.

        Those for web processes that are `dead` are dropped.
        """
        written = True
        while True:
            await self._kick.wait()
            self._kick.clear()
            packs, self._packs = self._packs, {}
            done, self._done = self._done, {}
            gone = dead()
            alive = [web for web in packs if web not in gone]
            unwritten = [(web, pack) for web in alive for pack in joined_answers(packs[web])]
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
        """They could not be written, and go first the next time."""
        for web, pack in reversed(packs):
            self._packs[web] = [pack, *self._packs.get(web, ())]
        for stream, places in done.items():
            self._done[stream] = [*places, *self._done.get(stream, ())]
        self._kick.set()
