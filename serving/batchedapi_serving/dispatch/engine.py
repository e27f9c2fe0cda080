"""An engine answers requests: what a web process sees of the dispatcher.

The dispatcher itself is that of the first web process; further ones have one that forwards.
"""

from collections.abc import Mapping
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, Codec, DecodedRequest
from batchedapi_serving.errors import NoSuchRouteError, NotReadyError
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.tracing.spans import Span

CLIENT_LEFT: Final = 499
"""Status that counts for a request whose client did not wait for its answer."""
STOPPED: Final = "the replica stopped before an answer was there"
"""Message for those who still wait when the time to stop is over."""
_NOT_READY: Final = "the model is still being loaded; try again in a moment"


class Caller(Protocol):
    """The sender of a request: told the answer exactly once, unless it left before."""

    def deliver(self, answer: Answer) -> None:
        """Take the answer to the current request; see `outcomes` for results in its place."""

    def request_id(self) -> str | None:
        """The client's own name for the current request, if it has one."""

    @property
    def span(self) -> Span | None:
        """The current request's; None: it is not traced."""


@runtime_checkable
class Reader(Caller, Protocol):
    """A Caller that takes the answer item by item, if the method streams.

    `deliver` then says how the stream ended: with 200, or with an error.
    """

    def item(self, kind: str, body: bytes) -> None:
        """Take one item; `kind` is json (a value's text) or text.

        `Engine.taken` is to be told in time: what is not taken is bounded, and then nothing comes.
        """


class ServedMethod(Protocol):
    """A method as the engine serves it."""

    @property
    def spec(self) -> MethodSpec:
        """The method."""

    @property
    def codec(self) -> Codec:
        """Decodes its requests."""


L = TypeVar("L", bound=ServedMethod)


class RequestHandle(Protocol):
    """A request that was taken and is not answered yet; given back to cancel it."""

    @property
    def done(self) -> bool:
        """It was answered, or its client left."""


class Engine(Protocol):
    """Where requests are handed in."""

    @property
    def methods(self) -> Mapping[str, MethodSpec]:
        """In the order they are declared; empty until the first model process is ready."""

    @property
    def default(self) -> str | None:
        """The method that is meant when none is named: `predict`, else the only one."""

    def served(self, method: str | None) -> ServedMethod:
        """The served method of that name; None: the default.

        Raises:
            NotReadyError: no model process has been ready yet.
            NoSuchRouteError: there is no such method, or no default.
        """

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> RequestHandle:
        """Queue a checked request; `caller.deliver` is called once it is answered.

        `served` is one of this engine's. `timeout` is the client's own, in seconds; the replica's
        holds as well. `caller` may be answered before this returns.

        Raises:
            QueueFullError: too many requests are in this replica.
            LateError: it would miss `maxLatency`.
        """

    def cancel(self, handle: RequestHandle, status: int = CLIENT_LEFT) -> None:
        """Run nothing of it that is queued, and tell nobody. Twice is harmless.

        The client left, or was answered elsewhere: `status` is what is counted.
        """

    def taken(self, handle: RequestHandle, items: int) -> None:
        """The client of a stream took so many more items of it."""

    def disconnected(self, client: Client) -> None:
        """A connection without a request in flight closed: its next request is not awaited."""


class MethodTable(Generic[L]):
    """Methods by name, as every engine has them; a base class, as each request asks for one."""

    def __init__(self) -> None:
        self._served: dict[str, L] = {}
        self._default: str | None = None

    @property
    def methods(self) -> Mapping[str, MethodSpec]:
        """See Engine."""
        return {name: served.spec for name, served in self._served.items()}

    @property
    def default(self) -> str | None:
        """See Engine."""
        return self._default

    def served(self, method: str | None) -> L:
        """See Engine."""
        name = self._default if method is None else method
        served = self._served.get(name or "")
        if served is not None:
            return served
        if not self._served:
            raise NotReadyError(_NOT_READY)
        names = ", ".join(self._served)
        if method is None:
            raise NoSuchRouteError(f"name a method; there are {names}, and none is the default")
        raise NoSuchRouteError(f"there is no method {method!r}; there are {names}")
