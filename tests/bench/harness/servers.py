"""Starting and stopping the servers under test, always by process id."""

import contextlib
import dataclasses
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import workloads

from batchedapi_core import contract

HOST: Final = "127.0.0.1"
BENCH: Final = Path(__file__).resolve().parents[1]
PORT: Final = 25000
"""First of the ports that are used when `--port` says nothing else."""
PEER_OFFSET: Final = 10
PEERS: Final = ("mosec", "litserve", "bentoml")
BENTOML: Final = BENCH.parents[1] / ".venv/bentoml/bin/bentoml"
"""In an environment of its own: its pins do not go with ours."""
PROGRAM: Final = str(Path(sys.executable).with_name("batchedapi"))
_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 45
"""Above the request timeout (30 s) and the margin that a drain may take."""
_POLL_SECONDS: Final = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A server that answers."""

    name: str
    pid: int
    port: int
    path: str
    admin_port: int
    """Metrics and health of ours; 0 for others."""
    process: "subprocess.Popen[bytes]"
    lists: bool = False
    """Whether a request has a list of rows, here of one, and its answer a list of one value."""
    grpc_port: int = 0
    """0: it has none."""

    def bodies(self, rows: Sequence[bytes]) -> list[bytes]:
        """Requests as this server takes them, one for each row of JSON."""
        return [b'{"rows":[' + row + b"]}" for row in rows] if self.lists else list(rows)

    def answers(self, values: Sequence[bytes]) -> list[bytes]:
        """Its answers, one for each value of JSON."""
        return [b"[" + value + b"]" for value in values] if self.lists else list(values)


def manifest(
    predictor: str,
    *,
    max_batch_size: int = workloads.MAX_BATCH,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A manifest for a class of `workloads.py`, with the settings that every server gets."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": predictor.lower()},
        "spec": {
            "predictor": {"path": f"workloads:{predictor}", "config": dict(config or {})},
            "serverSideBatching": {
                "maxBatchSize": max_batch_size,
                "batchInterval": f"{workloads.BATCH_INTERVAL_MS}ms",
            },
        },
    }


@contextlib.contextmanager
def manifest_file(content: Mapping[str, Any]) -> Iterator[Path]:
    """A file for `serve -f`; the predictor is found in the working directory, which is ours."""
    with tempfile.TemporaryDirectory(prefix="bench-manifest-") as folder:
        file = Path(folder) / contract.MANIFEST_FILE
        file.write_text(json.dumps(content))  # JSON is YAML
        yield file


def serve_command(file: Path, port: int, *options: str) -> list[str]:
    """The command line of ours; the admin port is the next one."""
    return [
        PROGRAM, "serve", "-f", str(file), "--host", HOST,
        "--port", str(port), "--admin-port", str(port + 1), *options,
    ]  # fmt: skip


@contextlib.contextmanager
def serving(
    file: Path, port: int, variables: Mapping[str, str] | None = None, *, grpc_port: int = 0
) -> Iterator[Server]:
    """Our server with that manifest, ready; `variables` join its environment."""
    grpc = ["--grpc-port", str(grpc_port)] if grpc_port else []
    command = serve_command(file, port, *grpc)
    with running(command, variables or {}) as (process, log):
        wait_until(lambda: is_ready(port + 1), process, log)
        yield Server(
            "batchedapi", process.pid, port, contract.PATH_PREDICT, port + 1, process,
            grpc_port=grpc_port,
        )  # fmt: skip


@contextlib.contextmanager
def serving_workload(
    predictor: str, port: int, config: Mapping[str, Any] | None = None
) -> Iterator[Server]:
    """Our server with a class of `workloads.py`."""
    with manifest_file(manifest(predictor, config=config)) as file, serving(file, port) as server:
        yield server


@contextlib.contextmanager
def code_of(commit: str) -> Iterator[dict[str, str]]:
    """The variables with which our programs are those of `commit`.

    Raises:
        subprocess.CalledProcessError: git does not know the commit.
    """
    with tempfile.TemporaryDirectory(prefix="bench-commit-") as folder:
        archive = Path(folder) / "tree.tar"
        root = str(BENCH.parents[1])
        git = ["git", "-C", root, "archive", "-o", str(archive), commit]
        subprocess.run([*git, "core", "serving"], check=True)
        subprocess.run(["tar", "-xf", str(archive), "-C", folder], check=True)
        yield {"PYTHONPATH": f"{folder}/core:{folder}/serving"}


@contextlib.contextmanager
def serving_commit(workload: str, commit: str, port: int) -> Iterator[Server]:
    """Our server as it was at `commit`, with a class of today's `workloads.py`."""
    with (
        code_of(commit) as trees,
        manifest_file(manifest(workload)) as file,
        serving(file, port, trees) as server,
    ):
        yield dataclasses.replace(server, name=f"commit {commit[:12]}")


