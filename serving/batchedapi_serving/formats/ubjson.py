"""Whether a file of UBJSON is whole: XGBoost reads behind the end of one that was cut off.

It then asks for as much memory as the bytes there happen to say, or ends the process. Values are
passed over, not read: https://ubjson.org/type-reference, with counted and typed containers.
"""

import mmap
from pathlib import Path
from typing import Final

_SIZES: Final = {
    ord(kind): size
    for size, kinds in {0: "ZNTF", 1: "iUC", 2: "I", 4: "ld", 8: "LD"}.items()
    for kind in kinds
}
"""Bytes of a value, by the letter before it."""
_ENDS: Final = {ord("{"): ord("}"), ord("["): ord("]")}


def check_whole(file: Path) -> None:
    """Let a file pass whose first value ends within it.

    Raises:
        ValueError: it does not, or is no UBJSON.
    """
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            end = _after(data, 0)
        except (IndexError, KeyError, RecursionError) as error:
            raise ValueError("expected UBJSON to its end, found it cut off or changed") from error
        if end > len(data):
            raise ValueError(f"expected {end:,} bytes of UBJSON, got {len(data):,}")


def _after(data: mmap.mmap, at: int) -> int:
    """Where the value that begins at `at` ends."""
    kind = data[at]
    at += 1
    if kind in _SIZES:
        return at + _SIZES[kind]
    if kind in b"SH":
        return _after_text(data, at)
    end, typed, count = _ENDS[kind], None, None
    if data[at] == ord("$"):
        typed = data[at + 1]
        at += 2
    if data[at] == ord("#"):
        count, at = _length(data, at + 1)
    if typed is not None and count is not None:
        return at + count * _SIZES[typed]
    found = 0
    while data[at] != end if count is None else found < count:
        if end == ord("}"):
            at = _after_text(data, at)
        at = _after(data, at)
        found += 1
    return at + (count is None)


def _after_text(data: mmap.mmap, at: int) -> int:
    length, at = _length(data, at)
    return at + length


def _length(data: mmap.mmap, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends."""
    end = at + 1 + _SIZES[data[at]]
    return int.from_bytes(data[at + 1 : end], "big"), end
