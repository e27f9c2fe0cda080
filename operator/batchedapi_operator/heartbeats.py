"""Whether the loops of the process go round; what liveness goes by.

A loop that waits for an apiserver that does not answer goes round all the same: its requests end
after a time. A restart would not help it, and would forget what was seen of every load.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Loop:
    longest: float
    """Seconds that a round takes at most."""
    last: float


@dataclass(slots=True)
class Heartbeats:
    """Written by each loop, also of another thread; read by the admin port."""

    monotonic: Callable[[], float] = time.monotonic
    _loops: dict[str, _Loop] = field(default_factory=dict)

    def of(self, name: str, longest: float) -> Callable[[], None]:
        """What a loop is to call once a round, from now on; a round takes `longest` seconds."""
        loop = self._loops[name] = _Loop(longest, self.monotonic())

        def beat() -> None:
            loop.last = self.monotonic()

        return beat

    def all_live(self) -> bool:
        """Whether no loop is overdue; says which one is."""
        now = self.monotonic()
        stuck = [name for name, one in self._loops.items() if now - one.last > one.longest]
        if stuck:
            log.error("loops are stuck", extra={"loops": ", ".join(stuck)})
        return not stuck
