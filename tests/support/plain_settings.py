"""Settings of a replica of which nothing is special but what a test says."""

from typing import Any

from batchedapi_core.batching import ItemErrorPolicy, LaneChoice, Receipts
from batchedapi_serving.settings import BatchingSettings, ReplicaSettings


def plain_settings(**changes: Any) -> ReplicaSettings:
    """One model process of one thread, one web process, no gRPC."""
    values: dict[str, Any] = {
        "name": "api", "endpoint": "/api", "revision": "", "predictor_path": "model:Model",
        "search": (), "config": {}, "processes": 1, "threads": 1, "web_processes": 1, "gpus": (),
        "gpu_assignment": "Auto", "cpu_threads": None, "log_level": "error", "warm_up_sizes": None,
        "batching": BatchingSettings(), "methods": (), "lane_choice": LaneChoice.RANDOM,
        "item_errors": ItemErrorPolicy.ISOLATE, "receipts": Receipts.OFF, "timeout": 30.0,
        "max_body_bytes": 1 << 20, "max_concurrency": 1024, "drain_delay": 0.0,
        "max_connection_age": None, "keep_alive": 75.0, "grpc_port": None, "host": "127.0.0.1",
        "runtime": "",
    }  # fmt: skip
    return ReplicaSettings(**{**values, **changes})
