"""The methods that are served, and the manifest's changes to them."""

import dataclasses
import functools
from typing import Any

import pytest

from batchedapi_serving import Tensor, batched, endpoint
from batchedapi_serving.errors import LoadError
from batchedapi_serving.model.loading import beside_rows, served_methods
from batchedapi_serving.predictor import MethodSpec, default_method
from batchedapi_serving.settings import BatchingSettings, MethodSettings, ReplicaSettings

X = Tensor("FP32", [4])


def settings(
    *methods: MethodSettings, size: int | None = None, pads: bool = False
) -> ReplicaSettings:
    """Settings of a manifest about batching; nothing else is looked at."""
    nothing: dict[str, Any] = {field.name: None for field in dataclasses.fields(ReplicaSettings)}
    batching = BatchingSettings(max_batch_size=size, pads=pads)
    return ReplicaSettings(**{**nothing, "batching": batching, "methods": methods})


def of(
    name: str,
    *,
    batched: bool | None = None,
    batch_dim: tuple[int, int] | None = None,
    size: int | None = None,
    pads: bool = False,
) -> MethodSettings:
    """Settings of a manifest about one method."""
    batching = BatchingSettings(max_batch_size=size, pads=pads)
    return MethodSettings(name, batched, batch_dim, batching)


class Plain:
    """Takes requests."""

    def predict(self, payload: Any, query_params: Any, headers: Any) -> Any:
        """One at a time."""

    def helper(self) -> None:
        """Is not served."""


class Many:
    """Has methods of each kind."""

    @batched
    def predict(self, items: list[Any]) -> list[Any]:
        """A method over items."""
        return items

    @batched(inputs=X, max_batch_size=8)
    def embed(self, x: Any) -> Any:
        """A method over a tensor."""
        return x

    @batched(inputs=Tensor("INT64", ["tokens"]))
    def read(self, x: Any) -> Any:
        """A method over rows of different lengths."""
        return x

    @endpoint
    async def ask(self, payload: Any, query_params: Any, headers: Any) -> Any:
        """One at a time."""

    def plain(self, items: list[Any]) -> list[Any]:
        """Is served if the manifest says so."""
        return items

    def __call__(self, items: list[Any]) -> list[Any]:
        """B12: likewise."""
        return items


def sizes(predictor: type, given: ReplicaSettings) -> dict[str, int]:
    """Largest batch of each served method."""
    return {spec.name: spec.max_batch_size for spec in served_methods(predictor, given)}


def refusal(predictor: type, given: ReplicaSettings) -> str:
    """The message with which it is refused."""
    with pytest.raises(LoadError) as caught:
        served_methods(predictor, given)
    assert caught.value.reason == "ImportFailed"
    return str(caught.value)


def test_predict_and_every_marked_method_are_served() -> None:
    """C20: each batched on its own; B13: what is not marked is not batched, and not served."""
    assert {"predict": 32, "ask": 1, "embed": 8, "read": 32} == sizes(Many, settings())
    assert {"predict": 1} == sizes(Plain, settings())


def test_the_manifests_size_beats_the_decorators() -> None:
    """N25, B16: one for all, or one for a method; one that takes requests stays at 1 (C17)."""
    both = settings(of("embed", size=100), size=64)

    assert {"predict": 64, "ask": 1, "embed": 100, "read": 64} == sizes(Many, both)


def test_what_takes_one_request_at_a_time_may_have_a_size() -> None:
    """C16: code that knows nothing of batches goes on as it is, one by one; no gain is promised."""
    (plain,) = served_methods(Plain, settings(size=32))

    assert (False, 32, True) == (plain.batched, plain.max_batch_size, plain.one_by_one)
    assert {"predict": 32, "ask": 2, "embed": 8, "read": 32} == sizes(
        Many, settings(of("ask", size=2))
    )
    assert {"predict": 1} == sizes(Plain, settings(of("predict", batched=False, size=32), size=32))
    assert {"predict": 64, "ask": 1, "embed": 64, "read": 64} == sizes(Many, settings(size=64))


