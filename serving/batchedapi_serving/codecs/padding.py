"""Rows of different lengths in one array, and which of them may be: padding multiplies memory.

One long row makes each of its batch as long, and one tall and one wide image make both tall and
wide. So rows share a batch whatever their lengths only while that cannot cost more than
FREE_BYTES; longer rows share it with rows of about their own lengths, so that a batch takes less
than 2 ** (variable dimensions) times the bytes that clients have sent.
"""

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np

from batchedapi_serving.predictor.api import MethodSpec, Tensor

FREE_BYTES: Final = 128 * 1024 * 1024
"""Of all inputs of a batch, when every row is padded to the length up to which all may share it."""


def freely_padded(method: MethodSpec, most_rows: int) -> int:
    """Up to which length of each variable dimension rows share a batch; a power of two.

    Args:
        method: Declares the inputs.
        most_rows: Of a batch.
    """

    def row_bytes(length: int) -> int:
        return sum(
            tensor.item_bytes * math.prod(length if isinstance(n, str) else n for n in tensor.shape)
            for tensor in method.inputs.values()
        )

    lengths = itertools.takewhile(
        lambda length: row_bytes(length) * most_rows <= FREE_BYTES,
        (1 << exponent for exponent in range(FREE_BYTES.bit_length())),
    )
    return max(lengths, default=1)


def padding_class(lengths: Sequence[int], free: int) -> Hashable:
    """Rows of one class may share a batch; None is the class of those that are padded freely.

    In any other, the lengths of each dimension lie between a power of two and the one before.
    """
    if max(lengths) <= free:
        return None
    return tuple((length - 1).bit_length() for length in lengths)


def padded(tensor: Tensor, parts: Sequence[bytes], shapes: Sequence[tuple[int, ...]]) -> bytes:
    """Rows of different shapes, each filled up with zeros at its ends to the longest of all.

    Args:
        tensor: What they are rows of; it has a variable dimension.
        parts: Packed rows.
        shapes: Of each.
    """
    longest = tuple(max(lengths) for lengths in zip(*shapes, strict=True))
    whole = np.zeros((len(parts), *longest), dtype=tensor.numpy_dtype)
    for i, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
        row, packed = whole[i], np.frombuffer(part, tensor.numpy_dtype)
        row[tuple([slice(length) for length in shape])] = packed.reshape(shape)
    return whole.tobytes()
