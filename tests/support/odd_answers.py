"""A predictor that raises or hands over something odd, another for each number; imports no test.

`odd(number)` is the same in every process, so that plain and compiled code can be compared.
"""
# mypy: ignore-errors
# Types are what is violated here.

import asyncio
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from batchedapi_serving import ItemError, Response, Tensor, batched, endpoint


class Panic(BaseException):
    """As extensions in Rust raise."""


class OddError(Exception):
    """Raises whatever it was made with where it is looked at."""

    def __init__(self, name: str, what: BaseException) -> None:
        self.name, self.what = name, what

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("name"):
            raise object.__getattribute__(self, "what")
        return super().__getattribute__(name)

    def __str__(self) -> str:
        raise self.what

    __repr__ = __str__


class OddGroup(ExceptionGroup[Exception]):
    """Its members are something else each time."""

    @property
    def exceptions(self) -> Any:
        """See BaseExceptionGroup."""
        return (3, None)


class OddSyntaxError(SyntaxError):
    """`traceback` takes its attributes for texts."""

    text = filename = 3
    lineno = "x"


class Text(str):
    """Says that it is another text."""

    __slots__ = ()

    def encode(self, *_: object) -> Any:
        """As a subclass may."""
        return "no bytes"

    def lower(self) -> Any:
        """Likewise."""
        return 7


class Bytes(bytes):
    """Tells another length."""

    def __len__(self) -> int:
        return 3

    def __bytes__(self) -> bytes:
        raise Panic


class Number(int):
    """Says that it is another number."""

    def __index__(self) -> int:
        return 200

    def __le__(self, _: object) -> bool:
        return True

    __lt__ = __ge__ = __gt__ = __le__


class Rows(list[Any]):
    """Tells another length."""

    def __len__(self) -> int:
        return 1


class Table(dict[Any, Any]):
    """Has other members each time."""

    def items(self) -> Any:
        """See dict."""
        return [("a", float("nan"))]

    def __len__(self) -> int:
        raise KeyError


class Raising:
    """Raises whatever is asked of it."""

    def __init__(self, what: BaseException) -> None:
        self.__dict__["what"] = what

    def __getattr__(self, name: str) -> Any:
        raise self.__dict__["what"]

    def __raising(self, *_: object) -> Any:
        raise self.__dict__["what"]

    __len__ = __iter__ = __eq__ = __array__ = __bool__ = __str__ = __repr__ = __float__ = __raising
    __getitem__ = __await__ = __raising
    __hash__ = None


