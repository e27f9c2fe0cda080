"""One process's connection to the queue: made again whenever it breaks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from batchedapi_serving.processes import Backoff, first_of
from batchedapi_serving.queue.broker import (
    Broker,
    BrokerDownError,
    BrokerUnfitError,
    QueueSpoiltError,
)
from batchedapi_serving.queue.unreadable import Unreadable

log = logging.getLogger(__name__)


class Line:
    """A broker that one process, `name`, is connected to, or tries to be."""

    def __init__(
        self, name: str, broker: Broker, unreadable: Unreadable, lost: Callable[[], None]
    ) -> None:
        """`lost` is called after each failure; `unreadable` counts keys that had to be deleted."""
        self.name: Final = name
        self.broker: Final = broker
        self.unreadable: Final = unreadable
        self.why: Exception | None = None
        """Why the queue cannot be used; None: it can, or nobody has tried yet."""
        self.connected = False
        """Redis is connected to, whatever it allows."""
        self.reached = False
        """All that is asked again and again was answered."""
        self.offset = 0.0
        """Redis' clock less ours, in seconds, for who sets it."""
        self._lost = lost
        self._backoff = Backoff()

    async def keep(
        self,
        connect: Callable[[], Awaitable[None]],
        *tasks: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Connect, and run the tasks until one fails; again and again, until cancelled."""
        while True:
            try:
                await self.broker.connect()
                self.connected = True
                await connect()
                await first_of(*(task() for task in tasks))
            except (BrokerDownError, BrokerUnfitError) as error:
                if isinstance(error, QueueSpoiltError):
                    self.unreadable.came(str(error))
                if str(error) != str(self.why):
                    log.warning("the queue cannot be reached", extra={"error": str(error)})
                self.why, self.connected, self.reached = error, False, False
                self._lost()
            await asyncio.sleep(min(1.0, self._backoff.take()))

    def is_reached(self) -> None:
        """Everything that is asked again and again was answered, so no right is missing."""
        if not self.reached:
            self._backoff.reset()
        self.why, self.reached = None, True

    async def leave(self) -> None:
        """Say that nothing is kept for this process any more, and give the connections up."""
        if self.connected:  # else nothing is kept, or it ends by itself
            try:
                await self.broker.gone(self.name)
            except BrokerDownError as error:
                log.debug("left without a word", extra={"error": str(error)})
        await self.broker.close()
