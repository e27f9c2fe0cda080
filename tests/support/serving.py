"""A real replica for tests: `batchedapi serve ...` on free loopback ports, stopped by pid.

with running_replica(folder, ["-f", "batchedapi.yaml"]) as replica:
    await ask(replica.port, ...)          # see raw_http
    replica.metrics()["batchedapi_lanes"]
"""

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from batchedapi_core import contract
from ports import HOST, free_ports

PROGRAM: Final = Path(sys.executable).parent / "batchedapi"
IN_A_POD: Final = "KUBERNETES_SERVICE_HOST"
"""Every pod has this variable, also one in which tests run; replicas here are in none."""
ECHO: Final = """
    from batchedapi_serving import batched

    class Model:
        @batched(example=0)
        def predict(self, items):
            return items
"""
START_SECONDS: Final = 180.0
"""A start of torch on a machine with nothing to spare; on an idle one the others take a second."""


def write_manifest(
    folder: Path, code: str, spec: Mapping[str, Any], *, predictor: str = "model:Model"
) -> Path:
    """A file with a BatchedAPI called `api` and the ConfigMap of its code.

    Args:
        folder: Where it is written to, as batchedapi.yaml.
        code: Python source of the module `model`; indentation is removed.
        spec: Merged over the predictor's path and source.
        predictor: `spec.predictor.path`.
    """
    documents = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "source"},
            "data": {"model.py": textwrap.dedent(code)},
        },
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "metadata": {"name": "api"},
            "spec": {
                **spec,
                "predictor": {
                    "path": predictor,
                    "source": {"configMap": "source"},
                    **spec.get("predictor", {}),
                },
            },
        },
    ]
    file = folder / contract.MANIFEST_FILE
    file.write_text(yaml.safe_dump_all(documents))
    return file


@dataclass(frozen=True)
class Replica:
    """A started `batchedapi serve`, ready or not."""

    process: subprocess.Popen[bytes]
    port: int
    admin_port: int
    log: Path
    """Standard output and error of all its processes."""
    scratch: Path
    """Its TMPDIR: a short path, as sockets want it; removed at the end."""

    @property
    def pid(self) -> int:
        """The pid of the supervisor."""
        return self.process.pid

    def admin(self, path: str) -> tuple[int, str]:
        """Status and text of a GET on the admin port; status 0: nobody answered."""
        connection = http.client.HTTPConnection(HOST, self.admin_port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels other than `method`: `batchedapi_requests_total{code=200}`."""
        samples = {}
        for family in text_string_to_metric_families(self._metrics_page()):
            for sample in family.samples:
                labels = ",".join(
                    f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "method"
                )
                samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return samples

    def _metrics_page(self) -> str:
        """On a busy machine it may take longer than one request waits; empty once it has ended."""
        end = time.monotonic() + START_SECONDS
        while True:
            status, text = self.admin(contract.PATH_METRICS)
            if text or self.process.poll() is not None:
                return text
            assert time.monotonic() < end, f"no metrics page in {START_SECONDS:g} s: {status}"
            time.sleep(0.1)

    def children(self, role: str = "") -> list[int]:
        """Pids of its processes, in order of age; `role` is `web` or `model`, or empty: both."""
        wanted = f"batchedapi_serving.{role}"
        return [pid for pid in _children_of(self.pid) if wanted in _command_line(pid)]

    def wait_ready(self) -> None:
        """Until it takes requests.

        Raises:
            AssertionError: it ended, or took too long; with its log.
        """
        self.wait_for(lambda: self.admin(contract.PATH_READY)[0] == 200, "not ready", START_SECONDS)

    def wait_for(self, condition: Any, what: str, seconds: float = 20.0) -> None:
        """Until `condition()` is true.

        Raises:
            AssertionError: `what`, if it ended or the time is over; with its log.
        """
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{what}; exit code {self.process.poll()}\n{self.text()}")
            time.sleep(0.02)

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text("utf-8", "replace")

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30.0) -> int:
        """Send a signal, wait for the end, return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)


def start_replica(
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    ports: Mapping[str, int] | None = None,
    command: str = "serve",
    program: Path = PROGRAM,
) -> Replica:
    """Start `batchedapi serve ARGUMENTS` in `folder`; the caller ends it with `end_replica`.

    Args:
        folder: Working directory, and where the log is written.
        arguments: Without host and ports.
        environment: Added to ours.
        ports: `--port` and `--admin-port`, where they are not to be free ones.
        command: `serve`, `web` or `worker`, which has no port of predictions.
        program: Starts it; gets its arguments.
    """
    port, admin_port = free_ports(2)
    port = (ports or {}).get("--port", port)
    admin_port = (ports or {}).get("--admin-port", admin_port)
    log = folder / f"{command}-{port}.log"
    listens = () if command == "worker" else ("--port", str(port))
    scratch = Path(tempfile.mkdtemp(prefix="replica-"))
    ours = {name: value for name, value in os.environ.items() if name != IN_A_POD}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                str(program), command, *arguments,
                "--host", HOST, *listens, "--admin-port", str(admin_port),
            ],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env={
                **ours, "BATCHEDAPI_LOG_FORMAT": "json", "TMPDIR": str(scratch),
                **(environment or {}),
            },
        )  # fmt: skip
    return Replica(process, port, admin_port, log, scratch)


@contextlib.contextmanager
def running_replica(
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    command: str = "serve",
    program: Path = PROGRAM,
) -> Iterator[Replica]:
    """A ready replica; at the end it and every process of it is gone."""
    replica = start_replica(folder, arguments, environment, command=command, program=program)
    try:
        replica.wait_ready()
        yield replica
    finally:
        end_replica(replica)


def end_replica(replica: Replica) -> None:
    """Stop it at once, whatever state it is in."""
    if replica.process.poll() is None:
        children = replica.children()
        replica.process.kill()
        replica.process.wait()
        for pid in children:  # they end with their parent; what user code has forked does not
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(replica.scratch, ignore_errors=True)


def is_alive(pid: int) -> bool:
    """Whether a process with that pid runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def _children_of(parent: int) -> list[int]:
    try:
        return sorted(
            int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        )
    except FileNotFoundError:
        return []


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
