"""From a manifest to a running replica on this machine; the image's program is the same."""

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import click

from batchedapi_core import contract
from batchedapi_core.manifest import (
    AUTO,
    CPU_COUNT,
    Networking,
    Predictor,
    PredictorMethod,
    ServerSideBatching,
    UnitError,
    parse_quantity,
)
from batchedapi_core.placement import cpu_count
from batchedapi_serving.cli.documents import Documents
from batchedapi_serving.cli.roles import check_queue, queue_settings
from batchedapi_serving.errors import LoadError
from batchedapi_serving.hardware import CGROUP, visible_gpus
from batchedapi_serving.logs import LOG_FORMAT, configure_logging
from batchedapi_serving.orphans import ended_after
from batchedapi_serving.overrides import Flags, check_sources, in_effect
from batchedapi_serving.settings import (
    BatchingSettings,
    CompareSettings,
    MethodSettings,
    ModelSettings,
    RecordingSettings,
    ReplicaSettings,
    Role,
    TracingSettings,
)
from batchedapi_serving.signals import signals_raise, signals_wait
from batchedapi_serving.supervisor.lifecycle import CrashLoopError
from batchedapi_serving.supervisor.supervisor import Supervisor
from batchedapi_serving.tracing.environment import check_installed, tracing_settings
from batchedapi_serving.web.keys import expect_keys

log = logging.getLogger(__name__)

_BACKLOG = 4096
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - names what was asked for
_ARE_YOU_THERE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""Options of listening and accepted sockets. After so many seconds without a byte the kernel asks
the other end, and again: a machine that is gone never closes its connections, and idle ones may
stay for an hour."""
_USED_UP: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS))
"""Errors that say that the machine has no more of something, for now."""
_RELOAD_SECONDS: Final = 5.0
"""Seconds that a replica may take to stop before it is started anew."""
_STARTUP_MARGIN: Final = 5.0
"""Seconds before the kubelet's own limit, which would end the replica without a reason."""
_MESSAGE_BYTES: Final = 4000
"""Longest termination message; the kubelet takes 4096."""
_IN_POD: Final = "KUBERNETES_SERVICE_HOST"
"""A variable that each container of a pod has."""
_LONGEST_FOLDER = 90
"""Characters; the address of a Unix socket has 108 at most."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the command line."""

    host: str
    port: int
    admin_port: int
    drain_delay: float
    grpc_port: int | None = None
    """None: as the manifest says; 0: none."""
    log_format: str | None = None
    """json or text; None: as the environment says."""
    flags: Flags = field(default_factory=Flags)
    record: Path | None = None
    """File for arrivals; None: they are not recorded."""
    api_keys: Path | None = None
    """Folder of keys; None: none is asked for."""
    role: Role = Role.REPLICA


def serve(documents: Documents, options: ServeOptions) -> None:
    """Serve until SIGTERM or Ctrl+C.

    Raises:
        LoadError: the predictor could not be started, or not be kept alive.
        ManifestError: a flag or an environment variable does not go with the manifest.
        OSError: a port cannot be listened on, or the file to record to not be made; the message
            names it.
    """
    if options.log_format is not None:
        os.environ[LOG_FORMAT] = options.log_format  # the other processes inherit it
    options = replace(options, host=effective_host(options.host))
    with signals_wait(), _runtime_folder() as runtime, contextlib.ExitStack() as stack:
        settings = replica_settings(documents, options, runtime)
        configure_logging(settings.log_level, "supervisor")
        check_queue(settings)
        settings.write()
        listener, port = None, 0
        if options.role is not Role.WORKER:
            listener = stack.enter_context(_listen(options.host, options.port, "--port"))
            port = listener.getsockname()[1]
        admin_listener = stack.enter_context(
            _listen(options.host, options.admin_port, "--admin-port")
        )
        admin_port = admin_listener.getsockname()[1]
        facts = {"host": options.host, "port": port or None, "admin_port": admin_port}
        log.info("listening", extra=facts)
        if options.record is not None:
            create_record(options.record)

        def announce(example: Any) -> None:
            if sys.stderr.isatty():
                at, admin = _address(options.host, port), _address(options.host, admin_port)
                click.echo(_card(settings, at, admin, example), err=True)

        environment = documents.api.spec.predictor.variables
        supervisor = Supervisor(settings, listener, admin_listener, environment, announce)
        asyncio.run(supervisor.run())


