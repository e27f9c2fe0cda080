"""One run of wrk: how it is started, and what it measured."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from harness.servers import HOST, Server

SCRIPT: Final = Path(__file__).resolve().parents[1] / "lua" / "post.lua"
_MARK: Final = "BENCH "
_SPARE_SECONDS: Final = 30
"""wrk ends by itself after its duration; after so much more it is ended."""
MAX_THREADS: Final = 64


class WrkResult(NamedTuple):
    """One run; latencies in seconds."""

    requests: int
    seconds: float
    refused: int
    """Answers that are not 2xx or 3xx."""
    broken: int
    """Failed connections, reads and writes, and timeouts."""
    p50: float
    p99: float
    right: int
    wrong: int
    """Answers compared with the right ones; both 0 in a timed run."""

    @property
    def errors(self) -> int:
        """Everything that did not end in a good answer."""
        return self.refused + self.broken

    @property
    def rate(self) -> float:
        """Requests/s that were answered with success."""
        return (self.requests - self.refused) / self.seconds if self.seconds else 0.0


def parse(output: str) -> WrkResult:
    """Read what `lua/post.lua` printed.

    Raises:
        ValueError: the line is not there; the message holds the output.
    """
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    if len(lines) != 1:
        raise ValueError(f"wrk: expected one line that begins with {_MARK!r}, got:\n{output}")
    value = json.loads(lines[0].removeprefix(_MARK))
    return WrkResult(
        requests=value["requests"],
        seconds=value["duration_us"] / 1e6,
        refused=value["status"],
        broken=sum(value[kind] for kind in ("connect", "read", "write", "timeout")),
        p50=value["p50_us"] / 1e6,
        p99=value["p99_us"] / 1e6,
        right=value["right"],
        wrong=value["wrong"],
    )


def require_wrk() -> None:
    """Install the Debian package if wrk is missing and we may.

    Raises:
        FileNotFoundError: it is missing and we may not, or could not.
    """
    if shutil.which("wrk") is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise FileNotFoundError("wrk is not installed; on Debian: sudo apt-get install -y wrk")
    command = ["apt-get", "install", "-y", "wrk"]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        raise FileNotFoundError(
            f"wrk is missing and {' '.join(command)} failed: {installed.stderr}"
        )


def timed(server: Server, body: bytes, connections: int, seconds: float) -> WrkResult:
    """One thread, keep-alive, one row for everybody; answers are counted, not read."""
    return _run(server, [body], (), connections=connections, threads=1, seconds=seconds)


def checked(
    server: Server,
    bodies: Sequence[bytes],
    answers: Sequence[bytes],
    connections: int,
    seconds: float,
) -> WrkResult:
    """A body for each thread, and every answer compared with the right one to that body.

    Up to 64 connections each is a client of its own; above, threads share connections evenly.
    """
    return _run(
        server,
        bodies,
        answers,
        connections=connections,
        threads=min(connections, MAX_THREADS),
        seconds=seconds,
    )


def _run(
    server: Server,
    bodies: Sequence[bytes],
    answers: Sequence[bytes],
    *,
    connections: int,
    threads: int,
    seconds: float,
) -> WrkResult:
    with tempfile.TemporaryDirectory(prefix="bench-wrk-") as folder:
        environment = {**os.environ}
        for name, lines in (("BENCH_BODIES", bodies), ("BENCH_ANSWERS", answers)):
            environment.pop(name, None)
            if lines:
                file = Path(folder) / name
                file.write_bytes(b"\n".join(lines) + b"\n")
                environment[name] = str(file)
        command = [
            "wrk", f"-t{threads}", f"-c{connections}", f"-d{max(1, round(seconds))}s",
            "--timeout", "10s", "-s", str(SCRIPT), f"http://{HOST}:{server.port}{server.path}",
        ]  # fmt: skip
        finished = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds + _SPARE_SECONDS,
            check=False,
        )
    return parse(finished.stdout + finished.stderr)
