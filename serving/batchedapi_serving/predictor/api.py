"""What users write: `@batched` methods over `Tensor` inputs or JSON items, and `@endpoint`s.

    api ─┬─ declared ── method ─┬─ tensor
         │                      └─ cost
         └─ context

Imported by the supervisor too, which is why numpy is not.
"""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from batchedapi_core import contract
from batchedapi_serving.predictor.context import Context, ItemError, SubmitError, Submitter
from batchedapi_serving.predictor.cost import Measure, SizeOf
from batchedapi_serving.predictor.declared import MARK, Declared, Tensors, check, method_spec
from batchedapi_serving.predictor.method import SINGLE_INPUT, SINGLE_OUTPUT, MethodSpec
from batchedapi_serving.predictor.tensor import DTYPES, Tensor

__all__ = [
    "DTYPES",
    "SINGLE_INPUT",
    "SINGLE_OUTPUT",
    "Context",
    "ItemError",
    "Measure",
    "MethodSpec",
    "SizeOf",
    "SubmitError",
    "Submitter",
    "Tensor",
    "batched",
    "endpoint",
    "method_spec",
]

F = TypeVar("F", bound=Callable[..., Any])
BatchDim = int | tuple[int, int]


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
        max_batch_size: Rows at most, or the sum of their costs, unless the manifest says otherwise.
        example: A row as JSON, to warm up with and to show in /docs; needed for JSON items, and
            for variable dimensions that cannot have length 1.
        batch_dim: Dimension of the arrays along which the rows lie, of input and output alike or
            as a pair. Clients send and get rows first whatever it is.
        size_of: Cost of a row, if not one.

    Raises:
        ValueError: arguments that do not go together, in words.
    """
    dims = (batch_dim, batch_dim) if isinstance(batch_dim, int) else tuple(batch_dim)
    declared = Declared(True, inputs, outputs, max_batch_size, example, dims, size_of)
    check(declared)

    def mark(function: F) -> F:
        setattr(function, MARK, declared)
        return function

    return mark if method is None else mark(method)


def endpoint(method: F) -> F:
    """Mark a further method that takes one request at a time: (payload, query_params, headers)."""
    setattr(method, MARK, Declared(batched=False))
    return method
