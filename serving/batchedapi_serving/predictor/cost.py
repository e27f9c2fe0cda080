"""What a row costs, when rows are not alike: tokens, characters, bytes."""

import enum
import math
from dataclasses import dataclass
from typing import Any


class Measure(enum.StrEnum):
    """What is measured of a row."""

    BYTES = "bytes"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SizeOf:
    """Cost of one row, max(1, ceil(measure / per)); `max_batch_size` then bounds a batch's sum.

    Data and not a function, because the web process counts and never imports the user's code.
    Made by `SizeOf.bytes` and `SizeOf.length`.

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
        """Bytes of the row: of its JSON text, or of its packed numbers."""
        return cls(Measure.BYTES, None, per)

    @classmethod
    def length(cls, of: str | None = None, per: float = 1) -> "SizeOf":
        """Length of one part of the row.

        Args:
            of: Of a JSON item: the member whose length counts, a text, list or object; None: the
                item itself. Of tensors: a variable dimension, or an input (its first dimension).
            per: What one unit of cost is.
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
