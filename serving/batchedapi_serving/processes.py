"""The processes of a replica: how one is started and awaited, and what each of them does.

Each ends with its parent, gives memory back, and spares the garbage collector the heap.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from batchedapi_serving.errors import LoadError

log = logging.getLogger(__name__)

EXIT_UNFIT: Final = 71
"""Exit code, sysexits' "system error", of a model process in which no batch can succeed."""
CONTROL_DESCRIPTOR: Final = "BATCHEDAPI_CONTROL_FD"
"""A socket to the supervisor, on which a model process says that it is LOADED, or FORKS."""
LOADED: Final = b"l"
"""The model is loaded and warmed up, and this process serves it."""
FORKS: Final = b"f"
"""The same, and this process serves nothing: it forks those that do (decision 77)."""

_LOOK_SECONDS: Final = 0.05
"""Between looks whether a process has ended, where the kernel does not tell."""
_AGAIN_SECONDS: Final = 1.0
"""Until a signal is sent again that could not be sent, or an end is looked at that was missed."""

_PR_SET_PDEATHSIG = 1
_GC_THRESHOLD = 10_000
"""Allocations between collections of the youngest generation: requests leave no cycles behind."""

_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_FIRST_TO_GO: Final = 500
"""Added to the score of who may be killed for memory; 1000 is a whole machine's worth of it."""


def nothing() -> None:
    """Do nothing, where something must be called."""


