"""Which batch an answer rode in, for those who want to know."""

import socket
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from batchedapi_core.batching import Batch, Receipts, Request
from batchedapi_serving.codecs import Receipt

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class ReceiptBook:
    """Numbers batches, so that no two of a replica are ever called the same."""

    def __init__(
        self, replica: str | None = None, unix_time: Callable[[], float] = time.time
    ) -> None:
        """`replica` is what this one is called; None: its host name, a pod's own."""
        self._replica = socket.gethostname() if replica is None else replica
        # Milliseconds tell apart the web processes of one replica, of which one follows the other.
        self._start = base36(int(unix_time() * 1000))
        self._numbers = count(1)

    def number(self) -> str:
        """The next batch's."""
        return f"{self._start}-{base36(next(self._numbers))}"

    def receipt(self, batch: Batch, request: Request, worker_index: int, now: float) -> Receipt:
        """Of one request of a batch that ran until `now`, in seconds."""
        return Receipt(
            batch=batch.number,
            rows=batch.rows,
            requests=len(batch.requests),
            my_rows=request.rows,
            queue_seconds=batch.started - request.arrived,
            exec_seconds=now - batch.started,
            reason=batch.reason,
            replica=self._replica,
            worker_index=worker_index,
        )


def receipt_book(mode: Receipts) -> ReceiptBook | None:
    """None: no answer carries a receipt, and none is made."""
    return None if mode is Receipts.OFF else ReceiptBook()


def base36(number: int) -> str:
    """Digits of a number >= 0, as int(text, 36) reads them."""
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits
