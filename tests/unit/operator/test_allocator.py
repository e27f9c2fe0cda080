"""What the C allocator keeps of memory that is free."""

import ctypes

import pytest

from batchedapi_operator.process import LARGE_BYTES, give_back_large_blocks


class Library:
    """A C library that notes what it was asked for."""

    def __init__(self, answer: int) -> None:
        self.asked: list[tuple[int, int]] = []
        self._answer = answer

    def mallopt(self, option: int, value: int) -> int:
        """As in malloc.h: 1 is done."""
        self.asked.append((option, value))
        return self._answer


@pytest.mark.parametrize("answer", [1, 0])
def test_large_blocks_stay_blocks_of_their_own(
    monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    """Whether or not the library does it, the operator starts."""
    library = Library(answer)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)

    give_back_large_blocks()

    assert [(-3, LARGE_BYTES)] == library.asked


def test_a_library_without_the_option_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of Alpine has none."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())

    give_back_large_blocks()
