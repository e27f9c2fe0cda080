"""Children that the supervisor never started: what other processes of the replica left behind.

As process 1 of a container it gets them anyway, and whatever `kubectl exec` leaves there.
"""

import os
from collections.abc import Iterable

from batchedapi_serving.orphans import (
    Table,
    adopt,
    children_of,
    end,
    process_table,
    reap,
    worker_index_of,
)
from batchedapi_serving.processes import Child

_FIRST = 1
"""Pid of whoever gets all orphans of a container."""


class Adopted:
    """Reaps them all, and ends those of a process that has ended."""

    def __init__(self) -> None:
        """From now on; children of whatever was this process before are nobody's to end."""
        adopt()
        self._before = children_of(process_table(), os.getpid())
        self._session = os.getsid(0)
        self._started: list[Child] = []

    def beside(self, started: Iterable[Child]) -> None:
        """These were started here, and whoever did it waits for them."""
        self._started += started

    def reap(self) -> None:
        """Have none that has ended in the table of processes; on each SIGCHLD."""
        while (pid := _ended_child()) is not None:
            child = next((one for one in self._started if one.pid == pid), None)
            if not (reap(pid) if child is None else child.reap()):
                return

    async def end_of(self, index: int, pid: int, alone: bool) -> None:  # noqa: FBT001 - it is called as a value
        """End what model process `index` left behind, which was `pid`.

        They are of its session, or were told the same index. Of one that says neither nothing is
        known but that there is no other whose it could be, if `alone`.
        """

        def chosen(table: Table, child: int) -> bool:
            if not self._is_orphan(table, child):
                return False
            if table[child].session == pid:
                return True
            whose = worker_index_of(child)
            return whose == str(index) or (whose is None and alone and os.getpid() != _FIRST)

        await end(chosen)

    async def end_all(self) -> None:
        """The replica ends."""
        await end(self._is_orphan)

    def _is_orphan(self, table: Table, child: int) -> bool:
        """Whether it comes from a process that was started here, which has its own session."""
        known = child in self._before or any(one.pid == child for one in self._started)
        return not known and table[child].session != self._session


def _ended_child() -> int | None:
    """One that can be reaped."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if ended is None else ended.si_pid
