"""Whose fault it is that a batch failed: by halves within a budget, then one by one.

By halves one culprit among n is found in 2 ceil(log2 n) further runs. That and two runs more are
the budget of one failed batch: several culprits would take up to 2 n - 2. What is not told apart
when it is spent is run one by one, so that in the end nobody fails for a neighbour:

    further runs of a batch of n <= 2 ceil(log2 n) + 2 + n

A budget of which no run succeeded says that everything fails, for a reason behind the rows. Halves
tell nothing then, and failed batches are run one by one at once, until a run succeeds.
"""

from collections.abc import Sequence

Parts = Sequence[tuple[int, int]]
"""Units [start, stop), each to be run by itself."""


class Search:
    """What is left to find the culprits of one failed batch with; all its parts share it."""

    __slots__ = ("halvings", "succeeded")

    def __init__(self, units: int) -> None:
        """`units` are what can be told apart, >= 1: requests, or rows of one request."""
        self.halvings = (units - 1).bit_length() + 1  # of two runs each
        self.succeeded = False
        """Whether any part ran without failure."""

    def halves(self, units: int) -> Parts:
        """Two halves of `units` that failed together; none of a single one, or of what is spent."""
        if units < 2 or not self.halvings:  # noqa: PLR2004 - of one there are no halves
            return ()
        self.halvings -= 1
        return (0, units // 2), (units // 2, units)


class Isolation:
    """How failed batches of one method are taken apart."""

    __slots__ = ("systemic",)

    def __init__(self) -> None:
        self.systemic = False
        """Whether everything fails at present."""

    def apart(self, search: Search, units: int) -> Parts:
        """What to run again of `units` that failed together; nothing of a single one."""
        if not self.systemic:
            halves = search.halves(units)
            if halves:
                return halves
        if units <= 1:
            return ()
        self.systemic = self.systemic or not search.succeeded
        return [(n, n + 1) for n in range(units)]

    def succeeded(self, search: Search | None) -> None:
        """A batch ran without failure; `search` is that of which it was a part, if of any."""
        self.systemic = False
        if search is not None:
            search.succeeded = True
