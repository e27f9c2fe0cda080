"""Cases run, tables say what came of them, and the program writes them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoscaling import cases, tables
from autoscaling.cases import Case, Result
from autoscaling.compare import main
from autoscaling.roster import BOUND, OURS, ROSTER
from autoscaling.services import SERVICES, LoadTested


def result(
    controller: str, misses: float, cost: float, *, load: str = "step", service: str = "cpu"
) -> Result:
    """The outcome of a case with one seed."""
    return Result(Case(service, load, controller, 0), misses, 0.0, cost, 0.01, 0.1, 7, 9, 1.0)


@pytest.mark.parametrize("controller", ROSTER)
def test_a_twentieth_of_a_replica_is_held_by_one_replica_with_every_autoscaler(
    controller: str,
) -> None:
    """The one load on which all are equal: it finds a baseline that is wired wrongly."""
    found = cases.run(Case("cpu", "low", controller, 0), max_rate=235.0)

    assert (0.0, 1.0, 0) == (round(found.misses, 3), found.cost, found.scale_events)


def test_a_case_is_the_same_each_time() -> None:
    """Committed figures must be those that anybody gets."""
    case = Case("cpu", "step", OURS, 1)

    first, again = (cases.run(case, max_rate=235.0) for _ in range(2))

    assert (first.misses, first.cost) == (again.misses, again.cost)
    assert first.misses > 0.0


def test_ours_misses_less_of_a_step_than_an_hpa_on_the_mean_batch() -> None:
    """The claim in one pair; the naive one reacts where the batch is full, too late."""
    ours, naive = (
        cases.run(Case("cpu", "step", name, 0), max_rate=235.0) for name in (OURS, "hpa-fill")
    )

    assert ours.misses < 0.1 < naive.misses


def test_cases_are_every_combination_with_the_busiest_service_first() -> None:
    """Its runs take the longest; last, they would leave a process alone."""
    found = cases.cases_of(["cpu", "gpu"], ["low", "step"], [OURS, "cortex"], seeds=3)

    assert 2 * 2 * 2 * 3 == len(set(found))
    assert ["gpu"] * 12 + ["cpu"] * 12 == [case.service for case in found]


def test_a_cell_is_the_mean_over_the_services() -> None:
    """One figure a load, as in the published tables."""
    (table,) = tables.tables([
        result(OURS, 0.02, 1.0, service="cpu"), result(OURS, 0.04, 2.0, service="emb")
    ])  # fmt: skip

    assert ["autoscaler", "step", "mean miss", "mean cost", "worst miss", "scale events"] == list(
        table.columns
    )
    assert [["**batchedapi**", "3.0 / 1.50", "3.0 %", "1.50", "4 %", "7"]] == [
        list(row) for row in table.rows
    ]


def test_held_out_loads_are_shown_by_service() -> None:
    """They have one shape and differ in their seed; what differs is the service."""
    made = tables.tables([
        result(OURS, 0.02, 1.0, load="bursty-1"), result(OURS, 0.04, 2.0, load="bursty-2")
    ])  # fmt: skip

    assert ["3.0 / 1.50"] == [row[list(made[0].columns).index("cpu")] for row in made[0].rows]


def test_a_case_is_lost_to_one_that_is_better_in_one_and_as_good_in_the_other() -> None:
    """Fewer misses at a higher cost are another choice, not a better one."""
    assert "In 1 of 1 cases" in tables.wins([
        result(OURS, 0.02, 1.5), result("cortex", 0.01, 1.6), result("kpa-0.7", 0.03, 1.2)
    ])  # fmt: skip
    assert "In 0 of 1 cases" in tables.wins([result(OURS, 0.02, 1.5), result("cortex", 0.02, 1.4)])


def test_the_bound_wins_no_case() -> None:
    """It is told what nobody can know."""
    found = [result(OURS, 0.02, 1.5), result(BOUND, 0.0, 1.0), result("cortex", 0.5, 1.0)]

    assert "In 1 of 1 cases" in tables.wins(found)


@pytest.mark.parametrize(("service", "expected"), [("cpu", 1.9), ("emb", 6.6), ("gpu", 26.1)])
def test_the_safe_target_is_what_a_well_used_replica_holds_in_small_batches(
    service: str, expected: float
) -> None:
    """0.8 of the true rate times the latency of a batch of one row."""
    rates = {"cpu": 235.0, "emb": 165.0, "gpu": 2480.0}

    assert expected == round(LoadTested(SERVICES[service], rates[service]).safe_in_flight, 1)


def test_the_program_writes_a_table_and_every_case(tmp_path: Path) -> None:
    """Both are committed: one is read, the other can be computed with."""
    asked = ["--service", "cpu", "--trace", "low", "--controller", f"{OURS},cortex", "--jobs", "1"]

    done = CliRunner().invoke(main, [*asked, "--seeds", "2", "--out", str(tmp_path)])

    assert 0 == done.exit_code, done.output
    assert "**batchedapi**" in (tmp_path / "autoscaling.md").read_text()
    measured = json.loads((tmp_path / "autoscaling.json").read_text())["measured"]
    assert [(OURS, 0), (OURS, 1), ("cortex", 0), ("cortex", 1)] == [
        (case["controller"], case["seed"]) for case in measured["cases"]
    ]


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    """A typing error must not run the whole table."""
    done = CliRunner().invoke(main, ["--trace", "stpe"])

    assert 2 == done.exit_code
    assert "stpe: expected of constant, ramp" in done.output
