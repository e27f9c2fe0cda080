"""A hundred clients without a key beside 16 with one: what do those notice, and what is held?

    python tests/bench/keyless.py --seconds 60

Half of those without a key use HTTP: bodies, half of bodies, gzip that becomes much, and forms. The
other half use gRPC: `tests/support/hostile_calls.py`. They run in two processes of the lowest
priority, because clients take no CPU of a server elsewhere. Those with a key ask for small rows,
and for one of 20 KB every tenth time: alone, beside the same crowd that asks another server, and
beside a crowd that asks this one. The other server only refuses, so that the second figure is the
machine's part of the third.
"""

import asyncio
import contextlib
import gzip
import itertools
import logging
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import click
from harness import servers
from harness.http_answers import read_answer, request
from harness.processes import children
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import percentile

from batchedapi_core import contract
from batchedapi_serving.web.limits import BODIES_BYTES
from hostile_calls import hostile

_MIB: Final = 1024 * 1024
_BUDGET: Final = BODIES_BYTES + 64 * _MIB
"""Memory of a web process, its own without clients included."""
_KEY: Final = b"a-key"
_CLIENTS: Final = 16
_PAUSE: Final = 0.1
"""Seconds between two attempts of one who has no key."""
_READ: Final = 64 * 1024
_SLOWER: Final = 3.0
_OK: Final = 200
_BOMB: Final = gzip.compress(b"[" + b'"aaaaa",' * 4_000_000 + b"1]", 1)


def attempts() -> list[tuple[bytes, bytes]]:
    """Requests without a key: of each kind the head, and the part of the body that is sent."""
    kinds = [
        (b"content-type: application/json\r\n", b"1" * 8 * _MIB, 8 * _MIB),
        (b"content-type: application/json\r\n", b"1" * 4 * _MIB, 8 * _MIB),
        (b"content-type: application/json\r\ncontent-encoding: gzip\r\n", _BOMB, len(_BOMB)),
        (b"content-type: multipart/form-data; boundary=x\r\n", b"--x\r\n" * _MIB, 8 * _MIB),
    ]
    head = b"POST /predict HTTP/1.1\r\nhost: bench\r\n%bcontent-length: %d\r\n\r\n"
    return [(head % (lines, length), body) for lines, body, length in kinds]


async def without_key(port: int, head: bytes, body: bytes, until: float) -> None:
    """One client: it sends all that the server takes, waits for the answer, and comes again."""
    while time.monotonic() < until:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(servers.HOST, port)
                try:
                    writer.write(head + body)
                    await reader.read(_MIB)
                finally:
                    writer.transport.abort()
        await asyncio.sleep(_PAUSE)


def crowd(port: int, number: int, seconds: float) -> None:
    """So many clients without a key over HTTP, for so long."""

    async def all_of_them() -> None:
        until = time.monotonic() + seconds
        kinds = itertools.islice(itertools.cycle(attempts()), number)
        await asyncio.gather(*(without_key(port, head, body, until) for head, body in kinds))

    run_at_lowest_priority(all_of_them())


def grpc_crowd(port: int, number: int, seconds: float) -> None:
    """The same over gRPC."""
    run_at_lowest_priority(hostile(port, seconds, number))


def run_at_lowest_priority(clients: Coroutine[Any, Any, object]) -> None:
    """Run clients in a process of their own, which says nothing."""
    os.nice(19)
    logging.disable()
    asyncio.run(clients)


