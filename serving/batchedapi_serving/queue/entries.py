"""What lies in the queue: requests, answers, and what processes say of themselves. No pickle.

A request is one frame (see ipc), an answer another; several answers are one behind the
other. Their meta:
    {"web", "request", "client", "rows", "sizes", "shapes", "timeout", "payload"}
    {"answer": request, "receipt": [...] | null, "kind": ...}   with results as Results.to_frame
    {"answer": request, "error": {"code", "message", "retry_after"}}
and "trace" in each, of a request that has a span, as in dispatch's `remote_frames`.
"""

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from batchedapi_core.shared_queue import Worker
from batchedapi_serving.codecs import DecodedRequest, Receipt, Reply, Results
from batchedapi_serving.dispatch.remote_frames import (
    error_meta,
    hashable,
    pack_payload,
    receipt_meta,
    told_of,
    trace_of,
    unpack_payload,
)
from batchedapi_serving.errors import ServingError, TooLargeError
from batchedapi_serving.ipc import BrokenFrameError, FrameReader, Meta, encode_frame
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.tracing.spans import Span

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of one request, and of its answer. Redis does nothing else while it reads or writes one."""
_SIGNATURE_DIGITS: Final = 12


class Entry(NamedTuple):
    """A request out of the queue."""

    web: str
    """The process that waits for its answer."""
    number: int
    """That process's, unique within it."""
    client: int
    """The same for requests of one connection."""
    timeout: float | None
    """Seconds that it had when it was handed in; None: however long it takes."""
    meta: Meta
    payload: bytes

    @property
    def rows(self) -> int:
        """In the request."""
        return int(self.meta["rows"])

    def decoded(self, reply: Reply) -> DecodedRequest:
        """What the web process decoded.

        Raises:
            BrokenFrameError: the payload is not what it says.
        """
        meta = self.meta
        shapes = meta["shapes"]
        return DecodedRequest(
            meta["rows"],
            unpack_payload(meta["payload"], self.payload),
            reply,
            meta["sizes"],
            None if shapes is None else [hashable(shape) for shape in shapes],
        )


def write_entry(
    web: str,
    number: int,
    client: int,
    timeout: float | None,
    decoded: DecodedRequest,
    *,
    span: Span | None = None,
) -> bytes:
    """A request for the queue; `span`: its own, if it is traced.

    Raises:
        TooLargeError: it has more bytes than may be in one.
    """
    form, buffers = pack_payload(decoded.payload)
    length = sum(map(len, buffers))
    if length > MOST_BYTES:
        raise TooLargeError(
            f"the rows of this request are {length} bytes; expected at most {MOST_BYTES} of one"
            " request, which is what goes through serverSideBatching.queue; send fewer at once"
        )
    meta = {
        "web": web,
        "request": number,
        "client": client,
        "rows": decoded.rows,
        "sizes": decoded.sizes,
        "shapes": decoded.shapes,
        "timeout": timeout,
        "payload": form,
        **trace_of(span),
    }
    return encode_frame(meta, buffers, length)


def read_entry(data: bytes) -> Entry:
    """The request of an entry.

    Raises:
        BrokenFrameError: it is none.
    """
    frames = list(FrameReader().feed(data))
    if len(frames) != 1:
        raise BrokenFrameError(f"expected one frame, got {len(frames)} in {len(data)} bytes")
    meta, payload = frames[0]
    try:
        return Entry(meta["web"], meta["request"], meta["client"], meta["timeout"], meta, payload)
    except KeyError as error:
        raise BrokenFrameError(f"a request without {error}") from error


def write_answer(
    number: int,
    results: Results,
    start: int,
    stop: int,
    receipt: Receipt | None,
    *,
    span: Span | None = None,
) -> bytes:
    """The answer to a request; an error in its place if it has too many bytes.

    `span` stands in for the request's own, which is told what it has learned.
    """
    meta, buffers = results.to_frame(start, stop)
    length = sum(map(len, buffers))
    if length > MOST_BYTES:
        return write_problem(
            number,
            ServingError(
                f"the answer is {length} bytes; expected at most {MOST_BYTES}, which is what goes"
                " through serverSideBatching.queue; send fewer rows at once"
            ),
            span=span,
        )
    frame = {**meta, "answer": number, "receipt": receipt_meta(receipt), **told_of(span)}
    return encode_frame(frame, buffers, length)


def write_problem(number: int, error: ServingError, *, span: Span | None = None) -> bytes:
    """The answer to a request that failed; `span` as in `write_answer`."""
    return encode_frame({"answer": number, "error": error_meta(error), **told_of(span)})


def joined_answers(answers: Sequence[bytes]) -> Iterable[bytes]:
    """Answers that go together, each pack at most MOST_BYTES unless it is one answer."""
    while answers:
        count = together(map(len, answers))
        yield b"".join(answers[:count])
        answers = answers[count:]


def together(lengths: Iterable[int]) -> int:
    """How many of the first go in one command, by their bytes; at least one."""
    return max(1, sum(size <= MOST_BYTES for size in itertools.accumulate(lengths)))


def read_answers(pack: bytes) -> Iterable[tuple[Meta, bytes]]:
    """Answers that were sent together.

    Raises:
        BrokenFrameError: they are none.
    """
    return FrameReader().feed(pack)


class Methods(NamedTuple):
    """What workers of one revision serve."""

    specs: Sequence[MethodSpec]
    default: str | None
    signature: str
    """The same for the same methods, whatever serves them."""

    @classmethod
    def of(cls, specs: Sequence[MethodSpec], default: str | None) -> "Methods":
        """With their signature."""
        told = orjson.dumps([[spec.to_json() for spec in specs], default])
        return cls(specs, default, hashlib.sha256(told).hexdigest()[:_SIGNATURE_DIGITS])

    def stream(self, method: str) -> str:
        """Where requests of a method wait."""
        return f"{self.signature}:{method}"


def write_methods(methods: Methods, now: float) -> bytes:
    """Text that `read_methods` takes back; `now` is in seconds since 1970."""
    specs = [spec.to_json() for spec in methods.specs]
    return orjson.dumps({"methods": specs, "default": methods.default, "at": now})


def read_methods(text: bytes) -> tuple[Methods, float]:
    """The reverse of `write_methods`."""
    value = orjson.loads(text)
    specs = [MethodSpec.from_json(one) for one in value["methods"]]
    return Methods.of(specs, value["default"]), value["at"]


def write_worker(worker: Worker) -> bytes:
    """What a worker says with each sign of life."""
    return orjson.dumps(worker._asdict())


def read_worker(text: bytes) -> Worker:
    """The reverse of `write_worker`."""
    value: Mapping[str, Any] = orjson.loads(text)
    capacity = {name: (one[0], one[1], one[2]) for name, one in value["capacity"].items()}
    return Worker(**{**value, "capacity": capacity})
