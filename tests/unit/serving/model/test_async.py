"""Async methods: awaited on one loop, with the same checks as others."""

import asyncio
import inspect
from typing import Any

import numpy as np
import orjson
import pytest

from batchedapi_serving import Context, ItemError, SubmitError, Tensor
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.predictor import MethodSpec
from protocols import single

META = {"method": "predict", "rows": 2}
ITEMS = MethodSpec("predict", batched=True, is_async=True)


class Awaiting:
    """A predictor whose method awaits what it was made with."""

    def __init__(self, behaviour: Any) -> None:
        self._behaviour = behaviour

    async def predict(self, *arguments: Any) -> Any:
        """Await it."""
        await asyncio.sleep(0)
        answer = self._behaviour(*arguments)
        return await answer if inspect.isawaitable(answer) else answer


async def run(behaviour: Any, method: MethodSpec = ITEMS, payload: bytes = b"[1,2]") -> Any:
    """One batch of two rows."""
    return await BatchRunner(Awaiting(behaviour), [method]).run_async(META, payload)


async def test_an_async_method_answers_a_batch() -> None:
    """N10: of items, or of tensors."""
    meta, bodies = await run(lambda items: [item + 1 for item in items])
    _, (data,) = await run(lambda x: x * 2, single(Tensor("FP32", [])), bytes(4) + b"\0\0\x80?")

    assert [2, 3] == [orjson.loads(body) for body in bodies]
    assert [0, 2] == np.frombuffer(data, "<f4").tolist()
    assert "items" == meta["kind"]


async def test_batches_wait_side_by_side() -> None:
    """N09, N10: one awaits while another runs."""
    both = asyncio.Barrier(2)

    async def meet(items: list[Any]) -> list[Any]:
        await both.wait()
        return items

    async with asyncio.timeout(5):
        answers = await asyncio.gather(run(meet), run(meet))

    assert ["items", "items"] == [meta["kind"] for meta, _ in answers]


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (lambda _: 1 / 0, "raised ZeroDivisionError"),
        (lambda items: items[:1], "failed: expected 2 answers, got 1"),
        (lambda items: (item for item in items), "failed: predict yields its answer"),
    ],
)
async def test_mistakes_are_answered_as_those_of_others(behaviour: Any, error: str) -> None:
    """S4: and never raised."""
    meta, _ = await run(behaviour)

    assert "error" == meta["kind"]
    assert meta["error"].startswith(error)


async def test_a_cancelled_dependency_fails_the_batch_and_not_the_loop() -> None:
    """A library that cancels its own request says CancelledError too."""

    async def cancelled(_: object) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    meta, _ = await run(cancelled)

    assert ("error", "raised CancelledError") == (meta["kind"], meta["error"])


async def test_a_batch_that_is_cancelled_is_cancelled() -> None:
    """Its client is gone."""
    forever = asyncio.ensure_future(run(lambda _: asyncio.sleep(3600)))
    await asyncio.sleep(0.01)

    forever.cancel()

    with pytest.raises(asyncio.CancelledError):
        await forever


async def test_a_plain_function_is_fine_where_an_async_one_was_expected() -> None:
    """A decorator that awaits inside."""

    class Plain:
        def predict(self, items: list[Any]) -> list[Any]:
            return items

    meta, _ = await BatchRunner(Plain(), [ITEMS]).run_async(META, b"[1,2]")

    assert "items" == meta["kind"]


class Embedding:
    """The queue of another method."""

    async def submit(self, method: str, rows: Any) -> Any:
        """Two methods are served."""
        match method:
            case "embed":
                return [row * 10 for row in rows]
            case _:
                raise SubmitError(429, "late")


async def test_methods_are_composed_by_submitting_rows() -> None:
    """N28: several awaited at once."""
    context = Context("api", 0, 1, 1, "cpu", submitter=Embedding())

    async def both(items: list[int]) -> list[Any]:
        first, second = await asyncio.gather(
            context.submit("embed", items), context.submit("embed", items[::-1])
        )
        return [*zip(first, second, strict=True)]

    _, bodies = await run(both)

    assert [[10, 20], [20, 10]] == [orjson.loads(body) for body in bodies]


async def test_rows_that_could_not_be_submitted_are_the_answer_of_who_needed_them() -> None:
    """Not caught, 429 stays 429."""
    context = Context("api", 0, 1, 1, "cpu", submitter=Embedding())
    call = MethodSpec("predict", batched=False, is_async=True)
    about = b'{"json":true,"text":false,"query":"","headers":[]}'
    payload = len(about).to_bytes(4, "little") + about + b"1"

    async def ask(payload: Any, *_: Any) -> Any:
        return await context.submit("rank", [payload])

    runner = BatchRunner(Awaiting(ask), [call])
    meta, (body,) = await runner.run_async({"method": "predict", "rows": 1}, payload)

    assert 429 == meta["items"][0][0]
    assert "late" == orjson.loads(body)["message"]


async def test_without_a_server_a_submit_says_what_a_test_gives() -> None:
    """Users test their predictors without one."""
    context = Context("api", 0, 1, 1, "cpu")

    with pytest.raises(SubmitError, match="submitter=") as caught:
        await context.submit("embed", [1])

    assert (503, True) == (caught.value.status, isinstance(caught.value, ItemError))