class Liar:
    """Says that it is of another class."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    @property
    def __class__(self) -> Any:
        return object.__getattribute__(self, "kind")


class Colour(enum.Enum):
    """One member has no form in JSON."""

    RED = 1
    ODD = b"x"


@dataclasses.dataclass
class Point:
    """Written as an object."""

    x: Any


EXCEPTIONS: Final[list[Callable[[], BaseException]]] = [
    Panic, StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt,
    lambda: SystemExit(3), asyncio.CancelledError, TimeoutError, RecursionError, OSError,
    lambda: OSError(9, "Bad file descriptor"), ConnectionResetError, BrokenPipeError, EOFError,
    lambda: OddSyntaxError("x"), lambda: UnicodeDecodeError("a", b"b", 0, 1, "\ud800"),
    lambda: KeyError(Raising(Panic())), lambda: ItemError(422, "no"), lambda: ValueError("\ud800"),
    lambda: BaseExceptionGroup("g", [Panic(), ValueError("v")]),
    lambda: OddGroup("g", [ValueError("v")]), type("N" * 5000, (Exception,), {}),
    type("a\r\nb", (BaseException,), {"__module__": 3}),
]  # fmt: skip
NAMES: Final = (
    "__traceback__", "__cause__", "__context__", "__class__", "__notes__", "args", "status",
    "__suppress_context__", "__dict__",
)  # fmt: skip


def error(made: random.Random) -> BaseException:
    """Something to raise."""
    if made.random() < 0.3:
        raised: BaseException = OddError(made.choice(NAMES), made.choice(EXCEPTIONS)())
    elif made.random() < 0.2:
        raised = item_error(made)
    else:
        raised = made.choice(EXCEPTIONS)()
    if made.random() < 0.2:
        raised.__cause__ = made.choice(EXCEPTIONS)()
        raised.__cause__.__cause__ = raised
    if made.random() < 0.1:
        raised.__notes__ = made.choice([3, [3], ["note"], [Raising(Panic())]])
    return raised


def leaf(made: random.Random) -> Any:
    """A value of any type."""
    return made.choice([
        None, True, 1, -0.0, float("nan"), float("inf"), 10**30, 10**5000, "text", "\ud800", "",
        "a\r\nb\x00", b"bytes", Bytes(b"bytes"), bytearray(b"b"), memoryview(b"m"), Text("t"),
        Number(404), {1, 2}, 1j, decimal.Decimal("1.5"), dt.date(2026, 1, 2), Colour.RED,
        Colour.ODD, Point(1), Point(float("nan")), Point(Raising(Panic())), Ellipsis, int, len,
        np.float32("nan"), np.float64(1.5), np.int64(7), np.bool_(True), np.longdouble(1),
        np.str_("n"), np.datetime64("2026-01-02"), np.complex64(1), np.array([1.5, np.inf]),
        np.array([[1, 2], [3, 4]]).T, np.array(["a", "b"]), np.array([object()]), np.array(5),
        np.ma.masked, np.zeros((2, 0)), np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]),
        np.array([1.5], ">f8"), Raising(ValueError("v")), Raising(Panic()), Raising(MemoryError()),
        Raising(StopIteration()), Raising(AttributeError("a")), Liar(ItemError), Liar(Response),
        Liar(str), Liar(Raising), object(), Exception, ValueError("returned"), Rows([1, 2]),
        Table(a=1), Rows(), range(3), iter("abc"), (n for n in "ab"),
    ])  # fmt: skip


def value(made: random.Random, depth: int = 0) -> Any:
    """A leaf, or a container of some."""
    if depth > 3 or made.random() < 0.5:
        return leaf(made)
    members = [value(made, depth + 1) for _ in range(made.randrange(4))]
    deep: Any = members
    for _ in range(made.choice([10, 260])):
        deep = [deep]
    named = {made.choice([1, "1", None, 1.5, Text("t"), "\ud800"]): one for one in members}
    numbered = {str(i): one for i, one in enumerate(members)}
    return made.choice([
        tuple(members), members, Rows(members), Table(numbered), named, deep, item_error(made),
        response(made),
    ])  # fmt: skip


def item_error(made: random.Random) -> ItemError:
    """One that was changed after it was made."""
    changed = ItemError(404, "gone")
    for name in ("status", "message", "args", "__notes__"):
        if made.random() < 0.4:
            told = made.choice([404, 599, 200, 0, -1, "404", 404.0, "text", leaf(made)])
            with contextlib.suppress(BaseException):  # of args, which are iterated over
                setattr(changed, name, told)
    return changed


def response(made: random.Random) -> Response:
    """Likewise."""
    changed = Response("ok", 201, {"x-a": "b"})
    if made.random() < 0.5:
        changed.status = made.choice([200, 302, 204, 404, True, 200.0, "200", leaf(made)])
    if made.random() < 0.7:
        names = ["x-b", "Content-Length", "date", "", "a\r\nb", Text("x-c"), "content-type", 3]
        texts = ["c", "c\r\nd", "\x00", "\u20ac", Text("e"), 3, None, b"f", "g" * 40_000]
        named = {made.choice(names): made.choice(texts) for _ in range(3)}
        changed.headers = made.choice([named, named, named, leaf(made)])
    if made.random() < 0.3:
        changed.content = leaf(made)
    return changed


def odd(number: int) -> Any:
    """The answer of this number; or an exception is raised."""
    made = random.Random(number)
    if made.random() < 0.4:
        raise error(made)
    return value(made)


class Composed:
    """Answers {"good": n} with n + 1, and {"odd": n} with odd(n), in methods of every kind."""

    def answer(self, item: Any) -> Any:
        """One of them."""
        return item["good"] + 1 if "good" in item else odd(item["odd"])

    @batched(example={"good": 1}, max_batch_size=16)
    def items(self, items: Any) -> Any:
        """Row by row."""
        return [self.answer(item) for item in items]

    @batched(example={"good": 1}, max_batch_size=16)
    def whole(self, items: Any) -> Any:
        """In the place of the list."""
        for item in items:
            if "odd" in item:
                return self.answer(item)
        return [self.answer(item) for item in items]

    @batched(inputs=Tensor("INT64", [2]), outputs=Tensor("FP32", []), max_batch_size=16)
    def tensor(self, rows: Any) -> Any:
        """[n, 0] is good, [n, 1] is odd."""
        for number, is_odd in rows.tolist():
            if is_odd:
                return odd(number)
        return rows[:, 0] + 1

    @batched(example={"good": 1}, decode="answer", max_batch_size=16)
    def decoded(self, items: Any) -> Any:
        """Before the batch."""
        return items

    @batched(example={"good": 1}, encode="answer", max_batch_size=16)
    def encoded(self, items: Any) -> Any:
        """After it."""
        return items

    @endpoint
    def call(self, payload: Any) -> Any:
        """One request."""
        return self.answer(payload)

    @endpoint
    async def later(self, payload: Any) -> Any:
        """On the event loop."""
        await asyncio.sleep(0)
        return self.answer(payload)
