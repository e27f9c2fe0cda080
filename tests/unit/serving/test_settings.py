"""Settings of a replica, as its processes get them."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchedapi_serving.settings import (
    BatchingSettings,
    MethodSettings,
    ModelSettings,
    RecordingSettings,
    ReplicaSettings,
    TracingSettings,
)

DURATION = st.floats(0, 1e5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
TEXT = st.text(max_size=9)
COUNT = st.integers(1, 64)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple)
SIZES = st.lists(st.integers(1, 65536), max_size=3).map(tuple)
BATCHING = st.builds(
    BatchingSettings,
    max_batch_size=st.none() | st.integers(1, 65536),
    batch_interval=DURATION,
    max_latency=st.none() | DURATION,
)
METHOD = st.builds(
    MethodSettings,
    name=TEXT,
    batched=st.none() | st.booleans(),
    batch_dim=st.none() | st.tuples(st.integers(0, 7), st.integers(0, 7)),
    batching=BATCHING,
)
SETTINGS = st.builds(
    ReplicaSettings,
    name=TEXT,
    endpoint=TEXT,
    revision=TEXT,
    predictor_path=TEXT,
    search=TEXTS,
    config=st.dictionaries(st.text(max_size=3), JSON, max_size=3),
    processes=COUNT,
    threads=COUNT,
    web_processes=COUNT,
    gpus=TEXTS,
    gpu_assignment=TEXT,
    cpu_threads=st.none() | COUNT,
    log_level=st.sampled_from(["debug", "info"]),
    warm_up_sizes=st.none() | SIZES,
    batching=BATCHING,
    methods=st.lists(METHOD, max_size=2).map(tuple),
    timeout=st.none() | DURATION,
    max_body_bytes=st.integers(1, 1 << 40),
    max_concurrency=st.integers(1, 30000),
    drain_delay=DURATION,
    max_connection_age=st.none() | DURATION,
    keep_alive=DURATION,
    grpc_port=st.none() | st.integers(0, 65535),
    host=TEXT,
    model=st.none() | st.builds(ModelSettings, path=st.none() | TEXT),
    runtime=st.just(""),
    recording=st.none() | st.builds(RecordingSettings, path=TEXT, started=DURATION),
    tracing=st.none() | st.builds(TracingSettings, ratio=st.floats(0, 1), variables=PAIRS),
)


@settings(derandomize=True, database=None, deadline=None)
@given(SETTINGS)
def test_settings_arrive_as_they_were_sent(value: ReplicaSettings) -> None:
    """Every process reads them from the file that the supervisor wrote."""
    assert value == ReplicaSettings.from_json(value.to_json())


@given(SETTINGS)
@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_files_of_a_replica_lie_in_its_folder(tmp_path: Path, value: ReplicaSettings) -> None:
    """So that two replicas on one machine share nothing, and removing the folder removes all."""
    local = ReplicaSettings.from_json(value.to_json().replace('"runtime": ""', '"runtime": "X"'))
    local = ReplicaSettings(
        **{name: getattr(local, name) for name in local.__slots__} | {"runtime": str(tmp_path)}
    )

    local.write()

    assert local == ReplicaSettings.read(str(tmp_path))
    files = [
        local.metrics_path,
        local.lanes_path,
        local.engine_path,
        local.failure_path(0),
        local.failure_path(1),
    ]
    assert {tmp_path} == {file.parent for file in files}
    assert len(files) == len(set(files))
