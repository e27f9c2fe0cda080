"""`kubectl batchedapi cost` and `whatif`: what was recorded, and what else could have been."""

import json
import sys
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result
from tests.unit.operator.plugin.test_command_line import API, Cluster, apiserver
from tests.unit.operator.worlds import api_body

from batchedapi_core import contract
from batchedapi_core.scaling.minutes import Minute, Minutes
from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.plugin.__main__ import main
from batchedapi_operator.plugin.minutes import cost_rows, cost_table

RECORD: Final = "/api/v1/namespaces/demo/configmaps/iris-record"
MIDNIGHT: Final = 20140 * 1440
LEARNED: Final = {
    "version": 2, "revision": "r", "sums": [100.0, 800.0, 6400.0, 50.0, 400.0],
    "largestMeanBatch": 8.0, "watched": 60.0, "high": [], "low": [], "sizes": [], "readySizes": [],
    "startUps": [20.0, 31.0], "placements": [], "bursts": [], "trust": 1.0, "nodeWait": None,
    "margin": 0.0, "highs": [],
}  # fmt: skip
"""Batches of 8 rows take 0.5 s."""


def recorded(count: int = 4, demand: float = 16.0) -> list[Minute]:
    """Minutes around midnight: half of what two replicas could do."""
    return [
        Minute(MIDNIGHT - count // 2 + n, demand, demand, demand, 2.0, 1.0) for n in range(count)
    ]


__all__ = ["apiserver"]


@pytest.fixture
def cluster() -> Cluster:
    """An API that nothing is known of."""
    return Cluster({API: api_body()})


@pytest.fixture
def known(cluster: Cluster) -> Cluster:
    """An API with a record."""
    spec: JsonObject = {
        "predictor": {"path": "model:Iris", "processesPerReplica": 1},
        "serverSideBatching": {"maxBatchSize": 8, "batchInterval": "20ms", "strategy": "Fixed"},
        "autoscaling": {"slo": {"latency": "1.5s"}, "maxReplicas": 4},
    }
    effective = {"lanes": 1, "maxBatchSize": 8, "batchInterval": "20ms"}
    status = {"effective": effective, "autoscaling": {"learned": LEARNED}}
    cluster.objects[API] = api_body(**spec) | {"status": status}
    text = Minutes().plus(recorded()).to_saved()
    cluster.objects[RECORD] = {"data": {contract.RECORD_KEY: text}}
    return cluster


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, arguments)


@pytest.mark.usefixtures("apiserver", "known")
def test_cost_is_told_by_day_and_in_all() -> None:
    """960 rows a minute, for two replicas a minute, half of which were idle."""
    told = run("cost", "iris", "--price", "30")

    assert 0 == told.exit_code, told.output
    head, *lines = (line.split() for line in told.output.splitlines())
    assert ["DAY", "HOURS", "REPLICA-HOURS"] == head[:3]
    assert ["PRICE", "PRICE/1000", "ROWS"] == head[-3:]
    assert ["2025-02-20", "0.0", "0.1", "1920", "125", "50", "%", "2", "1.042"] == lines[0]
    assert ["2025-02-21", "all"] == [line[0] for line in lines[1:]]
    assert ["4", "1.042"] == lines[2][-2:]


@pytest.mark.usefixtures("apiserver", "known")
def test_cost_is_for_programs_too() -> None:
    """Numbers in full; no price where none was given."""
    told = json.loads(run("cost", "iris", "-o", "json").output)

    assert ["2025-02-20", "2025-02-21", "all"] == [row["day"] for row in told]
    assert 125.0 == pytest.approx(told[-1]["replicaSecondsPer1000Rows"])
    assert "price" not in told[-1]


