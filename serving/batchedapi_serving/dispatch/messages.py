"""Messages between the web process that has the queue and those that forward to it.

From a further web process (`remote`):
    {"request", "client", "method", "rows", "sizes", "shapes", "timeout", "payload"}
                    and "trace": headers of its span, of a request that has one
    {"cancel": request, "status": code}   the client left, or was answered so elsewhere
    {"taken": request, "items": n}   the client of a stream took n more items
    {"disconnected": client}   its connection closed; the number is never used again
    {"answered": code, "times": n}   n requests were answered that it did not forward
To it (`engine_server`):
    {"hello": {"methods": [...], "default": name}}   once the first model process is ready
    {"item": request, "kind": ...}   one item of a stream, before its answer
    {"answer": request, "receipt": [...] | null, "kind": ...}   with results as Results.to_frame
    {"answer": request, "error": {"code", "message", "retry_after"}}
                    and "trace": what the span is to learn, of a request that has one
"""

import itertools
from collections.abc import Hashable, Sequence
from typing import Any, Final

from batchedapi_serving.codecs import Answer, Codec, DecodedRequest, Receipt, Reply
from batchedapi_serving.codecs.named_codec import Row
from batchedapi_serving.dispatch.outcomes import Outcome
from batchedapi_serving.errors import LoadError, OverloadedError, ServingError
from batchedapi_serving.ipc import BrokenFrameError, Meta
from batchedapi_serving.tracing.spans import Span, context_in


def trace_of(span: Span | None) -> Meta:
    """Fields of a request about its span."""
    return {} if span is None else {"trace": span.context.headers()}


def stand_in(meta: Meta) -> Span | None:
    """For the span of a request from elsewhere, whose process is told what it learns.

    None: the request is not traced.
    """
    context = context_in(meta["trace"]) if "trace" in meta else None
    return None if context is None else Span(context)


def told_of(span: Span | None) -> Meta:
    """Fields of an answer about the facts that a stand-in has learned."""
    return {} if span is None else {"trace": span.told()}


def learn(span: Span | None, meta: Meta) -> None:
    """The reverse of `told_of`."""
    if span is not None and "trace" in meta:
        span.learn(meta["trace"])


def pack_rows(decoded: DecodedRequest) -> tuple[Meta, list[bytes]]:
    """Rows as meta and payload of a frame, without the reply to them."""
    rows, payload, _, sizes, shapes = decoded
    form, buffers = pack_payload(payload)
    return {"rows": rows, "sizes": sizes, "shapes": shapes, "payload": form}, buffers


def unpack_rows(meta: Meta, payload: bytes, reply: Reply) -> DecodedRequest:
    """The reverse of `pack_rows`."""
    shapes = meta["shapes"]
    return DecodedRequest(
        meta["rows"],
        unpack_payload(meta["payload"], payload),
        reply,
        meta["sizes"],
        None if shapes is None else [hashable(shape) for shape in shapes],
    )


def pack_outcome(outcome: Outcome) -> tuple[Meta, Sequence[bytes]]:
    """Results or an error as meta and payload of a frame."""
    if isinstance(outcome, ServingError):
        return {"error": error_meta(outcome)}, ()
    results, start, stop, receipt = outcome
    meta, buffers = results.to_frame(start, stop)
    return {**meta, "receipt": receipt_meta(receipt)}, buffers


def answer_of(meta: Meta, payload: bytes, codec: Codec, reply: Reply, rows: int) -> Answer:
    """The response to so many rows, with an outcome that `pack_outcome` gave.

    Raises:
        ServingError: it is an error, or the language of the response cannot say it.
    """
    if "error" in meta:
        raise error_of(meta["error"])
    return reply.answer(codec.results(meta, payload), 0, rows, receipt_of(meta["receipt"]))


def pack_payload(payload: Any) -> tuple[Any, list[bytes]]:
    """A codec's payload as a JSON form and the bytes it speaks of.

    Bytes become their length, a list stays a list, and `{"tuple": [...]}` is one. A list of nothing
    but bytes, or of Rows, may be long: it is `{"bytes": [length, ...]}`, or `{"rows": [lengths of a
    row's dimensions, ...], "parts": [lengths of the bytes of all, ...]}`.

    Raises:
        TypeError: something else is in it.
    """
    buffers: list[bytes] = []
    return _packed(payload, buffers), buffers


