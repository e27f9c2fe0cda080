"""Runs a check in a process of its own, and puts what it found beside the manifest."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchedapi_core.manifest import parse_quantity
from batchedapi_serving.checking.advising import Advice, advise_memory, advise_method, render_method
from batchedapi_serving.checking.report import REPORT_FILE, MethodReport, Report, Wanted
from batchedapi_serving.cli.documents import Documents
from batchedapi_serving.cli.serve import ServeOptions, replica_settings
from batchedapi_serving.errors import LoadError
from batchedapi_serving.hardware import usable_cpus
from batchedapi_serving.model_source import FETCH
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.environment import model_environments

_OPTIONS: Final = ServeOptions("127.0.0.1", 0, 0, drain_delay=0.0)
"""Nothing is listened on."""


class ItemsError(ValueError):
    """The file of items is none."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A report, and what follows from it for the manifest."""

    settings: ReplicaSettings
    report: Report
    memory: tuple[Advice, ...]

    def advice(self, method: MethodReport) -> list[Advice]:
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
        ItemsError: it is neither, or there are none.
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
                raise ItemsError(
                    f"--items {path}, line {number}: expected JSON, got {error}"
                ) from error
    if isinstance(value, dict):  # one line of a file of lines
        value = [value]
    if not isinstance(value, list) or not value:
        raise ItemsError(f"--items {path}: expected a JSON array, or one JSON value a line")
    return value


def run_check(documents: Documents, wanted: Wanted) -> tuple[ReplicaSettings, Report]:
    """Start the predictor as the first model process of a replica is started, and check it.

    Raises:
        LoadError: it does not start.
        ManifestError: an environment variable does not go with the manifest.
    """
    with tempfile.TemporaryDirectory(prefix="batchedapi-check-") as runtime:
        settings = replica_settings(documents, _OPTIONS, Path(runtime))
        settings.write()
        user = documents.api.spec.predictor.variables
        if settings.model_uri is not None:
            _run("model_source", [runtime], user, settings.failure_path(FETCH))
        wanted.write(Path(runtime))
        environment = model_environments(settings, os.environ, user, usable_cpus())[0]
        _run("checking", [runtime], environment, settings.failure_path(0))
        return settings, Report.from_json((Path(runtime) / REPORT_FILE).read_text())


def _run(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], failure: Path
) -> None:
    """Run a program of ours to its end.

    Raises:
        LoadError: it ended in another way than well.
    """
    code = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", f"batchedapi_serving.{module}", *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # what user code prints must not be part of the report
        env={**os.environ, **environment},
    ).returncode
    if code == 0:
        return
    if failure.exists():
        value = json.loads(failure.read_text())
        raise LoadError(value["reason"], value["message"])
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    reason = "OutOfMemory" if code == -signal.SIGKILL else "CrashLooping"
    raise LoadError(reason, f"the process with the predictor was ended {how}")


def judge(documents: Documents, checked: tuple[ReplicaSettings, Report]) -> Judged:
    """What the figures mean for this manifest."""
    settings, report = checked
    limit = documents.api.spec.compute.mem
    allowed = None if limit is None else int(parse_quantity(limit))
    return Judged(
        settings, report, tuple(advise_memory(report.memory, settings.processes, allowed))
    )
