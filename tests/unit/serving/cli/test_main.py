"""The command line: what is asked wrongly is said in one line, with exit code 2."""

import builtins
import errno
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from crds.command_line import commands_of

from batchedapi_core.contract import API_VERSION, KIND
from batchedapi_serving import cli
from batchedapi_serving.cli.main import main
from batchedapi_serving.cli.serving import serve_command
from pages import ROOT


def run(*arguments: str) -> Result:
    """`batchedapi ARGUMENTS`."""
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("arguments", [(), ("model:Model", "-f", __file__)])
def test_exactly_one_of_file_and_class_is_served(arguments: tuple[str, ...]) -> None:
    """Both would leave open which one wins."""
    result = run("serve", *arguments)

    assert result.exit_code == 2
    assert "give either -f FILE, MODULE:CLASS or MODEL" in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "expected YAML"),
        ("{kind: Pod, apiVersion: v1}", "expected a BatchedAPI document, got Pod"),
        ("{kind: BatchedAPI, apiVersion: v2}", "expected kind BatchedAPI of batchedapi.dev/"),
    ],
)
def test_a_file_that_cannot_be_served_is_named_with_the_problem(
    tmp_path: Path, text: str, message: str
) -> None:
    """One line a problem, and no traceback."""
    file = tmp_path / "api.yaml"
    file.write_text(text)

    result = run("serve", "-f", str(file))

    assert result.exit_code == 2
    assert f"batchedapi: {file}: " in result.output
    assert message in result.output


def test_a_duration_has_a_unit() -> None:
    """As in the manifest."""
    result = run("serve", "a:B", "--drain-delay", "5")

    assert result.exit_code == 2
    assert "expected a duration such as 5ms" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--processes", "all"), "expected a number or cpu_count, got 'all'"),
        (("--processes", "0"), "processesPerReplica: expected 1 to 64 or cpu_count, got 0"),
        (("--web-processes", "17"), "1<=x<=16"),
        (("--grpc-port", "65536"), "0<=x<=65535"),
        (("--log-format", "xml"), "'json', 'text'"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused_with_what_can(
    arguments: tuple[str, str], message: str
) -> None:
    """By the same limits as the manifest's fields."""
    result = run("serve", "a:B", *arguments)

    assert result.exit_code == 2
    assert message in result.output


def test_the_log_format_is_that_of_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They inherit the environment, and the flag beats what was in it."""
    monkeypatch.setenv("BATCHEDAPI_LOG_FORMAT", "json")
    file = tmp_path / "api.yaml"
    model = {"uri": "pvc://claim/model"}
    api = {"metadata": {"name": "one"}, "spec": {"predictor": {"path": "m:C", "model": model}}}
    file.write_text(json.dumps({"apiVersion": API_VERSION, "kind": KIND, **api}))

    result = run("serve", "-f", str(file), "--log-format", "text")

    assert result.exit_code == 1
    assert "DownloadFailed: spec.predictor.model.uri: pvc://claim/model is mounted" in result.output
    assert os.environ["BATCHEDAPI_LOG_FORMAT"] == "text"


def test_all_commands_are_there() -> None:
    """One program is for all of it, from the first file on."""
    assert {
        "check", "completion", "init", "migrate", "serve", "simulate", "tune", "web", "worker",
    } == set(commands_of(main))  # fmt: skip


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "-h")])
def test_help_is_there(arguments: tuple[str, ...]) -> None:
    """With the ports that are used when nothing is said."""
    assert run(*arguments).exit_code == 0
    assert "8080" in run("serve", "--help").output


def test_the_version_is_the_distributions() -> None:
    """A bug report needs the version first."""
    assert "version" in run("--version").output


@pytest.mark.parametrize("missing", ["click", "numpy.linalg"])
def test_what_is_not_installed_is_told_with_what_brings_it(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install batchedapi` alone puts the command on the PATH."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    find = builtins.__import__

    def import_(name: str, *further: Any) -> Any:
        if name == "batchedapi_serving.cli.main":
            raise ModuleNotFoundError(name=missing)
        return find(name, *further)

    monkeypatch.setattr(cli, "main", cli.main)  # the module of that name, which is put back
    program = importlib.reload(cli).main

    monkeypatch.setattr(builtins, "__import__", import_)

    with pytest.raises(SystemExit) as ended:
        program()

    package = missing.partition(".")[0]
    assert str(ended.value).startswith(f"batchedapi: the Python package '{package}' is not")
    assert "pip install 'batchedapi[serving]'" in str(ended.value)


def test_a_machine_that_refuses_an_import_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command is imported as it is run: no memory then is no stack trace in a pod's log."""

    def refuse(name: str) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), name)

    monkeypatch.setattr("batchedapi_serving.cli.main.import_module", refuse)

    ended = run("serve", "-f", "api.yaml")

    assert 1 == ended.exit_code
    assert ended.output.startswith(
        "batchedapi: the command serve could not be imported: OSError(12"
    )


ELSEWHERE = """
import os, select, signal, socket, sys
for module, names in (
    (os, "eventfd memfd_create pidfd_open posix_fallocate sched_getaffinity waitid"),
    (select, "epoll"), (signal, "pidfd_send_signal"), (socket, "SO_PEERCRED TCP_KEEPIDLE"),
):
    for name in names.split():
        delattr(module, name)
sys.platform = "darwin"
import numpy as np
from batchedapi_serving import Tensor, batched
class Double:
    @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [2]))
    def predict(self, x):
        return 2 * x
assert 2.0 == Double().predict(np.ones((1, 2)))[0, 0]
from batchedapi_serving.cli import main
main()
"""


def test_elsewhere_than_on_linux_a_class_works_and_the_server_says_where_it_does() -> None:
    """In one sentence: what it takes from Linux is missing there, from the first import on."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=False, timeout=60
    )

    assert 1 == done.returncode
    assert done.stderr.startswith("batchedapi: expected Linux, got darwin; in WSL 2 it runs")
    assert 1 == done.stderr.count("\n")


def test_the_command_of_a_container_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of compose.yaml on the page, of `docker run` above it, and of the sentence there."""
    page = (ROOT / "docs" / "install.md").read_text()
    service = yaml.safe_load(page.partition("```yaml\nservices:")[2].partition("```")[0])["iris"]
    (volume,) = service["volumes"]
    monkeypatch.chdir(ROOT / volume.partition(":")[0])

    context = serve_command.make_context("serve", service["command"][1:])

    assert ("0.0.0.0", "batchedapi.yaml") == (context.params["host"], str(context.params["file"]))
    assert f"\n    {' '.join(service['command'])}\n" in page
    assert cli.IN_A_CONTAINER.endswith(f"{service['image']} {' '.join(service['command'])}")
