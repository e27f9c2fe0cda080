"""The type and shape of one row of an array, without numpy: the supervisor imports this too."""

import math
from collections.abc import Sequence
from typing import Final

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

    Raises:
        ValueError: unknown dtype, a length below 1, an empty name, or a type without NaN that is to
            allow it.
    """

    __slots__ = ("allow_non_finite", "dtype", "shape")

    def __init__(
        self, dtype: str, shape: Sequence[int | str], *, allow_non_finite: bool = False
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"Tensor: expected a dtype of {', '.join(DTYPES)}, got {dtype!r}")
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

    def __repr__(self) -> str:
        allowed = ", allow_non_finite=True" if self.allow_non_finite else ""
        return f"Tensor({self.dtype!r}, {list(self.shape)!r}{allowed})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        return self._told() == other._told()

    def __hash__(self) -> int:
        return hash(self._told())

    def _told(self) -> tuple[object, ...]:
        return self.dtype, self.shape, self.allow_non_finite

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