@contextlib.contextmanager
def serving_peer(peer: str, workload: str, port: int) -> Iterator[Server]:
    """One of `PEERS`, with the same predictor.

    Raises:
        FileNotFoundError: It is not installed; the message has the command.
    """
    name, path, lists, command = _peer_command(peer, port)
    if not Path(command[0]).is_file():
        raise FileNotFoundError(f"{command[0]}: not there; `make bench-peers` installs {peer}")
    body = workloads.bodies_of(workloads.rows_of(workloads.WORKLOADS[workload].width, 1))
    variables = {"BENCH_WORKLOAD": workload, "BENTOML_DO_NOT_TRACK": "True"}
    with running(command, variables) as (process, log):
        server = Server(name, process.pid, port, path, 0, process, lists)
        asked = server.bodies(body)[0]
        wait_until(lambda: status_of(port, path, asked) == http.HTTPStatus.OK, process, log)
        try:
            yield server
        finally:
            stop(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # LitServe's children outlive it


def _peer_command(peer: str, port: int) -> tuple[str, str, bool, list[str]]:
    """Name in tables, path of predictions, whether rows come in lists, and command line."""
    match peer:
        case "mosec":
            app = [sys.executable, str(BENCH / "mosec_app.py"), "--address", HOST]
            return (
                "mosec + orjson", "/inference", False,
                [*app, "--port", str(port), "--log-level", "warning"],
            )  # fmt: skip
        case "litserve":
            app = [sys.executable, str(BENCH / "litserve_app.py"), str(port)]
            return "LitServe", "/predict", False, app
        case "bentoml":
            app = [str(BENTOML), "serve", "bentoml_app:Model", "--working-dir", str(BENCH)]
            return (
                "BentoML", "/predict", True,
                [*app, "--host", HOST, "--port", str(port), "--quiet"],
            )  # fmt: skip
        case _:
            raise ValueError(f"{peer!r}: expected one of {', '.join(PEERS)}")


@contextlib.contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A process in a session of its own and the file it logs to; stopped by SIGTERM at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-log-") as folder, ending_on_sigterm():
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=BENCH,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process, log
        finally:
            stop(process)


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM unwinds the program, so that it stops what it started."""
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL for its whole session if it has not ended after 45 s."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # it leads its session: the id is the one we started
        process.wait()


def wait_until(
    condition: Callable[[], bool],
    process: "subprocess.Popen[bytes]",
    log: Path,
    seconds: float = _START_SECONDS,
) -> None:
    """Wait for a server to answer, `seconds` at most.

    Raises:
        RuntimeError: it ended, or took too long; the message holds the end of its log.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            how = "ended" if process.poll() is not None else f"not ready in {seconds:g} s"
            raise RuntimeError(
                f"{process.args!r} {how}:\n{log.read_text(errors='replace')[-3000:]}"
            )
        time.sleep(_POLL_SECONDS)


def is_ready(admin_port: int) -> bool:
    """Whether /readyz says so."""
    return status_of(admin_port, contract.PATH_READY, None) == http.HTTPStatus.OK


def status_of(port: int, path: str, body: bytes | None) -> int:
    """Status of one GET, or of a POST if there is a body; 0: not even a connection."""
    try:
        return ask(port, path, body)[0]
    except OSError:
        return 0


def ask(port: int, path: str, body: bytes | None) -> tuple[int, bytes]:
    """Status and body of one request on a connection of its own.

    Raises:
        OSError: no connection, or none that lasted.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, body, {"Content-Type": contract.JSON})
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"{path}: expected an HTTP answer, got {error!r}") from error
    finally:
        connection.close()
