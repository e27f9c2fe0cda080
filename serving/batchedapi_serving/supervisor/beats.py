"""Whether an event loop still runs, told by a figure that it renews from inside itself."""

from typing import Final

CHECK_SECONDS: Final = 1.0
MISSED: Final = 8
"""Checks without a new beat after which a process is given up. A beat comes twice a second."""
MISSED_AT_START: Final = 60
"""The same before the first beat: imports take long on a busy machine."""


class Pulse:
    """Of one process; look at it every CHECK_SECONDS.

    It counts its own looks instead of seconds: when the machine slept or the container was frozen
    the figure is old, but nobody has looked in vain.
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._missed = 0

    @property
    def seen(self) -> bool:
        """Whether there was ever a beat."""
        return self._last > 0.0

    def blocked(self, beat: float) -> bool:
        """Whether the process is to be given up.

        Args:
            beat: Its figure, 0.0 until the first beat.
        """
        if beat != self._last:
            self._last, self._missed = beat, 0
            return False
        self._missed += 1
        return self._missed >= (MISSED if self.seen else MISSED_AT_START)
