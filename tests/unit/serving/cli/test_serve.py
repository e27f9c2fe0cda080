"""From a manifest and options to the settings of a replica."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_core.batching import (
    ItemErrorPolicy,
    LaneChoice,
    QueueOrder,
    Receipts,
    SizeUnit,
    Strategy,
)
from batchedapi_core.manifest import parse_api
from batchedapi_serving.cli.documents import Documents
from batchedapi_serving.cli.serve import (
    ServeOptions,
    create_record,
    replica_settings,
    revision_of,
    termination_message,
)
from batchedapi_serving.errors import LoadError
from batchedapi_serving.overrides import Flags
from batchedapi_serving.settings import (
    BatchingSettings,
    MethodSettings,
    ModelSettings,
    ReplicaSettings,
)
from odd_texts import ODD_TEXTS

OPTIONS = ServeOptions("127.0.0.1", 1, 2, 3.5)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs, whatever this one has."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for name in (contract.ENV_BATCH_SIZE, contract.ENV_BATCH_TIME, contract.ENV_CPU_REQUEST):
        monkeypatch.delenv(name, raising=False)


def settings_of(
    folder: Path,
    spec: dict[str, Any],
    source: dict[str, bytes] | None = None,
    options: ServeOptions = OPTIONS,
) -> ReplicaSettings:
    """Settings of a replica whose manifest lies in /somewhere."""
    api = parse_api(
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "metadata": {"name": "iris"},
            "spec": {"predictor": {"path": "model:Iris"}, **spec},
        }
    )
    return replica_settings(Documents(api, source or {}, Path("/somewhere")), options, folder)


def test_what_is_not_written_has_the_decided_defaults(tmp_path: Path) -> None:
    """Each in the unit of the process that acts on it."""
    assert settings_of(tmp_path, {}) == ReplicaSettings(
        name="iris",
        endpoint="/iris",
        revision="",
        predictor_path="model:Iris",
        search=("/somewhere", str(Path.cwd())),
        config={},
        processes=1,
        threads=1,
        web_processes=1,
        gpus=("0", "1"),
        gpu_assignment="Auto",
        cpu_threads=None,
        log_level="info",
        startup_limit=595.0,
        warm_up_sizes=None,
        batching=BatchingSettings(),
        methods=(),
        lane_choice=LaneChoice.RANDOM,
        item_errors=ItemErrorPolicy.ISOLATE,
        receipts=Receipts.OFF,
        timeout=30.0,
        max_body_bytes=32 * 2**20,
        max_concurrency=1024,
        drain_delay=3.5,
        max_connection_age=300.0,
        keep_alive=3900.0,
        grpc_port=None,
        host="127.0.0.1",
        runtime=str(tmp_path),
    )


def test_what_is_written_is_in_effect(tmp_path: Path) -> None:
    """Each field reaches the process that acts on it, in seconds and bytes."""
    settings = settings_of(
        tmp_path,
        {
            "predictor": {
                "path": "model:Iris",
                "config": {"a": 1},
                "model": {"uri": "s3://bucket/key", "sha256": "0" * 64},
                "processesPerReplica": 3,
                "threadsPerProcess": 2,
                "webProcesses": 4,
                "gpuAssignment": "All",
                "cpuThreads": 5,
                "startupTimeout": "10s",
                "warmup": {"batchSizes": [2, 9]},
                "logLevel": "debug",
            },
            "serverSideBatching": {
                "maxBatchSize": 9,
                "batchInterval": "5ms",
                "strategy": "Fixed",
                "sizeUnit": "Requests",
                "maxLatency": "1s",
                "shapePolicy": "Pad",
                "dispatch": "LeastLoaded",
                "queueOrder": "Deadline",
                "onItemError": "FailBatch",
                "receipt": "All",
            },
            "overload": {"timeout": "7s", "maxBodySize": "1Ki", "maxReplicaConcurrency": 11},
            "networking": {
                "endpoint": "/x",
                "grpc": True,
                "maxConnectionAge": "0s",
                "keepAlive": "90s",
            },
        },
    )

    assert settings == ReplicaSettings(
        name="iris",
        endpoint="/x",
        revision="",
        predictor_path="model:Iris",
        search=("/somewhere", str(Path.cwd())),
        config={"a": 1},
        model=ModelSettings("s3://bucket/key", "0" * 64),
        processes=3,
        threads=2,
        web_processes=4,
        gpus=("0", "1"),
        gpu_assignment="All",
        cpu_threads=5,
        log_level="debug",
        startup_limit=9.0,
        warm_up_sizes=(2, 9),
        batching=BatchingSettings(
            max_batch_size=9,
            batch_interval=0.005,
            strategy=Strategy.FIXED,
            size_unit=SizeUnit.REQUESTS,
            max_latency=1.0,
            pads=True,
            queue_order=QueueOrder.DEADLINE,
        ),
        methods=(),
        lane_choice=LaneChoice.LEAST_LOADED,
        item_errors=ItemErrorPolicy.FAIL_BATCH,
        receipts=Receipts.ALL,
        timeout=7.0,
        max_body_bytes=1024,
        max_concurrency=11,
        drain_delay=3.5,
        max_connection_age=None,
        keep_alive=90.0,
        grpc_port=9000,
        host="127.0.0.1",
        runtime=str(tmp_path),
    )


def test_a_method_has_its_own_batching_over_the_common(tmp_path: Path) -> None:
    """N25, B12: dimensions too; what is absent is left to the decorator."""
    methods = [
        {"name": "a"},
        {"name": "b", "batchable": True, "batchDim": 1},
        {
            "name": "c",
            "batchDim": 1,
            "outputBatchDim": 0,
            "serverSideBatching": {"maxBatchSize": 4, "batchInterval": "0s"},
        },
    ]
    common = BatchingSettings(max_batch_size=9)

    settings = settings_of(
        tmp_path,
        {
            "predictor": {"path": "model:Iris", "methods": methods},
            "serverSideBatching": {"maxBatchSize": 9},
        },
    )

    assert settings.methods == (
        MethodSettings("a", None, None, common),
        MethodSettings("b", True, (1, 1), common),
        MethodSettings("c", None, (1, 0), replace(common, max_batch_size=4, batch_interval=0.0)),
    )


@pytest.mark.parametrize(
    ("warm_up", "sizes"),
    [
        ({}, None),
        ({"enabled": False}, ()),
        ({"enabled": False, "batchSizes": [4]}, ()),
        ({"batchSizes": [4]}, (4,)),
    ],
    ids=str,
)
def test_warm_up_runs_the_sizes_that_are_written(
    tmp_path: Path, warm_up: dict[str, Any], sizes: tuple[int, ...] | None
) -> None:
    """None means every power of two, and () nothing at all."""
    predictor = {"path": "model:Iris", "warmup": warm_up}

    assert sizes == settings_of(tmp_path, {"predictor": predictor}).warm_up_sizes


@pytest.mark.parametrize(
    ("asked", "port", "expected"),
    [
        (False, None, None),
        (True, None, 9000),
        (True, 0, None),
        (False, 7777, 7777),
        (True, 7777, 7777),
    ],
)
def test_grpc_is_served_where_it_is_asked_for(
    tmp_path: Path,
    *,
    asked: bool,
    port: int | None,
    expected: int | None,
) -> None:
    """The flag beats the manifest, and 0 is none."""
    options = replace(OPTIONS, grpc_port=port)

    found = settings_of(tmp_path, {"networking": {"grpc": asked}}, options=options)

    assert expected == found.grpc_port


def test_cpu_count_is_a_number_when_a_replica_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W08: and the flag may ask for it too."""
    monkeypatch.setattr("batchedapi_serving.cli.serve.usable_cpu_count", lambda _: 7)
    options = replace(OPTIONS, flags=Flags(processes="cpu_count", production=True))

    settings = settings_of(tmp_path, {}, options=options)

    assert (7, 7) == (settings.processes, settings.web_processes)