def test_what_nobody_knows_has_no_price() -> None:
    """Neither a day without rows, nor one without replicas, nor a record of neither."""
    idle = Minute(MIDNIGHT, 0.0, 0.0, 0.0, 1.0, 0.0)
    unseen = idle._replace(demand=None, replicas=0.0)

    assert "-" == cost_table(cost_rows([idle], 1.0))[1].split()[-1]
    assert ["all", "0.0", "0.0", "0", "-", "-"] == cost_table(cost_rows([unseen], None))[1].split()


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize("found", [{}, {RECORD: {"data": {contract.RECORD_KEY: "7"}}}])
def test_without_a_record_its_absence_is_told(cluster: Cluster, found: JsonObject) -> None:
    """An API that is new, or an operator that is older."""
    cluster.objects |= found

    told = run("cost", "iris")

    assert 1 == told.exit_code
    assert "nothing is recorded yet, or ConfigMap 'iris-record' is damaged" in told.output


@pytest.mark.usefixtures("apiserver", "known")
def test_whatif_replays_the_demand_with_both_settings(cluster: Cluster) -> None:
    """One replica does not hold what two did."""
    arguments = [
        "iris",
        "--set",
        "autoscaling.maxReplicas=1",
        "--set",
        "autoscaling.slo.latency=2s",
    ]

    told = run("whatif", *arguments)
    found = json.loads(run("whatif", *arguments, "-o", "json", "--days", "0.01").output)

    assert 0 == told.exit_code, told.output
    assert "4 minutes from 2025-02-20T23:58:00Z on, " in told.output
    assert "replicas start in 20 s to 31 s" in told.output
    assert ["RECORDED", "AS", "IT", "IS", "CHANGED"] == told.output.splitlines()[3].split()
    assert (None, 2, 1) == (
        found["recorded"]["late"], found["recorded"]["most"], found["changed"]["most"],
    )  # fmt: skip
    assert found["as it is"]["late"] < 0.1 < found["changed"]["late"]
    assert 4 / 60 == pytest.approx(found["changed"]["replicaHours"], rel=0.1)
    assert 8 / 60 == pytest.approx(found["recorded"]["replicaHours"], rel=0.01)
    assert 4 == cluster.objects[API]["spec"]["autoscaling"]["maxReplicas"]


@pytest.mark.usefixtures("apiserver", "known")
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("autoscaling", "expected autoscaling.FIELD=VALUE"),
        ("autoscaling.maxReplicas", "got 'autoscaling.maxReplicas'"),
        ("autoscaling.maxReplicas={", "expected autoscaling.FIELD=VALUE"),
        ("serverSideBatching.maxBatchSize=8", "other sections are tried with"),
        ("autoscaling.maxReplicas=many", "spec.autoscaling.maxReplicas"),
        ("autoscaling.minReplicas=9", "minReplicas"),
    ],
)
def test_a_setting_that_is_none_is_told_with_the_form(setting: str, words: str) -> None:
    """By the rules of a manifest."""
    told = run("whatif", "iris", "--set", setting)

    assert 1 == told.exit_code
    assert words in told.output


@pytest.mark.usefixtures("apiserver", "known")
def test_whatif_of_an_api_that_may_have_no_replica_is_of_the_change_alone(cluster: Cluster) -> None:
    """No simulated request waits for a first replica; the remedy that is told is one."""
    spec = cluster.objects[API]["spec"]
    spec["serverSideBatching"]["queue"] = {"redis": {"host": "redis"}}
    spec["autoscaling"]["minReplicas"] = 0

    told = run("whatif", "iris", "--set", "autoscaling.minReplicas=1")

    assert "add --set autoscaling.minReplicas=1" in run(
        "whatif", "iris", "--set", "autoscaling.maxReplicas=1"
    ).output  # fmt: skip
    assert 0 == told.exit_code, told.output
    assert ["RECORDED", "CHANGED"] == told.output.splitlines()[3].split()


@pytest.mark.usefixtures("apiserver", "known")
def test_whatif_says_what_it_needs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service time that was learned, and numpy, which the operator has none of."""
    unknown: dict[str, Any] = {**cluster.objects[API], "status": {}}
    cluster.objects[API] = unknown
    arguments = ("whatif", "iris", "--set", "autoscaling.maxReplicas=1")

    assert "not known yet how long a batch takes" in run(*arguments).output
    monkeypatch.setitem(sys.modules, "batchedapi_operator.plugin.whatif", None)
    monkeypatch.delattr("batchedapi_operator.plugin.whatif", raising=False)
    assert "pip install numpy" in run(*arguments).output
