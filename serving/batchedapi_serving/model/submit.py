"""`context.submit` of a running predictor: rows go to the queue of another of its methods.

During the warm-up there is no queue yet, and rows are answered by that method at once.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import orjson

from batchedapi_serving.codecs import Collated, Encoded, Results
from batchedapi_serving.codecs.json_values import NON_FINITE
from batchedapi_serving.codecs.results import ItemResults, read_results
from batchedapi_serving.dispatch.channel_rows import submitted_rows
from batchedapi_serving.dispatch.desk import Line
from batchedapi_serving.dispatch.frames import Meta, Payload
from batchedapi_serving.errors import PredictorError, ServingError
from batchedapi_serving.model.worker import ChannelLoop, ConnectionLostError
from batchedapi_serving.predictor import SINGLE_INPUT, ItemError, MethodSpec, SubmitError

Array = np.ndarray[Any, Any]
_OK: Final = 200
_WRITE: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_WHERE: Final = (
    "context.submit({!r}): expected to be awaited in an async method of the predictor; write"
    " `async def` for the method that awaits it"
)


class Local(Protocol):
    """Answers rows in this process, without a queue."""

    async def answer(self, spec: MethodSpec, meta: Meta, payload: bytes) -> tuple[Meta, bytes]:
        """As the dispatcher would answer a submit's frame."""


class ChannelSubmitter:
    """See Submitter."""

    def __init__(self, channel: ChannelLoop, specs: Sequence[MethodSpec]) -> None:
        self._channel = channel
        self._specs = {spec.name: spec for spec in specs}
        self.local: Local | None = None
        """Set while there is no dispatcher yet: during the warm-up."""

    async def submit(self, method: str, rows: Any) -> Any:
        """See Context.submit."""
        if asyncio.get_running_loop() is not self._channel.loop:
            raise SubmitError(500, _WHERE.format(method))
        spec = self._specs.get(method)
        if spec is None:
            served = ", ".join(self._specs)
            raise SubmitError(500, f"there is no method {method!r}; served are {served}")
        meta, payload = rows_frame(spec, rows)
        try:
            if self.local is None:
                answer, body = await self._channel.submit(meta, payload)
            else:
                answer, body = await self.local.answer(spec, meta, b"".join(payload))
        except ConnectionLostError as error:
            raise SubmitError(503, f"{method}: {error}") from error
        return answered_rows(spec, answer, body)


def rows_frame(spec: MethodSpec, rows: Any) -> tuple[Meta, Sequence[bytes]]:
    """Rows for the method `spec` as a submit's frame; see dispatch.channel_rows.

    Raises:
        SubmitError: they are no rows, or not of the types it takes.
    """
    meta: Meta = {"method": spec.name}
    try:
        arrays = _arrays(spec, rows)
        if arrays is None:
            return meta, (_json_text(spec, list(rows)),)
    except (TypeError, ValueError) as error:
        raise SubmitError(
            422, f"rows: expected what {spec.name!r} takes, got {type(rows).__name__}: {error}"
        ) from error
    meta["arrays"] = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    return meta, [array.tobytes() for array in arrays.values()]


def _arrays(spec: MethodSpec, rows: Any) -> Mapping[str, Array] | None:
    """Named arrays; None if the rows are better sent as JSON items."""
    if isinstance(rows, Mapping):
        return {name: _array(spec, name, value) for name, value in rows.items()}
    name = next(iter(spec.inputs), SINGLE_INPUT)
    fixed = spec.single_input and not spec.inputs[name].variable
    if fixed or (hasattr(rows, "__array__") and not isinstance(rows, list | tuple)):
        return {name: _array(spec, name, rows)}
    return None


def _array(spec: MethodSpec, name: str, value: Any) -> Array:
    array = np.asarray(value)
    if name in spec.inputs:
        return array.astype(spec.inputs[name].numpy_dtype, casting="same_kind", copy=False)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected numbers, got an array of {array.dtype}")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _json_text(spec: MethodSpec, rows: list[Any]) -> bytes:
    text = orjson.dumps(rows, default=_plain, option=_WRITE)
    if b"null" not in text:  # which is what NaN and Infinity are written as
        return text
    allowed = any(tensor.allow_non_finite for tensor in spec.inputs.values())
    return orjson.dumps(_spelled(rows, allowed=allowed), default=_plain, option=_WRITE)


