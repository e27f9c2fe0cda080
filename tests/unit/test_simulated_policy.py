"""`batchedapi simulate` tries out the policy that the operator would decide by."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.worlds import api

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, parse_api
from batchedapi_core.scaling.observe import in_rows
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ServiceTime
from batchedapi_operator.autoscaling.in_effect import policy_of
from batchedapi_operator.autoscaling.metrics_page import parse_page
from batchedapi_serving.laptop.simulating.settings import SimulateOptions, set_up

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
OPTIONS: Final = SimulateOptions(ServiceTime(0.008, 0.00015))
NOTHING_LEARNED: Final = ScalingState.empty()
BATCHES: Final = {"maxBatchSize": 16, "batchInterval": "5ms"}
"""What `page` says is in effect, in a page of two lanes."""


def with_a_replica(document: dict[str, Any]) -> dict[str, Any]:
    """No request waits for a first replica in a simulation, so it begins with one."""
    document["spec"].get("autoscaling", {}).pop("minReplicas", None)
    return document


def examples() -> dict[str, BatchedAPI]:
    """Every BatchedAPI in a file beside an example, by folder, file and name."""
    return {
        f"{file.parent.name}/{file.name}: {document['metadata']['name']}": parse_api(
            with_a_replica(document)
        )
        for file in sorted(EXAMPLES.glob("*/*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
        if document["kind"] == contract.KIND
    }


def test_every_example_is_compared() -> None:
    """A manifest in a file that is named otherwise would be left out in silence."""
    folders = {folder.name for folder in EXAMPLES.glob("[0-9][0-9]-*")}

    assert folders
    assert folders == {name.partition("/")[0] for name in examples()}


@pytest.mark.parametrize("name", list(examples()))
def test_an_example_is_simulated_as_the_operator_scales_it(name: str) -> None:
    """From its manifest alone, as before the first scrape."""
    written = examples()[name]

    simulated = set_up(written, OPTIONS).policy

    assert simulated is not None
    expected = policy_of(written, [], NOTHING_LEARNED, 0.0)
    assert expected == in_rows(simulated, NOTHING_LEARNED, (), 0.0)


@pytest.mark.parametrize("policy", ["CapacitySLO", "Concurrency"])
@pytest.mark.parametrize(
    ("predictor", "batching", "size"),
    [
        pytest.param({"processesPerReplica": 2}, BATCHES, 16, id="processes"),
        pytest.param({"threadsPerProcess": 2}, BATCHES, 16, id="threads"),
        pytest.param({"processesPerReplica": "cpu_count"}, BATCHES, 16, id="cpu_count"),
        pytest.param(
            {"processesPerReplica": 2}, {**BATCHES, "enabled": False}, 1, id="no batching"
        ),
    ],
)
def test_replicas_that_run_what_is_written_change_nothing(
    predictor: dict[str, Any], batching: dict[str, Any], size: int, policy: str
) -> None:
    """A simulation assumes the figures of their pages: lanes, sizes, interval, concurrency."""
    written = api(
        predictor={"path": "model:Iris", **predictor},
        compute={"cpu": "2500m"},
        serverSideBatching={**batching, "maxLatency": "100ms"},
        autoscaling={"policy": policy, "slo": {"percentile": 95}},
    )
    said = parse_page(page(max_batch_size=size, lanes=2), "pod", time=0.0, unix_time=2000.0)

    simulated = set_up(written, OPTIONS).policy

    assert simulated is not None
    expected = policy_of(written, [said], NOTHING_LEARNED, 0.0)
    assert expected == in_rows(simulated, NOTHING_LEARNED, (said.sample,), 0.0)
