"""`batchedapi serve`, `web` and `worker`: their options."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from batchedapi_core import contract
from batchedapi_core.manifest import (
    CPU_COUNT,
    ManifestError,
    UnitError,
    UnknownFields,
    parse_duration,
)
from batchedapi_core.redaction import without_secrets
from batchedapi_serving.cli.documents import (
    MANIFEST_PATH,
    PREDICTOR_METAVAR,
    TRUSTED,
    DocumentError,
    given_documents,
)
from batchedapi_serving.cli.serve import ServeOptions, reason_left, serve, serve_on_changes
from batchedapi_serving.errors import LoadError
from batchedapi_serving.logs import LOG_FORMAT
from batchedapi_serving.overrides import Flags, take_sources
from batchedapi_serving.settings import Role
from batchedapi_serving.supervisor.lifecycle import exit_code


class _DurationType(click.ParamType[float]):
    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds of a text such as 5s."""
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except UnitError as error:
            self.fail(str(error), param, ctx)


class _ProcessesType(click.ParamType[int | str]):
    name = "processes"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """A number, or the word; the manifest's rules judge it."""
        text = str(value)
        if text == CPU_COUNT:
            return text
        try:
            return int(text)
        except ValueError:
            self.fail(f"expected a number or {CPU_COUNT}, got {text!r}", param, ctx)


_PREDICTOR: Final = click.argument("predictor", required=False, metavar=PREDICTOR_METAVAR)
_FILE: Final = click.option(
    "-f", "--file", "file", metavar="FILE",
    type=MANIFEST_PATH,
    help="A manifest: the file you would kubectl apply, ConfigMaps in it included.",
)  # fmt: skip
_NAME: Final = click.option("--name", help="Which BatchedAPI of the file, if it holds several.")
_HOST: Final = click.option(
    "--host", default="127.0.0.1", show_default=True,
    help="Address to listen on; 0.0.0.0 and :: are every address, of IPv4 and of IPv6.",
)  # fmt: skip
_PORT: Final = click.option(
    "--port", type=click.IntRange(0, 65535), default=contract.HTTP_PORT, show_default=True,
    help="Port for predictions; 0: a free one, which the log names.",
)  # fmt: skip
_ADMIN_PORT: Final = click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=contract.ADMIN_PORT,
    show_default=True,
    help="Port for metrics, health and the page.",
)
_GRPC_PORT: Final = click.option(
    "--grpc-port", type=click.IntRange(0, 65535),
    help="Port for the Open Inference Protocol over gRPC; 0: none. [default: none, or"
    f" {contract.GRPC_PORT} if the manifest has networking.grpc]",
)  # fmt: skip
_PROCESSES: Final = click.option(
    "--processes", type=_ProcessesType(), metavar="N|cpu_count",
    help="Model processes; each has a copy of the model, or all share one."
    " [default: as the manifest says]",
)  # fmt: skip
_WEB_PROCESSES: Final = click.option(
    "--web-processes",
    type=click.IntRange(1, contract.MAX_WEB_PROCESSES),
    help="Processes that read requests and write answers. [default: as the manifest says]",
)
_PRODUCTION: Final = click.option(
    "--production", is_flag=True,
    help="As many web processes as there are CPUs, unless --web-processes says how many.",
)  # fmt: skip
_LOG_FORMAT: Final = click.option(
    "--log-format", type=click.Choice(["json", "text"]),
    help=f"Also {LOG_FORMAT} in the environment. [default: text on a terminal, else json]",
)  # fmt: skip
_DRAIN_DELAY: Final = click.option(
    "--drain-delay", type=_DurationType(), default=0.0, metavar="DURATION",
    help="Go on accepting for this long after SIGTERM. [default: 0s]",
)  # fmt: skip
_RECORD: Final = click.option(
    "--record", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write when requests arrive, one JSON line each with time, rows, their lengths and method,"
    " for `batchedapi simulate`; nothing else that is in a request. The file is new or empty.",
)  # fmt: skip
_API_KEYS: Final = click.option(
    "--api-keys", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
    help="Answer only requests that bring a key: one file each in FOLDER, as a mounted Secret has"
    " them, read again every 10 s. [default: no key is asked for]",
)  # fmt: skip
_RELOAD: Final = click.option(
    "--reload", is_flag=True,
    help="Start anew whenever a .py or YAML file beside the manifest, or in the working directory"
    " if there is none, changes; for development.",
)  # fmt: skip
_TOLERATE: Final = click.option(
    "--tolerate-unknown-fields", is_flag=True,
    help="Ignore fields of the manifest that this version does not know, with a warning.",
)  # fmt: skip
_WHAT: Final = (_PREDICTOR, _FILE, _NAME, TRUSTED)
_OF_WEB: Final = (
    *_WHAT, _HOST, _PORT, _ADMIN_PORT, _GRPC_PORT, _WEB_PROCESSES, _PRODUCTION, _LOG_FORMAT,
    _DRAIN_DELAY, _RECORD, _API_KEYS, _TOLERATE,
)  # fmt: skip
_OF_WORKER: Final = (*_WHAT, _HOST, _ADMIN_PORT, _PROCESSES, _LOG_FORMAT, _TOLERATE)
_OF_SERVE: Final = (
    *_WHAT, _HOST, _PORT, _ADMIN_PORT, _GRPC_PORT, _PROCESSES, _WEB_PROCESSES, _PRODUCTION,
    _LOG_FORMAT, _DRAIN_DELAY, _RECORD, _API_KEYS, _RELOAD, _TOLERATE,
)  # fmt: skip