def _spelled(value: Any, *, allowed: bool) -> Any:
    """A value with the words that JSON has for NaN and Infinity; see NON_FINITE.

    Raises:
        ValueError: there is one, and they are not allowed.
    """
    if isinstance(value, Mapping):
        return {name: _spelled(member, allowed=allowed) for name, member in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _spelled(value.tolist(), allowed=allowed)
    if isinstance(value, list | tuple):
        return [_spelled(member, allowed=allowed) for member in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if not allowed:
        raise ValueError("NaN or Infinity")
    return next(word for word, number in NON_FINITE.items() if number == value or math.isnan(value))


def _plain(value: Any) -> Any:
    """An array that orjson does not read: transposed or sliced."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def answered_rows(spec: MethodSpec, meta: Meta, payload: bytes) -> Any:
    """What `spec` answered, in its own kind: a list of items, an array, a dict of arrays.

    Raises:
        SubmitError: it could not be answered.
    """
    if meta["kind"] == "error":
        raise SubmitError(meta.get("status", PredictorError.status), meta["error"])
    results = read_results(spec, meta, payload)
    if isinstance(results, ItemResults):
        items = results.items(0, len(meta["items"]))
        failed = next((item for item in items if item.status != _OK), None)
        if spec.inputs and failed is not None:  # an array has no place for the error of one row
            raise SubmitError(failed.status, str(orjson.loads(failed.body)["message"]))
        return [_item(*item) for item in items]
    try:
        arrays = results.arrays(0, _rows(meta))
    except PredictorError as error:
        raise SubmitError(error.status, f"{spec.name}: {error}") from error
    # Copies, because these are read-only.
    copies = {name: array.copy() for name, array in arrays.items()}
    return next(iter(copies.values())) if spec.single_output else copies


def _rows(meta: Meta) -> int:
    (_, _, shape), *_ = meta["outputs"]
    return len(shape) if isinstance(shape[0], list) else int(shape[0])


def _item(status: int, kind: str, body: bytes) -> Any:
    if status != _OK:
        return ItemError(status, str(orjson.loads(body)["message"]))
    if kind == "json":
        return orjson.loads(body)
    return body.decode() if kind == "text" else body


class Runner(Protocol):
    """Runs batches; `model.batch.BatchRunner`."""

    def run(self, meta: Meta, payload: bytes) -> tuple[Meta, Sequence[Payload]]:
        """Answer one batch of a sync method."""

    async def run_async(self, meta: Meta, payload: bytes) -> tuple[Meta, Sequence[bytes]]:
        """Answer one batch of an async method."""


class _FailedError(Exception):
    def __init__(self, meta: Meta) -> None:
        super().__init__(meta["error"])
        self.meta = meta


class LocalAnswers:
    """See channel_submits.Local."""

    def __init__(self, runner: Runner, lines: Mapping[str, Line]) -> None:
        self._runner = runner
        self._lines = lines

    async def answer(self, spec: MethodSpec, meta: Meta, payload: bytes) -> tuple[Meta, bytes]:
        """See Local."""
        line = self._lines[spec.name]
        try:
            encoded = submitted_rows(line, meta, payload)
            results = await self._results(line, encoded)
        except ServingError as error:
            return {"kind": "error", "status": error.status, "error": str(error)}, b""
        except _FailedError as error:
            return error.meta, b""
        answer, buffers = results.to_frame(0, encoded.rows)
        return answer, b"".join(buffers)

    async def _results(self, line: Line, encoded: Encoded) -> Results:
        """Calls and rows of different shapes run one by one, others together."""
        codec, rows, payload = line.codec, encoded.rows, encoded.payload
        if line.spec.batched and len(set(encoded.shapes or ())) <= 1:
            return await self._run(line, codec.collate([payload]), rows)
        parts = [
            await self._run(line, codec.collate([codec.part(payload, i, i + 1)]), 1)
            for i in range(rows)
        ]
        first, *others = parts
        return first.joined(0, 1, [(part, 0, 1) for part in others])

    async def _run(self, line: Line, batch: Collated, rows: int) -> Results:
        meta: dict[str, Any] = {"method": line.spec.name, "rows": rows, **batch.meta}
        body = b"".join(batch.buffers)
        buffers: Sequence[Payload]
        if line.spec.is_async:
            result, buffers = await self._runner.run_async(meta, body)
        else:
            result, buffers = await asyncio.to_thread(self._runner.run, meta, body)
        if result["kind"] == "error":
            raise _FailedError(result)
        return line.codec.results(result, b"".join(buffers))
