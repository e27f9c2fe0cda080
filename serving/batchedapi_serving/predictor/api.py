"""The interface for users: `@batched` methods over `Tensor` inputs or JSON items, and `@endpoint`s.

Imported by the supervisor too, which is why numpy is not.
"""

import contextvars
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from json import dumps  # as it is before user code has done anything to it
from operator import index
from typing import Any, Final, Protocol, TypeVar, overload

from batchedapi_core import contract
from batchedapi_serving.errors import brief
from batchedapi_serving.predictor.metrics import Metrics
from batchedapi_serving.predictor.spec import SINGLE_INPUT, SINGLE_OUTPUT, Measure, SizeOf, Tensor

MARK: Final = "__batchedapi_method__"
"""Attribute of a decorated function that holds its Declared."""
FORK_SAFE: Final = "__batchedapi_fork_safe__"
"""Attribute of a class that is marked."""
Tensors = Tensor | Mapping[str, Tensor]
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
BatchDim = int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Declared:
    """The arguments of a decorator."""

    batched: bool
    inputs: Tensors | None = None
    outputs: Tensors | None = None
    max_batch_size: int = 1
    example: Any = None
    batch_dim: tuple[int, ...] = (0, 0)
    size_of: SizeOf | None = None
    batchable: bool = True
    """False: many rows at once are possible, and not wanted."""
    decode: str | None = None
    """Method that makes a row of a request; None: a row is what was sent."""
    encode: str | None = None
    """Method that makes the answer of an answered row; None: the row is it."""


@overload
def batched(method: F) -> F: ...


@overload
def batched(
    *,
    inputs: Tensors | None = None,
    outputs: Tensors | None = None,
    max_batch_size: int = contract.DEFAULT_BATCHED_MAX_BATCH_SIZE,
    example: Any = None,
    batch_dim: BatchDim = 0,
    size_of: SizeOf | None = None,
    batchable: bool = True,
    decode: str | None = None,
    encode: str | None = None,
) -> Callable[[F], F]: ...


def batched(
    method: F | None = None,
    *,
    inputs: Tensors | None = None,
    outputs: Tensors | None = None,
    max_batch_size: int = contract.DEFAULT_BATCHED_MAX_BATCH_SIZE,
    example: Any = None,
    batch_dim: BatchDim = 0,
    size_of: SizeOf | None = None,
    batchable: bool = True,
    decode: str | None = None,
    encode: str | None = None,
) -> F | Callable[[F], F]:
    """Mark a method that takes many rows at once; `async def` or `def`.

    With one Tensor as `inputs`, the method gets one array (rows, *shape); with a mapping, a dict
    of arrays. It answers one array (rows, ...), or a dict of arrays if `outputs` is a mapping.
    Without `inputs`, it gets a list of JSON items and answers a list of the same length, in which
    an `ItemError` fails one item only.

    Args:
        method: The method, when used as a bare `@batched`.
        inputs: One row of the input array, or of each named one.
        outputs: One row of the output array, or of each named one; checked at start and on every
            batch.
        max_batch_size: Rows at most, or the sum of their costs, unless the manifest says otherwise;
            1 to 65536.
        example: A row as JSON, to warm up with and to show in /docs; with `decode`, what that
            returns. Needed for JSON items, and for variable dimensions that cannot have length 1.
        batch_dim: Dimension of the arrays along which the rows lie, of input and output alike or
            as a pair. Clients send and get rows first whatever it is.
        size_of: Cost of a row, if not one.
        batchable: False turns batching off: the method gets one row at a time, in the same form.
        decode: Name of a method that makes one row of a request, before the batch and side by side
            with others; it gets those of (payload, query_params, headers) that it declares.
        encode: Name of a method that makes the answer of one row, after the batch, likewise.

    Raises:
        ValueError: arguments that do not go together, in words.
    """
    dims = (batch_dim, batch_dim) if isinstance(batch_dim, int) else tuple(batch_dim)
    declared = Declared(
        True, inputs, outputs, max_batch_size, example, dims, size_of, batchable, decode, encode
    )
    check(declared)

    def mark(function: F) -> F:
        setattr(function, MARK, declared)
        return function

    return mark if method is None else mark(method)


