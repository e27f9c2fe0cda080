"""Results instead of a response, for callers that hand a request on from elsewhere.

An engine counts each response by its status before anybody hears of it, and what the status is can
depend on the language of the response. So it asks a request's Reply for an Answer first, and gives
that to the request's Caller. `Awaited` is both for callers that write no response: they are given
the results themselves, or the error.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from batchedapi_serving.codecs import Answer, Receipt, Results
from batchedapi_serving.codecs.results import OK, status_of
from batchedapi_serving.errors import ServingError
from batchedapi_serving.tracing.spans import Span


class Answered(NamedTuple):
    """Rows [start, stop) of a batch's results."""

    results: Results
    start: int
    stop: int
    receipt: Receipt | None = None


Outcome: TypeAlias = Answered | ServingError


def _no_stream(kind: str, body: bytes) -> None:
    raise TypeError(f"expected no stream, got an item of {len(body)} bytes of {kind}")


class Awaited:
    """Reader and Reply of one request, which is answered with an Outcome."""

    __slots__ = ("_on_outcome", "_outcome", "chain", "item", "span")

    def __init__(
        self,
        on_outcome: Callable[[Outcome], None],
        span: Span | None = None,
        *,
        on_item: Callable[[str, bytes], None] = _no_stream,
        chain: tuple[str, ...] = (),
    ) -> None:
        self._on_outcome = on_outcome
        self._outcome: Outcome | None = None
        self.span = span
        """See Caller."""
        self.item = on_item
        """See Reader."""
        self.chain = chain
        """Methods that wait for these rows, the outermost first."""

    def request_id(self) -> str | None:
        """See Caller; it is known where the response is written."""
        return None

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply."""
        self._outcome = Answered(results, start, stop, receipt)
        return Answer(self._status(results, start, stop), b"", b"")

    def problem(self, error: ServingError, request_id: str | None) -> Answer:  # noqa: ARG002 - see request_id
        """See Reply."""
        self._outcome = error
        return Answer(error.status, b"", b"")

    def deliver(self, answer: Answer) -> None:  # noqa: ARG002 - it is its status alone
        """See Caller."""
        if self._outcome is not None:
            self._on_outcome(self._outcome)

    def _status(self, results: Results, start: int, stop: int) -> int:  # noqa: ARG002 - see Relayed
        return OK


class Relayed(Awaited):
    """The same of a request that is counted here, and whose response is written elsewhere."""

    __slots__ = ()

    def _status(self, results: Results, start: int, stop: int) -> int:
        return status_of(results, start, stop)
