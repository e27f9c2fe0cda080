"""Where the code may come from, and what a start that fails says and leaves behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from batchedapi_core import contract
from ports import HOST
from raw_http import ask
from serving import (
    PROGRAM,
    end_replica,
    is_alive,
    running_replica,
    start_replica,
    write_manifest,
)

GOOD = """
    import os, threading
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            self.facts = {
                "config": config,
                "env": os.environ.get("GREETING"),
                "index": context.worker_index,
                "device": context.device,
                "threads": context.threads,
                "file": os.path.basename(__file__),
            }

        @batched
        def predict(self, items):
            return [self.facts] * len(items)
"""


async def test_code_config_and_environment_come_from_the_manifest(tmp_path: Path) -> None:
    """C05: the file that is given to kubectl, ConfigMap included."""
    spec = {
        "predictor": {
            "config": {"a": [1, {"b": False}]},
            "env": [{"name": "GREETING", "value": "hello"}],
            "threadsPerProcess": 3,
        }
    }
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, GOOD, spec))]) as replica:
        facts = (await ask(replica.port, 1)).json()

    expected = {
        "config": {"a": [1, {"b": False}]},
        "env": "hello",
        "index": 0,
        "threads": 3,
        "file": "model.py",
    }
    assert expected == {key: facts[key] for key in expected}


async def test_a_class_is_served_without_a_manifest(tmp_path: Path) -> None:
    """D06: `batchedapi serve module:Class`, with every default."""
    (tmp_path / "my_module.py").write_text(textwrap.dedent(GOOD))
    with running_replica(tmp_path, ["my_module:Model"]) as replica:
        facts = (await ask(replica.port, 1, "/model")).json()

        assert ({}, "my_module.py") == (facts["config"], facts["file"])
        assert replica.metrics()["batchedapi_max_batch_size"] == 32


async def test_code_may_lie_beside_the_manifest(tmp_path: Path) -> None:
    """A folder with a manifest and a module is a project."""
    document = {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": "api"},
        "spec": {"predictor": {"path": "model:Model"}},
    }
    manifest = tmp_path / "batchedapi.yaml"
    manifest.write_text(json.dumps(document))
    (tmp_path / "model.py").write_text(textwrap.dedent(GOOD))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with running_replica(elsewhere, ["-f", str(manifest)]) as replica:
        assert (await ask(replica.port, 1)).json()["file"] == "model.py"


async def test_the_start_line_says_what_is_in_effect(tmp_path: Path) -> None:
    """D13: the three values, once."""
    spec = {"serverSideBatching": {"maxBatchSize": 7, "batchInterval": "3ms"}}
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, GOOD, spec))]) as replica:
        lines = [json.loads(line) for line in replica.text().splitlines()]
        metrics = replica.metrics()

    (ready,) = [line for line in lines if line["message"] == "ready"]
    expected = {"max_batch_size": 7, "batch_interval": 0.003, "strategy": "Window", "lanes": 1}
    assert expected == {key: ready[key] for key in expected}
    assert (7, 0.003) == (
        metrics["batchedapi_max_batch_size"],
        metrics["batchedapi_batch_interval_seconds"],
    )


def failing(code: str) -> str:
    """A predictor whose constructor or method does that."""
    return f"""
    import numpy as np
    from batchedapi_serving import Tensor, batched

    class Model:
        def __init__(self, config, context):
            {code if code.startswith("raise") else "pass"}

        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [1]))
        def predict(self, x):
            {code}
    """


@pytest.mark.parametrize(
    ("code", "spec", "reason"),
    [
        ("import not_installed_at_all", {}, "ImportFailed: .*No module named 'not_installed"),
        ("class Other: ...", {}, "ImportFailed: .*has no class 'Model'"),
        (failing("raise OSError('no weights')"), {}, "InitFailed: .*OSError: no weights"),
        (failing("return x"), {}, r"ShapeProbeFailed: .*expected rows of shape \[1\].*got \[2\]"),
        (failing("return x[:1, :1]"), {}, "ShapeProbeFailed: .*batch of 2 rows.*expected 2 rows"),
        (failing("return x.no_such_attribute"), {}, "WarmUpFailed: .*raised AttributeError"),
        (failing("import os; os._exit(4)"), {}, "CrashLooping: .*exit code 4"),
    ],
    ids=["import", "no class", "init", "shape", "rows", "warm-up", "exit"],
)
def test_a_start_that_fails_names_the_reason_and_leaves_nothing(
    tmp_path: Path, code: str, spec: dict[str, Any], reason: str
) -> None:
    """C05: exit code 1, one line, no process, no port."""
    predictor = {"predictor": {"processesPerReplica": 2}}
    manifest = write_manifest(tmp_path, code, {**predictor, **spec})
    replica = start_replica(tmp_path, ["-f", str(manifest)])
    seen: set[int] = set()
    try:
        while replica.process.poll() is None:
            seen |= set(replica.children())
            assert replica.admin("/readyz")[0] in {0, 503}
        code_seen = replica.process.returncode
    finally:
        end_replica(replica)

    last = replica.text().strip().splitlines()[-1]
    assert code_seen == 1
    assert last.startswith("batchedapi: ")
    assert_matches(reason, last)
    assert len(seen) >= 2
    assert [] == [pid for pid in seen if is_alive(pid)]
    for port in (replica.port, replica.admin_port):
        socket.create_server((HOST, port)).close()


def assert_matches(pattern: str, text: str) -> None:
    """With both in the failure's message."""
    with pytest.raises(LookupError, match=pattern):
        raise LookupError(text)