def endpoint(method: F) -> F:
    """Mark a further method that takes one request at a time.

    It gets those of (payload, query_params, headers) that it declares, and returns a JSON value,
    `str`, `bytes` or a `Response`. One that yields, `async` or not, is answered as a stream of what
    it yields.

    Args:
        method: `async def` or `def`.
    """
    setattr(method, MARK, Declared(batched=False))
    return method


def fork_safe(predictor_class: C) -> C:
    """Mark a class of which one process loads the model, and all of a replica are forked from it.

    They share its memory, and one that ends is there again at once. The constructor runs once, with
    a `context.worker_index` of 0, so it must open nothing that processes cannot share, such as a
    connection. Random generators that it seeds go on alike in each process. Each process loads the
    model for itself where a fork would miss something: a GPU, a thread or process that runs, or
    threads of libraries, which `cpuThreads: 1` mostly avoids. The log says what was found. A
    subclass is marked for itself.

    Args:
        predictor_class: The class; it is returned.
    """
    setattr(predictor_class, FORK_SAFE, True)
    return predictor_class


def is_fork_safe(predictor_class: type) -> bool:
    """Whether the class itself is marked, not just one that it derives from."""
    return vars(predictor_class).get(FORK_SAFE) is True


def check(declared: Declared) -> None:
    """Refuse what does not go together.

    Raises:
        ValueError: in the words of `batched`.
    """
    inputs = named_tensors(declared.inputs, SINGLE_INPUT, "inputs")
    outputs = named_tensors(declared.outputs, SINGLE_OUTPUT, "outputs")
    if outputs and not inputs:
        raise ValueError("batched: outputs=Tensor(...) needs inputs=Tensor(...) as well")
    _check_options(declared)
    problem = batch_dim_problem(declared.batch_dim, inputs, outputs)
    if problem is not None:
        raise ValueError(f"batched: {problem}")
    if declared.size_of is not None and inputs:
        _check_size_of(declared.size_of, inputs)
    padded = [tensor.pad is not None for tensor in inputs.values() if tensor.variable]
    if len(set(padded)) > 1 or any(tensor.pad is not None for tensor in outputs.values()):
        raise ValueError(
            "batched: expected pad for every input that has a named length, or for none, and for no"
            f" output, got inputs={declared.inputs}, outputs={declared.outputs}"
        )


def _check_options(declared: Declared) -> None:
    size = declared.max_batch_size
    if type(size) is not int or not 1 <= size <= contract.MAX_BATCH_SIZE_LIMIT:
        raise ValueError(
            f"batched: expected max_batch_size of 1 to {contract.MAX_BATCH_SIZE_LIMIT},"
            f" got {size!r}"
        )
    if type(declared.batchable) is not bool:
        raise ValueError(f"batched: expected batchable True or False, got {declared.batchable!r}")
    for place, name in (("decode", declared.decode), ("encode", declared.encode)):
        if name is not None and not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"batched: expected {place} to be the name of a method, got {name!r}")
    try:
        dumps(declared.example, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"batched: expected example to be a JSON value, got {error}") from error


def _check_size_of(size_of: SizeOf, inputs: Mapping[str, Tensor]) -> None:
    measured = [name for tensor in inputs.values() for name in tensor.names]
    measured += [name for name, tensor in inputs.items() if tensor.shape]
    if size_of.measure is not Measure.BYTES and size_of.of not in measured:
        raise ValueError(
            "batched: size_of: expected the name of a variable dimension, or of an input with"
            f" dimensions ({', '.join(dict.fromkeys(measured)) or 'there is none'}), got"
            f" {size_of.of!r}"
        )


