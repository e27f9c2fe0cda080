"""`batchedapi serve` in a process of its own, with other values in its manifest."""

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from prometheus_client.parser import text_string_to_metric_families

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, Compute, parse_quantity, with_changes
from batchedapi_core.placement import cpu_count
from batchedapi_serving.errors import LoadError
from batchedapi_serving.laptop.tuning.load import HOST
from batchedapi_serving.orphans import ended_after

_CONFIG_MAP: Final = "tuned"
_STOP_SECONDS: Final = 15.0
_PROGRAM: Final = (
    "import signal; from batchedapi_serving.processes import kill_with_parent;"
    " kill_with_parent(signal.SIGTERM);"
    " from batchedapi_serving.cli import main; main()"
)
"""Stops in order where this command is killed, too: only it ends what user code has started."""
_ON_CPUS: Final = "import os; os.sched_setaffinity(0, {}); "
Changes = Mapping[str, Mapping[str, Any]]
"""Section of `spec` -> field -> value as in a manifest."""


@dataclass(frozen=True, slots=True)
class TuneSubject:
    """The manifest to tune, and the place of its code."""

    api: BatchedAPI
    source: Mapping[str, bytes]
    """Files of its ConfigMap; empty: the code is in `folder`, or importable."""
    folder: Path
    cpus: frozenset[int] = frozenset()
    """Numbers of those that it runs on, and the generator of the loads does not; empty: both share
    all CPUs."""


def asked_cpu(compute: Compute) -> str:
    """CPUs of a pod by its manifest: the limit, else the request."""
    return compute.cpu_limit or compute.cpu


def cpus_of(compute: Compute, machine: Sequence[int], usable: int) -> frozenset[int]:
    """CPUs for a replica: as many as it asks for, rounded down, at least one.

    Empty where it asks for all: the generator of the loads has to share them.

    Args:
        compute: Of its manifest.
        machine: Numbers of the CPUs that this process may run on.
        usable: How many of them it may use.
    """
    asked = cpu_count((), parse_quantity(asked_cpu(compute)), usable)
    return frozenset(machine[:asked]) if asked < usable else frozenset()


@contextlib.contextmanager
def apart_from(cpus: frozenset[int]) -> Iterator[None]:
    """Leave these to a replica: the calling thread runs on the others, until the end."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class PageCounters(NamedTuple):
    """Counters of a replica's page, over all methods."""

    batches: float
    rows: float
    size: float  # in the unit of maxBatchSize
    batch_seconds: float
    requests: float
    web_cpu: float  # seconds of the busiest web process
    cpu: float  # seconds of all its processes
    largest: float  # maxBatchSize in effect
    one_by_one: bool

    def since(self, before: "PageCounters") -> "PageCounters":
        """The increase of each; maximum and flag as they are now."""
        grown = (now - then for now, then in zip(self[:-2], before[:-2], strict=True))
        return PageCounters._make((*grown, self.largest, self.one_by_one))


@dataclass(frozen=True, slots=True)
class TunedReplica:
    """One that is ready."""

    port: int
    admin_port: int
    pid: int
    endpoint: str

    def get(self, path: str) -> Any:
        """The JSON of one of its pages.

        Raises:
            OSError: it does not answer so.
        """
        return json.loads(_get(self.port, path))

    def counters(self) -> PageCounters:
        """As of now."""
        page, cpu = _get(self.admin_port, contract.PATH_METRICS), _cpu_seconds(self.pid)
        sums: dict[str, float] = {}
        web, sizes = [0.0], [1.0]
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == contract.METRIC_WEB_CPU_SECONDS:
                    web.append(sample.value)
                elif sample.name == contract.METRIC_MAX_BATCH_SIZE:
                    sizes.append(sample.value)
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return PageCounters(
            batches=sums.get(f"{contract.METRIC_BATCH_ROWS}_count", 0.0),
            rows=sums.get(f"{contract.METRIC_BATCH_ROWS}_sum", 0.0),
            size=sums.get(contract.METRIC_BATCH_SIZE, 0.0),
            batch_seconds=sums.get(f"{contract.METRIC_BATCH_SECONDS}_sum", 0.0),
            requests=sums.get(contract.METRIC_REQUESTS, 0.0),
            web_cpu=max(web),
            cpu=cpu,
            largest=max(sizes),
            one_by_one=sums.get(contract.METRIC_ONE_BY_ONE, 0.0) > 0,
        )


