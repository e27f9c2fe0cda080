"""A class around whatever answers arrays by name with arrays by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from batchedapi_serving.predictor import Tensor, batched
from batchedapi_serving.predictor.spec import padded

Array: TypeAlias = np.ndarray[Any, Any]
Run: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Arrays by name, rows first, to answers by name, each with as many rows."""
_MASK: Final = "attention_mask"
"""The input of models of text that says which numbers count: zeros, as padding is, do not."""


def tensor_of(name: str, dtype: str, shape: Sequence[int | str | None]) -> Tensor:
    """A row of a file's tensor; a length that it does not say has a name of its own.

    Exporters write `?` for several such lengths, which are not the same one.
    """
    lengths = [f"{name}_{i}" if n in {None, 0, "", "?"} else n for i, n in enumerate(shape, 1)]
    return Tensor(dtype, lengths, allow_non_finite=dtype.startswith("FP"), name=name)


def zeros_of(inputs: Mapping[str, Tensor], length: int) -> dict[str, Array]:
    """Two rows of zeros for each input, as long as `length` where lengths differ."""
    return {
        name: np.zeros(
            [2, *(length if isinstance(n, str) else n for n in tensor.shape)], tensor.numpy_dtype
        )
        for name, tensor in inputs.items()
    }


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a type; one that it has no name for is refused by `Tensor`."""
    return dtype.name.upper().replace("FLOAT", "FP")


def tensors_class(
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    run: Run,
    rows: Mapping[str, Array] | None = None,
) -> type:
    """A predictor that runs arrays; a single input or output is the array itself.

    Rows are padded where an input masks what that adds, and every answer can be cut back.

    Args:
        inputs: A row of each.
        outputs: A row of each.
        run: Answers arrays.
        rows: Of which the first is an example, where rows of zeros and length 1 are none.
    """
    lengths = {length for one in inputs.values() for length in one.names}
    if _MASK in inputs and all(lengths.issuperset(one.names) for one in outputs.values()):
        inputs = padded(inputs)
    one_in, one_out = len(inputs) == 1, len(outputs) == 1
    (first, *_), (only, *_) = inputs, outputs
    example = None if rows is None else {name: array[0].tolist() for name, array in rows.items()}

    class TensorsModel:
        @batched(
            inputs=inputs[first] if one_in else inputs,
            outputs=outputs[only] if one_out else outputs,
            example=example[first] if example and one_in else example,
        )
        def predict(self, x: Any) -> Any:
            found = run({first: x} if one_in else x)
            return found[only] if one_out else found

    return TensorsModel