def test_the_environment_reaches_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D07: both knobs."""
    monkeypatch.setenv("DYNAMIC_BATCHER__BATCH_SIZE", "64")
    monkeypatch.setenv("DYNAMIC_BATCHER__BATCH_TIME", "2")

    batching = settings_of(tmp_path, {}).batching

    assert (64, 2.0) == (batching.max_batch_size, batching.batch_interval)


def test_a_model_is_fetched_from_where_it_is_written_but_for_a_claim(tmp_path: Path) -> None:
    """The operator mounts claims; on a laptop there is none to mount."""
    models = [{"path": "m:C", "model": {"uri": uri}} for uri in ("file:///a/b", "pvc://claim/b")]

    assert settings_of(tmp_path, {"predictor": models[0]}).model == ModelSettings("file:///a/b")
    with pytest.raises(LoadError, match="mounted by the operator") as caught:
        settings_of(tmp_path, {"predictor": models[1]})
    assert caught.value.reason == "DownloadFailed"


def test_a_cache_is_a_claim_in_a_pod_and_a_folder_on_a_laptop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file serves in both."""
    predictor = {"path": "m:C", "model": {"uri": "s3://b/k", "cache": {"pvc": "models"}}}

    def cache() -> str | None:
        model = settings_of(tmp_path, {"predictor": predictor}).model
        return model and model.cache

    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/cache")
    assert "/home/me/cache/batchedapi/models" == cache()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert "/home/me/.cache/batchedapi/models" == cache()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert "/mnt/model" == cache()


