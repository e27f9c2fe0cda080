"""A Redis of Debian's for tests, on a free port, with one user that may do only what is documented.

with running_redis(folder) as redis:
    running_replica(folder, ["-f", file], redis.environment)
    redis.kill(); redis.start()      # with or without its data
"""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ports import HOST, free_port
from programs import installed

GUIDE: Final = Path(__file__).resolve().parents[2] / "docs" / "guides" / "one-queue.md"
USER: Final = "batchedapi"
PASSWORD: Final = "correct-horse"  # noqa: S105 - of a server that a test starts
_START_SECONDS: Final = 20.0


def documented_acl(prefix: str = "batchedapi") -> list[str]:
    """The rules that the guide calls enough, for keys of that prefix, without the password."""
    found = re.search(
        r"^user batchedapi on >PASSWORD (~PREFIX:\* -@all \+.*)$", GUIDE.read_text(), re.MULTILINE
    )
    assert found is not None, f"no ACL in {GUIDE.name}"
    return found[1].replace("PREFIX", prefix).split()


class RedisServer:
    """One server; its data are in `folder`, if they are kept at all."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        keeps: bool = False,
        tls: bool = False,
        port: int | None = None,
    ) -> None:
        """`keeps`: with an append-only file, each write synced; `options` as in redis.conf.

        `port` None: one that is free.
        """
        self.port = port or free_port()
        self._folder = folder
        self._program = installed("redis-server", "redis-server")
        listens = (
            ["--port", "0", "--tls-port", str(self.port)] if tls else ["--port", str(self.port)]
        )
        kept = (
            ["--appendonly", "yes", "--appendfsync", "always"] if keeps else ["--appendonly", "no"]
        )
        self._options = [
            *listens, "--bind", HOST, "--dir", str(folder), "--save", "", *kept,
            "--user", "default", "on", f">{PASSWORD}", "~*", "&*", "+@all",
            "--user", USER, "on", f">{PASSWORD}", *documented_acl(), *options,
        ]  # fmt: skip
        self._tls = tls
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """By which a role finds it."""
        return {
            "REDIS__HOST": HOST,
            "REDIS__PORT": str(self.port),
            "REDIS__USERNAME": USER,
            "REDIS__PASSWORD": PASSWORD,
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self._folder / "redis.log").open("ab") as output:
            self.process = subprocess.Popen(
                [self._program, *self._options], stdout=output, stderr=output
            )
        end = time.monotonic() + _START_SECONDS
        while self._tls or "PONG" not in self.ask("PING"):
            if self._tls and self._listens():
                return
            assert time.monotonic() < end, (self._folder / "redis.log").read_text()
            time.sleep(0.02)

    def _listens(self) -> bool:
        return "Ready to accept connections" in (self._folder / "redis.log").read_text()

    def ask(self, *words: str) -> str:
        """The output of redis-cli, as the user who may everything."""
        client = installed("redis-cli", "redis-tools")
        done = subprocess.run(
            [client, "-h", HOST, "-p", str(self.port), "-a", PASSWORD, "--no-auth-warning", *words],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.stdout

    def add_user(self, name: str, prefix: str) -> None:
        """A tenant as in the guide, with the same password."""
        self.ask("ACL", "SETUSER", name, "on", f">{PASSWORD}", *documented_acl(prefix))

    def keys(self, pattern: str) -> list[str]:
        """Names of keys."""
        return self.ask("KEYS", pattern).split()

    def signal(self, number: int) -> None:
        """To the server."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """It does not run meanwhile."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)


@contextlib.contextmanager
def running_redis(folder: Path, *options: str, **more: Any) -> Iterator[RedisServer]:
    """A started server; at the end it is gone."""
    server = RedisServer(folder, *options, **more)
    server.start()
    try:
        yield server
    finally:
        server.kill()
