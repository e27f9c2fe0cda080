"""One batch through the user's method: arguments -> call -> answer, with every answer checked.

What an exception says of memory and of the device is found out without importing a framework.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Never

import numpy as np

from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.results import item_frame
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.ipc import Meta, Payload
from batchedapi_serving.logs import name_of, summary_of, traceback_of
from batchedapi_serving.model.loading import REQUEST, beside_rows, taking
from batchedapi_serving.model.marshalling import (
    Arguments,
    TensorSplitter,
    arguments_of,
    call_item,
    calls_of,
    error_item,
    failed_item,
    split_call,
    split_items,
)
from batchedapi_serving.model.streams import Outlet, Streams
from batchedapi_serving.predictor import ItemError, MethodSpec
from batchedapi_serving.predictor.api import error_head

_NO_MEMORY: Final = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "HIP out of memory",
    "HIP error: out of memory",
    "DefaultCPUAllocator: can't allocate memory",
)
"""Texts of a RuntimeError for which torch has no type of its own, on a GPU and on a CPU."""
_FRAMEWORKS: Final = frozenset({
    "cupy", "cupy_backends", "jax", "jaxlib", "numba", "onnxruntime", "paddle", "pycuda",
    "tensorflow", "tensorrt", "torch", "triton",
})  # fmt: skip
"""Packages whose own exceptions are about devices, whatever their text begins with."""
_BUILTIN: Final = re.compile(r"(\(External\) )?(CUDA|HIP) (error|failure)")
"""How the text of an exception of Python's own begins that torch, CNTK or paddle raised. The text
of others may hold what a client sent."""
_LOST: Final = re.compile(
    "device-side assert|illegal memory access|launch timed out|hardware stack error"
    "|illegal instruction|misaligned address|global/shared address space"
    "|invalid program counter|unspecified launch failure|context is destroyed"
    "|uncorrectable (ECC|NVLink) error|DEVICE_LOST"
    "|CUDA_ERROR_(ASSERT|ILLEGAL_ADDRESS|LAUNCH_TIMEOUT|HARDWARE_STACK_ERROR|ILLEGAL_INSTRUCTION"
    "|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC|LAUNCH_FAILED|CONTEXT_IS_DESTROYED"
    "|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE)"
)
"""Errors after which, by the documentation of CUDA, all further work returns the same error until
the process is ended and launched again, or the device is repaired. HIP has the same texts."""
_LONGEST_CHAIN: Final = 16
log = logging.getLogger(__name__)
Result = tuple[Meta, Sequence[Payload]]
_WHOLE: Final = (np.ndarray, list, dict)
"""Types of nearly all answers, which need no closer look."""
_SUSPICIOUS: Final = 8
"""Batches of one method that fail in a row before its warm-up rows are run as a probe. Of halves of
a batch with one culprit every other one succeeds."""
_PROBED: Final = "failed, and so did a warm-up batch"


class _Served:
    """One method, and what is known of its batches before there are any."""

    __slots__ = ("_frame", "arguments", "call", "method")

    def __init__(self, predictor: Any, method: MethodSpec) -> None:
        function: Callable[..., Any] = getattr(predictor, method.name)
        self.call = function if method.batched else taking(function, REQUEST)
        beside = beside_rows(function, method)
        if beside:
            self.call = lambda rows, *given: function(rows, **dict(zip(beside, given, strict=True)))
        self.arguments: Arguments = arguments_of(method, beside)
        self.method = method
        self._frame: Callable[[Any, Meta], Result]
        if not method.batched:
            self._frame = split_call
        elif not method.inputs:
            self._frame = split_items
        else:
            self._frame = TensorSplitter(method).split

    def split(self, answer: Any, meta: Meta) -> Result:
        """The frame of what a batch was answered.

        Raises:
            PredictorError: it cannot be framed.
        """
        if type(answer) not in _WHOLE:
            _check_whole(self.method, answer)
        return self._frame(answer, meta)

    def item(self, answer: Any) -> Item:
        """One answer of several that are asked for one by one."""
        _check_whole(self.method, answer)
        return call_item(answer)


class BatchRunner:
    """Runs batches of the methods of one predictor.

    Several threads may call `run` at once; `run_async` and `run_stream` belong to one event loop.
    """

    def __init__(self, predictor: Any, methods: Sequence[MethodSpec]) -> None:
        self._methods = {method.name: _Served(predictor, method) for method in methods}
        self.probes: dict[str, tuple[Meta, bytes]] = {}
        """By method that was warmed up: a batch that is known to succeed. Set by the owner."""
        self.raised = ""
        """The last failure: its type and text, which no client is told."""
        self._streams = Streams()
        self._failed: dict[str, int] = {}
        """Batches that failed in a row, of methods whose last one did. All lanes change it, without
        a lock: an entry may be gone at any moment, and two that fail at once may count as one."""

    def run(self, meta: Meta, payload: Payload) -> Result:
        """Answer one batch frame; whatever the user's code does, an answer comes back.

        With `unfit` in it no later batch can succeed: the process is to end, and nobody to be told.
        """
        result = self._run(meta, payload)
        if self._failed or result[0]["kind"] == "error":
            probe = self._probe_after(meta["method"], result[0])
            if probe is not None and _failed(self._run(*probe)[0]):
                return _unfit(meta["method"], _PROBED)
        return result

    async def run_async(self, meta: Meta, payload: Payload) -> tuple[Meta, Sequence[bytes]]:
        """`run` for an async method; cancelled only if the task that awaits it is."""
        result, views = await self._run_async(meta, payload)
        # Copied before anything else runs on the loop, which may write into the same array.
        buffers = [bytes(view) for view in views]
        if self._failed or result["kind"] == "error":
            probe = self._probe_after(meta["method"], result)
            if probe is not None and _failed((await self._run_async(*probe))[0]):
                return _unfit(meta["method"], _PROBED)[0], ()
        return result, buffers

    def streams(self, method: str) -> bool:
        """Whether that method is answered item by item: by `run_stream`."""
        served = self._methods.get(method)
        return served is not None and served.method.streams

    async def run_stream(self, meta: Meta, payload: Payload, outlet: Outlet) -> Result:
        """Answer one call with a stream; the result says how it ended.

        Cancelled only if the task that awaits it is; its generator is closed before it ends.
        """
        try:
            served = self._methods.get(meta["method"]) or self._unknown(meta)
            generator = served.call(*served.arguments(meta, payload))
            return item_frame([await self._streams.run(generator, outlet)])
        except asyncio.CancelledError as error:
            return self._of_cancelled(meta, error)
        except BaseException as error:  # noqa: BLE001 - user code: anything may be raised
            return self._failure(meta, error)

    def _probe_after(self, method: str, result: Meta) -> tuple[Meta, bytes] | None:
        """A batch that shows whether rows are at fault, or the process; mostly none is needed."""
        if result["kind"] != "error" and "raised" not in result:
            self._failed.pop(method, None)
            return None
        if not _failed(result) or "unfit" in result:
            return None
        failed = self._failed.get(method, 0) + 1
        probe = self.probes.get(method)
        if probe is None or failed < _SUSPICIOUS:
            self._failed[method] = failed
            return None
        self._failed.pop(method, None)
        return probe

    def _run(self, meta: Meta, payload: Payload) -> Result:
        try:
            served = self._methods.get(meta["method"]) or self._unknown(meta)
            if "calls" in meta:
                # Requests that waited together, for a method that takes one.
                outcomes: list[Item | BaseException] = []
                for arguments in calls_of(meta, payload):
                    try:
                        outcomes.append(served.item(served.call(*arguments)))
                    except BaseException as error:  # noqa: BLE001 - user code: anything may be raised
                        outcomes.append(error)
                return self._of_calls(outcomes, meta)
            answer = served.call(*served.arguments(meta, payload))
            return served.split(answer, meta)
        except BaseException as error:  # noqa: BLE001 - user code: anything may be raised
            return self._failure(meta, error)

    async def _side_by_side(self, served: _Served, meta: Meta, payload: Payload) -> Result:
        """The same of an async method, whose calls wait for each other no more than before."""

        async def item(arguments: tuple[Any, ...]) -> Item | BaseException:
            try:
                answer = served.call(*arguments)
                return served.item(await answer if inspect.isawaitable(answer) else answer)
            except BaseException as error:  # noqa: BLE001 - user code: anything may be raised
                return error  # a task's own would go on through the event loop, if it ends programs

        calls = (item(arguments) for arguments in calls_of(meta, payload))
        return self._of_calls(await asyncio.gather(*calls), meta)

    def _of_calls(self, outcomes: Sequence[Item | BaseException], meta: Meta) -> Result:
        """Each request fails alone, but for what says more of the process: devices and memory."""
        items = []
        for outcome in outcomes:
            if isinstance(outcome, Item):
                items.append(outcome)
                continue
            result, buffers = self._failure({**meta, "rows": 1}, outcome)
            if result["kind"] == "items":
                (status, kind, *_), (body,) = result["items"][0], buffers
                items.append(Item(status, kind, bytes(body)))
            elif result["oom"] or "unfit" in result:
                return result, buffers
            else:
                items.append(failed_item(str(PredictorError.logged(result["error"]))))
        return item_frame(items)

    async def _run_async(self, meta: Meta, payload: Payload) -> Result:
        try:
            served = self._methods.get(meta["method"]) or self._unknown(meta)
            if "calls" in meta:
                return await self._side_by_side(served, meta, payload)
            answer = served.call(*served.arguments(meta, payload))
            if inspect.isawaitable(answer):
                answer = await answer
            return served.split(answer, meta)
        except asyncio.CancelledError as error:
            return self._of_cancelled(meta, error)
        except BaseException as error:  # noqa: BLE001 - user code: anything may be raised
            return self._failure(meta, error)

    def _of_cancelled(self, meta: Meta, error: asyncio.CancelledError) -> Result:
        """The task was, and goes on to be; or something the method awaited, which failed so."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error
        return self._failure(meta, error)

    def _unknown(self, meta: Meta) -> Never:
        raise PredictorError(f"there is no method {meta['method']!r}")

    def _failure(self, meta: Meta, error: BaseException) -> Result:
        self.raised = summary_of(error)
        try:
            return self._judged(meta, error)
        except BaseException as another:  # noqa: BLE001 - user code: of the exception's own class
            return self._raised(meta, another)

    def _judged(self, meta: Meta, error: BaseException) -> Result:
        rows = meta["rows"]
        facts = {"method": meta["method"], "rows": rows}
        if (lost := device_lost(error)) is not None:  # whatever it was turned into on its way
            log.error(
                "the device is lost to this process",
                extra={**facts, "traceback": traceback_of(error)},
            )
            first_line = str(lost).partition("\n")[0]
            return _unfit(meta["method"], f"raised {type(lost).__name__}: {first_line}")
        if isinstance(error, PredictorError):
            log.error("wrong answer", extra={**facts, "error": str(error)})
            return _error(f"failed: {error}")
        if isinstance(error, ItemError):
            # Raised, not returned: of one row it is that row's answer; else find whose it is.
            if rows > 1:
                # Status and message are for the rows of one request that are never run one by one.
                status, message = error_head(error)
                told = {"of_a_row": True, "status": status, "message": message}
                return {"kind": "error", "error": "raised ItemError", "oom": False, **told}, ()
            answer, buffers = item_frame([error_item(error)])
            return {**answer, "raised": True}, buffers
        return self._raised(meta, error, oom=out_of_memory(error))

    def _raised(self, meta: Meta, error: BaseException, *, oom: bool = False) -> Result:
        facts = {"method": meta["method"], "rows": meta["rows"]}
        log.error("predict raised", extra={**facts, "traceback": traceback_of(error)})
        return _error(f"raised {name_of(error)}", oom=oom)