def end_with_parent(control: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """End this process when the supervisor's end of `control` closes, however it ended."""

    def closed() -> None:
        if not control.recv(4096):
            os._exit(1)

    control.setblocking(False)
    loop.add_reader(control, closed)
    kill_with_parent()


def kill_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent dies; where it cannot, do nothing.

    Needed beside the socket: a process that hangs in user code never looks at a socket.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def essential(what: str, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Run what this process is of no use without.

    If it fails the process ends, and is replaced: nobody would replace a task.
    """

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "task ended, and the process", extra={"task": what}, exc_info=task.exception()
            )
            os._exit(1)

    task = asyncio.create_task(coroutine)
    task.add_done_callback(ended)
    return task


def give_way_for_memory() -> None:
    """If memory runs out, the kernel is to kill this process rather than one that serves others.

    Without it, it takes the largest one, which may be a web process with requests of all.
    """
    with contextlib.suppress(OSError):  # not Linux, or not permitted: then it is as it was
        score = int(_OOM_SCORE.read_text())
        _OOM_SCORE.write_text(str(min(1000, score + _FIRST_TO_GO)))


def give_memory_back() -> None:
    """Return what was freed to the system, of which glibc keeps holes between what is not."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def may_open(wanted: int) -> int:
    """How many files this process may have open: raised to `wanted`, as far as the system lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def freeze_heap() -> None:
    """Take everything loaded so far out of the garbage collector's rounds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 20)


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
    """A program of ours in a process of its own.

    It is spawned by one call, which either makes a process or raises: asyncio's and subprocess's
    own ways need pipes, a thread or a descriptor after the fork, and leave a process that nobody
    knows when they do not get them.
    """

    def __init__(self, role: str, module: str) -> None:
        self.role = role
        self._module = module
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int | None:
        """Number of the running process."""
        return self._pid if self._code is None else None

    @property
    def session(self) -> int:
        """Session of the last process; its children are in it too, unless they left."""
        return self._pid or 0

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start the program, with `environment` on top of ours and the `descriptors` kept open.

        Raises:
            OSError: the machine has no process, memory or descriptor left for it.
        """
        nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        kept = [(os.POSIX_SPAWN_DUP2, number, number) for number in descriptors]
        self._pid = os.posix_spawn(
            sys.executable,
            # -P: with -m, files beside the model would come before the standard library
            [sys.executable, "-P", "-m", self._module, *arguments],
            {**os.environ, **(environment or {})},
            file_actions=[nothing, *kept],
            setsid=True,  # Ctrl+C in a terminal is for the supervisor alone
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them, others count on them
        )
        self._code = None

    def become(self, pid: int) -> None:
        """Be a child of ours that another program has made, or that another Child was."""
        self._pid, self._code = pid, None

    def leave(self) -> int:
        """Have another Child become the process that was started; its pid."""
        pid, self._pid = self._pid or 0, None
        return pid

    async def ended(self) -> int:
        """Wait for its end; the exit code, or minus the signal."""
        if self._pid is None:
            raise AssertionError(f"{self.role} was never started")
        with _told_of_the_end(self._pid) as told:
            while not self.reap():
                if told is None:
                    await asyncio.sleep(_LOOK_SECONDS)
                elif await came(told, within=_AGAIN_SECONDS):
                    told.clear()
        if self._code is None:
            raise AssertionError(f"{self.role} ended without an exit code")
        return self._code

    def reap(self) -> bool:
        """Whether its exit code is known, which is asked for; several may wait for it."""
        if self._code is None and self._pid is not None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # whoever started us waits for all of our children
                self._code = 0
            except OSError as error:
                log.warning("cannot wait for a process", extra={"error": str(error)})
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None

    def signal(self, number: int) -> None:
        """Send a signal, if it runs; again a little later if it could not be sent."""
        pid = self.pid
        if pid is None:
            return
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it ended this moment
        except OSError as error:
            log.warning("cannot send a signal", extra={"role": self.role, "error": str(error)})
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._signal_again, pid, number)

    def _signal_again(self, pid: int, number: int) -> None:
        if self.pid == pid:
            self.signal(number)

    def failure(self, path: Path, code: int) -> LoadError:
        """Why it ended with `code`: what it left in the file `path`, which is removed, or how."""
        try:
            value = json.loads(path.read_text())
            path.unlink()
            return LoadError(str(value["reason"]), str(value["message"]))
        except FileNotFoundError:
            pass  # it could not say anything
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("no reason can be read", extra={"role": self.role, "error": repr(error)})
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        reason = "OutOfMemory" if code == -signal.SIGKILL else "CrashLooping"
        return LoadError(reason, f"{self.role.replace('-', ' process ')} was ended {how}")


@contextlib.contextmanager
def _told_of_the_end(pid: int) -> Iterator[asyncio.Event | None]:
    """An event that is set when the process ends; None where the kernel cannot tell."""
    with contextlib.ExitStack() as stack:
        told = asyncio.Event()
        try:
            descriptor = os.pidfd_open(pid)
            stack.callback(close, descriptor)
            watch_once(descriptor, told, stack)
        except (AttributeError, OSError):  # not Linux, an older one, or no descriptor left
            yield None
        else:
            yield told


def watch_once(descriptor: int, event: asyncio.Event, stack: contextlib.ExitStack) -> None:
    """Set `event` once there is something to read; no more is looked when `stack` closes.

    Raises:
        OSError: it cannot be watched.
    """
    loop = asyncio.get_running_loop()

    def readable() -> None:
        loop.remove_reader(descriptor)
        event.set()

    stack.callback(loop.remove_reader, descriptor)
    loop.add_reader(descriptor, readable)


def close(descriptor: int) -> None:
    """Give a descriptor back; nothing depends on whether that worked."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


_CREDENTIALS: Final = struct.Struct("3i")
"""Layout of SO_PEERCRED: pid, uid and gid of the process that connected."""


def ends_with_peer(transport: asyncio.BaseTransport) -> Callable[[], None]:
    """Have a connection over a Unix socket end when the process that made it ends.

    Processes that it forked have that socket too, and would hold the connection open with nobody
    to answer. What the process had sent by then is read before the end.

    Returns:
        How to stop watching; where the kernel cannot tell, the socket alone says when it ends.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        with contextlib.suppress(OSError), _copy_of(transport) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    try:
        with _copy_of(transport) as connection:
            said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        descriptor = os.pidfd_open(_CREDENTIALS.unpack(said)[0])
    except ProcessLookupError:
        end()
        return nothing
    except (AttributeError, OSError):  # not Linux, an older one, or no descriptor left
        return nothing

    def ended() -> None:
        loop.remove_reader(descriptor)
        end()

    def stop() -> None:
        loop.remove_reader(descriptor)
        close(descriptor)

    loop.add_reader(descriptor, ended)
    return stop


def _copy_of(transport: asyncio.BaseTransport) -> socket.socket:
    """Its socket, with a descriptor of its own: a loop lets nobody shut down what it has."""
    return socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))


@contextlib.contextmanager
def kept_from_forks(*descriptors: int) -> Iterator[None]:
    """Within, processes that user code forks have /dev/null in the place of these descriptors.

    A fork that went on with our code would answer for this process; and memory that is shared
    would stay for as long as the fork. Their numbers stay taken: who closes them twice, as the
    fork's copy of our code might, hits nothing else.
    """
    held = list(descriptors)

    def give_up() -> None:
        for descriptor in held:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor, inheritable=False)
            os.close(null)

    os.register_at_fork(after_in_child=give_up)  # for good: it holds nothing but an empty list
    try:
        yield
    finally:
        held.clear()


async def came(event: asyncio.Event, *, within: float) -> bool:
    """Whether `event` was set within so many seconds."""
    try:
        return await asyncio.wait_for(event.wait(), within)
    except TimeoutError:
        return False


async def first_of(*waits: Coroutine[Any, Any, Any], within: float | None = None) -> bool:
    """Wait for the first of them and give up the others; False: none was over in time."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()
    return bool(done)
