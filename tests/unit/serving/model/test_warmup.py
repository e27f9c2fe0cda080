"""The first batches: at real sizes, with the answers checked, before anybody waits."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from batchedapi_serving import Tensor, batched
from batchedapi_serving.errors import LoadError
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.model.loading import method_spec
from batchedapi_serving.model.warmup import warm_up, warm_up_async
from batchedapi_serving.predictor import MethodSpec, SizeOf
from protocols import named, single


class Recording:
    """Answers every batch with the same, and remembers them."""

    def __init__(self, error: str = "", above: int = 0, **facts: bool) -> None:
        self.batches: list[tuple[dict[str, Any], bytes]] = []
        self._error = error
        self.raised = error.removeprefix("raised ")
        self._above = above
        self._facts = {"oom": False, **facts}

    def run(self, meta: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], object]:
        """Fail above so many rows."""
        self.batches.append((meta, payload))
        if self._error and meta["rows"] > self._above:
            return {"kind": "error", "error": self._error, **self._facts}, ()
        return {"kind": "items"}, ()

    async def run_async(
        self, meta: dict[str, Any], payload: bytes
    ) -> tuple[dict[str, Any], object]:
        """Likewise."""
        return self.run(meta, payload)

    @property
    def rows(self) -> list[int]:
        """The rows of each batch."""
        return [meta["rows"] for meta, _ in self.batches]


ITEMS = MethodSpec("predict", batched=True, example={"id": 1})
TENSOR = single(Tensor("FP32", [4]))


def test_every_power_of_two_up_to_the_maximum_is_run() -> None:
    """Compilers and allocators meet every size once before a client does; the maximum included."""
    runner = Recording()

    warm_up(runner, TENSOR, 20)

    assert [1, 2, 4, 8, 16, 20] == runner.rows
    assert all(payload == bytes(16 * meta["rows"]) for meta, payload in runner.batches)
    assert all(meta["method"] == "predict" for meta, _ in runner.batches)


def test_sizes_may_be_given_or_be_none_at_all() -> None:
    """For models that compile a day for each size."""
    given, none = Recording(), Recording()

    warm_up(given, TENSOR, 20, (3, 5))
    warm_up(none, TENSOR, 20, ())

    assert ([3, 5], []) == (given.rows, none.rows)


async def test_the_smallest_batch_is_kept_whatever_ran_first() -> None:
    """As a probe of the process later on, beside batches of clients."""
    sync, later = Recording(), Recording()

    of_sync = warm_up(sync, TENSOR, 32, (32, 1, 8))
    of_async = await warm_up_async(later, TENSOR, 32, (32, 1, 8))

    assert [32, 1, 8] == sync.rows == later.rows
    assert (sync.batches[1], later.batches[1]) == (of_sync.smallest, of_async.smallest)


def test_items_are_warmed_up_with_their_example() -> None:
    """Nobody else knows what they look like."""
    runner = Recording()

    warm_up(runner, ITEMS, 2)

    assert [[{"id": 1}], [{"id": 1}] * 2] == [
        orjson.loads(payload) for _, payload in runner.batches
    ]


def test_variable_dimensions_have_length_one_or_that_of_the_example() -> None:
    """Zeros of a length that the model was never meant for would fail it."""
    inputs = {"ids": Tensor("INT64", ["tokens"]), "mask": Tensor("FP16", ["tokens", 2])}
    short, long = Recording(), Recording()

    warm_up(short, named(inputs, {}), 1)
    warm_up(
        long,
        MethodSpec(
            "predict",
            batched=True,
            inputs=inputs,
            example={"ids": [1, 2, 3], "mask": [[0, 1]] * 3},
        ),
        1,
    )

    assert ({"tokens": [1]}, 8 + 4) == (short.batches[0][0]["lengths"], len(short.batches[0][1]))
    assert ({"tokens": [3]}, 24 + 12) == (long.batches[0][0]["lengths"], len(long.batches[0][1]))


def test_where_rows_have_a_cost_the_largest_batch_is_the_one_that_fits() -> None:
    """Firsts 3.4: max_batch_size counts tokens then. Of shorter rows there are no more."""
    method = MethodSpec(
        "predict", batched=True, example={"text": "ten tokens"}, size_of=SizeOf.length(of="text")
    )
    runner = Recording()

    warm_up(runner, method, 45)

    assert [1, 2, 4, *(1, 4)] == runner.rows


@pytest.mark.parametrize(
    "spec",
    [
        MethodSpec("predict", batched=True),
        MethodSpec("predict", batched=False),
        MethodSpec("predict", batched=False, example=1),
    ],
    ids=str,
)
def test_what_nobody_knows_the_input_of_is_not_warmed_up(spec: MethodSpec) -> None:
    """A guessed input would fail good predictors."""
    runner = Recording()

    warm_up(runner, spec, 8)

    assert [] == runner.batches


@pytest.mark.parametrize(
    ("error", "reason", "facts"),
    [
        ("raised ValueError: 4 rows are too many", "WarmUpFailed", {}),
        ("failed: expected 4 rows", "ShapeProbeFailed", {}),
        ("raised RuntimeError", "OutOfMemory", {"oom": True}),
        ("failed; no batch can succeed", "WarmUpFailed", {"unfit": True}),
    ],
)
def test_a_failure_names_the_size_at_which_it_came(
    error: str, reason: str, facts: dict[str, bool]
) -> None:
    """A model that works alone and not in batches is the one to find before it is ready."""
    with pytest.raises(LoadError) as caught:
        warm_up(Recording(error, above=2, **facts), TENSOR, 8)

    assert reason == caught.value.reason
    assert str(caught.value).startswith(
        f"predict with a warm-up batch of 4 rows (FP32 of shape [4, 4]) {error}"
    )


@pytest.mark.parametrize("hidden", [False, True])
def test_a_device_that_is_lost_meanwhile_is_no_matter_of_shapes(*, hidden: bool) -> None:
    """The cause is told, also where the class raises an exception of its own for it."""

    class Loses:
        def predict(self, _: Any) -> Any:
            lost = RuntimeError(
                "CUDA error: device-side assert triggered\nCompile with `TORCH_...`"
            )
            if hidden:
                raise ValueError("no answer") from lost
            raise lost

    with pytest.raises(LoadError) as caught:
        warm_up(BatchRunner(Loses(), [TENSOR]), TENSOR, 8)

    assert caught.value.reason == "WarmUpFailed"
    assert str(caught.value) == (
        "predict with a warm-up batch of 1 rows (FP32 of shape [1, 4]) raised RuntimeError: CUDA"
        " error: device-side assert triggered; no batch can succeed in this process; the log has"
        " its traceback"
    )


def test_where_requests_are_decoded_a_failure_says_what_the_example_is() -> None:
    """A request, as many take it for, is what the method never sees."""
    method = MethodSpec("predict.batch", batched=True, example={"value": 3})

    model = SimpleNamespace(**{method.name: lambda items: [2 + item for item in items]})

    with pytest.raises(LoadError) as caught:
        warm_up(BatchRunner(model, [method]), method, 8)

    assert "; example= of @batched is a row as this method gets it" in str(caught.value)


def test_an_example_that_is_no_row_says_what_is_wrong_with_it() -> None:
    """It is checked as a client's would be."""
    method = MethodSpec(
        "predict", batched=True, inputs=TENSOR.inputs, single_input=True, example=[1, "x", 3, 4]
    )

    with pytest.raises(LoadError, match=r"is no row of it: example\[1\]: expected FP32, got 'x'"):
        warm_up(Recording(), method, 8)


