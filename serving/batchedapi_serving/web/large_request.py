"""One request whose body a codec process takes apart."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, Head, Wire
from batchedapi_serving.dispatch.engine import Caller, Reader, RequestHandle, ServedMethod
from batchedapi_serving.dispatch.messages import pack_outcome
from batchedapi_serving.dispatch.outcomes import Outcome
from batchedapi_serving.errors import DeadlineExceededError, ServingError
from batchedapi_serving.ipc import Meta, encode_frame
from batchedapi_serving.web.limits import HeldBodies

_PASSED_OVER_SECONDS: Final = 1.0


class LargeRequest:
    """One request; to who asked it is a RequestHandle."""

    __slots__ = (
        "_hurried",
        "_write",
        "body",
        "caller",
        "client",
        "counted",
        "deadline",
        "done",
        "handle",
        "head",
        "held",
        "length",
        "number",
        "packed",
        "problem_of",
        "served",
        "timeout",
        "wire",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917 - one for each request, made in one place
        self, write: Callable[["LargeRequest", bytes], None], number: int, served: ServedMethod,
        wire: Wire, head: Head, body: bytes, client: Client, caller: Caller,
        timeout: float | None, longest: float | None,
        problem_of: Callable[[ServingError], Answer], held: HeldBodies | None,
        *, packed: bool, most: int,
    ) -> None:  # fmt: skip
        """`write` has the response written that a frame tells of.

        `timeout` is the client's own, `longest` the replica's, in seconds; None: none. `most` is
        the limit of a body in bytes.
        """
        longest = math.inf if longest is None else longest
        self._hurried = timeout is not None and timeout < longest
        self.timeout = longest if timeout is None else min(timeout, longest)
        """Seconds from its arrival to its deadline; inf: none."""
        self.deadline = asyncio.get_running_loop().time() + self.timeout
        """Seconds on the loop's clock; inf: none."""
        self._write = write
        self.number = number
        self.served = served
        self.wire = wire
        self.head: Head | None = head
        self.body = body
        self.packed = packed
        """The body is gzip, and is inflated in the codec process."""
        self.length: Final = length_of(body, most, packed=packed)
        self.held = held
        """Counts the bytes of the body, then of its rows; None: the caller counts the body."""
        self.client = client
        self.caller = caller
        self.problem_of = problem_of
        self.handle: RequestHandle | None = None
        """The engine's, once it has the rows."""
        self.counted = False
        """Its answer is, or will be, by the engine or for it."""
        self.done = False
        """It was answered, or its client left."""

    def reserves(self) -> bool:
        """Count the bytes that a packed body is going to have; False: there is no room."""
        if not self.packed or self.held is None:
            return True
        return self.held.answering(max(self.length, len(self.body)))

    def late(self) -> DeadlineExceededError:
        """What it is answered with at its deadline."""
        return DeadlineExceededError.after(self.timeout, hurried=self._hurried)

    def item(self, kind: str, body: bytes) -> None:
        """Hand on an item of a stream, which is in no language yet."""
        if not self.done and isinstance(self.caller, Reader):
            self.caller.item(kind, body)

    def over(self, outcome: Outcome) -> None:
        """The engine has answered: have the response written."""
        self.handle = None
        if self.done:
            return
        request_id = None
        if isinstance(outcome, ServingError):
            request_id = self.caller.request_id()
            if isinstance(outcome, DeadlineExceededError):
                outcome = self.late()  # of its time the engine knows only what was left
        meta, buffers = pack_outcome(outcome)
        frame = {**meta, "answer": self.number, "request_id": request_id}
        self._write(self, encode_frame(frame, buffers))


def length_of(body: bytes, most: int, *, packed: bool) -> int:
    """Bytes of a body; of gzip, at most `most`, as its last four bytes say, which may be wrong."""
    return min(int.from_bytes(body[-4:], "little"), most) if packed else len(body)


def next_of(lengths: Sequence[int], passed_over: float, timeout: float) -> int:
    """Which of the bodies that wait is taken apart next: the smallest.

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
    head, request.head = request.head, None
    if head is None:
        raise AssertionError("a body is asked for once")
    return {
        "decode": request.number,
        "method": request.served.spec.to_json(),
        "wire": request.wire.value,
        "content_type": head.content_type.decode("latin-1"),
        "query": head.query.decode("latin-1"),
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in head.headers],
        "packed": request.packed,
    }
