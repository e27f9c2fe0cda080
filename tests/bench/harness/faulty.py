"""Runs `batchedapi ARGUMENTS` in this process, whose calls of the kernel can be made to fail.

    python tests/bench/harness/faulty.py FOLDER serve -f ...

Every function of `os`, every method of sockets and of epoll, and what opens files, maps memory and
starts threads is wrapped; there is no list of those that somebody thought of. A call is known by
its name and by where it was made: the frames up to the first one of ours. FOLDER/seen gets a
line for each that is new since FOLDER/armed was changed, FOLDER/fired one for each that failed.
FOLDER/armed says which fails from now on: {"site", "error", "until"}, the latter in seconds on the
monotonic clock, 0 for once.
"""

import _socket
import builtins
import errno
import functools
import io
import json
import mmap
import os
import select
import selectors
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ARMED_BYTES: Final = 4096
_CANNOT_FAIL: Final = frozenset(
    {"fspath", "strerror", "getpid", "getppid", "abort", "_exit", "waitstatus_to_exitcode"}
)
"""Functions of os that ask the kernel nothing, or nothing that it may refuse."""
_OURS: Final = "batchedapi_"


class Injector:
    """Decides of each call whether it fails."""

    def __init__(self, folder: Path) -> None:
        self._seen: set[str] = set()
        self._stat = os.stat
        self._write = os.write
        self._log = os.open(folder / "seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._fired = os.open(folder / "fired", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with (folder / "armed").open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ARMED_BYTES)
        self._text = b""
        self._armed: dict[str, Any] = {}
        self._busy = False

    def check(self, name: str) -> None:
        """Raise what the call `name` from here is to fail with, if it is."""
        if self._busy or threading.current_thread() is not threading.main_thread():
            return
        self._busy = True
        try:
            site = _site(name)
            text = self._memory[:]
            if text != self._text:
                self._text = text
                self._seen.clear()
                self._armed = json.loads(text.rstrip(b"\0") or b"{}")
            if site not in self._seen:
                self._seen.add(site)
                self._write(self._log, f"{site}\n".encode())
            if self._armed.get("site") != site:
                return
            until, number = self._armed["until"], int(self._armed["error"])
            if until and time.monotonic() > until:
                return
            if not until:
                self._armed = {}
            self._write(self._fired, f"{site}\n".encode())
        finally:
            self._busy = False
        if name == "threading.start_new_thread":
            raise RuntimeError("can't start new thread")
        raise OSError(number, os.strerror(number))

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which may fail."""

        @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
        def call(*arguments: Any, **options: Any) -> Any:
            self.check(name)
            return function(*arguments, **options)

        return call

    def install(self) -> None:
        """Wrap everything."""
        for name, function in vars(os).copy().items():
            asks = not name.startswith("W") and name not in _CANNOT_FAIL
            if asks and isinstance(function, types.BuiltinFunctionType):
                setattr(os, name, self.wrapped(f"os.{name}", function))
        for name, method in vars(_socket.socket).items():
            if isinstance(method, types.MethodDescriptorType) and name not in {"fileno", "close"}:
                setattr(socket.socket, name, self._method(f"socket.{name}", method))
        made = socket.socket.__init__
        socket.socket.__init__ = self._method("socket.socket", made)  # type: ignore[method-assign]
        _socket.socketpair = self.wrapped("socket.socketpair", _socket.socketpair)
        selectors.EpollSelector._selector_cls = self._epoll  # type: ignore[attr-defined]
        opened = self.wrapped("open", io.open)
        io.open = builtins.open = opened
        mmap.mmap = self.wrapped("mmap.mmap", mmap.mmap)  # type: ignore[assignment, misc]
        start = threading._start_new_thread  # type: ignore[attr-defined]
        threading._start_new_thread = self.wrapped(  # type: ignore[attr-defined]
            "threading.start_new_thread", start
        )

    def _method(self, name: str, method: Any) -> Any:
        def call(instance: Any, *arguments: Any, **options: Any) -> Any:
            self.check(name)
            return method(instance, *arguments, **options)

        return call

    def _epoll(self) -> Any:
        self.check("epoll.epoll")
        real = select.epoll()
        return types.SimpleNamespace(
            register=self.wrapped("epoll.register", real.register),
            modify=self.wrapped("epoll.modify", real.modify),
            unregister=self.wrapped("epoll.unregister", real.unregister),
            poll=real.poll, close=real.close, fileno=real.fileno,
        )  # fmt: skip


def _site(name: str) -> str:
    """The call and where it is made: up to three frames, and the first of ours."""
    frame = sys._getframe(3)
    places: list[str] = []
    while frame is not None:
        file = frame.f_code.co_filename
        ours = _OURS in file
        if ours or len(places) < 3:
            where = file.rpartition("/")[2].removesuffix(".py")
            places.append(f"{where}.{frame.f_code.co_name}:{frame.f_lineno}")
        if ours:
            break
        frame = frame.f_back  # type: ignore[assignment]
    return f"{name} < {' < '.join(places)}"


def errno_of(name: str) -> int:
    """The number of a name such as EMFILE."""
    return int(getattr(errno, name))


def main() -> None:
    """See the module's docstring."""
    from batchedapi_serving.cli.main import main as command  # noqa: PLC0415 - before calls fail

    injector = Injector(Path(sys.argv[1]))
    sys.argv = ["batchedapi", *sys.argv[2:]]
    injector.install()
    command()


if __name__ == "__main__":
    main()
