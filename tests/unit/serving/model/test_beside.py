"""Calls around a batch: what is submitted of a request, and what is made of the answer."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from batchedapi_serving.errors import PredictorError
from batchedapi_serving.model.loading import served_methods
from batchedapi_serving.model.submit import Beside, with_calls
from batchedapi_serving.predictor import ItemError, SubmitError, Tensor, batched, default_method
from dispatching import replica_settings

PAIR = {"a": Tensor("FP32", [2]), "b": Tensor("INT64", [])}


class Model:
    """Decodes in a thread, encodes on the loop, and the other way round."""

    def read(self, payload: Any, headers: Any) -> Any:
        """In a thread."""
        return [payload, headers["x"]]

    async def show(self, answer: Any) -> Any:
        """On the loop."""
        return {"shown": answer.tolist()}

    @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [2]), decode="read", encode="show")
    def predict(self, x: Any) -> Any:
        """One array."""
        return x

    async def split(self, payload: Any) -> Any:
        """To two arrays."""
        return {"a": payload[:2], "b": payload[2]}

    @batched(inputs=PAIR, outputs=PAIR, decode="split")
    def pair(self, named: Any) -> Any:
        """Two arrays."""
        return named

    @batched(example=1, encode="twice")
    def items(self, items: Any) -> Any:
        """JSON items."""
        return items

    def twice(self, answer: Any) -> Any:
        """After the batch alone."""
        return [answer, answer]

    @batched(example=1)
    def plain(self, items: Any) -> Any:
        """Without either."""
        return items


SPECS = with_calls(Model, served_methods(Model, replica_settings(max_batch_size=None)))


async def called(
    method: str, payload: Any, answer: Any = None, model: Any = None
) -> tuple[Any, list[Any]]:
    """The client's answer, and the submitted rows; each submit returns `answer`, or its rows."""
    submitted: list[Any] = []

    async def submit(name: str, rows: Any) -> Any:
        submitted.append((name, rows))
        return rows if answer is None else answer

    beside = Beside(model or Model(), SPECS, submit)
    return await getattr(beside, method)(payload, {}, {"x": 7}), submitted


def test_a_method_that_decodes_or_encodes_is_a_call_and_a_batch() -> None:
    """And the call is what a path without a method's name means."""
    names = {spec.name: (spec.batched, spec.is_async) for spec in SPECS}

    assert {
        "predict": (False, True), "predict.batch": (True, False), "items": (False, True),
        "items.batch": (True, False), "pair": (False, True), "pair.batch": (True, False),
        "plain": (True, False),
    } == names  # fmt: skip
    assert "predict" == default_method(SPECS)
    assert "items" == default_method([spec for spec in SPECS if spec.name.startswith("items")])


async def test_an_array_is_one_row_of_it() -> None:
    """The batch dimension is the server's to add and to take away."""
    answer, submitted = await called("predict", 5)

    ((name, rows),) = submitted
    assert ("predict.batch", [[5, 7]]) == (name, rows.tolist())
    assert {"shown": [5, 7]} == answer


async def test_named_arrays_and_items_are_rows_too() -> None:
    """Each in the form in which its batch takes it."""
    pair, ((_, named),) = await called("pair", [1, 2, 3])
    items, ((_, rows),) = await called("items", "x")

    assert {"a": [[1, 2]], "b": [3]} == {name: array.tolist() for name, array in named.items()}
    assert {"a": [1, 2], "b": 3} == {name: np.asarray(one).tolist() for name, one in pair.items()}
    assert (["x"], ["x", "x"]) == (rows, items)


async def test_an_item_that_failed_in_the_batch_is_not_encoded() -> None:
    """It is an answer of its own."""
    with pytest.raises(ItemError, match="gone"):
        await called("items", 1, [ItemError(410, "gone")])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "read answered None, which is no row; return the row"),
        ([[1.0], [1.0, 2.0]], "read answered a list; expected an array"),
        ([object()], "read answered a list; expected an array, got an array of objects"),
        ({"a": [[1], [2, 3]]}, "read answered a dict; expected an array"),
    ],
    ids=["no return", "ragged", "an object", "ragged of a name"],
)
async def test_what_decode_answers_is_not_the_clients_fault(answer: object, said: str) -> None:
    """The client sent nothing wrong, and has never heard of a row."""

    class Careless(Model):
        def read(self, payload: Any, headers: Any) -> Any:  # noqa: ARG002 - as it is called
            return answer

    with pytest.raises(PredictorError, match=said):
        await called("predict", 1, model=Careless())


async def test_a_row_that_the_client_has_sent_is_the_clients_fault() -> None:
    """Numbers and texts of a wrong type or shape, which decode has only passed on."""

    async def refuse(_: str, __: Any) -> Any:
        raise SubmitError(422, "rows: expected numbers")

    beside = Beside(Model(), SPECS, refuse)

    for call in (beside.predict("text", {}, {"x": 7}), beside.items("x", {}, {})):
        with pytest.raises(SubmitError, match=r"^rows: expected numbers") as client:
            await call
        assert 422 == client.value.status


async def test_a_call_in_a_thread_ends_with_it() -> None:
    """Nobody can end a thread: a call that did not wait for it would hide that it hangs."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Model):
        def read(self, payload: Any, headers: Any) -> Any:
            begun.set()
            go_on.wait(30)
            return super().read(payload, headers)

    async def submit(_name: str, rows: Any) -> Any:
        return rows

    task = asyncio.ensure_future(Beside(Slow(), SPECS, submit).predict(1, {}, {"x": 1}))
    await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_batch_calls_the_method_itself() -> None:
    """Whatever else is asked of the object is the predictor's."""

    async def submit(_name: str, rows: Any) -> Any:
        return rows

    model = Model()
    beside = Beside(model, SPECS, submit)

    assert beside.items != model.items
    assert getattr(beside, "items.batch") == model.items
    assert beside.plain == model.plain
