"""Whatever user code raises or hands over costs one row: never a process, never a neighbour."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import numpy as np
import orjson
import pytest

from batchedapi_serving import ItemError, Response, batched
from batchedapi_serving.logs import name_of
from batchedapi_serving.model.batch import BatchRunner, Result
from batchedapi_serving.model.loading import served_methods
from batchedapi_serving.model.streams import Outlet
from batchedapi_serving.model.submit import Beside, with_calls
from batchedapi_serving.predictor import MethodSpec
from dispatching import replica_settings

ITEMS: Final = MethodSpec("predict", batched=True)
CALL: Final = MethodSpec("predict", batched=False)
ABOUT: Final = orjson.dumps({"json": False, "text": False, "query": "", "headers": []})
BODY: Final = len(ABOUT).to_bytes(4, "little") + ABOUT


class Panic(BaseException):
    """As extensions in Rust raise for one input."""


class SilentError(Exception):
    """Raises wherever it is looked at."""

    def __str__(self) -> str:
        raise Panic

    __repr__ = __str__


class Unnamed(type):
    """A metaclass of classes whose name cannot be read."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise KeyError


class NamelessError(Exception, metaclass=Unnamed):
    """Its name cannot be asked for."""


class OddSyntaxError(SyntaxError):
    """Its text is no text, which `traceback` relies on."""

    text = 3  # type: ignore[assignment]
    lineno = 1


class ElsewhereError(Exception):
    """Comes from what is no exception."""

    __module__ = None  # type: ignore[assignment]
    __cause__ = 3  # type: ignore[assignment]


class NeverMadeError(Exception):
    """Cannot be constructed, copied or pickled by anybody else."""

    def __init__(self, _first: object, *, secret: object) -> None:
        self.secret = secret

    def __reduce__(self) -> NoReturn:
        raise Panic


def looped() -> BaseException:
    """An exception that is its own cause."""
    first, second = ValueError("first"), SilentError()
    first.__cause__, second.__cause__ = second, first
    return first


RAISED: Final[list[BaseException]] = [
    Panic(), StopIteration(), StopAsyncIteration(), GeneratorExit(), KeyboardInterrupt(),
    SystemExit(3), asyncio.CancelledError(), TimeoutError(), SilentError(), NamelessError(),
    OddSyntaxError("x"), ElsewhereError(), NeverMadeError(1, secret=2), looped(),
    BaseExceptionGroup("a", [Panic(), SilentError()]), ExceptionGroup("b", [ItemError(404, "no")]),
]  # fmt: skip
"""What no event loop, executor, coroutine or traceback expects."""
raised = pytest.mark.parametrize("error", RAISED, ids=[name_of(error) for error in RAISED])


class Answering:
    """A predictor that does what it was made with."""

    def __init__(self, behaviour: Callable[..., Any]) -> None:
        self.predict = behaviour


def run(method: MethodSpec, behaviour: Callable[..., Any], rows: int = 2) -> Result:
    """One batch of the items 0, 1, ..., or one request."""
    payload = orjson.dumps(list(range(rows))) if method.batched else BODY
    meta = {"method": "predict", "rows": rows}
    return BatchRunner(Answering(behaviour), [method]).run(meta, payload)


def kind(value: object) -> str:
    """The name of a case, since not every value can be shown."""
    return value if isinstance(value, str) and value.isalpha() else type(value).__name__


def raising(error: BaseException) -> Callable[..., Any]:
    """A method that raises it."""

    def predict(*_: object) -> NoReturn:
        raise error

    return predict


def answered(result: Result) -> bool:
    """Whether it is a failure that can be written on the wire."""
    orjson.dumps(result[0])
    return result[0]["kind"] == "error" and "unfit" not in result[0]


@raised
def test_whatever_is_raised_is_an_answer(error: BaseException) -> None:
    """A lane that ends takes its process with it, and the model that took minutes to load."""
    assert answered(run(ITEMS, raising(error)))
    assert answered(run(CALL, raising(error)))