@pytest.mark.parametrize("which", ["--port", "--admin-port"])
def test_a_taken_port_is_one_clear_line(tmp_path: Path, which: str) -> None:
    """The remedy is in it."""
    manifest = write_manifest(tmp_path, GOOD, {})
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        replica = start_replica(tmp_path, ["-f", str(manifest)], ports={which: port})
        code = replica.process.wait(20)
        end_replica(replica)

    assert code == 1
    (line,) = replica.text().strip().splitlines()
    assert f"cannot listen on {HOST}:{port} (Address already in use)" in line
    assert line.endswith(f"choose another with {which}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either -f FILE, MODULE:CLASS or MODEL"),
        (["-f", "missing.yaml"], "missing.yaml"),
        (["-f", "bad.yaml"], "spec.predictor.path is required, unless"),
        (["no-colon"], "expected module:Class"),
    ],
)
def test_a_wrong_command_line_exits_2_and_says_why(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    """Usage errors are told apart from models that do not start."""
    (tmp_path / "bad.yaml").write_text(
        "{apiVersion: batchedapi.dev/v1alpha1, kind: BatchedAPI, metadata: {name: a},"
        " spec: {predictor: {}}}"
    )
    replica = start_replica(tmp_path, arguments)

    code = replica.process.wait(20)
    end_replica(replica)

    assert code == 2
    assert message in replica.text()
    assert "Traceback" not in replica.text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_is_loading_ends_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    """S14: a pod may be deleted before it was ever ready; nothing waits for the drain delay."""
    slow = "import time; time.sleep(60)\nclass Model: ..."
    manifest = write_manifest(tmp_path, slow, {})
    replica = start_replica(tmp_path, ["-f", str(manifest), "--drain-delay", "20s"])
    try:
        replica.wait_for(lambda: len(replica.children()) == 2, "no processes")
        replica.wait_for(lambda: replica.admin("/livez")[0] == 200, "no admin port")
        children = replica.children()

        assert replica.admin("/startupz")[0] == replica.admin("/readyz")[0] == 503
        assert os.getpid() not in children
        began = time.monotonic()
        assert replica.stop(number, 10) == 0
        assert time.monotonic() - began < 4  # 2 on a machine with nothing else to do
        assert [] == [pid for pid in children if is_alive(pid)]
    finally:
        end_replica(replica)


@pytest.mark.parametrize("seconds", [0.05, 0.4, 0.9])
def test_sigterm_at_any_moment_of_the_start_ends_it(tmp_path: Path, seconds: float) -> None:
    """S14: between two processes being started, too."""
    replica = start_replica(tmp_path, ["-f", str(write_manifest(tmp_path, GOOD, {}))])
    try:
        time.sleep(seconds)
        children = replica.children()

        assert replica.stop(signal.SIGTERM, 10) in {0, -signal.SIGTERM}
        assert [] == [pid for pid in children if is_alive(pid)]
    finally:
        end_replica(replica)


IGNORED = """
    import importlib, os, signal, sys
    from batchedapi_serving.cli import main

    class Finalized:
        def __del__(self):  # an exception in here is printed and ignored
            os.kill(os.getpid(), number)

    def after_a_signal(*arguments, **options):
        Finalized()
        return original(*arguments, **options)

    place, number = sys.argv.pop(1), int(sys.argv.pop(1))
    module, name = place.split(":")
    owner = importlib.import_module(module)
    original = getattr(owner, name)
    setattr(owner, name, after_a_signal)
    main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "place",
    ["cli.serving:given_documents", "cli.serve:replica_settings", "cli.serve:Supervisor"],
)
def test_a_signal_is_not_lost_where_python_ignores_exceptions(
    tmp_path: Path, place: str, number: signal.Signals
) -> None:
    """S14: callbacks of C, and finalizers, are such places; they come at any moment."""
    program = tmp_path / "ignored.py"
    program.write_text(textwrap.dedent(IGNORED))
    words = [f"batchedapi_serving.{place}", str(int(number)), "serve", "--port", "0"]
    manifest = write_manifest(tmp_path, GOOD, {})
    process = subprocess.Popen(
        [sys.executable, "-P", program, *words, "--admin-port", "0", "-f", manifest], cwd=tmp_path
    )
    try:
        assert process.wait(30) in {0, 130}
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root")
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.8])
def test_process_1_of_a_container_hears_sigterm_from_its_first_moment(
    tmp_path: Path, seconds: float
) -> None:
    """A signal without a handler is lost there; the image has it wait for the interpreter."""
    manifest = write_manifest(tmp_path, GOOD, {})
    program = ["env", "--block-signal=TERM,INT", str(PROGRAM), "serve", "-f", str(manifest)]
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *program]
    process = subprocess.Popen(
        [*inside, "--port", "0", "--admin-port", "0"], cwd=tmp_path, stderr=subprocess.PIPE
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        while not (first := children.read_text().split()):
            time.sleep(0.001)
        while b"python" not in Path(f"/proc/{first[0]}/cmdline").read_bytes():
            time.sleep(0.001)  # unshare, and env for a moment
        time.sleep(seconds)

        os.kill(int(first[0]), signal.SIGTERM)

        assert process.wait(30) == 0
        assert b"Traceback" not in process.communicate()[1]
    finally:
        process.kill()
        process.wait()


def test_gpus_that_cannot_be_shared_out_are_one_clear_line(tmp_path: Path) -> None:
    """Nothing is started that would compute on the CPU instead."""
    spec = {"predictor": {"processesPerReplica": 2, "gpuAssignment": "Exclusive"}}
    manifest = write_manifest(tmp_path, GOOD, spec)
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    replica = start_replica(tmp_path, ["-f", str(manifest)], environment)

    code = replica.process.wait(20)
    end_replica(replica)

    assert code == 1
    assert "InitFailed: spec.predictor.gpuAssignment Exclusive" in replica.text()
    assert "Traceback" not in replica.text()


async def test_a_key_of_a_secret_that_must_not_be_set_ends_the_start(tmp_path: Path) -> None:
    """As the operator hands it over: the interpreter has started, and can say what is wrong."""
    about = {"sources": ["spec.predictor.envFrom[0], Secret keys"], "env": []}
    environment = {
        "BATCHEDAPI_ENV_SOURCES": json.dumps(about),
        "BATCHEDAPI_SOURCE_0_PYTHONHOME": "/nowhere",
    }
    file = write_manifest(tmp_path, GOOD, {})

    replica = start_replica(tmp_path, ["-f", str(file)], environment)
    try:
        assert 1 == replica.process.wait(timeout=60)
    finally:
        end_replica(replica)

    assert "spec.predictor.envFrom[0], Secret keys has PYTHONHOME" in replica.log.read_text()


async def test_a_key_of_a_secret_is_a_variable_of_the_model(tmp_path: Path) -> None:
    """Under its own name, in every process."""
    about = {"sources": ["spec.predictor.envFrom[0], Secret keys"], "env": []}
    environment = {
        "BATCHEDAPI_ENV_SOURCES": json.dumps(about),
        "BATCHEDAPI_SOURCE_0_GREETING": "hello",
    }
    file = write_manifest(tmp_path, GOOD, {})

    with running_replica(tmp_path, ["-f", str(file)], environment) as replica:
        assert "hello" == (await ask(replica.port, 1)).json()["env"]


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("batchedapi_serving.cli.main", {"pydantic", "yaml", "batchedapi_core.manifest"}),
        (
            "batchedapi_serving.cli.serving",
            {"numpy", "orjson", "starlette", "uvicorn", "batchedapi_serving.laptop"},
        ),
    ],
)
def test_a_command_imports_only_what_it_runs(module: str, others: set[str]) -> None:
    """Each module more is memory of every replica, and time of every start."""
    code = f"import sys, {module}; print({others!r} & set(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert "set()\n" == done.stdout
