"""One copy of a model for all processes of a replica: the process that loaded it forks the others.

A fork has the thread alone that asked for it. The pools of OpenMP, torch and onnxruntime are gone
in it and wait for ever, so only a process with one thread is forked from; OpenBLAS ends its own
before a fork, and starts them again when it needs them. Each fork is orphaned at once, and so a
child of the supervisor's like any model process (decision 77 of docs/decisions says the rest).
"""

import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from batchedapi_serving.logs import summary_of
from batchedapi_serving.orphans import children_of, process_table
from batchedapi_serving.predictor.metrics import InMemory, KeptNumber, Values
from batchedapi_serving.processes import FORKS, kill_with_parent

log = logging.getLogger(__name__)

_THREADS: Final = Path("/proc/self/task")
_LONGEST: Final = 4096
"""Bytes of a message."""
_LOOK_SECONDS: Final = 0.001
_SAME: Final = b"\0"
"""Said of a fork in which there was no problem."""


class MovableValues:
    """Values of a process that may be forked: in memory first, then in files of the fork's own."""

    def __init__(self) -> None:
        self._values: Values = InMemory()
        self.moved = False
        """Whether numbers are kept elsewhere from now on."""

    def opened(self, kind: str) -> Iterable[KeptNumber]:
        """See Values."""
        return self._values.opened(kind)

    def add(self, series: KeptNumber, amount: float) -> None:
        """See Values."""
        self._values.add(series, amount)

    def put(self, series: KeptNumber, value: float) -> None:
        """See Values."""
        self._values.put(series, value)

    def move(self, open_values: Callable[[], Values], *, first: bool) -> None:
        """Keep numbers in what is opened from now on, if there are any, and those so far too.

        All forks have the gauges of the start. What was counted there, `first` alone keeps.
        """
        before, self.moved = self._values, True
        if not isinstance(before, InMemory) or not before:
            return
        try:
            self._values = open_values()
            for series, value in before.items():
                if series.kind.startswith("gauge"):
                    self.put(series, value)
                else:
                    self.add(series, value if first else 0.0)
        except OSError as error:  # a full disk costs a metric, and nobody's request
            log.warning("metrics of the start are not kept", extra={"error": repr(error)})


def hindrance(devices: Sequence[str]) -> str | None:
    """Why this process is not to be forked from; None: nothing is seen that a fork would miss.

    Args:
        devices: GPUs that the predictor sees.
    """
    if sys.platform != "linux":
        return "a fork is given to the supervisor by Linux alone"
    if devices:
        return f"what a process has on {devices[0]} is lost in a fork"
    ours = threading.main_thread()
    running = [thread.name for thread in threading.enumerate() if thread is not ours]
    if running:
        return f"a fork would not have the threads that the predictor started: {running}"
    started = children_of(process_table(), os.getpid())
    if started:
        return f"a fork would share the processes that the predictor started: {sorted(started)}"
    return None


def problem_of_fork(work: Callable[[], str | None], seconds: float) -> str | None:
    """Run `work` in a fork, and see what a fork would miss; None: there is nothing.

    Args:
        work: Does what forks will do; answers what went wrong, None if nothing did.
        seconds: The fork is killed when it takes longer.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if not pid:
            _say_problem(theirs, work)
        theirs.close()
        # Those that know of forks have ended their threads in this process too.
        left = len(list(_THREADS.iterdir())) - 1
        ours.settimeout(seconds)
        try:
            said = ours.recv(_LONGEST)
        except TimeoutError:
            said = f"did not answer within {seconds:.3g} s".encode()
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if left:
        return (
            f"a fork would miss threads of libraries, of which {left} run in this process;"
            " cpuThreads: 1 starts none in most of them"
        )
    if not said:
        return f"a fork was ended with exit code {status}"
    return None if said == _SAME else f"a fork {said.decode(errors='replace')}"


def _say_problem(theirs: socket.socket, work: Callable[[], str | None]) -> None:
    """In the fork, which ends."""
    try:
        kill_with_parent()
        said = work()
        theirs.sendall(_SAME if said is None else said.encode()[:_LONGEST])
    except BaseException as error:  # noqa: BLE001 - user code: anything may be raised
        theirs.sendall(f"raised {summary_of(error)}".encode()[:_LONGEST])
    finally:
        os._exit(0)


class Fork(NamedTuple):
    """A model process that was forked."""

    worker_index: int
    control: socket.socket
    """See CONTROL_DESCRIPTOR."""
    first: bool = True
    """Of the process that loaded the model, or this one itself."""


def serve_forks(control: socket.socket) -> Fork:
    """Fork for each request on `control` until the supervisor ends; returns in the forks alone.

    A request is the index of a model process, with the descriptor of its control socket. The
    answer is its pid, or minus the errno of a machine that has no process for it.
    """
    supervisor, first = os.getppid(), True
    control.sendall(FORKS)
    while True:
        said, descriptors, _, _ = socket.recv_fds(control, _LONGEST, 1)
        if not said:
            os._exit(0)
        theirs = socket.socket(fileno=descriptors[0])
        pid = _forked_for(supervisor)
        if not pid:
            control.close()
            return Fork(int(said), theirs, first)
        first = first and pid < 0
        theirs.close()
        control.sendall(str(pid).encode())


def _forked_for(supervisor: int) -> int:
    """Fork a child of the supervisor's, which adopts it as its parent ends; 0 in that child."""
    read, write = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        os.close(write)
        os.close(read)
        return -(error.errno or errno.EAGAIN)
    if between:
        os.close(write)
        with contextlib.suppress(ChildProcessError):  # user code may ignore SIGCHLD
            os.waitpid(between, 0)
        said = os.read(read, _LONGEST)
        os.close(read)
        return int(said or -errno.EAGAIN)
    between = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        pid = -(error.errno or errno.EAGAIN)
    if pid:
        os.write(write, str(pid).encode())
        os._exit(0)
    os.close(write)
    os.close(read)
    os.setsid()
    while os.getppid() == between:
        time.sleep(_LOOK_SECONDS)
    kill_with_parent()
    if os.getppid() != supervisor:
        os._exit(1)
    return 0