def batch_dim_problem(
    dims: tuple[int, ...], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> str | None:
    """Why rows cannot lie along `dims` of these inputs and outputs; None: they can."""
    if len(dims) != 2 or not all(type(dim) is int and dim >= 0 for dim in dims):  # noqa: PLR2004 - (input, output)
        return f"batch_dim: expected an int >= 0 or a pair of them, got {dims!r}"
    if dims != (0, 0) and not inputs:
        return f"batch_dim: expected 0 for JSON items, got {dims!r}; declare inputs=Tensor(...)"
    for dim, tensors in zip(dims, (inputs, outputs), strict=True):
        for name, tensor in tensors.items():
            if dim > len(tensor.shape):
                return (
                    f"batch_dim: expected at most {len(tensor.shape)} for {name!r}, whose batch has"
                    f" {len(tensor.shape) + 1} dimensions, got {dim}"
                )
    return None


def named_tensors(tensors: Tensors | None, name: str, place: str) -> dict[str, Tensor]:
    """Tensors by name, a single one under its own or `name`; ValueError for what is neither."""
    if tensors is None:
        return {}
    if isinstance(tensors, Tensor):
        tensors = {tensors.name or name: tensors}
    found = dict(tensors) if isinstance(tensors, Mapping) else {}
    if not found or not all(
        isinstance(key, str) and key.isprintable() and key and isinstance(value, Tensor)
        for key, value in found.items()
    ):
        raise ValueError(
            f"batched: expected {place} to be a Tensor or a mapping of names to Tensors,"
            f" got {tensors!r}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form, as a method that takes one request gets it in its payload.

    Attributes:
        filename: As the client calls it; never a path to open.
        content_type: As the client says; empty: it does not.
        content: All of it.
    """

    filename: str
    content_type: str
    content: bytes


_FAILURES: Final = range(400, 600)


class ItemError(Exception):
    """Returned (or raised) by a predictor for one item: fails that item, not its batch.

    Args:
        status: HTTP status for that item, 400 to 599.
        message: Shown to the client.

    Attributes:
        status: Of a subclass that does not call this constructor, 500.
        message: Of such a subclass, empty.

    Both are read when the row is answered: what was made of them by then is checked as here.

    Raises:
        ValueError: the status is another, or no integer.
    """

    # Of a subclass that does not call our __init__: its items fail like those of any exception.
    status: int = 500
    message: str = ""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = _error_head(status, str(message))


def error_head(error: ItemError) -> tuple[int, str]:
    """Its status and message, of plain types, as they are now.

    Raises:
        ValueError: user code has made something else of them.
    """
    return _error_head(error.status, error.message)


def _error_head(status: Any, message: Any) -> tuple[int, str]:
    number = _status(status, _FAILURES, "ItemError: expected a status of 400 to 599")
    return number, _plain(message, "ItemError: message")


def _status(status: Any, allowed: Container[int], expected: str) -> int:
    """An `int` and no subclass, numpy's integers too."""
    try:
        number = index(status)
    except TypeError as error:
        raise ValueError(f"{expected}, got {brief(status)}") from error
    if number not in allowed:
        raise ValueError(f"{expected}, got {brief(number)}")
    return number


def _plain(text: Any, place: str) -> str:
    """A `str` and no subclass, whose methods may be anything, without halves of surrogates."""
    if not isinstance(text, str):
        raise ValueError(f"{place}: expected text, got {type(text).__name__}")  # noqa: TRY004 - as every other
    return str.encode(text, "utf-8", "replace").decode()


_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The name of a header: RFC 9110, 5.6.2."""
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS: Final = frozenset((
    "connection", "content-length", "date", "keep-alive", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "x-request-id",
))  # fmt: skip
"""Headers that the server writes, and those of a connection, not of an answer."""
_MOST: Final = 32 * 1024
"""Characters of headers: clients and proxies refuse more, half of what is taken from clients."""
_ANSWERS: Final = frozenset(range(200, 400)) - {204, 205, 304}
"""Statuses of answers that have a body."""


class Response:
    """An answer with a status and headers of its own, to one request over plain HTTP.

    Returned by a method that takes one request at a time, or by `encode`. Of many rows, and over
    the protocols of KServe, which have no place for it, the content alone is answered.

    Args:
        content: What would be returned without it: a JSON value, `str` or `bytes`.
        status: 200 to 399, of those that have a body; failures are an ItemError.
        headers: By name; `content-type` replaces the one that follows from the content. Values are
            text of latin-1. Those that the server writes, such as `content-length`, are refused.

    Attributes:
        content: As it was given.
        status: As it was given.
        headers: By their names in lower case.

    All three are read when the request is answered: what was made of them by then is checked as
    here.

    Raises:
        ValueError: a status or a header that cannot be sent.
    """

    __slots__ = ("content", "headers", "status")

    def __init__(
        self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.content = content
        self.status, self.headers = _response_head(status, headers)


def response_head(response: Response) -> tuple[int, dict[str, str]]:
    """Its status and headers, of plain types, as they are now.

    Raises:
        ValueError: user code has made of them what cannot be sent.
    """
    return _response_head(response.status, response.headers)


def _response_head(status: Any, headers: Any) -> tuple[int, dict[str, str]]:
    expected = "a status of 200 to 399 that has a body, and an ItemError for a failure"
    number = _status(status, _ANSWERS, f"Response: expected {expected}")
    headers = {} if headers is None else headers
    if not isinstance(headers, Mapping):
        raise ValueError(f"Response: expected a mapping as headers, got {type(headers).__name__}")  # noqa: TRY004 - as every other
    found, room = {}, _MOST
    for key, text in headers.items():
        name = _plain(key, "Response: name of a header").lower()
        if not _TOKEN.fullmatch(name) or name in _OURS:
            raise ValueError(f"Response: {name!r} is no header that a predictor may set")
        value = _plain(text, f"Response: header {name}")
        if not _VALUE.fullmatch(value):
            raise ValueError(
                f"Response: header {name}: expected printable text of latin-1, got {value!r}"
            )
        found[name] = value
        room -= len(name) + len(value)
        if room < 0:
            raise ValueError(f"Response: expected headers of at most {_MOST} characters in all")
    return number, found


TRACE_HEADERS: Final = contextvars.ContextVar[Mapping[str, str] | None](
    "trace_headers", default=None
)
"""See Context.trace_headers; set for each batch, to None where it is not traced."""


class SubmitError(ItemError):
    """`Context.submit` got no answer; not caught, it is the answer of the item that needed it.

    `status` and `message` are those of what refused the rows: 503 of a queue that is full, 422 of a
    row of the wrong shape.
    """


class Submitter(Protocol):
    """Carries rows to the queue of another method."""

    async def submit(self, method: str, rows: Any) -> Any:
        """See Context.submit."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where this copy of the predictor runs.

    Attributes:
        name: Name of the API.
        worker_index: Index of this model process in its replica, from 0.
        processes: Model processes in this replica.
        threads: Batches that this process runs at once.
        device: `cuda:0` if this process sees a GPU, else `cpu`.
        devices: All devices that this process sees, `cuda:0` first; empty on a CPU.
        model_path: File or folder of the model that `predictor.model.uri` names; None without one.
        submitter: Carries what is submitted. Set by the server; a unit test gives anything that has
            `async def submit(method, rows)`.
        metrics: Counters, gauges and histograms of the predictor's own.
    """

    name: str
    worker_index: int
    processes: int
    threads: int
    device: str
    devices: tuple[str, ...] = ()
    model_path: str | None = None
    submitter: Submitter | None = field(default=None, repr=False, compare=False)
    metrics: Metrics = field(default_factory=Metrics, repr=False, compare=False)

    @property
    def trace_headers(self) -> Mapping[str, str]:
        """Headers for calls of other services, so that they continue the trace of this batch.

        `traceparent`, and `tracestate` if the caller sent one; empty where the batch is not traced.
        Known in the thread or task that the method was called in, and in tasks that it begins.
        """
        return TRACE_HEADERS.get() or {}

    async def submit(self, method: str, rows: Any) -> Any:
        """Let another batched method of this predictor answer rows, batched with everybody's.

        Args:
            method: Its name.
            rows: What it takes: a list of items, an array, or a dict of arrays; rows first.

        Returns:
            What it answers for them, in their order, rows first. An ItemError in a list stays
            where it is.

        Raises:
            SubmitError: the rows were refused or could not be answered, or no server runs.
        """
        if self.submitter is None:
            raise SubmitError(
                503,
                f"context.submit({method!r}): expected a running server; a test gives"
                " Context(..., submitter=) something with `async def submit(method, rows)`",
            )
        return await self.submitter.submit(method, rows)