def _failed(result: Meta) -> bool:
    """Whether rows or the process are at fault.

    What an ItemError refuses, and what memory has no room for, says nothing of either.
    """
    return result["kind"] == "error" and not (result["oom"] or "of_a_row" in result)


def _unfit(method: str, why: str) -> Result:
    """No later batch can succeed here."""
    log.error("no batch can succeed in this process", extra={"method": method})
    meta, buffers = _error(f"{why}; no batch can succeed in this process")
    return {**meta, "unfit": True}, buffers


def _error(text: str, *, oom: bool = False) -> Result:
    text = text.encode("utf-8", "replace").decode()  # of half a surrogate no JSON can be made
    return {"kind": "error", "error": text, "oom": oom}, ()


def _check_whole(method: MethodSpec, answer: Any) -> None:
    """Check that an answer is here, and not only promised.

    Raises:
        PredictorError: it is still to be awaited, or to be iterated over.
    """
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()  # else Python warns that nobody awaited it
        raise PredictorError(
            f"{method.name} answered an awaitable, but is no coroutine function;"
            f" write async def {method.name}"
        )
    if inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        stream = "" if method.batched else ", or write yield in it, not in what it calls, to stream"
        raise PredictorError(f"{method.name} yields its answer; return it whole{stream}")


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a smaller batch might have fit (C24)."""
    if isinstance(error, MemoryError):
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True  # of torch, cupy and others, which are not imported here
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def device_lost(error: BaseException) -> BaseException | None:
    """The error after which no later batch can succeed here: `error`, or its cause; None: none is.

    Other errors of a device, such as a launch with arguments that a row asked for, pass.
    """
    link: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            break
        # Attributes of user classes: of any type, which compiled code would else check.
        modules = [str(getattr(kind, "__module__", "")) for kind in type(link).__mro__]
        own = any(module.partition(".")[0] in _FRAMEWORKS for module in modules)
        builtin = isinstance(link, RuntimeError | OSError) and _BUILTIN.match(str(link)) is not None
        if (own or builtin) and _LOST.search(str(link)):
            return link
        before = getattr(link, "__cause__", None)
        if before is None and not getattr(link, "__suppress_context__", True):
            before = getattr(link, "__context__", None)
        link = before if isinstance(before, BaseException) else None
    return None
