"""The command line: what is asked wrongly is said in one line, with exit code 2."""

import builtins
import importlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from batchedapi_core.contract import API_VERSION, KIND
from batchedapi_serving import cli
from batchedapi_serving.cli.main import main


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
    } == set(main.commands)  # fmt: skip


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
