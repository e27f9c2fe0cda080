"""Whether a process still runs, and whether the replica is able to answer.

Both count looks instead of seconds: while the machine sleeps, or the container is frozen, nobody
looks in vain.
"""

from typing import Final

BEAT_CHECK_SECONDS: Final = 1.0
BEATS_MISSED: Final = 8
"""Checks without a new beat after which a process is given up. A beat comes twice a second."""
BEATS_MISSED_AT_START: Final = 60
"""The same before the first beat: imports take long on a busy machine."""
READINESS_CHECK_SECONDS: Final = 0.5
"""Between looks; the web process renews its beat about as often."""
LOOKS_MISSED: Final = 6
"""Looks in a row at a replica that is not able to answer, after which it says so: 3 s. A process
that dies is mostly replaced in less, and requests wait for it."""


class Pulse:
    """Of one process; look at it every BEAT_CHECK_SECONDS."""

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
        return self._missed >= (BEATS_MISSED if self.seen else BEATS_MISSED_AT_START)


class Readiness:
    """Look at the replica every READINESS_CHECK_SECONDS from when its first model was loaded."""

    def __init__(self, *, waits: bool = False) -> None:
        """`waits`: it is not able before the first look that finds it so."""
        self._beat = 0.0
        self._missed = LOOKS_MISSED if waits else 0

    @property
    def able(self) -> bool:
        """Whether the replica answers, or did a moment ago."""
        return self._missed < LOOKS_MISSED

    def look(self, beat: float, lanes: float) -> None:
        """Note what is seen.

        Args:
            beat: Of the web process with the queue: another figure whenever its loop has run.
            lanes: Of the method that has the fewest.
        """
        runs, self._beat = beat != self._beat, beat
        self._missed = 0 if runs and lanes > 0 else self._missed + 1