class Collapses:
    """A model that answers one row whatever it gets, and one that awaits."""

    @batched(inputs=Tensor("FP32", [240, 3]), outputs=Tensor("FP32", [10]), batch_dim=(1, 0))
    def predict(self, x: Any) -> Any:
        """Means over the batch."""
        return np.full((1, 10), x.mean(), "<f4")

    @batched(inputs=Tensor("FP32", [2]))
    async def wait(self, x: Any) -> Any:
        """Awaits the loop it runs on."""
        await asyncio.sleep(0)
        return x


def runner_of(name: str) -> tuple[BatchRunner, MethodSpec]:
    """The real thing."""
    spec = method_spec(Collapses, name)
    assert spec is not None
    return BatchRunner(Collapses(), [spec]), spec


def test_a_shape_probe_says_which_shape_was_given_expected_and_came() -> None:
    """C19: the batch dimension is there on input and output, or the start fails."""
    runner, spec = runner_of("predict")

    with pytest.raises(LoadError) as caught:
        warm_up(runner, spec, 8)

    assert caught.value.reason == "ShapeProbeFailed"
    assert str(caught.value) == (
        "predict with a warm-up batch of 2 rows (FP32 of shape [240, 2, 3]) failed: expected 2"
        " rows, got an answer of shape [1, 10]; the first dimension must have one for each row of"
        " the input"
    )


def test_an_async_method_is_warmed_up_on_a_loop_of_its_own() -> None:
    """Where none runs yet."""
    warm_up(*runner_of("wait"), 4)


async def test_an_async_method_is_warmed_up_on_the_running_loop() -> None:
    """To which a predictor may have tied sessions and locks."""
    recording = Recording()

    await warm_up_async(*runner_of("wait"), 4)
    await warm_up_async(recording, TENSOR, 4)

    assert [1, 2, 4] == recording.rows


