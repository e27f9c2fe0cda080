"""A model beside the revision before: which batches are run, and what counts against it."""

import dataclasses
import json
import socket
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from batchedapi_core.comparison import Allowed, Comparison, ComparisonReason
from batchedapi_serving.errors import LoadError
from batchedapi_serving.ipc import Frame
from batchedapi_serving.model import compared as module
from batchedapi_serving.model.compared import (
    MOST_RUNS,
    NotComparedError,
    compare,
    compared,
    failed_rows,
    recent_of_peer,
)
from batchedapi_serving.predictor import MethodSpec, SizeOf, Tensor
from batchedapi_serving.settings import CompareSettings
from protocols import single

BEFORE = dataclasses.replace(single(Tensor("FP32", [1])), max_batch_size=8)
ALLOWED = Allowed(slower=0.3, differ=0.0)


def tensors(values: Sequence[float]) -> tuple[dict[str, Any], bytes]:
    """The answer with those values."""
    wrong = [row for row, value in enumerate(values) if not np.isfinite(value)]
    outputs = [["output", "<f4", [len(values), 1]]]
    answer = {"kind": "tensors", "outputs": outputs, "not_finite": wrong}
    return answer, np.array(values, "<f4").tobytes()


def kept(rows: Sequence[float], seconds: float = 0.01) -> Frame:
    """A batch whose answers are its rows."""
    answer, answers = tensors(rows)
    given = np.array(rows, "<f4").tobytes()
    batch = {"method": "predict", "rows": len(rows), "size": len(rows)}
    head = {"batch": batch, "rows": len(given), "answer": answer, "seconds": seconds}
    return Frame(head, given + answers)


class Model:
    """Answers rows with what a test says, in virtual seconds."""

    def __init__(self, answer: Any = None, seconds: float = 0.01, *, compiles: float = 0.0) -> None:
        """`compiles`: seconds more for the first batch of a shape."""
        self._answer = answer or tensors
        self._seconds, self._compiles = seconds, compiles
        self._seen: set[int] = set()
        self.now, self.runs = 0.0, 0

    def run(
        self, method: MethodSpec, meta: Any, payload: bytes
    ) -> tuple[dict[str, Any], list[bytes], float]:
        """See compared.Run."""
        assert method.name == meta["method"]
        new = len(payload) not in self._seen
        seconds = self._seconds + self._compiles * new
        self._seen.add(len(payload))
        self.now += seconds
        self.runs += 1
        answer, payload = self._answer(list(np.frombuffer(payload, "<f4")))
        return answer, [payload], seconds

    def against(
        self,
        *frames: Frame,
        after: MethodSpec = BEFORE,
        before: MethodSpec = BEFORE,
        seconds: float = 1.0,
    ) -> Comparison:
        """The outcome beside those batches."""
        return compared(after, before, frames, self.run, ALLOWED, seconds, lambda: self.now)


FOUR = [kept([1.0, 2.0, 3.0])] * 4


def test_batches_are_run_at_their_sizes_and_again_while_there_is_time() -> None:
    """One that takes longer than there is time for is run at least once."""
    quick, slow = Model(), Model(seconds=0.6)

    assert ComparisonReason.COMPARED == quick.against(*FOUR).reason
    assert 4 * MOST_RUNS == quick.runs
    slow.against(*FOUR)
    assert 2 == slow.runs


def test_rows_that_fail_are_looked_for_in_all_batches_before_most_are_run_again() -> None:
    """Few rows fail for each that shows it: of batches of one row, as many as there is time for."""
    batches = [kept([float(row)], seconds=0.01) for row in range(100)]

    def failing(at: int) -> Comparison:
        rows = Model(lambda rows: tensors([np.nan if x == at else x for x in rows]))
        return rows.against(*batches, seconds=1.3)

    assert {ComparisonReason.MORE_ERRORS} == {failing(at).reason for at in range(100)}
    slower = Model(seconds=0.02).against(*batches, seconds=1.3)
    assert ComparisonReason.SLOWER == slower.reason  # though the time is over before all have run


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda rows: tensors([x * 1.00001 for x in rows]), ComparisonReason.COMPARED),
        (lambda rows: tensors([x + 1.0 for x in rows]), ComparisonReason.ANSWERS_DIFFER),
        (lambda rows: tensors([*rows[:-1], np.nan]), ComparisonReason.MORE_ERRORS),
        (lambda _: ({"kind": "error", "error": "raised"}, b""), ComparisonReason.MORE_ERRORS),
    ],
)
def test_rounding_is_no_difference_and_nan_is_an_error(
    answer: Any, reason: ComparisonReason
) -> None:
    """By the rules of `batchedapi check`, and as clients get them."""
    assert reason == Model(answer).against(*FOUR).reason


def test_slower_batches_are_found() -> None:
    """At the sizes they rode in."""
    assert ComparisonReason.SLOWER == Model(seconds=0.02).against(*FOUR).reason


def test_a_model_that_compiles_for_each_shape_is_not_slower() -> None:
    """However little time there is: it would be held for ever."""
    shapes = [kept([1.0] * rows) for rows in range(1, 9)]

    found = Model(compiles=0.3).against(*shapes, seconds=2.0)

    assert ComparisonReason.COMPARED == found.reason
    assert "t(n) is not known" not in found.sentence


