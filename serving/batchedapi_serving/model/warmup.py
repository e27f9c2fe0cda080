"""The first batches, before anybody waits for them: at real sizes, and with the answers checked.

Where rows of different lengths share batches, two batches of shorter rows follow: from one length
nobody could tell what padding costs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from batchedapi_core import contract
from batchedapi_core.batching.lengths import lengths_in
from batchedapi_serving.codecs import Codec, Encoded, codec_of
from batchedapi_serving.errors import ClientError, LoadError
from batchedapi_serving.ipc import Meta
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.predictor import MethodSpec

log = logging.getLogger(__name__)

SHORTER: Final = 4
"""Times that the example is as long as the shorter row."""


class WarmUpTime(NamedTuple):
    """The time of a batch of a size that had run before."""

    rows: int
    size: int
    """In the unit of the method's `size_of`."""
    seconds: float
    length: int
    """Of each of its rows, where rows of different lengths may share a batch; else 0."""


class _Batch(NamedTuple):
    meta: Meta
    payload: bytes
    size: int
    length: int
    required: bool
    """Whether it must succeed: the beginning of an example need not be a row of the method."""


class WarmUpBatches(NamedTuple):
    """The batches of a method before anybody waited for it."""

    smallest: tuple[Meta, bytes] | None
    """Batch of the fewest rows; all succeeded. None: it cannot be, or was not to be, warmed up."""
    timings: list[WarmUpTime]


def warm_up(
    runner: BatchRunner,
    method: MethodSpec,
    max_batch_size: int,
    sizes: tuple[int, ...] | None = None,
    clock: Callable[[], float] | None = None,
) -> WarmUpBatches:
    """Run batches of zeros or of the method's example, each variable dimension of length 1.

    A method for JSON items without an example cannot be warmed up: nobody knows what it takes.
    An async method gets an event loop of its own here; `warm_up_async` uses the running one.

    Args:
        runner: Runs them.
        method: Of the batches.
        max_batch_size: The largest, in the unit of the method's `size_of`.
        sizes: Of the batches, in rows; None: 1, 2, 4, ... up to what the maximum admits.
        clock: Seconds; given, each batch is run a second time and timed, if it is like those of
            clients: without an example the variable dimensions are not.

    Raises:
        LoadError: ShapeProbeFailed, WarmUpFailed or OutOfMemory, with what was given, expected and
            came.
    """
    if method.is_async:
        return asyncio.run(warm_up_async(runner, method, max_batch_size, sizes, clock))
    smallest, timings = None, []
    for batch in _batches(method, max_batch_size, sizes):
        rows = batch.meta["rows"]
        if batch.required and (smallest is None or rows < smallest[0]["rows"]):
            smallest = batch.meta, batch.payload
        answer = runner.run(batch.meta, batch.payload)[0]
        if not _succeeded(method, batch, answer, runner.raised):
            break
        if clock is not None and _is_like_clients(method):
            began = clock()
            answer = runner.run(batch.meta, batch.payload)[0]
            took = clock() - began
            _check(method, batch.meta, answer, runner.raised)
            timings.append(WarmUpTime(rows, batch.size, took, batch.length))
    return WarmUpBatches(smallest, timings)


async def warm_up_async(
    runner: BatchRunner,
    method: MethodSpec,
    max_batch_size: int,
    sizes: tuple[int, ...] | None = None,
    clock: Callable[[], float] | None = None,
) -> WarmUpBatches:
    """See `warm_up`; on the running event loop, to which a predictor may have tied things."""
    smallest, timings = None, []
    for batch in _batches(method, max_batch_size, sizes):
        rows = batch.meta["rows"]
        if batch.required and (smallest is None or rows < smallest[0]["rows"]):
            smallest = batch.meta, batch.payload
        answer = (await runner.run_async(batch.meta, batch.payload))[0]
        if not _succeeded(method, batch, answer, runner.raised):
            break
        if clock is not None and _is_like_clients(method):
            began = clock()
            answer = (await runner.run_async(batch.meta, batch.payload))[0]
            took = clock() - began
            _check(method, batch.meta, answer, runner.raised)
            timings.append(WarmUpTime(rows, batch.size, took, batch.length))
    return WarmUpBatches(smallest, timings)


def _is_like_clients(method: MethodSpec) -> bool:
    return method.example is not None or not method.variable