def refuse(port: int) -> None:
    """A server that refuses each connection and does nothing else."""
    with socket.create_server((servers.HOST, port), backlog=512) as listener:
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(_READ)
                connection.send(b"HTTP/1.1 401 Unauthorized\r\nconnection: close\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                connection.setblocking(False)
                while connection.recv(_READ):
                    pass


@contextlib.contextmanager
def crowds(http_port: int, grpc_port: int, number: int, seconds: float) -> Iterator[None]:
    """Both crowds, for so long."""
    spawn = multiprocessing.get_context("spawn")
    both = [
        spawn.Process(target=target, args=(port, number // 2, seconds + 1), daemon=True)
        for target, port in ((crowd, http_port), (grpc_crowd, grpc_port))
    ]
    for one in both:
        one.start()
    yield
    for one in both:
        one.join()


@contextlib.contextmanager
def other_servers(*ports: int) -> Iterator[None]:
    """One that refuses at each port."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=refuse, args=(port,), daemon=True) for port in ports]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.terminate()
        process.join()


async def with_key(port: int, until: float, found: list[tuple[int, float]]) -> None:
    """One client: status (0: none) and seconds of each of its requests."""
    key = b"\r\nX-API-Key: %b\r\n" % _KEY
    small, large = (
        request(contract.PATH_PREDICT, contract.JSON, body).replace(b"\r\n", key, 1)
        for body in (b"7", b" " * 20_000 + b"7")
    )
    reader, writer = await asyncio.open_connection(servers.HOST, port)
    for number in itertools.count():
        if time.monotonic() > until:
            break
        began, data, status = time.monotonic(), b"", 0
        with contextlib.suppress(OSError):
            writer.write(small if number % 10 else large)
            while (answer := read_answer(data)) is None and (more := await reader.read(_MIB)):
                data += more
            status = 0 if answer is None else answer.status
        found.append((status, time.monotonic() - began))
        if status == 0:
            reader, writer = await asyncio.open_connection(servers.HOST, port)
        await asyncio.sleep(0.01)
    writer.close()


async def asked(port: int, seconds: float) -> list[tuple[int, float]]:
    """Outcomes of all clients with a key."""
    found: list[tuple[int, float]] = []
    until = time.monotonic() + seconds
    await asyncio.gather(*(with_key(port, until, found) for _ in range(_CLIENTS)))
    return found


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


@click.command(help=help_of(__doc__))
@click.option("--seconds", type=click.FloatRange(1, 600), default=60.0, show_default=True)
@click.option("--number", type=click.IntRange(1, 1000), default=100, show_default=True)
@click.option("--port", default=servers.PORT + 1600, show_default=True)
@out_option
def main(*, seconds: float, number: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with contextlib.ExitStack() as stack:
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-keys-")))
        (keys / "mine").write_bytes(_KEY)
        file = stack.enter_context(servers.manifest_file(servers.manifest("Echo")))
        grpc = ("--grpc-port", str(port + 2))
        command = servers.serve_command(file, port, "--api-keys", str(keys), *grpc)
        process, log = stack.enter_context(servers.running(command, {}))
        servers.wait_until(lambda: servers.is_ready(port + 1), process, log)
        (web,) = children(process.pid, "batchedapi_serving.web_process")
        alone = asyncio.run(asked(port, max(seconds / 6, 2)))
        elsewhere = (port + 3, port + 4)
        with other_servers(*elsewhere), crowds(*elsewhere, number, max(seconds / 3, 2)):
            other = asyncio.run(asked(port, max(seconds / 3, 2)))
        with crowds(port, port + 2, number, seconds):
            beside = asyncio.run(asked(port, seconds))
        peak = peak_bytes(web)
    refused = sum(status != _OK for status, _ in (*alone, *other, *beside))
    p99 = [percentile([took for _, took in found], 99) for found in (alone, other, beside)]
    names = ("alone", "a crowd asks another server", "a crowd asks this one")
    table = Table(
        f"{_CLIENTS} clients with a key, and {number} without one for {seconds:g} s",
        ["", "requests", "p99 ms", "times alone"],
        [
            [name, str(len(found)), f"{1000 * high:.1f}", f"{high / p99[0]:.2f}"]
            for name, found, high in zip(names, (alone, other, beside), p99, strict=True)
        ],
    )
    note = f"{refused} not answered 200; the web process has held {peak / _MIB:.0f} MiB at most."
    measured: dict[str, Any] = {"refused": refused, "p99": p99, "peak_bytes": peak}
    report("keyless", began, [table], notes=[note], measured=measured, out=out)
    if refused or peak > 1.2 * _BUDGET:
        sys.exit("a client with a key was not answered, or too much was held: see the table")
    if p99[2] > _SLOWER * max(p99[0], p99[1]):
        click.echo(f"clients with a key waited more than {_SLOWER:g} times as long", err=True)


if __name__ == "__main__":
    main()