class Unwilling:
    """Takes many rows, and is not to get them."""

    @batched(inputs=X, max_batch_size=8, batchable=False)
    def predict(self, x: Any) -> Any:
        """A method over one row at a time."""
        return x


def test_a_decorator_may_turn_batching_off() -> None:
    """B12: whatever size the manifest says; only the manifest's own word turns it on again."""
    assert {"predict": 1} == sizes(Unwilling, settings(size=32))
    assert {"predict": 8} == sizes(Unwilling, settings(of("predict", batched=True)))
    (spec,) = served_methods(Unwilling, settings())
    assert (True, False) == (spec.batched, spec.one_by_one)


class Callable:
    """Is called itself."""

    @batched
    def __call__(self, items: list[Any]) -> list[Any]:
        """A method over items."""
        return items

    @batched
    def other(self, items: list[Any]) -> list[Any]:
        """Another method over items."""
        return items


def test_what_is_called_itself_answers_where_no_method_is_named() -> None:
    """B12: `__call__` is what a model of other servers has; `predict` comes before it."""
    assert "__call__" == default_method(served_methods(Callable, settings()))
    named = served_methods(Many, settings(of("__call__", batched=True)))
    assert "predict" == default_method(named)


def test_the_manifest_may_serve_a_method_that_is_not_marked() -> None:
    """B12: batchable by signature, `__call__` too."""
    given = settings(of("plain", batched=True, size=16), of("__call__", batched=True))

    specs = {spec.name: spec for spec in served_methods(Many, given)}

    assert (True, 16, {}) == (
        specs["plain"].batched,
        specs["plain"].max_batch_size,
        specs["plain"].inputs,
    )
    assert specs["__call__"].batched


def test_batching_is_on_where_declared_and_off_when_told() -> None:
    """B15: explicit off means batches of one row; the method still gets its list or array."""
    (embed,) = [
        spec
        for spec in served_methods(Many, settings(of("embed", batched=False, size=64)))
        if spec.name == "embed"
    ]

    assert (True, 1) == (embed.batched, embed.max_batch_size)


def test_the_manifests_batch_dim_beats_the_decorators() -> None:
    """B14, N16."""
    specs = served_methods(Many, settings(of("embed", batch_dim=(1, 0))))

    assert [(1, 0)] == [spec.batch_dim for spec in specs if spec.name == "embed"]


class Without:
    """Has nothing to serve."""


def injecting(function: Any) -> Any:
    """A decorator as users have them."""

    @functools.wraps(function)
    def wrapper(self: Any, payload: Any, *_: Any) -> Any:
        return function(self, payload, "connection")

    return wrapper


class Yields:
    """Streams, and tries to in a batch."""

    @batched(example=1)
    async def predict(self, *arguments: Any) -> Any:
        """In parts."""
        yield arguments


class Streams:
    """One method, which yields."""

    def predict(self, payload: Any) -> Any:
        """In parts."""
        yield payload


class TakesSomethingElse:
    """As if something else were given."""

    def predict(self, payload: Any, session: Any) -> Any:
        """Would fail on every request."""
        return payload, session


class TakesTwo:
    """As if rows had something beside them."""

    @batched
    def predict(self, items: Any, query: Any) -> Any:
        """Would fail on every batch."""
        return items, query


class Wrapped:
    """Methods that can be called although their inner signature says otherwise."""

    @batched
    @staticmethod
    def static(items: Any) -> Any:
        """Without self."""
        return items

    @classmethod
    def predict(cls, *arguments: Any) -> Any:
        """Without self too."""
        return arguments

    @endpoint
    @injecting
    def more(self, payload: Any, connection: Any) -> Any:
        """Its decorator gives it another argument."""
        return payload, connection


class Crowded:
    """Has more than there is room for."""


for index in range(33):
    setattr(Crowded, f"method_{index}", batched(lambda _, items: items))


