"""The desk at which a replica takes requests: what a web process sees of the dispatcher.

The dispatcher itself is the desk of the first web process; further ones have a desk that forwards.
"""

from collections.abc import Mapping
from typing import Final, Generic, Protocol, TypeVar

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, Codec, Decoded
from batchedapi_serving.errors import NoSuchRouteError, NotReadyError
from batchedapi_serving.predictor import MethodSpec

CLIENT_LEFT: Final = 499
"""What is counted for a request whose client did not wait for its answer."""
STOPPED: Final = "the replica stopped before an answer was there"
"""What is told to those who still wait when the time to stop is over."""
_NOT_READY: Final = "the model is still being loaded; try again in a moment"


class AnswerTo(Protocol):
    """Who asked: told the answer exactly once, unless it left before."""

    def deliver(self, answer: Answer) -> None:
        """Take the answer to the current request.

        Whoever wants results instead of a response gives its request a `Reply` that keeps what
        `answer` is given, and returns an Answer that it knows again here.
        """

    def request_id(self) -> str | None:
        """What the client calls the current request, if it says."""


class Line(Protocol):
    """One method's line at the desk."""

    @property
    def spec(self) -> MethodSpec:
        """What is served."""

    @property
    def codec(self) -> Codec:
        """Decodes its requests."""


L = TypeVar("L", bound=Line)


class Ticket(Protocol):
    """A request that was taken and is not answered yet; given back to cancel it."""

    @property
    def done(self) -> bool:
        """It was answered, or its client left."""


class Desk(Protocol):
    """Where requests are handed in."""

    @property
    def methods(self) -> Mapping[str, MethodSpec]:
        """In the order they are declared; empty until the first model process is ready."""

    @property
    def default(self) -> str | None:
        """The method that is meant when none is named: `predict`, else the only one."""

    def line(self, method: str | None) -> Line:
        """The line of `method`; None: of the default.

        Raises:
            NotReadyError: no model process has been ready yet.
            NoSuchRouteError: there is no such method, or no default.
        """

    def submit(
        self,
        line: Line,
        decoded: Decoded,
        client: Client,
        asker: AnswerTo,
        timeout: float | None = None,
    ) -> Ticket:
        """Queue a checked request; `asker.deliver` is called once it is answered.

        `line` is one of this desk's. `timeout` is the client's own, in seconds; the replica's
        holds as well. `asker` may be answered before this returns.

        Raises:
            QueueFullError: too many requests are in this replica.
            LateError: it would miss `maxLatency`.
        """

    def cancel(self, ticket: Ticket, status: int = CLIENT_LEFT) -> None:
        """What is queued is not run, and nobody is told. Twice is harmless.

        The client left, or was answered elsewhere: `status` is what is counted.
        """

    def disconnected(self, client: Client) -> None:
        """A connection without a request in flight closed: its next request is not awaited."""


class LinesOfDesk(Generic[L]):
    """What every desk knows of its methods; a base class, for `line` is asked for every request."""

    def __init__(self) -> None:
        self._lines: dict[str, L] = {}
        self._default: str | None = None

    @property
    def methods(self) -> Mapping[str, MethodSpec]:
        """See Desk."""
        return {name: line.spec for name, line in self._lines.items()}

    @property
    def default(self) -> str | None:
        """See Desk."""
        return self._default

    def line(self, method: str | None) -> L:
        """See Desk."""
        name = self._default if method is None else method
        line = self._lines.get(name or "")
        if line is not None:
            return line
        if not self._lines:
            raise NotReadyError(_NOT_READY)
        served = ", ".join(self._lines)
        if method is None:
            raise NoSuchRouteError(f"name a method; there are {served}, and none is the default")
        raise NoSuchRouteError(f"there is no method {method!r}; there are {served}")
