"""A way to a server that is cut after so many bytes of answers, and is whole again at once."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

_CHUNK: Final = 1 << 18


@dataclass
class Way:
    """Connections through it, and what went over them."""

    url: str = ""
    cuts: list[int] = field(default_factory=list)
    """After how many more bytes of answers all connections end, one cut after the other."""
    sent: int = 0
    """Bytes of answers that were passed on, in all."""
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def may_pass(self, count: int) -> bool:
        """Whether an answer's next bytes come before the next cut; if not, this is it."""
        with self._lock:
            if not self.cuts:
                return True
            self.cuts[0] -= count
            if self.cuts[0] > 0:
                return True
            self.cuts.pop(0)
            for one in self._open:
                _end(one)
            return False

    def count(self, count: int) -> None:
        """Bytes of an answer that were passed on."""
        with self._lock:
            self.sent += count

    def run(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on both ways, each in a thread of its own."""
        with self._lock:
            self._open |= {client, server}
        for source, target in ((client, server), (server, client)):
            answers = source is server
            threading.Thread(
                target=self._pass, args=(source, target), kwargs={"answers": answers}, daemon=True
            ).start()

    def _pass(self, source: socket.socket, target: socket.socket, *, answers: bool) -> None:
        try:
            while chunk := source.recv(_CHUNK):
                if answers and not self.may_pass(len(chunk)):
                    break
                target.sendall(chunk)
                if answers:
                    self.count(len(chunk))
        except OSError:
            pass
        finally:
            _end(source)
            _end(target)
            with self._lock:
                self._open -= {source, target}


def _end(one: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        one.shutdown(socket.SHUT_RDWR)


@contextmanager
def way_to(url: str, *cuts: int) -> Iterator[Way]:
    """A way to the server of a plain http address, until the end of the block."""
    address = urlsplit(url)
    way = Way(cuts=list(cuts))
    listener = socket.create_server(("127.0.0.1", 0))
    way.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            way.run(client, socket.create_connection((address.hostname, address.port)))

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield way
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
