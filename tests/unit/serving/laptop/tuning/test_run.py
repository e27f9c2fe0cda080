"""The stages of a tuning, on replicas that serve what their curve says."""

import contextlib
import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest

from batchedapi_core.manifest import UnknownFields
from batchedapi_core.simulation import tuning
from batchedapi_core.simulation.tuning import Candidate, Curve, Forecast, Task
from batchedapi_serving.cli.documents import load_documents
from batchedapi_serving.laptop.tuning import measuring, report, run
from batchedapi_serving.laptop.tuning.load import LoadOutcome
from batchedapi_serving.laptop.tuning.measuring import Measured, Rows, Step
from batchedapi_serving.laptop.tuning.replica import Changes, PageCounters, TuneSubject
from batchedapi_serving.laptop.tuning.run import WITHOUT, TuneOptions, Tuner

CURVE = Curve((1, 2, 4, 8), (0.020, 0.021, 0.023, 0.027))
MANIFEST = """
apiVersion: batchedapi.dev/v1alpha1
kind: BatchedAPI
metadata: {name: sleepy}
spec:
  predictor: {path: "model:Sleepy"}
  serverSideBatching: {maxBatchSize: 8}
"""


HELD: dict[int, list[float]] = {}
"""Requests/s that ladders hold, one after the other, by maxBatchSize; else what the curve says."""


class Climb(measuring.Climb):
    """A ladder on a replica that holds what full batches serve, and nothing above."""

    def __init__(self, replica: Any, rows: Rows, **settings: Any) -> None:
        super().__init__(replica, rows, **settings)
        self._size: int = replica.size
        held = HELD.get(self._size)
        self._most = held.pop(0) if held else CURVE.most(self._size)

    def load(self, rate: float) -> Step:
        """Without a request."""
        held, count = rate <= self._most, round(rate)
        took = [0.05 if held else 0.5] * count
        answers = LoadOutcome(rate, 1.0, 0.1, sent=count, latencies=took, lags=[0.0] * count)
        return Step(answers, counters(self._size), 1.0)


def counters(size: int) -> PageCounters:
    """Counters of a replica with that maxBatchSize."""
    return PageCounters(0, 0, 0, 0.0, 0, 0.0, 0.0, float(size), one_by_one=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Changes]:
    """The changes of each replica; nothing is started, simulated or asked."""
    found: list[Changes] = []

    @contextlib.contextmanager
    def running(_subject: TuneSubject, changes: Changes) -> Iterator[Any]:
        found.append(changes)
        size = changes.get("serverSideBatching", {}).get("maxBatchSize", 8)
        yield SimpleNamespace(
            size=size, endpoint="/sleepy", get=lambda _path: {}, counters=lambda: counters(size)
        )

    def forecast(_task: Task, curve: Curve, setting: Candidate) -> Forecast:
        return Forecast(setting, 0.9 * curve.most(setting.max_batch_size), 0.04)

    rows = Rows("/sleepy", [{"id": 1}], batched=True, source="the example")
    monkeypatch.setattr(run, "running", running)
    monkeypatch.setattr(run, "rows_for", lambda *_: rows)
    monkeypatch.setattr(
        run, "measure_curve", lambda *_, **__: Measured(1, 1, CURVE, size_of_row=1.0, outside=0.0)
    )
    monkeypatch.setattr(run, "Climb", Climb)
    monkeypatch.setattr(tuning, "forecast", forecast)
    monkeypatch.setattr(tuning, "explore", lambda _task: iter(()))
    monkeypatch.setattr(tuning, "expected_at", lambda *_: SimpleNamespace(p99=0.04))
    return found


def test_the_most_that_one_replica_serves_without_batching_is_measured_and_told(
    started: list[Changes], tmp_path: Path
) -> None:
    """C21: batches of one row on a ladder of loads, as the first figure to beat."""
    file = tmp_path / "batchedapi.yaml"
    file.write_text(MANIFEST)
    api = load_documents(file, None, UnknownFields.REFUSE).api
    tuner = Tuner(TuneSubject(api, {}, tmp_path), (1, 1), TuneOptions(0.1), lambda *_: None)

    tuner.run()

    (alone,) = [one for one in tuner.known.runs if one.label == WITHOUT]
    assert {"serverSideBatching": {"maxBatchSize": 1, "batchInterval": "0s"}} in started
    assert pytest.approx(50.0, rel=0.07) == alone.ladder.goodput
    assert 50.0 >= alone.ladder.goodput
    assert alone.ladder.bounded
    assert "without batching" in report.render(tuner.known)


