"""A thousand connections that do nothing, or send slowly, on each port: are probes answered?

    python tests/bench/besieged.py

On the port of predictions, the admin port and that of gRPC in turn. While they are held, /readyz
and a prediction are asked for ten times a second, each on a connection of its own; afterwards it is
measured how long the replica keeps the descriptors of connections that were let go.
"""

import contextlib
import http.client
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final

import click
from harness import servers
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import percentile

from batchedapi_core import contract

_HELD_SECONDS: Final = 15.0
"""Longer than the limit of headers, after which connections that ask nothing are closed."""
_GONE_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 1.0
"""Within which a probe must be answered."""


def ask(port: int, path: str, body: bytes | None = None) -> tuple[int, float]:
    """Status, 0 without an answer, and seconds until it came."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(servers.HOST, port, timeout=10)
    try:
        connection.request("GET" if body is None else "POST", path, body,
                           {"content-type": contract.JSON} if body else {})  # fmt: skip
        return connection.getresponse().status, time.monotonic() - began
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - began
    finally:
        connection.close()


def descriptors(pid: int) -> int:
    """Open in a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    total = 0
    for one in (str(pid), *children):
        with contextlib.suppress(OSError):
            total += len(os.listdir(f"/proc/{one}/fd"))  # noqa: PTH208 - names are enough
    return total


def besiege(server: servers.Server, port: int, number: int, *, slow: bool) -> dict[str, Any]:
    """Hold so many connections to `port`, ask beside them, let go."""
    before = descriptors(server.pid)
    probes, answers = [], []
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(number):
            held.append(stack.enter_context(socket.create_connection((servers.HOST, port))))
            if slow:
                with contextlib.suppress(OSError):
                    held[-1].send(b"POST /predict HTTP/1.1\r\nx-a: ")
        end = time.monotonic() + _HELD_SECONDS
        while time.monotonic() < end:
            probes.append(ask(server.admin_port, contract.PATH_READY))
            answers.append(ask(server.port, contract.PATH_PREDICT, b"1"))
            for connection in held if slow else ():
                with contextlib.suppress(OSError):
                    connection.send(b"a")
            time.sleep(0.1)
        kept = descriptors(server.pid) - before
    began = time.monotonic()
    while descriptors(server.pid) > before + 20 and time.monotonic() < began + _GONE_SECONDS:
        time.sleep(0.1)
    return {
        "probes": probes, "answers": answers, "kept": kept, "gone": time.monotonic() - began,
        "wrong": sum(status != http.HTTPStatus.OK for status, _ in (*probes, *answers)),
    }  # fmt: skip


@click.command(help=help_of(__doc__))
@click.option("--connections", type=click.IntRange(1, 5000), default=1000, show_default=True)
@click.option("--port", default=servers.PORT + 1500, show_default=True, help="First of three.")
@out_option
def main(*, connections: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    manifest = servers.manifest("Echo")
    found, rows = {}, []
    with (
        servers.manifest_file(manifest) as file,
        servers.running([*servers.serve_command(file, port), "--grpc-port", str(port + 2)], {})
        as (process, log),
    ):  # fmt: skip
        servers.wait_until(lambda: servers.is_ready(port + 1), process, log)
        server = servers.Server("", process.pid, port, "", port + 1, process)
        for name, target in (("predictions", port), ("admin", port + 1), ("gRPC", port + 2)):
            for slow in (False, True):
                one = besiege(server, target, connections, slow=slow)
                kind = "slow" if slow else "idle"
                found[f"{name} {kind}"] = one
                probes, answers = ([s for _, s in one[which]] for which in ("probes", "answers"))
                rows.append([
                    name, kind, str(len(probes)), f"{max(probes):.3f}",
                    f"{percentile(answers, 99):.3f}", str(one["wrong"]), str(one["kept"]),
                    f"{one['gone']:.1f}",
                ])  # fmt: skip
                click.echo(" ".join(rows[-1]))
    table = Table(
        f"{connections} connections held for {_HELD_SECONDS:g} s",
        ["port", "they are", "probes", "slowest probe s", "prediction p99 s", "failed",
         "descriptors still held", "all gone after s"],
        rows,
    )  # fmt: skip
    report("besieged", began, [table], notes=[], measured=found, out=out)
    if any(one["wrong"] or max(s for _, s in one["probes"]) > _PROBE_SECONDS
           for one in found.values()):  # fmt: skip
        sys.exit("a probe or a prediction was late or failed: see the table")


if __name__ == "__main__":
    main()