@contextlib.contextmanager
def running(subject: TuneSubject, changes: Changes) -> Iterator[TunedReplica]:
    """A ready replica on free ports of this machine's own address; it is gone at the end.

    Ctrl-C does not reach it: whoever runs it decides.

    Args:
        subject: What to serve.
        changes: Over its manifest.

    Raises:
        LoadError: it does not start; with the last line of its log.
        ManifestError: the changes do not go with the manifest.
    """
    api = with_changes(subject.api, changes)
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as two:
        port, admin_port = one.getsockname()[1], two.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="batchedapi-tune-") as folder, ended_after():
        log, file = Path(folder, "serve.log"), Path(folder, contract.MANIFEST_FILE)
        file.write_text(yaml.safe_dump_all(_documents(api, subject.source)))
        process = _start(file, subject, log, port, admin_port)
        try:
            end = time.monotonic() + api.spec.predictor.startup_timeout
            while True:
                with contextlib.suppress(OSError):
                    _get(admin_port, contract.PATH_READY)
                    break
                if process.poll() is not None or time.monotonic() > end:
                    lines = log.read_text("utf-8", "replace").strip().splitlines() or ["no word"]
                    raise LoadError("InitFailed", lines[-1].removeprefix("batchedapi: "))
                time.sleep(0.05)
            yield TunedReplica(port, admin_port, process.pid, api.endpoint)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()  # its children end with it
                    process.wait()


def _start(
    file: Path, subject: TuneSubject, log: Path, port: int, admin_port: int
) -> "subprocess.Popen[bytes]":
    """It runs in the user's folder, where code is looked for, on the CPUs of the subject."""
    program = (_ON_CPUS.format(set(subject.cpus)) if subject.cpus else "") + _PROGRAM
    command = [
        sys.executable, "-P", "-c", program, "serve", "-f", str(file), "--host", HOST,
        "--port", str(port), "--admin-port", str(admin_port), "--grpc-port", "0",
        "--log-format", "json",
    ]  # fmt: skip
    # where this command runs is looked in as well, as `batchedapi serve` does
    here = None if Path.cwd().samefile(subject.folder) else str(Path.cwd())
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - our own program
            command, cwd=subject.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip


def _documents(api: BatchedAPI, source: Mapping[str, bytes]) -> list[Any]:
    spec = api.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    spec["networking"] = {**spec.get("networking", {}), "grpc": False}
    for name in ("apiKeys", "accessLog"):  # of clients, not of what a replica can do
        spec["networking"].pop(name, None)
    documents: list[Any] = []
    if source:
        spec["predictor"]["source"] = {"configMap": _CONFIG_MAP}
        files = {name: base64.b64encode(content).decode() for name, content in source.items()}
        documents.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _CONFIG_MAP},
             "binaryData": files}
        )  # fmt: skip
    else:
        spec["predictor"].pop("source", None)
    documents.append(
        {"apiVersion": contract.API_VERSION, "kind": contract.KIND,
         "metadata": {"name": api.metadata.name}, "spec": spec}
    )  # fmt: skip
    return documents


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != http.HTTPStatus.OK:
            raise ConnectionError(f"GET {path}: {response.status} {text[:200]}")
    except http.client.HTTPException as error:
        raise ConnectionError(f"GET {path}: {error!r}") from error
    else:
        return text
    finally:
        connection.close()


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and those below it; 0 where the kernel does not tell."""
    seconds = 0.0
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        seconds += sum(_cpu_seconds(int(child)) for child in children)
    return seconds
