"""One method as the server knows it: its tensors, the cost of a row, and how it is called.

All of it crosses processes as JSON. The supervisor imports this too, which is why numpy is not.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

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
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}


def _no_dtype(dtype: object) -> ValueError:
    """The error of another type; numpy's and torch's names, and the types themselves, are known."""
    words = str(getattr(dtype, "__name__", dtype)).rpartition(".")[2].lower()
    meant = words.replace("double", "float64").replace("float", "fp").upper()
    remedy = f"; did you mean {meant}?" if meant in DTYPES else ""
    return ValueError(f"Tensor: expected a dtype of {', '.join(DTYPES)}, got {dtype!r}{remedy}")


class Tensor:
    """One row of an array: its type and its shape without the batch dimension.

    Args:
        dtype: A type name of the Open Inference Protocol: BOOL, UINT8..UINT64, INT8..INT64,
            FP16, FP32, FP64.
        shape: Lengths of one row's dimensions; `[]` is a single number a row. A length is an int
            >= 1, or a name such as "tokens" for one that differs from row to row. Within one row,
            the same name is the same length, over all inputs and outputs of a method.
        allow_non_finite: Whether NaN and Infinity are values like others: a missing one is NaN.
            Else a request that has one is refused, and a row of an answer that has one fails.
        name: Name that protocols with named tensors call a single one by; None: `input` or
            `output`. Several have the names of their mapping.
        pad: Of an input with named lengths: rows of different lengths may share a batch, each
            filled up with this number to the longest. The method must not care about it; it may
            take an argument `attention_mask` or `lengths`. None: only rows of equal lengths do.

    Attributes:
        dtype: As it was given.
        shape: As a tuple.
        allow_non_finite: As it was given.
        name: As it was given.
        pad: As it was given.

    Raises:
        ValueError: unknown dtype, a length below 1, an empty name, a type without NaN that is to
            allow it, or a pad that is no finite number of the type or has no length to fill.
    """

    __slots__ = ("allow_non_finite", "dtype", "name", "pad", "shape")

    def __init__(
        self,
        dtype: str,
        shape: Sequence[int | str],
        *,
        allow_non_finite: bool = False,
        name: str | None = None,
        pad: float | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise _no_dtype(dtype)
        if isinstance(shape, str) or not all(
            (type(n) is int and n >= 1) or (isinstance(n, str) and n) for n in shape
        ):
            raise ValueError(
                f"Tensor: expected lengths >= 1 or names in shape, got {shape!r}; leave out the"
                " batch dimension, and name a length that differs from row to row: ['tokens']"
            )
        if allow_non_finite and not dtype.startswith("FP"):
            raise ValueError(
                "Tensor: expected allow_non_finite for FP16, FP32 or FP64, which have NaN and"
                f" Infinity, got it for {dtype}"
            )
        self.dtype = dtype
        self.shape = tuple(shape)
        self.allow_non_finite = allow_non_finite
        self.name = name
        self.pad = pad
        if pad is not None and not (self.variable and _is_number_of(dtype, pad)):
            raise ValueError(
                f"Tensor: expected pad to be a finite number of {dtype} beside a named length, such"
                f" as ['tokens'], got {pad!r} beside {list(shape)}"
            )

    def __repr__(self) -> str:
        allowed = ", allow_non_finite=True" if self.allow_non_finite else ""
        named = "" if self.name is None else f", name={self.name!r}"
        padded = "" if self.pad is None else f", pad={self.pad!r}"
        return f"Tensor({self.dtype!r}, {list(self.shape)!r}{allowed}{named}{padded})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        return self._told() == other._told()

    def __hash__(self) -> int:
        return hash(self._told())

    def _told(self) -> tuple[object, ...]:
        return self.dtype, self.shape, self.allow_non_finite, self.pad

    @property
    def numpy_dtype(self) -> str:
        """Type string that numpy.dtype() takes."""
        return DTYPES[self.dtype]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variable dimensions, each once, in order."""
        return tuple(dict.fromkeys(n for n in self.shape if isinstance(n, str)))

    @property
    def variable(self) -> bool:
        """Whether a length differs from row to row."""
        return any(isinstance(n, str) for n in self.shape)

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """The shape of a tensor without variable dimensions.

        Raises:
            ValueError: there is one.
        """
        lengths = tuple(n for n in self.shape if isinstance(n, int))
        if len(lengths) != len(self.shape):
            raise ValueError(f"expected a tensor without variable dimensions, got {self}")
        return lengths

    @property
    def items_per_row(self) -> int:
        """Numbers in one row; fixed shapes only."""
        return math.prod(self.fixed_shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on the wire; fixed shapes only."""
        return self.items_per_row * self.item_bytes

    @property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return int(self.numpy_dtype[2:])


def padded(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same inputs, with `pad=0` in each that has a named length and says no other."""
    return {
        name: Tensor(
            one.dtype, one.shape, allow_non_finite=one.allow_non_finite, name=one.name, pad=0
        )
        if one.variable and one.pad is None
        else one
        for name, one in inputs.items()
    }


def _is_number_of(dtype: str, value: Any) -> bool:
    """Whether it is finite, and in the range of the type."""
    if dtype.startswith("FP"):
        return isinstance(value, int | float) and math.isfinite(value)
    if dtype == "BOOL":
        return value in (0, 1)
    count = 256 ** int(DTYPES[dtype][2:])
    lowest = 0 if dtype.startswith("U") else -count // 2
    return type(value) is int and lowest <= value < lowest + count


class Measure(enum.StrEnum):
    """A measure of a row."""

    BYTES = "bytes"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SizeOf:
    """Cost of one row, max(1, ceil(measure / per)); `max_batch_size` then bounds a batch's sum.

    Data and not a function, because the web process counts and never imports the user's code.
    Made by `SizeOf.bytes` and `SizeOf.length`.

    Attributes:
        measure: What is measured, `bytes` or `length`.
        of: The part of the row whose length it is; None: the row's own.
        per: Bytes or items of one unit of cost.

    Raises:
        ValueError: `per` is not a finite number above 0.
    """

    measure: Measure
    of: str | None
    per: float

    def __post_init__(self) -> None:
        if not 0 < self.per < math.inf:
            raise ValueError(f"SizeOf: expected a finite per > 0, got {self.per!r}")

    @classmethod
    def bytes(cls, per: float = 1) -> "SizeOf":
        """A row costs its bytes: of its JSON text, or of its packed numbers.

        Args:
            per: Bytes of one unit of cost, above 0.

        Raises:
            ValueError: `per` is not a finite number above 0.
        """
        return cls(Measure.BYTES, None, per)

    @classmethod
    def length(cls, of: str | None = None, per: float = 1) -> "SizeOf":
        """A row costs the length of one part of it.

        Args:
            of: Of a JSON item: the member whose length counts, a text, list or object; None: the
                item itself. Of tensors: a variable dimension, or an input (its first dimension).
            per: Items of one unit of cost, above 0: characters of a text, members of a list, places
                of a dimension.

        Raises:
            ValueError: `per` is not a finite number above 0.
        """
        return cls(Measure.LENGTH, of, per)

    def cost(self, measured: int) -> int:
        """Cost of a row of which so much was measured; >= 1."""
        return max(1, math.ceil(measured / self.per))

    def to_json(self) -> list[Any]:
        """JSON that `from_json` takes back."""
        return [self.measure, self.of, self.per]

    @classmethod
    def from_json(cls, value: list[Any]) -> "SizeOf":
        """The reverse of `to_json`."""
        return cls(Measure(value[0]), value[1], value[2])


SINGLE_INPUT: Final = "input"
"""Name under which the only, unnamed input is kept."""
SINGLE_OUTPUT: Final = "output"
PREDICT: Final = "predict"
"""Served whether it is marked or not, and the default of several."""
CALL: Final = "__call__"
"""Makes an object callable; served where it is marked, or named by the manifest."""


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """One method of a predictor, as the processes that never import it must know it."""

    name: str
    batched: bool
    """False: it takes one request at a time."""
    is_async: bool = False
    """It runs on the channel, side by side with others; see decisions 11 and 54."""
    streams: bool = False
    """It is a generator, async or not: each request is answered item by item."""
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
    def one_by_one(self) -> bool:
        """Whether what waited together is run one by one: there are batches, and no gain."""
        return not self.batched and self.max_batch_size > 1

    @property
    def variable(self) -> tuple[str, ...]:
        """Names of the variable dimensions of all inputs, each once, in order of appearance."""
        return tuple(
            dict.fromkeys(name for tensor in self.inputs.values() for name in tensor.names)
        )

    @property
    def pads(self) -> bool:
        """Whether rows of different lengths may share a batch."""
        return any(tensor.pad is not None for tensor in self.inputs.values())

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
            "streams": self.streams,
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
            streams=value["streams"],
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
        + ([] if tensor.pad is None else [tensor.pad])
        for name, tensor in tensors.items()
    ]


def _tensors_from_json(value: list[Any]) -> dict[str, Tensor]:
    return {
        name: Tensor(dtype, shape, allow_non_finite=allowed, pad=pad[0] if pad else None)
        for name, dtype, shape, allowed, *pad in value
    }


def default_method(specs: Sequence[MethodSpec]) -> str | None:
    """The method behind a path that names none: `predict`, `__call__`, else the only one."""
    names = [spec.name for spec in specs if not spec.name.endswith(contract.METHOD_BATCH)]
    for name in (PREDICT, CALL):
        if name in names:
            return name
    return names[0] if len(names) == 1 else None
