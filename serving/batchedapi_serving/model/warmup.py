"""The first batches, before anybody waits for them: at real sizes, and with the answers checked."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from batchedapi_core import contract
from batchedapi_serving.codecs import Codec, Encoded, codec_of
from batchedapi_serving.errors import ClientError, LoadError
from batchedapi_serving.ipc import Meta
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.predictor import MethodSpec

log = logging.getLogger(__name__)


class WarmUpTime(NamedTuple):
    """The time of a batch of a size that had run before."""

    rows: int
    size: int
    """In the unit of the method's `size_of`."""
    seconds: float


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
    for meta, payload, size in _batches(method, max_batch_size, sizes):
        if smallest is None or meta["rows"] < smallest[0]["rows"]:
            smallest = meta, payload
        _check(method, meta, runner.run(meta, payload)[0], runner.raised)
        if clock is not None and _is_like_clients(method):
            began = clock()
            _check(method, meta, runner.run(meta, payload)[0], runner.raised)
            timings.append(WarmUpTime(meta["rows"], size, clock() - began))
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
    for meta, payload, size in _batches(method, max_batch_size, sizes):
        if smallest is None or meta["rows"] < smallest[0]["rows"]:
            smallest = meta, payload
        _check(method, meta, (await runner.run_async(meta, payload))[0], runner.raised)
        if clock is not None and _is_like_clients(method):
            began = clock()
            _check(method, meta, (await runner.run_async(meta, payload))[0], runner.raised)
            timings.append(WarmUpTime(meta["rows"], size, clock() - began))
    return WarmUpBatches(smallest, timings)


def _is_like_clients(method: MethodSpec) -> bool:
    return method.example is not None or not method.variable


def _batches(
    method: MethodSpec, max_batch_size: int, sizes: tuple[int, ...] | None
) -> Iterator[tuple[Meta, bytes, int]]:
    if not method.batched or sizes == ():
        return
    codec = codec_of(method)
    row = _row(method, codec)
    if row is None:
        remedy = "@batched(example=...) gives an item to warm up with"
        log.info("no warm-up", extra={"method": method.name, "remedy": remedy})
        return
    cost = 1 if row.sizes is None else row.sizes[0]
    most = max(1, max_batch_size // cost)
    for rows in contract.batch_size_buckets(most) if sizes is None else sizes:
        collated = codec.collate([row.payload] * rows)
        meta = {"method": method.name, "rows": rows, **collated.meta}
        yield meta, b"".join(collated.buffers), rows * cost


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
