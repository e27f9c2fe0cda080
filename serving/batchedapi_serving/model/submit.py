"""Rows that a predictor submits to another of its methods: by `context.submit`, and around a batch.

A batched method with `decode` or `encode` is served twice. Under its own name it is a call for each
request, which decodes, submits its row and encodes; the rows are batched under the name with BATCH
behind it. Calls run side by side beside the lanes, as those of async methods do, so that no batch
waits for somebody's decode.

During the warm-up there is no queue yet, and rows are answered by that method at once.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import numpy as np

from batchedapi_core.batching import padding_class
from batchedapi_core.contract import METHOD_BATCH as BATCH
from batchedapi_serving.codecs import Codec, Collated, Results, codec_for
from batchedapi_serving.codecs.submits import answered_rows, rows_frame, submitted_rows
from batchedapi_serving.errors import PredictorError, ServingError
from batchedapi_serving.ipc import Meta, Payload
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.model.loading import REQUEST, declared_of, taking
from batchedapi_serving.model.streams import in_thread
from batchedapi_serving.model.worker import ChannelLoop, ConnectionLostError, LaneThreads
from batchedapi_serving.predictor import ItemError, MethodSpec, SubmitError
from batchedapi_serving.settings import ReplicaSettings

THREADS: Final = 32
"""Threads for `decode` and `encode` that are not async; further calls wait for one of them."""
Submit = Callable[[str, Any], Awaitable[Any]]


def with_calls(predictor_class: type, specs: Sequence[MethodSpec]) -> list[MethodSpec]:
    """The methods as they are served: of each that decodes or encodes its call, then its batch."""
    served: list[MethodSpec] = []
    for spec in specs:
        declared = declared_of(predictor_class, spec.name)
        if declared.decode is None and declared.encode is None:
            served.append(spec)
        else:
            served.append(MethodSpec(spec.name, batched=False, is_async=True))
            served.append(replace(spec, name=f"{spec.name}{BATCH}"))
    return served


class Beside:
    """A predictor that has its calls as methods beside its own."""

    def __init__(self, predictor: Any, specs: Sequence[MethodSpec], submit: Submit) -> None:
        """`specs` are those of with_calls; `submit` hands rows to a method of that name."""
        self._predictor = predictor
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="beside")
        self._calls = {
            spec.name.removesuffix(BATCH): _call_of(predictor, spec, submit, pool)
            for spec in specs
            if spec.name.endswith(BATCH)
        }

    def __getattr__(self, name: str) -> Any:
        if name in self._calls:
            return self._calls[name]
        return getattr(self._predictor, name.removesuffix(BATCH))


def _call_of(
    predictor: Any, batch: MethodSpec, submit: Submit, pool: ThreadPoolExecutor
) -> Callable[..., Awaitable[Any]]:
    declared = declared_of(type(predictor), batch.name.removesuffix(BATCH))
    decode = _step(pool, predictor, declared.decode, REQUEST)
    encode = _step(pool, predictor, declared.encode, ("answer",))

    async def call(payload: Any, query_params: Any, headers: Any) -> Any:
        row = payload if decode is None else await decode(payload, query_params, headers)
        if row is None and decode is not None:
            raise PredictorError(
                f"{declared.decode} answered None, which is no row; return the row"
            )
        try:
            said = await submit(batch.name, _rows_of(batch, row))
        except SubmitError as error:
            # A ValueError: it is no value of numbers and texts, which may be the client's own.
            if decode is None or not isinstance(error.__cause__, ValueError):
                raise
            kind = type(row).__name__
            raise PredictorError(f"{declared.decode} answered a {kind}; {error}") from error
        named = isinstance(said, Mapping)
        answer = {name: array[0] for name, array in said.items()} if named else said[0]
        if isinstance(answer, ItemError):
            raise answer
        return answer if encode is None else await encode(answer)

    return call


def _rows_of(batch: MethodSpec, row: Any) -> Any:
    """One row, with the batch dimension.

    Raises:
        SubmitError: it is none.
    """
    if not batch.inputs:
        return [row]
    try:
        if isinstance(row, Mapping):
            return {name: _array_of(value) for name, value in row.items()}
        return _array_of(row)
    except ValueError as error:
        raise SubmitError(422, f"expected an array, got {error}") from error


def _array_of(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind == "O":
        raise ValueError("an array of objects")
    return array[None]


def _step(
    pool: ThreadPoolExecutor, predictor: Any, name: str | None, given: Sequence[str]
) -> Callable[..., Awaitable[Any]] | None:
    """The method as an awaitable; one that is not async runs in a thread."""
    if name is None:
        return None
    function = getattr(predictor, name)
    called = taking(function, given) if given == REQUEST else function
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return called

    async def step(*arguments: Any) -> Any:
        return await in_thread(pool, functools.partial(called, *arguments))

    return step


_WHERE: Final = (
    "context.submit({!r}): expected to be awaited in an async method of the predictor; write"
    " `async def` for the method that awaits it"
)


class ChannelSubmitter:
    """See Submitter."""

    def __init__(self, channel: ChannelLoop, specs: Sequence[MethodSpec]) -> None:
        self._channel = channel
        self._specs = {spec.name: spec for spec in specs}
        self.local: LocalAnswers | None = None
        """Set while there is no dispatcher yet: during the warm-up."""

    async def begin(self) -> None:
        """From now on there is one; on the loop, so that nothing waits for a lane any more."""
        self.local = None

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
                answer, body = await self.local.answer(meta, b"".join(payload))
        except ConnectionLostError as error:
            raise SubmitError(503, f"{method}: {error}") from error
        return answered_rows(spec, answer, body)


class _FailedError(Exception):
    def __init__(self, meta: Meta) -> None:
        super().__init__(meta["error"])
        self.meta = meta


class LocalAnswers:
    """Answers rows in this process, without a queue."""

    def __init__(
        self,
        runner: BatchRunner,
        methods: Sequence[MethodSpec],
        settings: ReplicaSettings,
        lanes: LaneThreads,
    ) -> None:
        self._runner = runner
        self._lanes = lanes
        self._codecs = {
            method.name: codec_for(method, settings.of_method(method.name), settings.name)
            for method in methods
        }

    async def answer(self, meta: Meta, payload: bytes) -> tuple[Meta, bytes]:
        """As the dispatcher would answer a submit's frame."""
        codec = self._codecs[meta["method"]]
        try:
            encoded = submitted_rows(codec, meta, payload)
            rows = encoded.rows
            shapes = {padding_class(shape, codec.pads_to) for shape in encoded.shapes or ()}
            if codec.method.batched and len(shapes) <= 1:
                results = await self._run(codec, codec.collate([encoded.payload]), rows)
            else:  # calls and rows of different shapes run one by one
                parts = (codec.part(encoded.payload, i, i + 1) for i in range(rows))
                first, *others = [
                    await self._run(codec, codec.collate([part]), 1) for part in parts
                ]
                results = first.joined(0, 1, [(other, 0, 1) for other in others])
        except ServingError as error:
            return {"kind": "error", "status": error.status, "error": str(error)}, b""
        except _FailedError as error:
            return error.meta, b""
        answer, buffers = results.to_frame(0, rows)
        return answer, b"".join(buffers)

    async def _run(self, codec: Codec, batch: Collated, rows: int) -> Results:
        method = codec.method
        meta: dict[str, Any] = {"method": method.name, "rows": rows, **batch.meta}
        body = b"".join(batch.buffers)
        buffers: Sequence[Payload]
        if method.is_async:
            result, buffers = await self._runner.run_async(meta, body)
        else:
            result, buffers = await self._lanes.want(
                functools.partial(self._runner.run, meta, body)
            )
        if result["kind"] == "error":
            raise _FailedError(result)
        return codec.results(result, b"".join(buffers))
