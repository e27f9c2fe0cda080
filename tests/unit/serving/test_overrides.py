"""Flags and environment variables in place of what the manifest says, or does not say."""

import json
from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_core.batching import Strategy
from batchedapi_core.manifest import BatchedAPI, ManifestError, parse_api
from batchedapi_serving.errors import LoadError
from batchedapi_serving.overrides import Flags, check_sources, in_effect, take_sources


def api(**spec: Any) -> BatchedAPI:
    """A manifest."""
    return parse_api(
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "metadata": {"name": "iris"},
            "spec": {"predictor": {"path": "model:Iris"}, **spec},
        }
    )


def batching_of(environment: dict[str, str], **spec: Any) -> tuple[int | None, float]:
    """Size and interval in effect."""
    batching = in_effect(api(**spec), Flags(), environment, 4).spec.server_side_batching
    return batching.max_batch_size, batching.batch_interval


SIZE_AND_TIME = {"DYNAMIC_BATCHER__BATCH_SIZE": "64", "DYNAMIC_BATCHER__BATCH_TIME": "2"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, (64, 2.0)),
        ({"maxBatchSize": 8}, (8, 2.0)),
        ({"batchInterval": "10ms"}, (64, 0.01)),
        ({"maxBatchSize": 8, "batchInterval": "5ms"}, (8, 0.005)),
    ],
    ids=str,
)
def test_the_environment_fills_what_the_manifest_does_not_say(
    written: dict[str, Any], expected: tuple[int, float]
) -> None:
    """D07: and what it does say stays, even where that is the default."""
    assert expected == batching_of(SIZE_AND_TIME, serverSideBatching=written)


@pytest.mark.parametrize("name", SIZE_AND_TIME)
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, Strategy.FIXED),
        ({"maxLatency": "10s"}, Strategy.FIXED),
        ({"strategy": "Window"}, Strategy.WINDOW),
        ({"strategy": "Immediate"}, Strategy.IMMEDIATE),
    ],
    ids=str,
)
def test_size_or_time_from_the_environment_brings_the_strategy_of_its_batcher(
    name: str, written: dict[str, Any], expected: Strategy
) -> None:
    """D07: full, or the time is up; only a manifest that says another has another."""
    environment = {name: SIZE_AND_TIME[name]}

    changed = in_effect(api(serverSideBatching=written), Flags(), environment, 4)

    assert expected is changed.spec.server_side_batching.strategy


def test_variables_that_the_manifest_beats_bring_no_strategy() -> None:
    """They are in effect for nothing."""
    written = {"maxBatchSize": 8, "batchInterval": "5ms"}

    changed = in_effect(api(serverSideBatching=written), Flags(), SIZE_AND_TIME, 4)

    assert Strategy.WINDOW is changed.spec.server_side_batching.strategy


def test_an_environment_without_them_changes_nothing() -> None:
    """An empty variable is as good as none."""
    empty = dict.fromkeys(SIZE_AND_TIME, "")

    assert api() == in_effect(api(), Flags(), {}, 4) == in_effect(api(), Flags(), empty, 4)


def test_the_manifests_own_variables_count_and_the_processs_beat_them() -> None:
    """In a cluster both are one, so on a laptop they must mean the same."""
    env = [{"name": name, "value": value} for name, value in SIZE_AND_TIME.items()]
    predictor = {"path": "model:Iris", "env": env}

    assert (64, 2.0) == batching_of({}, predictor=predictor)
    assert (5, 2.0) == batching_of({"DYNAMIC_BATCHER__BATCH_SIZE": "5"}, predictor=predictor)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("SIZE", "many", "environment variable DYNAMIC_BATCHER__BATCH_SIZE: expected a whole"),
        ("SIZE", "1.5", "expected a whole number of rows, got '1.5'"),
        ("SIZE", "0", r"greater than or equal to 1, got 0 \(DYNAMIC_BATCHER__BATCH_SIZE=0\)"),
        ("TIME", "5ms", "expected seconds, such as 0.01, got '5ms'"),
        ("TIME", "nan", "expected seconds"),
        ("TIME", "-1", "expected seconds"),
        ("TIME", "61", r"expected 0s to 60s, got 61s \(DYNAMIC_BATCHER__BATCH_TIME=61\)"),
        ("TIME", "30", r"timeout must be .* \(DYNAMIC_BATCHER__BATCH_TIME=30\)"),
    ],
)
def test_a_variable_that_cannot_be_is_named(name: str, value: str, problem: str) -> None:
    """Whoever reads the message looks in the manifest first, in vain."""
    with pytest.raises(ManifestError, match=problem):
        batching_of({f"DYNAMIC_BATCHER__BATCH_{name}": value})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param(Flags(), (2, 3), id="the manifest"),
        pytest.param(Flags(processes=5), (5, 3), id="--processes"),
        pytest.param(Flags(processes="cpu_count"), ("cpu_count", 3), id="--processes cpu_count"),
        pytest.param(Flags(web_processes=1), (2, 1), id="--web-processes"),
        pytest.param(Flags(production=True), (2, 4), id="--production: as many as CPUs"),
        pytest.param(Flags(web_processes=2, production=True), (2, 2), id="both"),
    ],
)
def test_a_flag_beats_the_manifest(flags: Flags, expected: tuple[int | str, int]) -> None:
    """N19: more than one process without a word in the manifest."""
    predictor = {"path": "model:Iris", "processesPerReplica": 2, "webProcesses": 3}

    found = in_effect(api(predictor=predictor), flags, {}, 4).spec.predictor

    assert expected == (found.processes_per_replica, found.web_processes)