@pytest.mark.parametrize(
    ("held", "best", "ladders"),
    [
        pytest.param(
            {8: [100, 100], 12: [120], 16: [150, 150]}, 16, {8: 2, 1: 1, 12: 1, 16: 2},
            id="the best is run twice",
        ),
        pytest.param(
            {8: [80, 110], 12: [90], 16: [110, 80]}, 8, {8: 2, 1: 1, 12: 1, 16: 2},
            id="the manifest had no luck, and the best had all",
        ),
        pytest.param(
            {8: [70, 70], 12: [90, 90], 16: [110, 60]}, 12, {8: 2, 1: 1, 12: 2, 16: 2},
            id="another has its turn",
        ),
        pytest.param(
            {8: [150], 12: [120], 16: [130]}, 8, {8: 1, 1: 1, 12: 1, 16: 1},
            id="nothing is to take the manifest's place",
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("started")
def test_what_takes_the_manifests_place_has_held_more_on_two_ladders(
    held: dict[int, list[float]], best: int, ladders: dict[int, int],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The best of some ladders is the luckiest, too."""
    file = tmp_path / "batchedapi.yaml"
    file.write_text(MANIFEST)
    api = load_documents(file, None, UnknownFields.REFUSE).api
    few = [Forecast(Candidate(size, 0.0), CURVE.most(size), 0.04) for size in (12, 16)]
    monkeypatch.setattr(tuning, "best_few", lambda *_: few)
    monkeypatch.setattr(sys.modules[__name__], "HELD", copy.deepcopy(held))
    tuner = Tuner(TuneSubject(api, {}, tmp_path), (1, 1), TuneOptions(0.1), lambda *_: None)

    tuner.run()

    runs = {one.setting.max_batch_size: one for one in tuner.known.runs}
    assert ladders == {size: len(one.ladders) for size, one in runs.items()}
    assert runs[best] is tuner.known.best_run
    assert pytest.approx(mean(held[best]), rel=0.06) == runs[best].goodput


@pytest.mark.parametrize("expected", [100.0, 300.0, 600.0])
def test_a_ladder_sends_no_load_above_one_that_was_not_held(expected: float) -> None:
    """A model that holds less than expected is overloaded as it is, for seconds each time."""
    held = CURVE.most(1)
    replica: Any = SimpleNamespace(size=1)
    rows = Rows("/sleepy", [{"id": 1}], batched=True, source="the example")
    climb = Climb(replica, rows, target=0.1, quantile=0.99, seconds=1.0)
    told: list[str] = []

    climb.climb(expected, told.append)

    sent = [float(text.split()[0].replace(",", "")) for text in told]
    missed = [rate for rate in sent if rate > held]
    assert sorted(missed, reverse=True) == missed
    assert len(set(missed)) == len(missed)
    assert pytest.approx(held, rel=0.06) == climb.ladder.goodput


class ColdClimb(Climb):
    """Its replica's first calls take longer than any later one."""

    cold = True

    def load(self, rate: float) -> Step:
        """The first is not held, whatever it is."""
        step = super().load(rate if not self.cold else 1000.0 * rate)
        self.cold = False
        return step


def test_a_model_whose_first_calls_are_slow_is_judged_by_the_later_ones() -> None:
    """Else a ladder ends below its first load: two processes of torch are not warm for seconds."""
    replica: Any = SimpleNamespace(size=8)
    rows = Rows("/sleepy", [{"id": 1}], batched=True, source="the example")
    climb = ColdClimb(replica, rows, target=0.1, quantile=0.99, seconds=1.0)

    climb.climb(CURVE.most(8), lambda _text: None)

    assert pytest.approx(CURVE.most(8), rel=0.06) == climb.ladder.goodput
