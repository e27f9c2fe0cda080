"""What the server knows of one method; crosses processes as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from batchedapi_serving.predictor.cost import SizeOf
from batchedapi_serving.predictor.tensor import Tensor

SINGLE_INPUT: Final = "input"
"""Name under which the only, unnamed input is kept."""
SINGLE_OUTPUT: Final = "output"


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """One method of a predictor, as the processes that never import it must know it."""

    name: str
    batched: bool
    """False: it takes one request at a time."""
    is_async: bool = False
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    """Empty: JSON items."""
    single_input: bool = False
    """Whether the method gets the one array itself, not a dict of arrays."""
    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    """Empty: not declared."""
    single_output: bool = True
    """Whether the method answers one array, not a dict of arrays."""
    batch_dim: tuple[int, int] = (0, 0)
    """Where the rows lie in the arrays that the method gets, and in those it answers. On every
    wire rows come first."""
    max_batch_size: int = 1
    """Effective: the manifest's, else the decorator's; 1 if not batched."""
    size_of: SizeOf | None = None
    """None: a row costs one."""
    example: Any = None
    """A row as JSON."""

    @property
    def variable(self) -> tuple[str, ...]:
        """Names of the variable dimensions of all inputs, each once, in order of appearance."""
        return tuple(
            dict.fromkeys(name for tensor in self.inputs.values() for name in tensor.names)
        )

    @property
    def row_rank(self) -> int | None:
        """Levels of lists in one row as JSON: a list nested one level deeper is many rows.

        A row of named tensors is an object, which has none. None: a row may be any list.
        """
        if not self.inputs:
            return None
        return len(next(iter(self.inputs.values())).shape) if self.single_input else 0

    def to_json(self) -> dict[str, Any]:
        """JSON object that `from_json` takes back."""
        return {
            "name": self.name,
            "batched": self.batched,
            "is_async": self.is_async,
            "inputs": _tensors_to_json(self.inputs),
            "single_input": self.single_input,
            "outputs": _tensors_to_json(self.outputs),
            "single_output": self.single_output,
            "batch_dim": list(self.batch_dim),
            "max_batch_size": self.max_batch_size,
            "size_of": None if self.size_of is None else self.size_of.to_json(),
            "example": self.example,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "MethodSpec":
        """The reverse of `to_json`."""
        size_of = value["size_of"]
        return cls(
            name=value["name"],
            batched=value["batched"],
            is_async=value["is_async"],
            inputs=_tensors_from_json(value["inputs"]),
            single_input=value["single_input"],
            outputs=_tensors_from_json(value["outputs"]),
            single_output=value["single_output"],
            batch_dim=(value["batch_dim"][0], value["batch_dim"][1]),
            max_batch_size=value["max_batch_size"],
            size_of=None if size_of is None else SizeOf.from_json(size_of),
            example=value["example"],
        )


def _tensors_to_json(tensors: Mapping[str, Tensor]) -> list[Any]:
    return [
        [name, tensor.dtype, list(tensor.shape), tensor.allow_non_finite]
        for name, tensor in tensors.items()
    ]


def _tensors_from_json(value: list[Any]) -> dict[str, Tensor]:
    return {
        name: Tensor(dtype, shape, allow_non_finite=allowed)
        for name, dtype, shape, allowed in value
    }
