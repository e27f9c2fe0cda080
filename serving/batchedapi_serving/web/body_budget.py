"""How many bytes of bodies a web process holds, from their first piece to the answer."""

from typing import Final

from batchedapi_serving.errors import BodiesFullError
from batchedapi_serving.processes import give_memory_back

BODIES_BYTES: Final = 256 * 1024 * 1024
"""Of all connections together; at least two bodies of `overload.maxBodySize` whatever that is."""
UNCOUNTED_BYTES: Final = 16 * 1024
"""Shorter bodies are bounded by their number, and counting them costs each request something."""
_WORTH_GIVING_BACK: Final = 4 * 1024 * 1024


class BodyBudget:
    """Of one web process."""

    def __init__(self, max_body_bytes: int) -> None:
        self.most: Final = max(BODIES_BYTES, 2 * max_body_bytes)
        self.held = 0
        self._freed = 0  # bytes since memory was given back

    def free(self, size: int) -> None:
        """So many bytes are held no longer."""
        self.held -= size
        self._freed += size

    def sweep(self) -> None:
        """Called about twice a second: give the system back what bodies took."""
        if self._freed >= _WORTH_GIVING_BACK:
            self._freed = 0
            give_memory_back()

    def error(self) -> BodiesFullError:
        """What is said to whoever would take it beyond."""
        return BodiesFullError(
            f"body: this process holds {self.held} bytes of bodies, of at most {self.most}; send it"
            " again in a moment"
        )


class HeldBodies:
    """What one connection, or one call, has of the budget."""

    __slots__ = ("_answering", "_budget", "_coming")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._coming = self._answering = 0

    def coming(self, size: int) -> bool:
        """So many bytes of a body are here; False, and as before, if the budget is used up."""
        budget, more = self._budget, size - self._coming
        if more > 0 and budget.held + more > budget.most:
            return False
        budget.held += more
        self._coming = size
        return True

    def answering(self, size: int) -> bool:
        """A body of this length is complete; False, and as before, if it is beyond the budget."""
        budget = self._budget
        held = budget.held - self._coming - self._answering + size
        if held > budget.most:
            return False
        budget.held = held
        self._coming, self._answering = 0, size
        return True

    def released(self) -> None:
        """It is answered, or gone; of a next one that is coming the next piece counts again."""
        self._budget.free(self._answering + self._coming)
        self._answering = self._coming = 0