def test_production_on_a_large_machine_stays_within_the_limit() -> None:
    """The limit is the one of the manifest's field."""
    assert in_effect(api(), Flags(production=True), {}, 96).spec.predictor.web_processes == 16


def test_a_flag_is_held_to_the_manifests_rules() -> None:
    """Else the command line could ask for what can never work."""
    exclusive = api(
        predictor={"path": "model:Iris", "gpuAssignment": "Exclusive"}, compute={"gpu": 1}
    )

    with pytest.raises(ManifestError, match="Exclusive needs"):
        in_effect(exclusive, Flags(processes=2), {}, 4)
    with pytest.raises(ManifestError, match="expected 1 to 64 or cpu_count, got 0"):
        in_effect(exclusive, Flags(processes=0), {}, 4)


def sourced(*sources: dict[str, str], env: tuple[str, ...] = (), **others: str) -> dict[str, str]:
    """The environment of a container with variables of so many Secrets."""
    called = [f"spec.predictor.envFrom[{index}], Secret s{index}" for index in range(len(sources))]
    waiting = {
        f"{contract.source_prefix(index)}{name}": value
        for index, source in enumerate(sources)
        for name, value in source.items()
    }
    about = json.dumps({"sources": called, "env": [*env]})
    return {contract.ENV_SOURCES: about, **waiting, **others}


def test_keys_of_sources_get_their_names_and_leave_no_trace() -> None:
    """User code reads KEY, and is not to find it twice."""
    environment = sourced({"KEY": "a", "B": "b"}, {"KEY": "later"}, PATH="/bin")

    take_sources(environment)

    assert {"KEY": "later", "B": "b", "PATH": "/bin"} == environment


def test_a_variable_of_the_manifest_beats_those_of_sources() -> None:
    """As Kubernetes has it; one of the image does not."""
    environment = sourced({"A": "source", "HOME": "/x"}, env=("A",), A="manifest", HOME="/tmp")  # noqa: S108 - a value

    take_sources(environment)

    assert {"A": "manifest", "HOME": "/x"} == environment


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/x"),
        ("PYTHONHOME", "/x"),
        ("LD_PRELOAD", "secret.so"),
        ("BATCHEDAPI_LOG_FORMAT", "secret"),
        ("OMP_NUM_THREADS", "secret"),
    ],
)
def test_a_key_that_must_not_be_set_ends_the_start_with_its_name(name: str, value: str) -> None:
    """The operator never reads a Secret, so nobody else can say it; its value is told nobody."""
    with pytest.raises(LoadError) as refused:
        take_sources(sourced({"GOOD": "1"}, {name: value}))

    assert str(refused.value).startswith(
        f"spec.predictor.envFrom[1], Secret s1 has {name}, which is refused as in env: "
    )
    assert value not in str(refused.value)
    assert "InitFailed" == refused.value.reason


def test_without_sources_the_environment_stays() -> None:
    """On a laptop, and in most pods."""
    environment = {"A": "1"}

    take_sources(environment)

    assert {"A": "1"} == environment


SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


def test_on_a_laptop_a_variable_of_a_secret_is_set_by_hand(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The manifest is the same; what the environment has is used."""
    optional = {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}
    predictor = api(
        predictor={
            "path": "m:C",
            "env": [
                {"name": "PLAIN", "value": "1"},
                {"name": "KEY", "valueFrom": SECRET},
                {"name": "MAYBE", "valueFrom": optional},
            ],
            "envFrom": [{"secretRef": {"name": "s"}}],
        }
    ).spec.predictor

    check_sources(predictor, {"KEY": "mine"})
    with pytest.raises(LoadError, match=r"env\[1\]\.valueFrom: a cluster fills in KEY, .* KEY="):
        check_sources(predictor, {})

    assert {"PLAIN": "1"} == predictor.variables
    assert "here those of the environment are used" in caplog.text
