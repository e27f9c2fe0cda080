"""One request whose body a codec process takes apart."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, Head, Wire
from batchedapi_serving.dispatch.engine import Caller, Reader, RequestHandle, ServedMethod
from batchedapi_serving.dispatch.messages import pack_outcome
from batchedapi_serving.dispatch.outcomes import Outcome
from batchedapi_serving.errors import DeadlineExceededError, ServingError
from batchedapi_serving.ipc import Meta, encode_frame
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.limits import HeldBodies

_PASSED_OVER_SECONDS: Final = 1.0


class LargeBody(NamedTuple):
    """A body that is too large for the event loop, and who asked."""

    served: ServedMethod
    """One of the engine's."""
    wire: Wire
    """The route's."""
    head: Head | None
    """Beside the body; None once the codec process has both."""
    body: bytes
    client: Client
    """As the engine wants it."""
    caller: Caller
    """As the engine wants it."""
    timeout: float | None
    """Seconds that the client waits at most; the replica's own hold as well."""
    problem_of: Callable[[ServingError], Answer]
    """The answer to an error before the request is understood."""
    held: HeldBodies | None = None
    """Counts the bytes of the body, then of its rows; None: the caller counts the body."""
    packed: bool = False
    """The body is gzip, and is inflated in the codec process."""

    def length(self, most: int) -> int:
        """Bytes of the body; of gzip, at most `most`, as its last four say, which may be wrong."""
        size = len(self.body)
        return min(int.from_bytes(self.body[-4:], "little"), most) if self.packed else size


class LargeRequest:
    """One request; to who asked it is a RequestHandle."""

    __slots__ = (
        "_hurried", "_write", "asked", "counted", "deadline", "done", "handle", "length", "number",
        "timeout", "timer",
    )  # fmt: skip

    def __init__(
        self,
        asked: LargeBody,
        number: int,
        write: Callable[["LargeRequest", bytes], None],
        settings: ReplicaSettings,
    ) -> None:
        """`write` has the response written that a frame tells of."""
        longest = math.inf if settings.timeout is None else settings.timeout
        self._hurried = asked.timeout is not None and asked.timeout < longest
        self.timeout = longest if asked.timeout is None else min(asked.timeout, longest)
        """Seconds from its arrival to its deadline; inf: none."""
        self.deadline = asyncio.get_running_loop().time() + self.timeout
        """Seconds on the loop's clock; inf: none."""
        self.timer: asyncio.TimerHandle | None = None
        """Looks at its deadline whether it is taken apart; None: it has none."""
        self._write = write
        self.number = number
        self.asked = asked
        self.length: Final = asked.length(settings.max_body_bytes)
        self.handle: RequestHandle | None = None
        """The engine's, once it has the rows."""
        self.counted = False
        """Its answer is, or will be, by the engine or for it."""
        self.done = False
        """It was answered, or its client left."""

    def reserves(self) -> bool:
        """Count the bytes that a packed body is going to have; False: there is no room."""
        asked = self.asked
        if not asked.packed or asked.held is None:
            return True
        return asked.held.answering(max(self.length, len(asked.body)))

    def give_up_body(self) -> None:
        """Nothing of it is needed here any more."""
        self.asked = self.asked._replace(head=None, body=b"")

    def late(self) -> DeadlineExceededError:
        """The error that it is answered with at its deadline."""
        return DeadlineExceededError.after(self.timeout, hurried=self._hurried)

    def item(self, kind: str, body: bytes) -> None:
        """Hand on an item of a stream, which is in no language yet."""
        if not self.done and isinstance(self.asked.caller, Reader):
            self.asked.caller.item(kind, body)

    def over(self, outcome: Outcome) -> None:
        """The engine has answered: have the response written."""
        self.handle = None
        if self.done:
            return
        request_id = None
        if isinstance(outcome, ServingError):
            request_id = self.asked.caller.request_id()
            if isinstance(outcome, DeadlineExceededError):
                outcome = self.late()  # of its time the engine knows only what was left
        meta, buffers = pack_outcome(outcome)
        frame = {**meta, "answer": self.number, "request_id": request_id}
        self._write(self, encode_frame(frame, buffers))


def next_of(lengths: Sequence[int], passed_over: float, timeout: float) -> int:
    """The index of the body that is taken apart next: the smallest.

    So nobody's small body waits behind many large ones. The oldest has its turn all the same once
    it was passed over for a second, or a quarter of its time if that is less; then the next oldest
    can be passed over for as long again.

    Args:
        lengths: In bytes, the oldest first; not empty.
        passed_over: Seconds for which others have been taken before the oldest.
        timeout: Seconds that the oldest waits for its answer in all.
    """
    if passed_over >= min(_PASSED_OVER_SECONDS, timeout / 4):
        return 0
    return min(range(len(lengths)), key=lengths.__getitem__)


def question(request: LargeRequest) -> Meta:
    """The frame that asks for its rows; the body follows."""
    served, wire, head, *_ = asked = request.asked
    if head is None:
        raise AssertionError("a body is asked for once")
    return {
        "decode": request.number,
        "method": served.spec.to_json(),
        "wire": wire.value,
        "content_type": head.content_type.decode("latin-1"),
        "query": head.query.decode("latin-1"),
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in head.headers],
        "packed": asked.packed,
    }