def test_a_batch_that_is_larger_than_batches_are_now_is_not_run() -> None:
    """It may need more memory than the new revision has; its size is in the method's unit."""
    unit = SizeOf.bytes(per=4)
    before = dataclasses.replace(BEFORE, size_of=unit)
    large, small = kept([1.0, 2.0]), kept([1.0, 2.0])
    large.meta["batch"]["size"], small.meta["batch"]["size"] = 9, 8
    model, told = Model(), "no recent batch is as small"

    assert told in model.against(large, after=before, before=before).sentence
    assert 0 == model.runs
    assert told not in model.against(large, small, after=before, before=before).sentence
    assert MOST_RUNS == model.runs
    assert "or counts them otherwise" in model.against(small, after=before).sentence
    assert MOST_RUNS == model.runs


def test_what_failed_before_counts_against_nobody() -> None:
    """Neither its errors, nor that it is answered now."""
    failed = kept([1.0, 2.0, 3.0])
    failed.meta["answer"]["not_finite"] = [0]

    both = Model(lambda rows: tensors([np.nan, *rows[1:]])).against(*[failed] * 4)
    mended = Model().against(*[failed] * 4)

    assert {ComparisonReason.COMPARED} == {both.reason, mended.reason}


@pytest.mark.parametrize(
    ("change", "answer", "words", "runs"),
    [
        ({"outputs": {"output": Tensor("FP64", [1])}}, lambda _: tensors([0.0] * 3),
         "its outputs are declared otherwise", 16),
        ({"inputs": {"input": Tensor("FP32", [2])}}, tensors, "takes other rows", 0),
        ({"batched": False}, tensors, "takes other rows", 0),
        ({"max_batch_size": 2}, tensors, "no recent batch is as small", 0),
    ],
)  # fmt: skip
def test_a_changed_signature_is_said_and_only_what_fits_is_run(
    change: dict[str, Any], answer: Any, words: str, runs: int
) -> None:
    """Other outputs are compared by errors and times alone."""
    model = Model(answer)

    found = model.against(*FOUR, after=dataclasses.replace(BEFORE, **change))

    assert (ComparisonReason.COMPARED, True, runs) == (
        found.reason, words in found.sentence, model.runs,
    )  # fmt: skip


def test_a_batch_after_which_nothing_can_succeed_ends_the_start() -> None:
    """The process could serve nobody, whatever else was compared."""
    unfit = {"kind": "error", "error": "raised Lost", "unfit": True}

    with pytest.raises(LoadError, match="a recent batch of 3 rows raised Lost") as raised:
        Model(lambda _: (unfit, b"")).against(*FOUR)
    assert "MoreErrors" == raised.value.reason


def test_nothing_of_a_row_or_an_answer_is_told() -> None:
    """Sentences go to the log, the pod's status and the API's."""
    found = Model(lambda rows: tensors([4321.0] * len(rows))).against(*[kept([1234.0])] * 4)

    assert ComparisonReason.ANSWERS_DIFFER == found.reason
    assert not any(secret in json.dumps(found.sentence) for secret in ("4321", "1234"))


def test_only_methods_with_batches_share_the_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Others need none of it; of one whose batches are too large it is said."""
    others = [MethodSpec(name, batched=name == "large") for name in ("large", "call", "rare")]
    methods = [BEFORE, *others]
    told = [one.to_json() for one in methods]
    head = {"revision": "old", "methods": told, "too_large": ["large"]}
    monkeypatch.setattr(module, "recent_of_peer", lambda *_: (head, FOUR))
    model = Model(seconds=0.45)
    settings = CompareSettings("peers", 1, "token", "new", slower=100.0, differ=0.0)
    caplog.set_level("INFO")

    compare(settings, methods, model.run, lambda: model.now)

    assert 5 == model.runs  # in 2 s
    said = [getattr(one, "reason", "") for one in caplog.records]
    assert ["", "large: its batches are too large to keep"] == said


def test_items_fail_by_their_status() -> None:
    """As their clients see it."""
    answer = {"kind": "items", "items": [[200, "json", 1], [422, "json", 1], [500, "json", 1]]}

    assert {1, 2} == failed_rows(answer, 3)


def test_a_resolver_that_does_not_answer_holds_no_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own patience may be longer than `startupTimeout`, and no pod would ever be ready."""
    over = threading.Event()

    def silent(*_: Any, **__: Any) -> list[Any]:
        over.wait(20)
        raise socket.gaierror("Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    monkeypatch.setattr(module, "ASK_ALL_SECONDS", 0.01)
    settings = CompareSettings("peers", 1, "token", "new", slower=0.3, differ=0.0)

    with pytest.raises(NotComparedError, match=r"no ready pod of peers: no answer .* in 0.01 s"):
        recent_of_peer(settings, [])
    over.set()


def test_a_resolver_may_take_as_long_as_all_pods_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node it does, and a worse revision that was not compared would get rows."""

    def slow(*_: Any, **__: Any) -> list[Any]:
        threading.Event().wait(0.05)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(module, "ASK_SECONDS", 0.001)
    monkeypatch.setattr(module, "ASK_ALL_SECONDS", 60.0)
    settings = CompareSettings("peers", 1, "token", "new", slower=0.3, differ=0.0)

    with pytest.raises(NotComparedError, match="every ready pod is of this revision"):
        recent_of_peer(settings, [])