@raised
async def test_so_it_is_in_an_async_method(error: BaseException) -> None:
    """Some of these errors would end the event loop, and with it every client's call."""

    async def predict(*_: object) -> NoReturn:
        raise error

    method = MethodSpec("predict", batched=False, is_async=True)
    runner, meta = BatchRunner(Answering(predict), [method]), {"method": "predict", "rows": 1}
    several = {**meta, "rows": 2, "calls": [len(BODY)] * 2}

    assert answered(await runner.run_async(meta, BODY))
    assert [500, 500] == [one[0] for one in (await runner.run_async(several, BODY * 2))[0]["items"]]


@raised
@pytest.mark.parametrize("place", ["decode", "encode"])
async def test_so_it_is_beside_a_batch(error: BaseException, place: str) -> None:
    """In a thread: no future takes a StopIteration, and whoever awaits it would wait for ever."""

    class Model:
        def odd(self, _: object) -> NoReturn:
            raise error

        @batched(example=1, **{place: "odd"})  # type: ignore[arg-type]
        def predict(self, items: Any) -> Any:
            return items

    async def submit(_: str, rows: Any) -> Any:
        return rows

    specs = with_calls(Model, served_methods(Model, replica_settings(max_batch_size=None)))
    runner = BatchRunner(Beside(Model(), specs, submit), specs)

    async with asyncio.timeout(30):
        assert answered(await runner.run_async({"method": "predict", "rows": 1}, BODY))


@raised
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "in a thread"])
async def test_so_it_is_in_a_stream(error: BaseException, *, is_async: bool) -> None:
    """After its first item, as a driver's error comes."""

    async def on_the_loop(*_: object) -> Any:
        yield "first"
        raise error

    def in_a_thread(*_: object) -> Iterator[str]:
        yield "first"
        raise error

    predictor = Answering(on_the_loop if is_async else in_a_thread)
    method = MethodSpec("predict", batched=False, is_async=True, streams=True)
    runner, items = BatchRunner(predictor, [method]), []

    async with asyncio.timeout(30):
        outlet = Outlet(items.append)
        assert answered(await runner.run_stream({"method": "predict", "rows": 1}, BODY, outlet))
    assert [b"first"] == [item.body for item in items]


def test_the_log_has_what_can_be_told(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the type of an error that cannot be read, and why an ItemError is invalid."""
    changed = ItemError(404, "gone")
    changed.status = 200

    with caplog.at_level(logging.ERROR):
        run(ITEMS, raising(OddSyntaxError("x")))
        run(ITEMS, raising(changed), rows=1)

    odd, reason = (vars(record)["traceback"] for record in caplog.records)
    assert "OddSyntaxError, which raises AttributeError where it is looked at" == odd
    assert "ItemError: expected a status of 400 to 599, got 200" in reason


class Text(str):
    """A text that says it is another."""

    __slots__ = ()

    def lower(self) -> str:
        """As every method of a subclass may."""
        return "transfer-encoding"

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        """Likewise."""
        return b"\r\n"

    def __str__(self) -> str:
        return "content-length"


class Bytes(bytes):
    """Bytes that tell another length."""

    def __len__(self) -> int:
        return 1


class Properties(Response):
    """A subclass without slots, whose attributes are anything."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__("ok")
        self.attributes = attributes

    def __getattribute__(self, name: str) -> Any:
        attributes = object.__getattribute__(self, "__dict__").get("attributes", {})
        if name in attributes:
            found = attributes[name]
            if isinstance(found, BaseException):
                raise found
            return found
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "200"), ("status", 200.0), ("status", True), ("status", None),
        ("status", 10**5000), ("status", b"200"), ("status", 404), ("status", 204),
        ("status", Panic()), ("status", np.float32(200)),
        ("headers", {"a": "b\r\nset-cookie: x"}), ("headers", {"a\r\n": "b"}),
        ("headers", {"a": "b\x00"}), ("headers", {"Content-Length": "3"}),
        ("headers", {"transfer-encoding": "chunked"}), ("headers", {"Connection": "close"}),
        ("headers", {"date": "now"}), ("headers", {"TE": "trailers"}), ("headers", {"a": b"b"}),
        ("headers", {"a": 1}), ("headers", {1: "a"}), ("headers", {"a": None}),
        ("headers", [("a", "b")]), ("headers", "a: b"), ("headers", 3), ("headers", {"": "a"}),
        ("headers", {"a": "b" * 40_000}), ("headers", {"a": "\u20ac"}), ("headers", Panic()),
        ("content", Panic()), ("content", object()),
    ],
    ids=kind,
)  # fmt: skip
def test_a_response_is_read_as_it_is_now(name: str, value: object) -> None:
    """A header with a line end in it is another answer to somebody else on the connection."""
    result = run(CALL, lambda *_: Properties(**{name: value}))

    assert answered(result) or [500] == [status for status, *_ in result[0]["items"]]