@pytest.mark.parametrize(
    ("predictor", "given", "message"),
    [
        (Without, settings(), "Without: expected a method 'predict', or one marked"),
        (Many, settings(of("classify")), "Many.classify: the manifest names this method, which"),
        (Many, settings(of("ask", batched=True)), "Many.ask: is marked @endpoint"),
        (Many, settings(of("ask", batch_dim=(0, 1))), "Many.ask: takes one request at a time"),
        (
            Many,
            settings(of("predict", batch_dim=(1, 1))),
            "Many.predict: batch_dim: expected 0 for JSON items",
        ),
        (
            Many,
            settings(of("embed", batch_dim=(2, 0))),
            "Many.embed: batch_dim: expected at most 1 for 'input'",
        ),
        (Yields, settings(), "Yields.predict: yields its answer, which a batch cannot do; return"),
        (
            Streams,
            settings(of("predict", batched=True)),
            "Streams.predict: yields its answer, which a batch cannot do; return",
        ),
        (
            TakesSomethingElse,
            settings(),
            (
                "TakesSomethingElse.predict: takes one request at a time and is called with"
                " (payload, query_params, headers), but is written as predict(self, payload: Any,"
                " session: Any) -> Any; write def predict(self, payload, query_params, headers), or"
                " fewer of them; for many rows at once, mark it"
            ),
        ),
        (
            TakesTwo,
            settings(),
            "TakesTwo.predict: takes many rows at a time and is called with (rows), but",
        ),
        (Crowded, settings(), "Crowded: expected at most 32 methods, got 33"),
    ],
    ids=str,
)
def test_what_cannot_be_served_says_what_to_do(
    predictor: type, given: ReplicaSettings, message: str
) -> None:
    """Before any process says that it is ready: kind of mistake, class.method, what to write."""
    assert refusal(predictor, given).startswith(message)


def test_who_padded_by_the_manifest_pads_for_one_more_release() -> None:
    """The removed shapePolicy Pad: of all inputs with a named length, unless the class says pad."""
    (read,) = (spec for spec in served_methods(Many, settings(pads=True)) if spec.name == "read")
    (kept,) = (spec for spec in served_methods(Many, settings()) if spec.name == "read")

    assert {name: one.pad for name, one in read.inputs.items()} == {
        name: 0 if one.variable else None for name, one in kept.inputs.items()
    }
    assert (True, False) == (read.pads, kept.pads)


class Beside:
    """Takes more than rows."""

    @batched(inputs=Tensor("INT64", ["tokens"]))
    def predict(self, ids: Any, lengths: Any, *, attention_mask: Any) -> Any:
        """All that there is."""
        return ids, lengths, attention_mask


class BesideFixed:
    """Takes a mask of rows that have no lengths."""

    @batched(inputs=X)
    def predict(self, x: Any, attention_mask: Any) -> Any:
        """It is not given one."""
        return x, attention_mask


def test_a_mask_is_given_where_rows_have_lengths() -> None:
    """Anywhere else nobody could say what it is."""
    (spec,) = served_methods(Beside, settings())

    assert ("attention_mask", "lengths") == beside_rows(Beside.predict, spec)
    with pytest.raises(LoadError, match=r"is called with \(rows\), but is written as"):
        served_methods(BesideFixed, settings())


def test_decorated_and_static_methods_are_called_as_they_are() -> None:
    """The method behind a wrapper does not matter."""
    assert {"predict", "static", "more"} == set(sizes(Wrapped, settings()))


def test_one_maximum_for_all_leaves_methods_for_requests_alone() -> None:
    """N25: a default for the batched ones is no mistake about the others."""
    assert 1 == sizes(Many, settings(size=100))["ask"]


def test_the_default_is_predict_or_the_only_one() -> None:
    """The path must name a method where there are several others."""
    many = served_methods(Many, settings())

    assert "predict" == default_method(many)
    assert "embed" == default_method([spec for spec in many if spec.name == "embed"])
    assert default_method([spec for spec in many if spec.name != "predict"]) is None
    assert default_method([]) is None


def test_a_method_that_yields_is_a_stream_whatever_size_is_said_of_all() -> None:
    """It runs on the channel, and one request at a time: there is no batch that a size is of."""
    (spec,) = served_methods(Streams, settings(size=8))

    assert (True, True, 1, False) == (
        spec.streams, spec.is_async, spec.max_batch_size, spec.one_by_one,
    )  # fmt: skip
    assert spec == MethodSpec.from_json(spec.to_json())
