"""The report of a tuning: the table, the patch, the JSON and the exit code."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from batchedapi_core.manifest import UnknownFields, with_changes
from batchedapi_core.simulation.tuning import Candidate, Curve, Forecast
from batchedapi_serving.cli import tune
from batchedapi_serving.cli.documents import load_documents
from batchedapi_serving.cli.tune import tune_command
from batchedapi_serving.laptop.tuning import report
from batchedapi_serving.laptop.tuning.load import LoadOutcome
from batchedapi_serving.laptop.tuning.measuring import Ladder, Measured, Step
from batchedapi_serving.laptop.tuning.replica import PageCounters
from batchedapi_serving.laptop.tuning.run import (
    AS_WRITTEN,
    FOUND,
    WITHOUT,
    Known,
    SettingRun,
    TuneOptions,
    Tuner,
)
from pages import blocks, commands

OWN = Candidate(8, 0.01)
BETTER = Candidate(32, 0.02, 2)
MANIFEST = """
apiVersion: batchedapi.dev/v1alpha1
kind: BatchedAPI
metadata: {name: sleepy}
spec:
  predictor: {path: "model:Sleepy", processesPerReplica: 1}
  serverSideBatching: {maxBatchSize: 8, batchInterval: 10ms}
"""


def step(rate: int, *, held: bool = True, lag: float = 0.0) -> Step:
    """A second of so many requests/s; not held: all of them late."""
    answers = LoadOutcome(
        rate, 1.0, 0.1, sent=rate, latencies=[0.05 if held else 0.5] * rate, lags=[lag] * rate
    )
    counted = PageCounters(rate / 4, rate, rate, 0.5, rate, 0.2, 0.6, 8.0, one_by_one=False)
    return Step(answers, counted, 1.0)


def run(label: str, setting: Candidate, *steps: Step) -> SettingRun:
    """One whose goodput was expected to be 90 requests/s, with p99 of 40 ms."""
    return SettingRun(label, Forecast(setting, 90.0, 0.03), (Ladder(steps, 0.99),), 0.04)


def known(*runs: SettingRun) -> Known:
    """A tuning that has run these, from a manifest with OWN."""
    found = Known("sleepy", TuneOptions(0.1), 0.99, "random numbers", OWN, 8)
    found.measured.append(Measured(1, 1, Curve((1, 2), (0.01, 0.011)), 1.0, 0.001))
    found.runs += runs
    return found


WORSE = run(AS_WRITTEN, OWN, step(80), step(100), step(120, held=False))
FOUND_BETTER = run(FOUND, BETTER, step(160), step(200), step(240, held=False))


def test_the_manifest_with_the_patch_is_the_setting_that_was_found(tmp_path: Path) -> None:
    """The manifest after `kubectl patch` has the setting that was measured."""
    file = tmp_path / "batchedapi.yaml"
    file.write_text(MANIFEST)
    api = load_documents(file, None, UnknownFields.REFUSE).api

    patch = yaml.safe_load(report.patch(known(WORSE, FOUND_BETTER)))
    spec = with_changes(api, patch["spec"]).spec

    assert ("BatchedAPI", {"name": "sleepy"}) == (patch["kind"], patch["metadata"])
    assert 32 == spec.server_side_batching.max_batch_size
    assert 0.02 == spec.server_side_batching.batch_interval
    assert 2 == spec.predictor.processes_per_replica
    assert "model:Sleepy" == spec.predictor.path


def test_the_cpus_of_the_replica_are_told() -> None:
    """Figures say nothing without them."""
    one, two, any_ = known(WORSE), known(WORSE), known(WORSE)
    one.cpus, one.asked, two.cpus, two.asked, any_.asked = 1, "200m", 2, "2500m", "8"

    assert "runs on 1 CPU, as spec.compute asks for 200m, and the" in report.render(one)
    assert "runs on 2 CPUs, as spec.compute asks for 2500m, and the" in report.render(two)
    assert "spec.compute asks for 8 CPUs: the replica and the" in report.render(any_)
    assert (1, None) == (report.as_object(one)["cpus"], report.as_object(any_)["cpus"])


def test_within_5_percent_nothing_is_to_be_changed() -> None:
    """A rollout for what the next run takes back is not worth it."""
    alike = run(FOUND, BETTER, step(104), step(120, held=False))

    assert "" == report.patch(known(WORSE, alike))
    assert {} == report.better(known(WORSE, alike))
    assert "within 5% of the best" in report.render(known(WORSE, alike))


def test_a_row_has_what_was_expected_and_what_was_measured() -> None:
    """Side by side, so that one sees whether the simulation can be trusted."""
    text = report.render(known(WORSE, FOUND_BETTER))

    (row,) = [line for line in text.splitlines() if line.startswith(FOUND)]
    expected = ["found", "32", "20ms", "2", "1", "90", "200", "40", "50", "<-", "best"]
    assert expected == row.split()
    assert "batchInterval 20ms, processesPerReplica 2, 200 requests/s within 100ms" in text
    assert "instead of 100." in text


def test_of_two_ladders_the_mean_counts_and_the_second_is_shown() -> None:
    """Nothing was chosen by the second; one figure in two places would not do without a word."""
    second = run(FOUND, BETTER, step(140), step(180), step(220, held=False))
    both = replace(FOUND_BETTER, ladders=(*FOUND_BETTER.ladders, *second.ladders))

    text = report.render(known(WORSE, both))
    of_best = json.loads(report.as_json(known(WORSE, both)))["best"]

    (row,) = [line for line in text.splitlines() if line.startswith(FOUND)]
    assert "190" == row.split()[6]
    assert "190 requests/s within 100ms instead of 100." in text
    assert "the best and the manifest's own ran twice" in text
    assert "ran twice" not in report.render(known(WORSE, FOUND_BETTER))
    assert (190.0, [200.0, 180.0], 140.0) == tuple(
        of_best[name] for name in ("goodput", "goodputs", "p99_at")
    )


def test_a_generator_that_was_late_is_said_in_the_row_and_the_sentence() -> None:
    """Its lateness is in the p99, and what it did not send the replica may hold."""
    late = run(FOUND, BETTER, step(160, lag=0.02), step(200, lag=0.02),
               step(240, held=False, lag=0.02))  # fmt: skip

    text = report.render(known(WORSE, late))

    (row,) = [line for line in text.splitlines() if line.startswith(FOUND)]
    assert row.endswith(" ~ > <- best")
    assert "~ the generator was late at that load" in text
    assert "at least 200 requests/s" in text
    assert "~" not in report.render(known(WORSE, FOUND_BETTER))


def test_the_lowest_load_that_was_not_held_says_what_ended_a_ladder() -> None:
    """A load far above does not bound what is between."""
    far = step(400, held=False)

    assert Ladder((step(100), far), 0.99).bounded
    assert not Ladder((step(100), step(120, held=False, lag=0.02), far), 0.99).bounded
    assert not Ladder((step(100),), 0.99).bounded


def test_json_has_runs_best_and_change_and_null_where_nothing_was_answered() -> None:
    """NaN is no JSON, and programs read it."""
    silent = run(FOUND, BETTER, step(10, held=False))

    found = json.loads(report.as_json(known(WORSE, FOUND_BETTER, silent)))

    assert [100.0, 200.0, 0.0] == [one["goodput"] for one in found["runs"]]
    assert [80.0, 160.0, None] == [one["p99_at"] for one in found["runs"]]
    assert [False, False, None] == [one["p99_generator_late"] for one in found["runs"]]
    assert (32, 0.02, 2) == tuple(
        found["best"][name] for name in ("max_batch_size", "batch_interval", "processes")
    )
    assert {
        "serverSideBatching": {"maxBatchSize": 32, "batchInterval": "20ms"},
        "predictor": {"processesPerReplica": 2},
    } == found["change"]


NOT_BOUNDED = run(AS_WRITTEN, OWN, step(100), step(120, held=False, lag=0.02))
NOTHING_HELD = run(AS_WRITTEN, OWN, step(100, held=False))


@pytest.mark.parametrize(
    ("runs", "interrupted", "code"),
    [
        pytest.param((WORSE,), False, 0, id="the manifest is the best"),
        pytest.param((WORSE, FOUND_BETTER), False, 1, id="another is better"),
        pytest.param((NOTHING_HELD,), False, 1, id="none meets the target"),
        pytest.param((NOT_BOUNDED,), False, 2, id="the machine was too busy"),
        pytest.param((WORSE, FOUND_BETTER), True, 130, id="Ctrl-C"),
    ],
)
def test_the_exit_code_is_for_ci(
    runs: tuple[SettingRun, ...],
    interrupted: bool,  # noqa: FBT001 - a parameter of pytest
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the patch is in the file, whatever the code."""
    file, out = tmp_path / "batchedapi.yaml", tmp_path / "patch.yaml"
    file.write_text(MANIFEST)

    def tuned(tuner: Tuner) -> None:
        tuner.known = known(*runs)
        tuner.known.interrupted = interrupted

    monkeypatch.setattr(Tuner, "run", tuned)
    done = CliRunner().invoke(tune_command, ["-f", str(file), "--slo", "100ms", "--out", str(out)])

    assert code == done.exit_code, done.output
    assert report.patch(known(*runs)) == out.read_text()
    assert (FOUND_BETTER in runs) == bool(out.read_text())
    assert 130 == tune.INTERRUPTED


def kind(line: str) -> str:
    """A printed line without figures, bars and widths of columns; one is shortened in the guide."""
    whole = re.sub(r"(leaves time) .*", r"\1 ...", re.sub(r" #+$", " bar", line))
    return " ".join(re.sub(r"\d[\d,.]*", "0", whole).split())


def test_the_guide_shows_what_is_printed() -> None:
    """The figures are of a real run; each line is of a kind that is written today."""
    shown = next(
        below
        for block in blocks("docs/guides/tuning.md")
        for command, below in commands(block.text if block.language == "console" else "")
        if " tune " in command and below
    )
    held = (step(160), step(200), step(240, held=False))
    found = known(
        replace(WORSE, ladders=2 * WORSE.ladders),
        run(WITHOUT, Candidate(1, 0.0), step(40), step(60, held=False)),
        run(FOUND, Candidate(32, 0.01), *held),
        run(FOUND, Candidate(64, 0.01), step(150), step(180, held=False)),
    )
    found.source, found.rule = "the method's example", (8, 0.087)
    found.cpus, found.asked = 1, "100m"

    printed = f"{report.render(found)}\n{report.patch(found)}"

    assert {kind(line) for line in shown.splitlines()} == {
        kind(line) for line in printed.splitlines()
    }
