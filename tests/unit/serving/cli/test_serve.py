"""From a manifest and options to the settings of a replica."""

from pathlib import Path
from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_core.batching import SizeUnit, Strategy
from batchedapi_core.manifest import parse_api
from batchedapi_serving.cli.documents import Documents
from batchedapi_serving.cli.serve import ServeOptions, replica_settings
from batchedapi_serving.settings import ReplicaSettings

OPTIONS = ServeOptions("127.0.0.1", 1, 2, 3.5, fast_lane=False)


def settings_of(
    folder: Path, spec: dict[str, Any], source: dict[str, bytes] | None = None
) -> ReplicaSettings:
    """Of a manifest in /somewhere."""
    api = parse_api(
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "metadata": {"name": "iris"},
            "spec": {"predictor": {"path": "model:Iris"}, **spec},
        }
    )
    return replica_settings(Documents(api, source or {}, Path("/somewhere")), OPTIONS, folder)


def test_what_is_written_is_in_effect(tmp_path: Path) -> None:
    """Each field reaches the process that acts on it, in seconds and bytes."""
    settings = settings_of(
        tmp_path,
        {
            "predictor": {
                "path": "model:Iris",
                "config": {"a": 1},
                "processesPerReplica": 3,
                "threadsPerProcess": 2,
                "logLevel": "debug",
            },
            "serverSideBatching": {
                "maxBatchSize": 9,
                "batchInterval": "5ms",
                "strategy": "Fixed",
                "sizeUnit": "Requests",
                "maxLatency": "1s",
            },
            "overload": {"timeout": "7s", "maxBodySize": "1Ki", "maxReplicaConcurrency": 11},
            "networking": {"endpoint": "/x"},
        },
    )

    assert settings == ReplicaSettings(
        name="iris",
        endpoint="/x",
        predictor_path="model:Iris",
        search=("/somewhere", str(Path.cwd())),
        config={"a": 1},
        processes=3,
        threads=2,
        log_level="debug",
        max_batch_size=9,
        batch_interval=0.005,
        strategy=Strategy.FIXED,
        size_unit=SizeUnit.REQUESTS,
        max_latency=1.0,
        timeout=7.0,
        max_body_bytes=1024,
        max_concurrency=11,
        drain_delay=3.5,
        fast_lane=False,
        runtime=str(tmp_path),
    )


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