def _packed(value: Any, buffers: list[bytes]) -> Any:
    match value:
        case bytes():
            buffers.append(value)
            return len(value)
        case list():
            kinds = set(map(type, value))
            if kinds == {bytes}:
                buffers += value
                return {"bytes": list(map(len, value))}
            if kinds == {Row}:
                parts = list(itertools.chain.from_iterable(row.parts for row in value))
                buffers += parts
                return {"rows": [row.lengths for row in value], "parts": list(map(len, parts))}
            return [_packed(item, buffers) for item in value]
        case tuple():
            return {"tuple": [_packed(item, buffers) for item in value]}
        case _:
            raise TypeError(f"payload: expected bytes, lists or tuples, got {type(value).__name__}")


def unpack_payload(form: Any, data: bytes) -> Any:
    """The reverse of `pack_payload`; `data` are its buffers one after the other.

    Raises:
        BrokenFrameError: `form` and `data` do not fit together.
    """
    payload, end = _unpacked(form, data, 0)
    if end != len(data):
        raise BrokenFrameError(f"payload of {len(data)} bytes, {end} were announced")
    return payload


def _unpacked(form: Any, data: bytes, start: int) -> tuple[Any, int]:
    match form:
        case int(length):
            whole = start == 0 and length == len(data)
            return data if whole else data[start : start + length], start + length
        case {"bytes": [*lengths]}:
            return _cut(data, start, lengths)
        case {"rows": [*rows], "parts": [*lengths]}:
            parts, start = _cut(data, start, lengths)
            each = len(parts) // max(1, len(rows))
            return [
                Row(tuple(row), tuple(parts[i * each : i * each + each]))
                for i, row in enumerate(rows)
            ], start
        case list(items):
            return _unpacked_each(items, data, start)
        case {"tuple": [*items]}:
            values, start = _unpacked_each(items, data, start)
            return tuple(values), start
        case _:
            raise BrokenFrameError(f"payload of unknown form {form!r}")


def _cut(data: bytes, start: int, lengths: Sequence[int]) -> tuple[list[bytes], int]:
    """Pieces of these lengths, from `start` on."""
    ends = list(itertools.accumulate(lengths, initial=start))
    return [data[a:b] for a, b in itertools.pairwise(ends)], ends[-1]


def _unpacked_each(forms: Sequence[Any], data: bytes, start: int) -> tuple[list[Any], int]:
    values = []
    for form in forms:
        value, start = _unpacked(form, data, start)
        values.append(value)
    return values, start


def hashable(shape: Any) -> Hashable:
    """A row's shape as it was before JSON made lists of its tuples."""
    return tuple(map(hashable, shape)) if isinstance(shape, list) else shape


def error_meta(error: ServingError) -> Meta:
    """JSON form of an error, for `error_of`."""
    retry_after = error.retry_after if isinstance(error, OverloadedError) else 0
    return {"code": error.code, "message": str(error), "retry_after": retry_after}


def error_of(meta: Meta) -> ServingError:
    """The error that `error_meta` was given; its class is known by its code."""
    kind = _CLASSES.get(meta["code"], ServingError)
    if issubclass(kind, OverloadedError):
        return kind(meta["message"], meta["retry_after"])
    return kind(meta["message"])


def _classes(base: type[ServingError]) -> dict[str, type[ServingError]]:
    """By code. LoadError shares that of its base, which any request can meet."""
    found = {base.code: base}
    for kind in base.__subclasses__():
        if kind is not LoadError:
            found |= _classes(kind)
    return found


_CLASSES: Final = _classes(ServingError)


def receipt_meta(receipt: Receipt | None) -> list[Any] | None:
    """JSON form of a receipt, for `receipt_of`."""
    return None if receipt is None else list(receipt)


def receipt_of(meta: list[Any] | None) -> Receipt | None:
    """The reverse of `receipt_meta`."""
    return None if meta is None else Receipt(*meta)