def _batches(
    method: MethodSpec, max_batch_size: int, sizes: tuple[int, ...] | None
) -> Iterator[_Batch]:
    """Those of shorter rows come last, and have as many rows as others that ran before."""
    if not method.batched or sizes == ():
        return
    codec = codec_of(method)
    row = _row(method, codec)
    if row is None:
        remedy = "@batched(example=...) gives an item to warm up with"
        log.info("no warm-up", extra={"method": method.name, "remedy": remedy})
        return
    shorter = _shorter(method, codec, row)
    counts = sizes or contract.batch_size_buckets(max(1, max_batch_size // _cost(row)))
    for one in (row,) if shorter is None else (row, shorter):
        length = max(lengths_in(one.sizes, one.shapes), default=0) if codec.pads_to else 0
        for rows in counts if one is row else sorted({min(counts), max(counts)}):
            collated = codec.collate([one.payload] * rows)
            meta = {"method": method.name, "rows": rows, **collated.meta}
            yield _Batch(meta, b"".join(collated.buffers), rows * _cost(one), length, one is row)


def _cost(row: Encoded) -> int:
    return 1 if row.sizes is None else row.sizes[0]


def _shorter(method: MethodSpec, codec: Codec, row: Encoded) -> Encoded | None:
    """The beginning of the example; None: rows have no lengths, or it has nothing to cut."""
    if not codec.pads_to or method.example is None:
        return None
    if method.inputs:
        lengths, parts = row.payload[0]
        named = dict(zip(method.variable, lengths, strict=True))
        arrays = {}
        for (name, tensor), part in zip(method.inputs.items(), parts, strict=True):
            array = np.frombuffer(part, tensor.numpy_dtype)
            array = array.reshape([1, *(named.get(str(n), n) for n in tensor.shape)])
            ends = [_part(named[n]) if isinstance(n, str) else n for n in tensor.shape]
            arrays[name] = array[(slice(1), *map(slice, ends))]
        return codec.from_arrays(arrays, "warm-up")
    of = None if method.size_of is None else method.size_of.of
    item = method.example
    cut = _beginning(item) if of is None else {**item, of: _beginning(item[of])}
    return None if cut == item else codec.from_row(cut, "warm-up")


def _part(length: int) -> int:
    return -(-length // SHORTER)


def _beginning(value: Any) -> Any:
    """Of a text or a list; of a list of texts that of each."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return [_beginning(one) for one in value]
    return value[: _part(len(value))] if isinstance(value, str | list) else value


def _row(method: MethodSpec, codec: Codec) -> Encoded | None:
    """The row to warm up with: the example, else zeros; None: neither is possible."""
    if method.example is not None:
        try:
            return codec.from_row(method.example, "example")
        except ClientError as error:
            raise LoadError(
                "WarmUpFailed", f"{method.name}: @batched(example=...) is no row of it: {error}"
            ) from error
    if not method.inputs:
        return None
    zeros = {
        name: np.zeros(
            [1, *(1 if isinstance(n, str) else n for n in tensor.shape)], tensor.numpy_dtype
        )
        for name, tensor in method.inputs.items()
    }
    return codec.from_arrays(zeros, "warm-up")


def _succeeded(method: MethodSpec, batch: _Batch, answer: Meta, raised: str) -> bool:
    lost = "unfit" in answer or answer.get("oom")  # whatever the row says
    if batch.required or lost or answer["kind"] != "error":
        _check(method, batch.meta, answer, raised)
        return True
    log.info("no row: the beginning of the example", extra={"method": method.name})
    return False


def _check(method: MethodSpec, meta: Meta, answer: Meta, raised: str) -> None:
    if answer["kind"] != "error":
        return
    what: str = answer["error"]
    of_shapes = not what.startswith("raised") and "unfit" not in answer
    reason = "ShapeProbeFailed" if of_shapes else "WarmUpFailed"
    if what.startswith("raised") and "unfit" not in answer:
        what = f"raised {raised}"  # with its text: nobody's data is in it yet
    if reason == "WarmUpFailed":
        what += "; the log has its traceback"
        if method.name.endswith(contract.METHOD_BATCH) and method.example is not None:
            what += "; example= of @batched is a row as this method gets it, not a request"
    if answer.get("oom"):
        reason = "OutOfMemory"
        what += "; a smaller maxBatchSize may fit"
    shown = [_shown(method, name, meta) for name in method.inputs]
    given = f" ({', '.join(shown)})" if shown else ""
    raise LoadError(
        reason, f"{method.name} with a warm-up batch of {meta['rows']} rows{given} {what}"
    )


def _shown(method: MethodSpec, name: str, meta: Meta) -> str:
    """Type and shape of one input of a batch, for messages."""
    tensor = method.inputs[name]
    shape = [max(meta["lengths"][n]) if isinstance(n, str) else n for n in tensor.shape]
    shape.insert(method.batch_dim[0], meta["rows"])
    return f"{'' if method.single_input else name + ' '}{tensor.dtype} of shape {shape}"
