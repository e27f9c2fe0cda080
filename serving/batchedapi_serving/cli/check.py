"""`batchedapi check`: its options; runs the check in a process of its own, see checking/.

What it found is put beside the manifest.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from batchedapi_core.manifest import parse_quantity
from batchedapi_serving.cli.documents import (
    MANIFEST_PATH,
    PREDICTOR_METAVAR,
    TRUSTED,
    DocumentError,
    Documents,
    given_documents,
    refused,
)
from batchedapi_serving.cli.serve import ServeOptions, replica_settings
from batchedapi_serving.hardware import usable_cpus
from batchedapi_serving.laptop.checking.report import (
    REPORT_FILE,
    CheckOptions,
    MethodReport,
    Remark,
    Report,
    advise_memory,
    advise_method,
    render_method,
)
from batchedapi_serving.model_source import FETCH
from batchedapi_serving.orphans import ended_after
from batchedapi_serving.processes import Child
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.signals import signals_raise
from batchedapi_serving.supervisor.model_processes import model_environments

_OPTIONS: Final = ServeOptions("127.0.0.1", 0, 0, drain_delay=0.0)
"""Nothing is listened on."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A report, and what follows from it for the manifest."""

    settings: ReplicaSettings
    report: Report
    memory: tuple[Remark, ...]

    def advice(self, method: MethodReport) -> list[Remark]:
        """For one method."""
        batching = self.settings.of_method(method.name).batching
        return advise_method(
            method, interval=batching.batch_interval, max_latency=batching.max_latency
        )

    def as_text(self) -> str:
        """For a terminal."""
        parts = [render_method(method, self.advice(method)) for method in self.report.methods]
        parts += [f"{one.weight.value}: {one.text}\n" for one in self.memory]
        return "\n".join(parts)

    def as_object(self) -> dict[str, Any]:
        """For `--json`."""
        value = self.report.to_json()
        for method, said in zip(self.report.methods, value["methods"], strict=True):
            said["advice"] = [{"weight": a.weight, "text": a.text} for a in self.advice(method)]
        return {
            **value,
            "good": self.report.good,
            "advice": [{"weight": a.weight, "text": a.text} for a in self.memory],
        }


def load_items(path: Path) -> list[Any]:
    """The rows of a JSON array, or of one JSON value a line.

    Raises:
        DocumentError: it is neither, or there are none.
    """
    text = path.read_text("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError:
        value = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                value += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise DocumentError(
                    f"--items {path}, line {number}: expected JSON, got {error}"
                ) from error
    if isinstance(value, dict):  # one line of a file of lines
        value = [value]
    if not isinstance(value, list) or not value:
        raise DocumentError(f"--items {path}: expected a JSON array, or one JSON value a line")
    return value


def run_check(documents: Documents, wanted: CheckOptions) -> tuple[ReplicaSettings, Report]:
    """Start the predictor as the first model process of a replica is started, and check it.

    Raises:
        LoadError: it does not start.
        ManifestError: an environment variable does not go with the manifest.
    """
    with tempfile.TemporaryDirectory(prefix="batchedapi-check-") as runtime:
        settings = replica_settings(documents, _OPTIONS, Path(runtime))
        settings.write()
        user = documents.api.spec.predictor.variables
        if settings.model is not None:
            _run("model_source", [runtime], user, settings.failure_path(FETCH))
        wanted.write(Path(runtime))
        environment = model_environments(settings, os.environ, user, usable_cpus())[0]
        _run("laptop.checking", [runtime], environment, settings.failure_path(0))
        return settings, Report.from_json((Path(runtime) / REPORT_FILE).read_text())


def _run(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], failure: Path
) -> None:
    """Run a program of ours to its end.

    Raises:
        LoadError: it ended in another way than well.
    """
    with ended_after():
        code = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-P", "-m", f"batchedapi_serving.{module}", *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,  # what user code prints must not be part of the report
            env={**os.environ, **environment},
        ).returncode
    if code:
        raise Child("the process with the predictor", module).failure(failure, code)


def judge(documents: Documents, checked: tuple[ReplicaSettings, Report]) -> Judged:
    """Advice from the figures for this manifest."""
    settings, report = checked
    limit = documents.api.spec.compute.mem
    allowed = None if limit is None else int(parse_quantity(limit))
    copies = 1 if report.shared else settings.processes
    said = advise_memory(report.memory, copies, allowed)
    if report.sharing is not None:
        said.append(report.sharing)
    return Judged(settings, report, tuple(said))


BAD = 1
"""Exit code: answers depend on the batch, or a batch was not answered."""
NOT_CHECKED = 2
"""Exit code: the command line, the manifest or the items are wrong, the predictor does not start,
or nobody knows what it takes."""


@click.command("check")
@click.argument("predictor", required=False, metavar=PREDICTOR_METAVAR)
@click.option(
    "-f", "--file", "file", metavar="FILE",
    type=MANIFEST_PATH,
    help="A manifest: the file you would kubectl apply, ConfigMaps in it included.",
)  # fmt: skip
@click.option("--name", help="Which BatchedAPI of the file, if it holds several.")
@click.option(
    "--items", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Rows to ask with: a JSON array, or one JSON value a line. [default: the method's"
    " example, or random arrays]",
)  # fmt: skip
@click.option(
    "--ignore", "ignored", metavar="NAME", multiple=True,
    help="Do not compare outputs, and members of JSON answers at any depth, of that name: ids and"
    " times that are new in each answer. May be given several times.",
)  # fmt: skip
@TRUSTED
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def check_command(
    *,
    predictor: str | None,
    file: Path | None,
    name: str | None,
    items: Path | None,
    ignored: tuple[str, ...],
    trusted: bool,
    as_json: bool,
) -> None:
    """Compare batched answers with one-by-one answers, and time batches of each size.

    Starts the predictor of the manifest FILE, the class MODULE:CLASS, or the file MODEL, without a
    server. Exit code 0: every answer is the same in any company; 1: it is not; 2: nothing could be
    checked.

    \b
    Examples:
      batchedapi check -f batchedapi.yaml
      batchedapi check iris.onnx
      batchedapi check model:Model --items rows.jsonl --ignore uuid --json
    """
    signals_raise()
    with refused(file or predictor, NOT_CHECKED):
        documents = given_documents(predictor, file, name, trusted=trusted)
        wanted = CheckOptions(None if items is None else load_items(items), ignored)
        judged = judge(documents, run_check(documents, wanted))
    text = judged.as_text()
    if as_json:
        text = json.dumps(judged.as_object(), indent=2) + "\n"
    click.echo(text, nl=False)
    sys.exit(BAD if not judged.report.good else 0 if judged.report.checked else NOT_CHECKED)