def test_what_a_response_says_is_of_plain_types() -> None:
    """The methods of a subclass of str or int may say something else each time."""

    def predict(*_: object) -> Response:
        said = Response("ok", np.int64(201), {"x-a": "b"})
        said.headers[Text("X-B")] = Text("c")
        return said

    meta, bodies = run(CALL, predict)

    ((_, _, _, (status, headers)),) = meta["items"]
    assert (int, 201, {"x-a": "b", "x-b": "c"}) == (type(status), status, headers)
    assert {str} == {type(text) for pair in headers.items() for text in pair}
    assert [b"ok"] == bodies


@pytest.mark.parametrize("value", [Text("abc"), Bytes(b"abc"), bytearray(b"abc")], ids=kind)
def test_a_body_is_as_long_as_the_frame_says(value: object) -> None:
    """Else the rest of the frame is read as somebody else's answer."""
    meta, (body,) = run(CALL, lambda *_: value)

    assert (bytes, b"abc", 3) == (type(body), body, meta["items"][0][2])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", 200), ("status", 99), ("status", 600), ("status", "404"), ("status", None),
        ("status", 404.0), ("status", True), ("status", 10**5000), ("message", None),
        ("message", b"gone"), ("message", ["gone"]), ("message", SilentError()),
    ],
    ids=kind,
)  # fmt: skip
def test_an_item_error_that_was_changed_fails_its_row_alone(name: str, value: object) -> None:
    """The other rows of the batch have their answers, and it is not run again for them."""
    error = ItemError(404, "gone")
    setattr(error, name, value)

    meta, (first, second) = run(ITEMS, lambda items: [items[0], error])

    assert [200, 500] == [status for status, *_ in meta["items"]]
    assert (b"0", "predictor_failed") == (first, orjson.loads(second)["code"])
    assert answered(run(ITEMS, raising(error), rows=2))
    assert answered(run(ITEMS, raising(error), rows=1))


def test_a_message_is_any_text() -> None:
    """Half a surrogate is no text of UTF-8, and must not end the process that writes it."""
    error = ItemError(404, "gone")
    error.message = Text("a\ud800\r\n\x00")

    _, (body,) = run(ITEMS, lambda _: [error], rows=1)

    assert "a?\r\n\x00" == orjson.loads(body)["message"]


class Liar(list[int]):
    """A list that tells a length, and iterates over something else without end."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


def test_a_list_holds_what_it_holds() -> None:
    """Whatever a class of its own tells of it."""
    assert [b"7", b"8"] == run(ITEMS, lambda _: Liar([7, 8]))[1]
    assert answered(run(ITEMS, lambda _: Liar([7])))


class Peculiar:
    """Raises whatever is asked of it, also what it is."""

    @property
    def __class__(self) -> Any:
        raise Panic


def test_a_value_whose_type_raises_fails_its_row_alone() -> None:
    """It is looked at where rows are written, each on its own."""
    meta, (first, _) = run(ITEMS, lambda items: [items[0], Peculiar()])

    assert ([200, 500], b"0") == ([status for status, *_ in meta["items"]], first)
    assert answered(run(ITEMS, lambda _: Peculiar()))
    assert 500 == run(CALL, lambda *_: Peculiar())[0].get("items", [[500]])[0][0]