def _card(settings: ReplicaSettings, base: str, admin: str, example: Any) -> str:
    """Text for a terminal when the replica is ready: its addresses, and a request to try."""
    api, row = f"{base}{settings.endpoint}", "..." if example is None else json.dumps(example)
    return (
        f"\n  {settings.name} is ready:  {api}   (try it: {base}/docs)\n"
        f"  what it does:  {admin}/   (metrics: {admin}{contract.PATH_METRICS})\n\n"
        f"  curl {api} -H 'content-type: application/json' -d '{row}'\n"
    )


def serve_on_changes(folder: Path) -> None:
    """Run the same command without `--reload`, anew whenever code or YAML changes, until Ctrl+C.

    Args:
        folder: Whose files are watched, those of its folders too; others than .py, .yaml and .yml
            may be what the server itself writes.
    """
    from watchfiles import PythonFilter, watch  # noqa: PLC0415 - for development alone

    signals_raise()
    program = "from batchedapi_serving.cli import main; main()"
    arguments = [word for word in sys.argv[1:] if word != "--reload"]
    click.echo(f"watching {folder}", err=True)
    watched = PythonFilter(extra_extensions=(".yaml", ".yml"))
    changes = watch(folder, watch_filter=watched, raise_interrupt=False)
    while True:
        with ended_after(), _running([sys.executable, "-P", "-c", program, *arguments]):
            changed = next(changes, None)
            if changed is None:  # Ctrl+C, SIGTERM
                return
            names = sorted(Path(path).name for _, path in changed)
            click.echo(f"changed: {', '.join(names)}", err=True)


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[None]:
    """Within, it runs, if it does not end by itself; at the end it is given some time to stop."""
    process = subprocess.Popen(command)  # noqa: S603 - our own program
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_RELOAD_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def reason_left() -> Iterator[None]:
    """Leave the reason of a failure where the operator reads it.

    That the machine has no more of something is one too, wherever it was needed.

    Raises:
        LoadError: the failure.
    """
    try:
        yield
    except LoadError as error:
        _leave_termination_message(error)
        raise
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno not in _USED_UP:
            raise  # the user's to mend
        failure = CrashLoopError(f"the supervisor cannot go on: {error!r}")
        _leave_termination_message(failure)
        raise failure from error


def replica_settings(documents: Documents, options: ServeOptions, runtime: Path) -> ReplicaSettings:
    """Effective settings; writes the source files of a ConfigMap into `runtime`.

    Raises:
        LoadError: the model, or a variable, can be had in a cluster alone.
        ManifestError: a flag or an environment variable does not go with the manifest.
    """
    runs_code = options.role is not Role.WEB
    if runs_code:
        check_sources(documents.api.spec.predictor, os.environ)
    cpus = usable_cpu_count(os.environ)
    api = in_effect(documents.api, options.flags, os.environ, cpus)
    spec, folder = api.spec, _code_folder(documents, runtime)
    predictor, batching, overload = spec.predictor, spec.server_side_batching, spec.overload
    processes = predictor.processes_per_replica
    startup, warm_up = predictor.startup_timeout, predictor.warmup
    grpc_port = contract.GRPC_PORT if spec.networking.grpc else None
    cors = spec.networking.cors
    return ReplicaSettings(
        name=api.metadata.name,
        endpoint=api.endpoint,
        revision=revision_of(folder),
        predictor_path=predictor.path,
        search=(str(folder), str(Path.cwd())),
        config=dict(predictor.config),
        model=_model(predictor) if runs_code else None,
        processes=cpus if processes == CPU_COUNT else int(processes),
        threads=predictor.threads_per_process,
        web_processes=predictor.web_processes,
        gpus=visible_gpus(),
        gpu_assignment=predictor.gpu_assignment.value,
        cpu_threads=None if predictor.cpu_threads == AUTO else int(predictor.cpu_threads),
        log_level=predictor.log_level.value,
        startup_limit=startup - min(_STARTUP_MARGIN, startup / 10),
        warm_up_sizes=tuple(warm_up.batch_sizes) or None if warm_up.enabled else (),
        batching=_batching(batching, pads=api.pads()),
        methods=tuple(
            _method(method, batching, pads=api.pads("predictor", "methods", i))
            for i, method in enumerate(predictor.methods)
        ),
        lane_choice=batching.dispatch,
        item_errors=batching.on_item_error,
        receipts=batching.receipt,
        timeout=overload.timeout or None,
        max_body_bytes=int(parse_quantity(overload.max_body_size)),
        max_concurrency=overload.max_replica_concurrency,
        drain_delay=options.drain_delay,
        max_connection_age=spec.networking.max_connection_age or None,
        keep_alive=spec.networking.keep_alive,
        grpc_port=grpc_port if options.grpc_port is None else options.grpc_port or None,
        host=options.host,
        runtime=str(runtime),
        recording=_recording(options.record),
        api_keys=_keys(spec.networking, options),
        cors_origins=() if cors is None else tuple(cors.allow_origins),
        access_log=spec.networking.access_log,
        tracing=_tracing(documents),
        role=options.role,
        queue=queue_settings(batching, options.role, {**predictor.variables, **os.environ}),
        compare=_compare(os.environ),
        in_pod=_IN_POD in os.environ,
    )


