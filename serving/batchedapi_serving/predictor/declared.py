"""What the decorators leave on a method, and what the server reads out of it."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_serving.predictor.cost import Measure, SizeOf
from batchedapi_serving.predictor.method import SINGLE_INPUT, SINGLE_OUTPUT, MethodSpec
from batchedapi_serving.predictor.tensor import Tensor

MARK: Final = "__batchedapi_method__"
"""Attribute of a decorated function that holds its Declared."""
Tensors = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Declared:
    """What a decorator says."""

    batched: bool
    inputs: Tensors | None = None
    outputs: Tensors | None = None
    max_batch_size: int = 1
    example: Any = None
    batch_dim: tuple[int, ...] = (0, 0)
    size_of: SizeOf | None = None


def check(declared: Declared) -> None:
    """Refuse what does not go together.

    Raises:
        ValueError: in the words of `batched`.
    """
    inputs = _named(declared.inputs, SINGLE_INPUT, "inputs")
    outputs = _named(declared.outputs, SINGLE_OUTPUT, "outputs")
    if outputs and not inputs:
        raise ValueError("batched: outputs=Tensor(...) needs inputs=Tensor(...) as well")
    size = declared.max_batch_size
    if type(size) is not int or not 1 <= size <= contract.MAX_BATCH_SIZE_LIMIT:
        raise ValueError(
            f"batched: expected max_batch_size of 1 to {contract.MAX_BATCH_SIZE_LIMIT},"
            f" got {size!r}"
        )
    try:
        json.dumps(declared.example, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"batched: expected example to be a JSON value, got {error}") from error
    problem = batch_dim_problem(declared.batch_dim, inputs, outputs)
    problem = problem or _size_of_problem(declared.size_of, inputs)
    if problem is not None:
        raise ValueError(f"batched: {problem}")


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


def _size_of_problem(size_of: SizeOf | None, inputs: Mapping[str, Tensor]) -> str | None:
    if size_of is None or size_of.measure is Measure.BYTES or not inputs:
        return None
    dimensions = [name for tensor in inputs.values() for name in tensor.names]
    vectors = [name for name, tensor in inputs.items() if tensor.shape]
    if size_of.of in dimensions or size_of.of in vectors:
        return None
    names = ", ".join(dict.fromkeys(dimensions + vectors)) or "there is none"
    return (
        "size_of: expected the name of a variable dimension, or of an input with dimensions"
        f" ({names}), got {size_of.of!r}"
    )


def _named(tensors: Tensors | None, name: str, place: str) -> dict[str, Tensor]:
    if tensors is None:
        return {}
    if isinstance(tensors, Tensor):
        return {name: tensors}
    found = dict(tensors) if isinstance(tensors, Mapping) else {}
    if not found or not all(
        isinstance(key, str) and key and isinstance(value, Tensor) for key, value in found.items()
    ):
        raise ValueError(
            f"batched: expected {place} to be a Tensor or a mapping of names to Tensors,"
            f" got {tensors!r}"
        )
    return found


def method_spec(predictor_class: type, name: str) -> MethodSpec | None:
    """What `predictor_class.name` declares; None if there is no such method."""
    function = _attribute(predictor_class, name)
    if function is None or not callable(getattr(predictor_class, name, None)):
        return None
    declared = _mark_of(function) or Declared(batched=False)
    return MethodSpec(
        name,
        batched=declared.batched,
        is_async=inspect.iscoroutinefunction(inspect.unwrap(_plain(function))),
        inputs=_named(declared.inputs, SINGLE_INPUT, "inputs"),
        single_input=isinstance(declared.inputs, Tensor),
        outputs=_named(declared.outputs, SINGLE_OUTPUT, "outputs"),
        single_output=declared.outputs is None or isinstance(declared.outputs, Tensor),
        batch_dim=(declared.batch_dim[0], declared.batch_dim[1]),
        max_batch_size=declared.max_batch_size,
        size_of=declared.size_of,
        example=declared.example,
    )


def declared_methods(predictor_class: type) -> list[str]:
    """Names of the methods marked with `@batched` or `@endpoint`, sorted."""
    return sorted(name for name in dir(predictor_class) if is_declared(predictor_class, name))


def is_declared(predictor_class: type, name: str) -> bool:
    """Whether that method carries one of our decorators."""
    return _mark_of(_attribute(predictor_class, name)) is not None


def yields(predictor_class: type, name: str) -> bool:
    """Whether that method is a generator, async or not."""
    function = _plain(_attribute(predictor_class, name))
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def call_problem(predictor_class: type, name: str, *, batched: bool) -> str | None:
    """Why that method cannot be called as the server calls it; None: it can, or only a call tells.

    Found out here, and not by the first client: a method that takes one request has no warm-up.
    """
    function = _attribute(predictor_class, name)
    takes = ("rows",) if batched else ("payload", "query_params", "headers")
    given = takes if isinstance(function, staticmethod) else ("self", *takes)
    if not inspect.isfunction(_plain(function)):
        return None
    # Of a decorator's wrapper its own: what it calls may take something else.
    signature = inspect.signature(_plain(function), follow_wrapped=False)
    try:
        signature.bind(*given)
    except TypeError:
        kind = "many rows" if batched else "one request"
        other = "" if batched else "; for many rows at once, mark it with @batched"
        return (
            f"takes {kind} at a time and is called with ({', '.join(takes)}), but is written as"
            f" {name}{signature}; write def {name}({', '.join(given)}){other}"
        )
    return None


def _attribute(predictor_class: type, name: str) -> Any:
    """As written in the class or a base; the metaclass is not asked: every type has a __call__."""
    for base in predictor_class.__mro__:
        if base is not object and name in vars(base):
            return vars(base)[name]
    return None


def _plain(function: Any) -> Any:
    return function.__func__ if isinstance(function, staticmethod | classmethod) else function


def _mark_of(function: Any) -> Declared | None:
    found = getattr(function, MARK, None) or getattr(_plain(function), MARK, None)
    return found if isinstance(found, Declared) else None
