"""Whether the replica is able to answer: the process with the queue runs, and has lanes."""

from typing import Final

CHECK_SECONDS: Final = 0.5
"""Between looks; the web process renews its beat about as often."""
MISSED: Final = 6
"""Looks in a row at a replica that is not able to answer, after which it says so: 3 s. A process
that dies is mostly replaced in less, and requests wait for it."""


class Readiness:
    """Look at the replica every CHECK_SECONDS from when its first model was loaded.

    It counts its looks instead of seconds, as Pulse does: while the machine sleeps nobody looks.
    """

    def __init__(self) -> None:
        self._beat = 0.0
        self._missed = 0

    @property
    def able(self) -> bool:
        """Whether the replica answers, or did a moment ago."""
        return self._missed < MISSED

    def look(self, beat: float, lanes: float) -> None:
        """Note what is seen.

        Args:
            beat: Of the web process with the queue: another figure whenever its loop has run.
            lanes: Of the method that has the fewest.
        """
        runs, self._beat = beat != self._beat, beat
        self._missed = 0 if runs and lanes > 0 else self._missed + 1