def _compare(environment: MutableMapping[str, str]) -> CompareSettings | None:
    """How revisions are compared, which the operator alone says; user code never has the token."""
    told = environment.pop(contract.ENV_COMPARE, None)
    if told is None:
        return None
    names = (field.name for field in fields(CompareSettings))
    said = json.loads(told)
    return CompareSettings(**{name: said[name] for name in names})


def _recording(path: Path | None) -> RecordingSettings | None:
    return None if path is None else RecordingSettings(str(path.absolute()), time.monotonic())


def _code_folder(documents: Documents, runtime: Path) -> Path:
    """The folder of the code: the user's, or files of a ConfigMap that are written here."""
    if not documents.source:
        return documents.folder
    folder = runtime / "source"
    folder.mkdir(exist_ok=True)
    for name, content in documents.source.items():
        (folder / name).write_bytes(content)
    return folder


def _tracing(documents: Documents) -> TracingSettings | None:
    """Tracing by the environment; in a cluster that has the manifest's variables already."""
    api = documents.api
    tracing = tracing_settings({**os.environ, **api.spec.predictor.variables}, api.metadata.name)
    if tracing is not None:
        check_installed()
    return tracing


def _batching(written: ServerSideBatching, *, pads: bool) -> BatchingSettings:
    return BatchingSettings(
        max_batch_size=written.max_batch_size,
        batch_interval=written.batch_interval,
        strategy=written.strategy,
        size_unit=written.size_unit,
        max_latency=written.max_latency,
        pads=pads,
        queue_order=written.queue_order,
    )


def _method(method: PredictorMethod, common: ServerSideBatching, *, pads: bool) -> MethodSettings:
    own, dim = method.server_side_batching, method.batch_dim
    output_dim = dim if method.output_batch_dim is None else method.output_batch_dim
    return MethodSettings(
        name=method.name,
        batched=method.batchable,
        batch_dim=None if dim is None or output_dim is None else (dim, output_dim),
        batching=_batching(common if own is None else own.over(common), pads=pads),
    )


def _keys(networking: Networking, options: ServeOptions) -> str | None:
    """The folder, once it was seen to have keys: a replica without them must not answer anybody."""
    folder = options.api_keys
    if options.role is Role.WORKER:
        return None
    if folder is not None:
        expect_keys(folder)
        return str(folder.absolute())
    if networking.api_keys is not None:
        raise LoadError(
            "InitFailed",
            "spec.networking.apiKeys: a cluster mounts the Secret"
            f" {networking.api_keys.secret_name}, and there is none here; put each key into a"
            " file and give their folder with --api-keys",
        )
    return None