def test_a_timeout_of_zero_is_none(tmp_path: Path) -> None:
    """`0s` means no limit, and not that every request is late."""
    assert settings_of(tmp_path, {"overload": {"timeout": "0s"}}).timeout is None


@pytest.mark.parametrize("source", [{"model.py": b"x", "weights.bin": b"\x00\xff"}])
def test_code_of_a_config_map_is_written_where_it_is_looked_for_first(
    tmp_path: Path, source: dict[str, bytes]
) -> None:
    """As it is mounted in a pod; binary files included."""
    settings = settings_of(tmp_path, {}, source)

    folder = Path(settings.search[0])
    assert tmp_path in folder.parents
    assert source == {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_revision_tells_manifests_and_code_apart_in_a_cluster_alone(tmp_path: Path) -> None:
    """N18: the same files give the same, whatever replica they are in; a laptop has none."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "model.py").write_text("x = 1")
    first = revision_of(tmp_path, tmp_path)
    (tmp_path / "model.py").write_text("x = 2")

    assert len(first) == 8
    assert first != revision_of(tmp_path, tmp_path)
    assert revision_of(tmp_path) == ""


def test_a_recording_counts_from_the_start_of_the_program(tmp_path: Path) -> None:
    """A web process that replaces another goes on with the same times; its folder may differ."""
    before = time.monotonic()
    settings = settings_of(tmp_path, {}, options=replace(OPTIONS, record=Path("record.jsonl")))

    assert settings.recording is not None
    assert str(Path.cwd() / "record.jsonl") == settings.recording.path
    assert before <= settings.recording.started <= time.monotonic()


def test_what_is_in_a_file_is_not_written_over(tmp_path: Path) -> None:
    """An hour of another recording, and one key too many in the shell's history."""
    path = tmp_path / "record.jsonl"
    path.write_text("{}\n")

    with pytest.raises(FileExistsError, match=r"record.jsonl: expected a new or empty file"):
        create_record(path)

    assert "{}\n" == path.read_text()


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    """Opening one would wait for a reader, and so would every replica that is started so."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(OSError, match="pipe: expected a regular file"):
        create_record(pipe)


def test_an_empty_file_will_do(tmp_path: Path) -> None:
    """A replica that could not start has left one."""
    path = tmp_path / "record.jsonl"
    create_record(path)
    create_record(path)

    assert b"" == path.read_bytes()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Before anything is served."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        create_record(tmp_path / "nowhere" / "record.jsonl")


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_any_reason_of_an_end_is_json_of_which_as_much_is_kept_as_there_is_room(text: str) -> None:
    """A text whose characters take six bytes each in JSON used to be dropped entirely."""
    message = termination_message(LoadError("InitFailed", text))

    assert len(message.encode("ascii")) <= 4096
    told = json.loads(message)["message"]
    assert text.startswith(told)
    assert len(told) >= min(len(text), 500)