class Ticking(Recording):
    """Each batch takes as many seconds as it has rows, and the first of a size ten more."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def run(self, meta: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], object]:
        """Time passes."""
        self.now += meta["rows"] + (10 if meta["rows"] not in self.rows else 0)
        return super().run(meta, payload)


def test_the_second_run_of_each_size_is_timed() -> None:
    """The first compiles and allocates, which no client waits for."""
    runner = Ticking()

    found = warm_up(runner, TENSOR, 4, clock=lambda: runner.now)

    assert [1, 1, 2, 2, 4, 4] == runner.rows
    assert [(1, 1, 1.0, 0), (2, 2, 2.0, 0), (4, 4, 4.0, 0)] == found.timings


def test_sizes_are_told_in_the_unit_of_the_method() -> None:
    """Ten tokens a row."""
    method = MethodSpec(
        "predict", batched=True, example={"text": "ten tokens"}, size_of=SizeOf.length(of="text")
    )
    runner = Ticking()

    found = warm_up(runner, method, 20, clock=lambda: runner.now)

    assert [(1, 10, 1.0, 10), (2, 20, 2.0, 10)] == found.timings[:2]


def test_nothing_is_timed_that_is_not_like_what_clients_send() -> None:
    """Variable dimensions of length 1, without an example; and nothing where nobody asked."""
    inputs = {"ids": Tensor("INT64", ["tokens"])}
    runner = Ticking()

    found = warm_up(runner, named(inputs, {}), 2, clock=lambda: runner.now)

    assert ([], [1, 2]) == (found.timings, runner.rows)
    assert [] == warm_up(Recording(), TENSOR, 4).timings


async def test_an_async_method_is_timed_as_well() -> None:
    """By the clock of its loop's process."""
    runner = Ticking()

    found = await warm_up_async(runner, TENSOR, 2, clock=lambda: runner.now)

    assert [(1, 1, 1.0, 0), (2, 2, 2.0, 0)] == found.timings
    assert found.smallest == runner.batches[0]


PADDED = {"ids": Tensor("INT64", ["tokens"], pad=0), "mask": Tensor("FP32", ["tokens", 2], pad=0)}
TOKENS = {"ids": [1, 2, 3, 4, 5], "mask": [[0, 1]] * 5}


async def test_two_lengths_are_run_where_rows_of_different_lengths_share_batches() -> None:
    """Of one nobody could tell what padding costs; the smallest and the largest batch do."""
    method = MethodSpec("predict", batched=True, inputs=PADDED, example=TOKENS)
    sync, later = Ticking(), Ticking()

    found = warm_up(sync, method, 4, clock=lambda: sync.now)
    of_async = await warm_up_async(later, method, 4, clock=lambda: later.now)

    assert [(1, 5), (2, 5), (4, 5), (1, 2), (4, 2)] == [(t.rows, t.length) for t in found.timings]
    assert found == of_async
    assert found.smallest == sync.batches[0]
    assert {"tokens": [2] * 4} == sync.batches[-1][0]["lengths"]


@pytest.mark.parametrize(
    ("size_of", "example", "lengths"),
    [
        (SizeOf.length(of="text"), {"text": "ten tokens", "in": "en"}, {10, 3}),
        (SizeOf.length(), [7] * 9, {9, 3}),
        (SizeOf.bytes(), ["a question", "and a text"], {27, 13}),
        (SizeOf.length(per=4), "a", {1}),
        (SizeOf.bytes(), {"id": 12}, {9}),
    ],
)
def test_the_beginning_of_an_item_is_shorter(
    size_of: SizeOf, example: Any, lengths: set[int]
) -> None:
    """Of what is measured; no other member is touched, and what cannot be cut is run as it is."""
    runner = Ticking()
    method = MethodSpec("predict", batched=True, example=example, size_of=size_of)

    found = warm_up(runner, method, 64, clock=lambda: runner.now)

    assert lengths == {timing.length for timing in found.timings}


class Strict(Recording):
    """Takes dates alone, whole ones."""

    def run(self, meta: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], object]:
        """Fail at the beginning of one."""
        failed = super().run(meta, payload)
        return ({"kind": "items"}, ()) if b"2026" in payload else failed


DATES = MethodSpec("predict", batched=True, example="2026-11-28", size_of=SizeOf.length())


async def test_a_beginning_that_is_no_row_of_the_method_fails_nothing() -> None:
    """The example is what it is known to take."""
    sync, later = Strict("raised ValueError"), Strict("raised ValueError")

    assert warm_up(sync, DATES, 10).smallest == sync.batches[0]
    assert (await warm_up_async(later, DATES, 10)).smallest == later.batches[0]
    assert [1, 1] == sync.rows == later.rows


@pytest.mark.parametrize(
    ("reason", "facts"), [("WarmUpFailed", {"unfit": True}), ("OutOfMemory", {"oom": True})]
)
async def test_a_beginning_that_costs_the_device_or_its_memory_fails_the_start(
    reason: str, facts: dict[str, bool]
) -> None:
    """Neither is a matter of what the row says: the batches of clients would fail likewise."""
    for_sync = Strict("raised RuntimeError", **facts)

    with pytest.raises(LoadError) as of_sync:
        warm_up(for_sync, DATES, 10)
    with pytest.raises(LoadError) as of_async:
        await warm_up_async(Strict("raised RuntimeError", **facts), DATES, 10)

    assert reason == of_sync.value.reason == of_async.value.reason
