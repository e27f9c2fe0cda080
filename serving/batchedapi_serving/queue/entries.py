"""Entries of the queue: requests, answers, and processes' words about themselves. No pickle.

A request is one frame (see ipc), an answer another; several answers are one behind the
other. Their meta:
    {"web", "request", "client", "rows", "sizes", "shapes", "timeout", "payload"}
    {"answer": request, "receipt": [...] | null, "kind": ...}   with results as Results.to_frame
    {"answer": request, "error": {"code", "message", "retry_after"}}
and "trace" in each, of a request that has a span, as in dispatch's `messages`.

All of it was written by another process, perhaps of another release, or by somebody else who may
write to Redis. So whatever is read is read here, field by field: a field that is not known is
passed over; what cannot be read is named, and nothing else is raised. Only those who wait for it
are lost then, and they are told where it says who they are.
"""

import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from batchedapi_core.shared_queue import Worker
from batchedapi_serving.codecs import Codec, DecodedRequest, Receipt, Reply, Results, codec_of
from batchedapi_serving.dispatch.messages import (
    error_of,
    pack_outcome,
    pack_rows,
    receipt_of,
    told_of,
    trace_of,
    unpack_rows,
)
from batchedapi_serving.dispatch.outcomes import Outcome
from batchedapi_serving.errors import ServingError, TooLargeError
from batchedapi_serving.ipc import Meta, encode_frame, whole_frames
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.queue.fields import (
    ANSWER,
    ANSWERED_ERROR,
    ERROR,
    METHOD,
    METHODS,
    REQUEST,
    UNREADABLE,
    WORKER,
    UnreadableError,
    are_whole,
    is_item,
    is_name,
    is_output,
    is_whole,
    object_of,
    unread_of,
)
from batchedapi_serving.tracing.spans import Span

MOST_BYTES: Final = 16 * 1024 * 1024
"""Limit of a request, and of its answer. Redis does nothing else while it reads or writes one."""
_SIGNATURE_DIGITS: Final = 12
_RECEIPT_FIELDS: Final = len(Receipt._fields)


class Entry(NamedTuple):
    """A request out of the queue."""

    web: str
    """The process that waits for its answer."""
    number: int
    """Unique within that process."""
    client: int
    """The same for requests of one connection."""
    timeout: float | None
    """Seconds that it had when it was handed in; None: however long it takes."""
    rows: int
    """In the request."""
    unread: tuple[str, ...]
    """Fields that cannot be read. Without a trace it can be run; without others it cannot, and
    what is above of them is nought."""
    meta: Meta
    payload: bytes

    @property
    def trace(self) -> Meta:
        """The meta with its trace, for `stand_in`."""
        return {} if "trace" in self.unread else self.meta

    def decoded(self, reply: Reply, codec: Codec) -> DecodedRequest:
        """The request as the web process decoded it, for a method with that codec.

        Raises:
            UnreadableError: it is not what the method takes.
        """
        lacks = [name for name in self.unread if name != "trace"]
        if lacks:
            raise UnreadableError(f"a request whose {', '.join(lacks)} cannot be read")
        try:
            decoded = unpack_rows(self.meta, self.payload, reply)
            rows, payload, _, sizes, shapes = decoded
            fits = codec.fits(rows, payload)
        except UNREADABLE as error:
            raise UnreadableError("a request whose payload cannot be read") from error
        if not fits or any(len(each) != rows for each in (sizes, shapes) if each is not None):
            raise UnreadableError("a request whose rows, sizes, shapes and payload do not agree")
        return decoded


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
    rows, buffers = pack_rows(decoded)
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
        "timeout": timeout,
        **rows,
        **trace_of(span),
    }
    return encode_frame(meta, buffers, length)


def read_entry(data: bytes) -> Entry:
    """The request of an entry.

    Raises:
        UnreadableError: it is none, or nobody can tell who waits for its answer.
    """
    frames = list(whole_frames(data))
    if len(frames) != 1 or frames[0] is None:
        raise UnreadableError("an entry that is not one frame")
    text, payload = frames[0]
    meta = object_of(text, "a request")
    web, number = meta.get("web"), meta.get("request")
    if not is_name(web) or not is_whole(number):
        raise UnreadableError("a request that does not say who waits for its answer")
    unread = unread_of(meta, REQUEST)
    known = (
        {name: None if name in unread else meta.get(name) for name in REQUEST} if unread else meta
    )
    return Entry(
        str(web), int(number or 0), known["client"] or 0, known["timeout"], known["rows"] or 0,
        unread, meta, payload,
    )  # fmt: skip


