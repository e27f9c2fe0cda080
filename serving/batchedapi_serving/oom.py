"""Whether a process that ended may have been ended by the kernel for want of memory.

The dispatcher asks whether a smaller batch would have fit, the supervisor what a failed start says.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
MEMORY_EVENTS: Final = Path("/sys/fs/cgroup/memory.events")
"""Events of the container's own cgroup, version 2."""
_REMEMBERED: Final = 64


def read_oom_kills(path: Path = MEMORY_EVENTS) -> int:
    """Processes of this cgroup that the kernel has killed for memory; 0 where it does not say."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return 0


class OomKills:
    """Shares the kernel's kills out among the processes that end, one each."""

    def __init__(self, read: Callable[[], int] = read_oom_kills) -> None:
        self._read = read
        self._seen = read()
        self._unclaimed = 0
        self._verdicts: dict[int, bool] = {}

    def started(self, pid: int) -> None:
        """A process is ready: what was killed before was another."""
        self._verdicts.pop(pid, None)
        self._seen = self._read()
        self._unclaimed = 0

    def ended(self, pid: int) -> bool:
        """Whether the kernel killed that process; the same for each of its connections."""
        known = self._verdicts.get(pid)
        if known is not None:
            return known
        kills = self._read()
        self._unclaimed += max(0, kills - self._seen)
        self._seen = kills
        killed = self._unclaimed > 0
        if killed:
            self._unclaimed -= 1
            log.warning("model process was killed for memory", extra={"pid": pid})
        self._verdicts[pid] = killed
        if len(self._verdicts) > _REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]
        return killed
