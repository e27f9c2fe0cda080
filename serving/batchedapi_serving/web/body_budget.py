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

    def changed(self, more: int) -> None:
        """So many bytes more are held, or fewer."""
        self.held += more
        self._freed -= min(0, more)

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
    """What one connection, or one call, has of the budget.

    Attributes:
        bytes: Of the bodies that are coming and being answered.
    """

    __slots__ = ("_budget", "_coming", "bytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._coming = self.bytes = 0

    def coming(self, size: int) -> bool:
        """So many bytes of a body are here; False, and as before, if the budget is used up."""
        more = size - self._coming
        if more > 0 and self._budget.held + more > self._budget.most:
            return False
        self._coming = size
        self._hold(self.bytes + more)
        return True

    def answering(self, size: int) -> bool:
        """A body of this length is complete; False, and as before, if it is beyond the budget."""
        if self._budget.held - self.bytes + size > self._budget.most:
            return False
        self._coming = 0
        self._hold(size)
        return True

    def released(self) -> None:
        """It is answered, or gone; of a next one that is coming the next piece counts again."""
        self._coming = 0
        self._hold(0)

    def _hold(self, size: int) -> None:
        self._budget.changed(size - self.bytes)
        self.bytes = size