def write_answer(number: int, outcome: Outcome, *, span: Span | None = None) -> bytes:
    """The answer to a request; an error in its place if it has too many bytes.

    `span` stands in for the request's own, which is told what it has learned.
    """
    meta, buffers = pack_outcome(outcome)
    length = sum(map(len, buffers))
    if length > MOST_BYTES:
        meta, buffers = pack_outcome(
            ServingError(
                f"the answer is {length} bytes; expected at most {MOST_BYTES}, which is what goes"
                " through serverSideBatching.queue; send fewer rows at once"
            )
        )
    return encode_frame({**meta, "answer": number, **told_of(span)}, buffers)


def joined_answers(answers: Sequence[bytes]) -> Iterable[bytes]:
    """Answers that go together, each pack at most MOST_BYTES unless it is one answer."""
    while answers:
        count = together(map(len, answers))
        yield b"".join(answers[:count])
        answers = answers[count:]


def together(lengths: Iterable[int]) -> int:
    """How many of the first go in one command, by their bytes; at least one."""
    return max(1, sum(size <= MOST_BYTES for size in itertools.accumulate(lengths)))


class WrittenAnswer(NamedTuple):
    """An answer out of the list of a web process."""

    number: int
    """The request's."""
    unread: tuple[str, ...]
    """Fields beside the answer that cannot be read, and count as not there."""
    meta: Meta
    payload: bytes

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, if it can be read."""
        told = None if "receipt" in self.unread else self.meta.get("receipt")
        return None if told is None else receipt_of(told[:_RECEIPT_FIELDS])

    @property
    def trace(self) -> Meta:
        """The meta with its trace, for `learn`."""
        return {} if "trace" in self.unread else self.meta

    def results(self, codec: Codec, rows: int) -> Results:
        """The results for so many rows of a method.

        Raises:
            UnreadableError: it is nothing that the method answers.
            ServingError: what was answered instead.
        """
        meta = self.meta
        if "error" in meta:
            error = meta["error"]
            if not isinstance(error, dict) or unread_of(error, ERROR):
                raise UnreadableError("an answer whose error cannot be read")
            raise error_of(error)
        try:
            results = _results(meta, self.payload, codec, rows)
        except UNREADABLE as error:
            raise UnreadableError("an answer whose results cannot be read") from error
        if results is None:
            raise UnreadableError("an answer that is not of the rows that were asked")
        return results


def read_answers(pack: bytes) -> tuple[list[WrittenAnswer], int]:
    """Answers that were sent together, and how many others are there that cannot be read."""
    answers, broken = [], 0
    for frame in whole_frames(pack):
        try:
            meta = {} if frame is None else object_of(frame[0], "an answer")
        except UnreadableError:
            meta = {}
        if frame is None or not is_whole(meta.get("answer")):
            broken += 1
            continue
        unread = unread_of(meta, ANSWERED_ERROR if "error" in meta else ANSWER)
        answers.append(WrittenAnswer(meta["answer"], unread, meta, frame[1]))
    return answers, broken


def _results(meta: Meta, payload: bytes, codec: Codec, rows: int) -> Results | None:
    """None: it does not agree with itself, or with what was asked."""
    kind, known, agrees = meta.get("kind"), dict[str, Any](), False
    if kind == "items":
        items = [_item(item) for item in meta["items"]]
        known = {"kind": kind, "items": items}
        agrees = len(items) == rows and sum(item[2] for item in items) == len(payload)
    elif kind == "tensors":
        outputs = [_output(output, rows, codec.method.outputs) for output in meta["outputs"]]
        known = {"kind": kind, "outputs": outputs, "not_finite": meta["not_finite"]}
        agrees = (
            sum(map(_output_bytes, outputs)) == len(payload)
            and are_whole(meta["not_finite"])
            and _are_outputs_of(codec.method, [name for name, *_ in outputs])
        )
    return codec.results(known, payload) if agrees else None


def _are_outputs_of(method: MethodSpec, names: Sequence[str]) -> bool:
    declared = method.outputs.keys() or set(names)
    return (
        len(set(names)) == len(names) > 0
        and set(names) == declared
        and (len(names) == 1 or not method.single_output)
    )


def _item(item: Any) -> list[Any]:
    """The members of an item that are known; see codecs/results."""
    if not is_item(item):
        raise UnreadableError("an item")
    return [*item[:3], *(said[:2] for said in item[3:4])]


def _output(output: Any, rows: int, declared: Mapping[str, Tensor]) -> list[Any]:
    """The members of an output of so many rows that are known; see codecs/results."""
    if not is_output(output):
        raise UnreadableError("an output")
    name, dtype, shape, *_ = output
    of_each = isinstance(shape[0], list)
    if (len(shape) if of_each else shape[0]) != rows:
        raise UnreadableError("an output")
    tensor = declared.get(name)
    if tensor is not None:
        fits = dtype == tensor.numpy_dtype and all(
            len(one) == len(tensor.shape)
            and all(isinstance(n, str) or n == m for n, m in zip(tensor.shape, one, strict=True))
            for one in (shape if of_each else [shape[1:]])
        )
        if not fits:
            raise UnreadableError("an output")
    return [name, dtype, shape]


def _output_bytes(output: Sequence[Any]) -> int:
    _, dtype, shape = output
    numbers = sum(map(math.prod, shape)) if isinstance(shape[0], list) else math.prod(shape)
    return int(numbers) * int(dtype[2:])


class Methods(NamedTuple):
    """The methods that workers of one revision serve."""

    specs: Sequence[MethodSpec]
    default: str | None
    signature: str
    """The same for the same methods, whatever serves them."""

    @classmethod
    def of(cls, specs: Sequence[MethodSpec], default: str | None) -> "Methods":
        """With their signature."""
        return cls(specs, default, _signature([spec.to_json() for spec in specs], default))

    def stream(self, method: str) -> str:
        """Where requests of a method wait."""
        return f"{self.signature}:{method}"


def write_methods(methods: Methods, now: float) -> bytes:
    """Text that `read_methods` takes back; `now` is in seconds since 1970."""
    specs = [spec.to_json() for spec in methods.specs]
    return orjson.dumps({"methods": specs, "default": methods.default, "at": now})


def read_methods(text: bytes) -> tuple[Methods, float]:
    """The reverse of `write_methods`. The signature is of what is written there, known or not.

    Raises:
        UnreadableError: it is none of these, or lacks what this release has to know.
    """
    value = object_of(text, "methods")
    unread = unread_of(value, METHODS)
    if unread:
        raise UnreadableError(f"methods whose {', '.join(unread)} cannot be read")
    default = value["default"]
    specs = [_method(one) for one in value["methods"]]
    if default is not None and default not in {spec.name for spec in specs}:
        raise UnreadableError("methods without their default")
    return Methods(specs, default, _signature(value["methods"], default)), value["at"]


def _method(value: Any) -> MethodSpec:
    unread = unread_of(value, METHOD)
    if unread:
        raise UnreadableError(f"a method whose {', '.join(unread)} cannot be read")
    try:
        spec = MethodSpec.from_json(value)
        codec_of(spec)  # what it says of itself fits together
    except UNREADABLE as error:
        raise UnreadableError("a method whose tensors or size cannot be read") from error
    inputs, outputs = len(spec.inputs), len(spec.outputs)
    if (spec.single_input and inputs != 1) or (spec.single_output and outputs > 1):
        raise UnreadableError("a method whose inputs or outputs are not as many as it says")
    return spec


def write_worker(worker: Worker) -> bytes:
    """The text that a worker sends with each sign of life."""
    return orjson.dumps(worker._asdict())


def read_worker(name: str, text: bytes) -> Worker:
    """The reverse of `write_worker`, of the worker with that name.

    Raises:
        UnreadableError: it lacks what this release has to know, or the name is none.
    """
    if not is_name(name):
        raise UnreadableError("a name of a worker")
    value = object_of(text, "a sign of life")
    unread = unread_of(value, WORKER)
    if unread:
        raise UnreadableError(f"a sign of life whose {', '.join(unread)} cannot be read")
    capacity = {name: (one[0], one[1], one[2]) for name, one in value["capacity"].items()}
    return Worker(
        value["signature"], value["revision"], value["started"], value["draining"], capacity
    )


def _signature(methods: Sequence[Mapping[str, Any]], default: str | None) -> str:
    told = orjson.dumps([methods, default])
    return hashlib.sha256(told).hexdigest()[:_SIGNATURE_DIGITS]