def _with(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The arguments and options of a command, in the order of its help."""

    def decorated(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


@click.command("serve")
@_with(*_OF_SERVE)
def serve_command(
    predictor: str | None,
    file: Path | None,
    name: str | None,
    reload: bool,  # noqa: FBT001 - click passes options by name
    tolerate_unknown_fields: bool,  # noqa: FBT001
    **options: Any,
) -> None:
    """Serve the manifest FILE, or the class MODULE:CLASS or the file MODEL with every default.

    A model that is served as it is (.onnx, .skops and others) has the API's name from its file.

    A flag beats the manifest. Where the manifest is silent, the environment is asked:
    DYNAMIC_BATCHER__BATCH_SIZE is maxBatchSize, DYNAMIC_BATCHER__BATCH_TIME is batchInterval in
    seconds, and with either of them the strategy is Fixed.

    \b
    Examples:
      batchedapi serve -f batchedapi.yaml --reload
      batchedapi serve model:Model --port 9090
      batchedapi serve iris.onnx
      batchedapi serve -f batchedapi.yaml --host 0.0.0.0 --production --drain-delay 5s
    """
    if reload and (predictor is None) != (file is None):
        serve_on_changes(Path.cwd() if file is None else file.resolve().parent)
        return
    _run(Role.REPLICA, predictor, file, name, tolerate_unknown_fields, options)


@click.command("web")
@_with(*_OF_WEB)
def web_command(
    predictor: str | None,
    file: Path | None,
    name: str | None,
    tolerate_unknown_fields: bool,  # noqa: FBT001 - click passes options by name
    **options: Any,
) -> None:
    """Read, check and answer requests, and leave running them to workers.

    They wait in one queue for all replicas, in Redis: serverSideBatching.queue of the manifest, or
    REDIS__HOST, REDIS__PORT, REDIS__DB, REDIS__USERNAME and REDIS__PASSWORD where it is silent.
    No model is loaded here. Workers say what they serve, so one must have run before.

    \b
    Examples:
      batchedapi web -f batchedapi.yaml
      batchedapi web model:Model --web-processes 4
    """
    _run(Role.WEB, predictor, file, name, tolerate_unknown_fields, options)


@click.command("worker")
@_with(*_OF_WORKER)
def worker_command(
    predictor: str | None,
    file: Path | None,
    name: str | None,
    tolerate_unknown_fields: bool,  # noqa: FBT001 - click passes options by name
    **options: Any,
) -> None:
    """Load the model, and run what waits in the queue of all replicas.

    Nothing is listened to but the admin port. Redis is found as `batchedapi web` finds it;
    DYNAMIC_BATCHER__BATCH_SIZE and DYNAMIC_BATCHER__BATCH_TIME count as with `serve`.

    \b
    Examples:
      batchedapi worker -f batchedapi.yaml --admin-port 8082
      batchedapi worker model:Model
    """
    options |= {"port": contract.HTTP_PORT, "drain_delay": 0.0}
    _run(Role.WORKER, predictor, file, name, tolerate_unknown_fields, options)


def _run(  # noqa: PLR0917 - what every command of a role was given
    role: Role,
    predictor: str | None,
    file: Path | None,
    name: str | None,
    tolerate_unknown_fields: bool,  # noqa: FBT001 - as click has it
    options: dict[str, Any],
) -> None:
    """Serve in that role until the end; exits with what went wrong."""
    trusted = options.pop("trusted")
    unknown = UnknownFields.IGNORE if tolerate_unknown_fields else UnknownFields.REFUSE
    flags = Flags(
        options.pop("processes", None),
        options.pop("web_processes", None),
        options.pop("production", False),
    )
    try:
        with reason_left():
            take_sources(os.environ)
            documents = given_documents(predictor, file, name, trusted=trusted, unknown=unknown)
            serve(documents, ServeOptions(flags=flags, role=role, **options))
    except (DocumentError, ManifestError) as error:
        problems = error.problems if isinstance(error, ManifestError) else (str(error),)
        for problem in problems:
            text = without_secrets(f"batchedapi: {file or predictor}: {problem}")
            click.echo(text, err=True)
        sys.exit(2)
    except LoadError as error:
        click.echo(f"batchedapi: {error.reason}: {error}", err=True)
        sys.exit(exit_code(error))
    except OSError as error:
        click.echo(without_secrets(f"batchedapi: {error}"), err=True)
        sys.exit(1)
