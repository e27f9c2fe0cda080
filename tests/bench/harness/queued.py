"""An API with one queue for all: Redis, web processes and workers, each killed and started at will.

Ports, from the first: Redis, then a pair for each process: of predictions and of its admin page;
from the fiftieth, gRPC of web processes, where it is wanted.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from batchedapi_core import contract
from harness import servers
from harness.processes import children
from harness.servers import HOST, Server
from redis_server import RedisServer

Role = Literal["web", "worker"]
_FIRST_PAIR: Final = 2
_TO_GRPC: Final = 48
"""From the port of a web process to that of its gRPC."""
PORTS: Final = 100
"""The most ports that one API takes."""


@contextlib.contextmanager
def redis(port: int, *options: str, keeps: bool = False) -> Iterator[RedisServer]:
    """A Redis that answers, with the user and the rights of the guide."""
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as folder:
        server = RedisServer(Path(folder), *options, keeps=keeps, port=port)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@dataclass
class Queued:
    """The running processes; `web` and `workers` are by place."""

    redis: RedisServer
    web: list[Server] = field(default_factory=list)
    workers: list[Server] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Ends of logs of processes that ended and were not told to."""
    _file: Path = Path()
    _port: int = 0
    _grpc: bool = False
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _logs: dict[int, Path] = field(default_factory=dict)

    @property
    def ports(self) -> list[int]:
        """The ports of the web processes."""
        return [one.port for one in self.web]

    def start(self, role: Role, *options: str) -> Server:
        """One process more of a role, perhaps not ready yet; see `until_ready`."""
        port = self._port + _FIRST_PAIR + 2 * (len(self.web) + len(self.workers))
        server = self._started(role, port, options)
        (self.web if role == "web" else self.workers).append(server)
        return server

    def _started(self, role: Role, port: int, options: Sequence[str] = ()) -> Server:
        grpc_port = port + _TO_GRPC if self._grpc and role == "web" else 0
        listens = ["--port", str(port), "--grpc-port", str(grpc_port)] if role == "web" else []
        command = [
            servers.PROGRAM, role, "-f", str(self._file), "--host", HOST, *listens,
            "--admin-port", str(port + 1), *options,
        ]  # fmt: skip
        process, log = self._stack.enter_context(servers.running(command, self.redis.environment))
        self._logs[process.pid] = log
        return Server(
            role, process.pid, port, contract.PATH_PREDICT, port + 1, process, grpc_port=grpc_port
        )

    def until_ready(self, server: Server) -> None:
        """Wait.

        Raises:
            RuntimeError: it ended, or takes too long.
        """
        log = self._logs[server.pid]
        servers.wait_until(lambda: servers.is_ready(server.admin_port), server.process, log)

    async def restarted(self, server: Server) -> Server:
        """Another one in the place of one that was ended, ready."""
        role: Role = "web" if server in self.web else "worker"
        fellows = self.web if role == "web" else self.workers
        new = fellows[fellows.index(server)] = self._started(role, server.port)
        await asyncio.to_thread(self.until_ready, new)
        return new

    def note_ends(self) -> None:
        """Remember which of the processes that should run have ended."""
        for one in (*self.web, *self.workers):
            if (code := one.process.poll()) is not None:
                text = self._logs[one.pid].read_text(errors="replace")
                self.ended.append(f"{one.name} ended with {code}: {text[-2000:]}")


def kill_whole(server: Server) -> None:
    """SIGKILL to all processes of a role at once, as if its machine were gone; and wait."""
    os.killpg(server.pid, signal.SIGKILL)  # it leads its session
    server.process.wait()


def child(server: Server, module: str) -> int:
    """Pid of the one child that runs `batchedapi_serving.<module>`."""
    (pid,) = children(server.pid, f"batchedapi_serving.{module}")
    return pid


@contextlib.contextmanager
def running(
    value: Mapping[str, Any],
    port: int,
    *,
    web: int = 1,
    workers: int = 1,
    keeps: bool = False,
    web_options: Sequence[str] = (),
    grpc: bool = False,
) -> Iterator[Queued]:
    """Ready web processes and workers of a manifest, and their Redis.

    Args:
        value: The manifest; the environment says where the queue is.
        port: First of at most PORTS.
        web: Processes of that role, each with a supervisor of its own; as pods in a cluster.
        workers: The same.
        keeps: Whether Redis writes an append-only file.
        web_options: Of the command line of each web process.
        grpc: Whether each web process serves it.
    """
    with (
        servers.manifest_file(value) as file,
        redis(port, keeps=keeps) as server,
        contextlib.ExitStack() as stack,
    ):
        queued = Queued(server, _file=file, _port=port, _grpc=grpc, _stack=stack)
        for _ in range(workers):
            queued.start("worker")
        for _ in range(web):
            queued.start("web", *web_options)
        for one in (*queued.workers, *queued.web):
            queued.until_ready(one)
        yield queued
        queued.note_ends()
