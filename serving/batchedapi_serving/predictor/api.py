"""What users write: `@batched` methods over `Tensor` inputs or JSON items.

Imported by the supervisor too, which is why numpy is not.
"""

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload

from batchedapi_core import contract

# Open Inference Protocol name -> numpy type string, little endian.
DTYPES: Final = {
    "BOOL": "|b1",
    "UINT8": "|u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "|i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP32": "<f4",
    "FP64": "<f8",
}
_SPEC: Final = "__batchedapi_method__"
F = TypeVar("F", bound=Callable[..., Any])


class Tensor:
    """One row of an array: its type and its shape without the batch dimension.

    Args:
        dtype: A type name of the Open Inference Protocol: BOOL, UINT8..UINT64, INT8..INT64,
            FP32, FP64.
        shape: Lengths of one row's dimensions, all >= 1; `[]` is a single number a row.

    Raises:
        ValueError: unknown dtype, or a length below 1.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: str, shape: list[int] | tuple[int, ...]) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"Tensor: expected a dtype of {', '.join(DTYPES)}, got {dtype!r}")
        if not all(isinstance(n, int) and n >= 1 for n in shape):
            raise ValueError(
                f"Tensor: expected lengths >= 1 in shape, got {list(shape)!r}; leave out the batch"
                " dimension (variable lengths need JSON items)"
            )
        self.dtype = dtype
        self.shape = tuple(shape)

    def __repr__(self) -> str:
        return f"Tensor({self.dtype!r}, {list(self.shape)!r})"

    @property
    def numpy_dtype(self) -> str:
        """Type string that numpy.dtype() takes."""
        return DTYPES[self.dtype]

    @property
    def items_per_row(self) -> int:
        """Numbers in one row."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on the wire."""
        return self.items_per_row * int(self.numpy_dtype[2:])


class ItemError(Exception):
    """Returned (or raised) by a predictor for one item: fails that item, not its batch.

    Args:
        status: HTTP status for that item, 400 to 599.
        message: Shown to the client.
    """

    def __init__(self, status: int, message: str) -> None:
        if not 400 <= status <= 599:  # noqa: PLR2004 - the range of HTTP error statuses
            raise ValueError(f"ItemError: expected a status of 400 to 599, got {status}")
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Context:
    """Where this copy of the predictor runs.

    Attributes:
        name: Name of the API.
        worker_index: 0-based index of this model process in its replica.
        processes: Model processes in this replica.
        threads: Batches that this process runs at once.
        device: `cuda:0` if this process sees a GPU, else `cpu`.
    """

    name: str
    worker_index: int
    processes: int
    threads: int
    device: str


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """One method of a predictor, as the web process must know it; crosses the wire as JSON."""

    name: str
    batched: bool
    inputs: Tensor | None
    outputs: Tensor | None
    max_batch_size: int
    """When the manifest does not say."""
    example: Any = None

    def to_json(self) -> dict[str, Any]:
        """JSON object that `from_json` takes back."""

        def tensor(t: Tensor | None) -> list[Any] | None:
            return None if t is None else [t.dtype, list(t.shape)]

        return {
            "name": self.name,
            "batched": self.batched,
            "inputs": tensor(self.inputs),
            "outputs": tensor(self.outputs),
            "max_batch_size": self.max_batch_size,
            "example": self.example,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "MethodSpec":
        """The reverse of `to_json`."""

        def tensor(t: list[Any] | None) -> Tensor | None:
            return None if t is None else Tensor(t[0], t[1])

        return cls(
            name=value["name"],
            batched=value["batched"],
            inputs=tensor(value["inputs"]),
            outputs=tensor(value["outputs"]),
            max_batch_size=value["max_batch_size"],
            example=value["example"],
        )


@dataclass(frozen=True, slots=True)
class _Declared:
    inputs: Tensor | None
    outputs: Tensor | None
    max_batch_size: int
    example: Any


@overload
def batched(method: F) -> F: ...
@overload
def batched(
    *,
    inputs: Tensor | None = None,
    outputs: Tensor | None = None,
    max_batch_size: int = contract.DEFAULT_BATCHED_MAX_BATCH_SIZE,
    example: Any = None,
) -> Callable[[F], F]: ...
def batched(
    method: F | None = None,
    *,
    inputs: Tensor | None = None,
    outputs: Tensor | None = None,
    max_batch_size: int = contract.DEFAULT_BATCHED_MAX_BATCH_SIZE,
    example: Any = None,
) -> F | Callable[[F], F]:
    """Mark a method that takes many rows at once.

    With `inputs`, the method gets one array (rows, *shape) and returns one (rows, ...). Without, it
    gets a list of JSON items and returns a list of the same length, in which an `ItemError` fails
    one item only.

    Args:
        method: The method, when used as a bare `@batched`.
        inputs: One row of the input array.
        outputs: One row of the output array; checked at start and on every batch.
        max_batch_size: Rows at most, unless the manifest says otherwise.
        example: A JSON item to warm up with and to show in /docs, where `inputs` cannot tell.

    Raises:
        ValueError: `outputs` without `inputs`, max_batch_size out of range, or an example that is
            not JSON.
    """
    if outputs is not None and inputs is None:
        raise ValueError("batched: outputs=Tensor(...) needs inputs=Tensor(...) as well")
    if not 1 <= max_batch_size <= contract.MAX_BATCH_SIZE_LIMIT:
        raise ValueError(
            f"batched: expected max_batch_size of 1 to {contract.MAX_BATCH_SIZE_LIMIT},"
            f" got {max_batch_size}"
        )
    try:
        json.dumps(example, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"batched: expected example to be a JSON value, got {error}") from error
    declared = _Declared(inputs, outputs, max_batch_size, example)

    def mark(function: F) -> F:
        setattr(function, _SPEC, declared)
        return function

    return mark if method is None else mark(method)


def method_spec(predictor_class: type, name: str) -> MethodSpec | None:
    """What `predictor_class.name` declares; None if there is no such method."""
    function = inspect.getattr_static(predictor_class, name, None)
    if not callable(getattr(predictor_class, name, None)):
        return None
    declared: _Declared | None = getattr(function, _SPEC, None)
    if declared is None:
        return MethodSpec(name, batched=False, inputs=None, outputs=None, max_batch_size=1)
    return MethodSpec(
        name,
        batched=True,
        inputs=declared.inputs,
        outputs=declared.outputs,
        max_batch_size=declared.max_batch_size,
        example=declared.example,
    )


def batched_methods(predictor_class: type) -> list[str]:
    """Names of the methods marked with `@batched`, sorted."""
    return sorted(
        name
        for name in dir(predictor_class)
        if isinstance(getattr(predictor_class, name, None), Callable)  # type: ignore[arg-type]  # a Protocol class to isinstance
        and hasattr(getattr(predictor_class, name), _SPEC)
    )
