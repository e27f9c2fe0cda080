"""One request whose body a codec process takes apart."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, Head, Receipt, Results, Wire
from batchedapi_serving.dispatch.engine import Caller, Reader, RequestHandle, ServedMethod
from batchedapi_serving.dispatch.remote_frames import error_meta, receipt_meta, status_of
from batchedapi_serving.errors import DeadlineExceededError, ServingError
from batchedapi_serving.ipc import Meta, encode_frame
from batchedapi_serving.tracing.spans import Span
from batchedapi_serving.web.limits import HeldBodies

_PASSED_OVER_SECONDS: Final = 1.0


class LargeRequest:
    """One request: a RequestHandle to who asked, and to the engine both Reader and Reply.

    Its answers' bodies, as the engine sees them, are frames for the codec process.
    """

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

    def request_id(self) -> str | None:
        """See Caller."""
        return self.caller.request_id()

    @property
    def span(self) -> Span | None:
        """See Caller."""
        return self.caller.span

    def item(self, kind: str, body: bytes) -> None:
        """See Reader; an item is in no language yet, and needs no other process to be written."""
        if not self.done and isinstance(self.caller, Reader):
            self.caller.item(kind, body)

    def deliver(self, answer: Answer) -> None:
        """See Caller: have the response written."""
        self.handle = None
        if not self.done:
            self._write(self, answer.body)

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply."""
        meta, buffers = results.to_frame(start, stop)
        frame = {**meta, "answer": self.number, "receipt": receipt_meta(receipt)}
        return Answer(status_of(meta), b"", encode_frame(frame, buffers))

    def problem(self, error: ServingError, request_id: str | None) -> Answer:
        """See Reply. Of its time the engine knows only what was left."""
        if isinstance(error, DeadlineExceededError):
            error = self.late()
        meta = {"problem": self.number, "error": error_meta(error), "request_id": request_id}
        return Answer(error.status, b"", encode_frame(meta))


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