def _model(predictor: Predictor) -> ModelSettings | None:
    model = predictor.model
    if model is None:
        return None
    if model.uri.startswith("pvc://"):
        raise LoadError(
            "DownloadFailed",
            f"spec.predictor.model.uri: {model.uri} is mounted by the operator and cannot be read"
            " here; expected an address to fetch it from, or file:///, outside a cluster",
        )
    return ModelSettings(
        uri=model.uri,
        sha256=model.sha256,
        cache=None if model.cache is None else _model_cache(),
        format=None if predictor.path is not None else model.served_as,
        trusted=model.trusted is True,
    )


def _model_cache() -> str:
    """Where a pod has the claim; on a laptop a folder of the user's cache."""
    if _IN_POD in os.environ:
        return contract.MODEL_DIRECTORY
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(home) / "batchedapi" / "models")


def create_record(path: Path) -> None:
    """Make an empty file to record to.

    Raises:
        OSError: it cannot be made, or something else is in it; says what to do.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"--record {path}: expected a regular file, as it is written to by offset")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size:
            raise FileExistsError(
                f"--record {path}: expected a new or empty file, and something is in this one;"
                " name another, or remove it"
            )
    finally:
        os.close(descriptor)


_REVISION_DIGITS: Final = 8


def revision_of(folder: Path, mounted: Path = Path(contract.MANIFEST_DIRECTORY)) -> str:
    """Name of manifest and code, the same for all replicas that have them; empty on a laptop."""
    if folder != mounted:
        return ""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:_REVISION_DIGITS]


@contextlib.contextmanager
def _runtime_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="batchedapi-"))
    if len(str(folder)) > _LONGEST_FOLDER:
        folder.rmdir()
        raise OSError(f"TMPDIR is too long for a socket's address: {folder.parent}; set a shorter")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def usable_cpu_count(environment: Mapping[str, str], cgroup: Path = CGROUP) -> int:
    """Whole CPUs: of the cgroup's limit, else of the pod's request, else of the machine.

    Args:
        environment: In which the operator says the request.
        cgroup: Where the kernel's control groups are mounted.
    """
    quota, period = (_text(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    try:
        request = parse_quantity(environment[contract.ENV_CPU_REQUEST])
    except (KeyError, UnitError):
        request = None
    limits = (_text(cgroup / "cpu.max"), f"{quota} {period}")
    return cpu_count(limits, request, len(os.sched_getaffinity(0)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def effective_host(host: str) -> str:
    """Where to listen: every address, in either notation, is of both families if there are two.

    The kubelet asks a pod at its address, which in some clusters is of IPv6 alone.
    """
    if host not in _EVERYWHERE:
        return host
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - as was asked


def _listen(host: str, port: int, option: str) -> socket.socket:
    """A listener; a name is taken for its address of IPv4 if it has one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family = min((one[0] for one in found), key=lambda family: family != socket.AF_INET)
        both = host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
    except OSError as error:
        if error.errno in _USED_UP:
            raise
        taken = error.errno in {errno.EADDRINUSE, errno.EACCES}
        unknown = isinstance(error, socket.gaierror)
        raise OSError(
            f"cannot listen on {host}:{port}"
            f" ({error.strerror if unknown else os.strerror(error.errno or 0)});"
            f" choose another with {option if taken else '--host'}"
        ) from error
    for option_of_sockets in _ARE_YOU_THERE:
        listener.setsockopt(*option_of_sockets)
    return listener


def _address(host: str, port: int) -> str:
    """For people: whoever listens everywhere is found under the name of this machine for itself."""
    shown = "localhost" if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _leave_termination_message(error: LoadError) -> None:
    """For the operator, which reads it from the pod's status; nowhere else is there such a file."""
    path = Path(contract.TERMINATION_LOG)
    with contextlib.suppress(OSError):  # the same is in the last line of the log
        if path.is_file():
            path.write_text(termination_message(error))


def termination_message(error: LoadError) -> str:
    """As the operator reads it: JSON, in ASCII, of at most as many bytes as are kept of it.

    The text is cut before it is JSON: half an object could not be read.
    """
    text = str(error)
    while len(told := json.dumps({"reason": error.reason, "message": text})) > _MESSAGE_BYTES:
        text = text[: len(text) * 9 // 10]  # what a character takes of it depends on the character
    return told
