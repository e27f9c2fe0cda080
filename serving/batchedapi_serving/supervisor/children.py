"""One child process of the supervisor and when to start it again."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from batchedapi_serving.errors import LoadError

log = logging.getLogger(__name__)


class Backoff:
    """Seconds to wait before the next start: doubled each time, until something good happens."""

    FIRST: Final = 0.1
    LAST: Final = 5.0

    def __init__(self) -> None:
        self._next = self.FIRST

    def reset(self) -> None:
        """The process did its work; its next death is the first again."""
        self._next = self.FIRST

    def take(self) -> float:
        """The wait before the next start."""
        wait, self._next = self._next, min(2 * self._next, self.LAST)
        return wait


class Child:
    """A program of ours in a process of its own."""

    def __init__(self, role: str, module: str) -> None:
        self.role = role
        self._module = module
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start the program, with `environment` on top of ours and the `descriptors` kept open."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            *arguments,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl+C in a terminal is for the supervisor alone
        )

    async def ended(self) -> int:
        """Wait for its end; the exit code, or minus the signal."""
        if self._process is None:
            raise AssertionError(f"{self.role} was never started")
        return await self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.pid is not None and self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended this moment
                self._process.send_signal(number)

    def failure(self, path: Path, code: int) -> LoadError:
        """Why it ended with `code`: what it left in the file `path`, which is removed, or how."""
        if path.exists():
            value = json.loads(path.read_text())
            path.unlink()
            return LoadError(value["reason"], value["message"])
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        reason = "OutOfMemory" if code == -signal.SIGKILL else "CrashLooping"
        return LoadError(reason, f"{self.role.replace('-', ' process ')} was ended {how}")


async def came(event: asyncio.Event, *, within: float) -> bool:
    """Whether `event` was set within so many seconds."""
    try:
        return await asyncio.wait_for(event.wait(), within)
    except TimeoutError:
        return False
