"""From a manifest to a running replica on this machine; the image's program is the same."""

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from batchedapi_core import contract
from batchedapi_core.manifest import parse_quantity
from batchedapi_serving.cli.documents import Documents
from batchedapi_serving.errors import LoadError
from batchedapi_serving.logs import configure_logging
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.supervisor import Supervisor

_BACKLOG = 4096
_LONGEST_FOLDER = 90
"""Characters; the address of a Unix socket has 108 at most."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the command line."""

    host: str
    port: int
    admin_port: int
    drain_delay: float
    fast_lane: bool


def serve(documents: Documents, options: ServeOptions) -> None:
    """Serve until SIGTERM or Ctrl+C.

    Raises:
        LoadError: the predictor could not be started.
        OSError: a port cannot be listened on; the message names it.
    """
    with _runtime_folder() as runtime:
        settings = replica_settings(documents, options, runtime)
        configure_logging(settings.log_level, "supervisor")
        settings.write()
        try:
            asyncio.run(_supervise(documents, options, settings))
        except LoadError as error:
            _leave_termination_message(error)
            raise


async def _supervise(
    documents: Documents, options: ServeOptions, settings: ReplicaSettings
) -> None:
    def announce(example: Any) -> None:
        if sys.stderr.isatty():
            click.echo(_how_to_ask(settings, options, example), err=True)

    with (
        _listen(options.host, options.port, "--port") as listener,
        _listen(options.host, options.admin_port, "--admin-port") as admin_listener,
    ):
        environment = {
            variable.name: variable.value for variable in documents.api.spec.predictor.env
        }
        await Supervisor(settings, listener, admin_listener, environment, announce).run()


def replica_settings(documents: Documents, options: ServeOptions, runtime: Path) -> ReplicaSettings:
    """Effective settings; writes the source files of a ConfigMap into `runtime`."""
    spec = documents.api.spec
    batching, overload = spec.server_side_batching, spec.overload
    folder = documents.folder
    if documents.source:
        folder = runtime / "source"
        folder.mkdir()
        for name, content in documents.source.items():
            (folder / name).write_bytes(content)
    return ReplicaSettings(
        name=documents.api.metadata.name,
        endpoint=documents.api.endpoint,
        predictor_path=spec.predictor.path,
        search=(str(folder), str(Path.cwd())),
        config=dict(spec.predictor.config),
        processes=spec.predictor.processes_per_replica,
        threads=spec.predictor.threads_per_process,
        log_level=spec.predictor.log_level.value,
        max_batch_size=batching.max_batch_size,
        batch_interval=batching.batch_interval,
        strategy=batching.strategy,
        size_unit=batching.size_unit,
        max_latency=batching.max_latency,
        timeout=overload.timeout or None,
        max_body_bytes=int(parse_quantity(overload.max_body_size)),
        max_concurrency=overload.max_replica_concurrency,
        drain_delay=options.drain_delay,
        fast_lane=options.fast_lane,
        runtime=str(runtime),
    )


@contextmanager
def _runtime_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="batchedapi-"))
    if len(str(folder)) > _LONGEST_FOLDER:
        folder.rmdir()
        raise OSError(f"TMPDIR is too long for a socket's address: {folder.parent}; set a shorter")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _listen(host: str, port: int, option: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}:{port} ({os.strerror(error.errno or 0)});"
            f" choose another with {option}"
        ) from error


def _how_to_ask(settings: ReplicaSettings, options: ServeOptions, example: Any) -> str:
    base = f"http://{options.host}:{options.port}"
    return (
        f"\n  {settings.name} is ready:  {base}{settings.endpoint}   (try it: {base}/docs)\n"
        f"  metrics and health:  http://{options.host}:{options.admin_port}{contract.PATH_METRICS}\n\n"
        f"  curl {base}{settings.endpoint} -H 'content-type: application/json'"
        f" -d '{'...' if example is None else json.dumps(example)}'\n"
    )


def _leave_termination_message(error: LoadError) -> None:
    """For the operator, which reads it from the pod's status; nowhere else is there such a file."""
    path = Path(contract.TERMINATION_LOG)
    if path.is_file():
        path.write_text(json.dumps({"reason": error.reason, "message": str(error)})[:4000])
