"""The first batches: at real sizes, with the answers checked, before anybody waits."""

from typing import Any

import orjson
import pytest

from batchedapi_serving import Tensor
from batchedapi_serving.errors import LoadError
from batchedapi_serving.predictor.api import MethodSpec
from batchedapi_serving.predictor.warmup import warm_up


class Recording:
    """Answers every batch with the same, and remembers them."""

    def __init__(self, error: str = "", above: int = 0) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self._error = error
        self._above = above

    def run(self, rows: int, payload: bytes) -> tuple[dict[str, Any], object]:
        """Fail above so many rows."""
        self.batches.append((rows, payload))
        if self._error and rows > self._above:
            return {"kind": "error", "error": self._error}, ()
        return {"kind": "items"}, ()


def method(
    inputs: Tensor | None = None, example: Any = None, *, batched: bool = True
) -> MethodSpec:
    """A method that declares so much."""
    return MethodSpec("predict", batched, inputs, None, 32, example)


def test_every_power_of_two_up_to_the_maximum_is_run() -> None:
    """Compilers and allocators meet every size once before a client does; the maximum included."""
    runner = Recording()

    warm_up(runner, method(Tensor("FP32", [4])), 20)

    assert [1, 2, 4, 8, 16, 20] == [rows for rows, _ in runner.batches]
    assert all(payload == bytes(16 * rows) for rows, payload in runner.batches)


def test_items_are_warmed_up_with_their_example() -> None:
    """Nobody else knows what they look like."""
    runner = Recording()

    warm_up(runner, method(example={"id": 1}), 2)

    assert [(1, [{"id": 1}]), (2, [{"id": 1}] * 2)] == [
        (rows, orjson.loads(payload)) for rows, payload in runner.batches
    ]


@pytest.mark.parametrize(
    "spec", [method(), method(batched=False), method(example=1, batched=False)], ids=str
)
def test_what_nobody_knows_the_input_of_is_not_warmed_up(spec: MethodSpec) -> None:
    """A guessed input would fail good predictors."""
    runner = Recording()

    warm_up(runner, spec, 8)

    assert [] == runner.batches


@pytest.mark.parametrize(
    ("error", "reason"),
    [("raised ValueError", "WarmUpFailed"), ("failed: expected 2 rows", "ShapeProbeFailed")],
)
def test_a_failure_names_the_size_at_which_it_came(error: str, reason: str) -> None:
    """A model that works alone and not in batches is the one to find before it is ready."""
    with pytest.raises(
        LoadError, match=f"predict with a warm-up batch of 4 rows {error}"
    ) as caught:
        warm_up(Recording(error, above=2), method(Tensor("FP32", [1])), 8)

    assert reason == caught.value.reason
