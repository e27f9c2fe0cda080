"""Counts entries of the queue that this process cannot read, and tells of them once."""

import logging
from collections.abc import Callable, Mapping

from batchedapi_core.shared_queue import Worker
from batchedapi_serving.queue.entries import Methods, read_methods, read_worker
from batchedapi_serving.queue.fields import UnreadableError, is_name

log = logging.getLogger(__name__)


class Unreadable:
    """Reads what processes say of themselves, again and again, and counts all that is unreadable.

    What says the same as before is counted once.
    """

    def __init__(self, counted: Callable[[int], None]) -> None:
        """`counted` is told how many came that cannot be read."""
        self._counted = counted
        self._told: set[str] = set()
        self._published: dict[str, tuple[bytes, tuple[Methods, float] | None]] = {}
        self.workers_unread: frozenset[str] = frozenset()
        """Names of those who live, and say what cannot be read."""

    def came(self, what: str, times: int = 1) -> None:
        """So many; `what` is one of few texts, as UnreadableError has them."""
        self._counted(times)
        if what not in self._told:
            self._told.add(what)
            log.warning(
                "the queue has what cannot be read, perhaps of another release; it is passed over"
                " and counted, and this is said once",
                extra={"what": what},
            )

    def workers(self, says: Mapping[str, bytes | None]) -> dict[str, Worker]:
        """Workers that give signs of life which can be read."""
        found, unread = {}, set()
        for name, text in says.items():
            if text is None and is_name(name):
                continue
            try:
                found[name] = read_worker(name, text or b"")
            except UnreadableError as error:
                unread.add(name)
                if name not in self.workers_unread:
                    self.came(str(error))
        self.workers_unread = frozenset(unread)
        return found

    def methods(self, published: Mapping[str, bytes]) -> dict[str, tuple[Methods, float]]:
        """Methods by revision, where they can be read, and when they were written, in Unix time."""
        self._published = {
            revision: (
                self._published[revision]
                if revision in self._published and self._published[revision][0] == text
                else (text, self._read(text))
            )
            for revision, text in published.items()
        }
        return {
            revision: read for revision, (_, read) in self._published.items() if read is not None
        }

    def _read(self, text: bytes) -> tuple[Methods, float] | None:
        try:
            return read_methods(text)
        except UnreadableError as error:
            self.came(str(error))
            return None
