"""Answers of a batch, or of one whole request: named columns of rows, or JSON items.

The frame of tensors, from a model process and between web processes: meta
{"kind": "tensors", "outputs": [[name, numpy type string, shape], ...], "not_finite": [row, ...]},
and the outputs' bytes one after another, C order. `shape` is that of the whole batch, rows first,
or the list of every row's own shape where they differ. With "lengths": {name: [length, ...]}, rows
are padded, and are cut back here along the outputs' dimensions of that name.

The frame of items: meta {"kind": "items", "items": [[status, kind, length], ...]} and the bodies
one after another; a fourth member is what the predictor said of it, [status, headers]. A method
with tensors answers this only for a row that failed with a status of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import orjson

from batchedapi_serving.codecs.interface import Array, Item, Results
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.ipc import Meta
from batchedapi_serving.predictor import SINGLE_OUTPUT, MethodSpec

Column: TypeAlias = Array | Sequence[Array]
"""(rows, ...), or where rows differ in shape one array a row."""
OK: Final = 200
NOT_FINITE: Final = "the predictor answered NaN or Infinity"
_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
_NULL: Final = b"null"
_N: Final = _NULL[0]


class ItemResults:
    """Answers of one batch, each with its own status."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items

    def items(self, start: int, stop: int) -> Sequence[Item]:
        """Answers of rows [start, stop)."""
        return self._items[start:stop]

    def joined(self, start: int, stop: int, others: Sequence[tuple[Results, int, int]]) -> Results:
        """See Results.joined."""
        return joined_items([(self, start, stop), *others])

    def to_frame(self, start: int, stop: int) -> tuple[Meta, Sequence[bytes]]:
        """See Results.to_frame."""
        return item_frame(self._items[start:stop])


def joined_items(parts: Sequence[tuple[Results, int, int]]) -> ItemResults:
    """Rows [start, stop) of each part; tensors among them only beside a row that failed.

    Raises:
        PredictorError: the parts do not fit together.
    """
    whole = [Item(*item) for part, start, stop in parts for item in part.items(start, stop)]
    alike = all(isinstance(part, ItemResults) for part, _, _ in parts)
    if not alike and all(item.status == OK for item in whole):
        raise PredictorError("the predictor answered the parts of one request in different ways")
    return ItemResults(whole)


def item_frame(items: Sequence[Item]) -> tuple[Meta, Sequence[bytes]]:
    """See the module's docstring."""
    told = [
        [item.status, item.kind, len(item.body), *([item.said] if item.said else [])]
        for item in items
    ]
    return {"kind": "items", "items": told}, [item.body for item in items]


def item_results(meta: Meta, payload: bytes) -> ItemResults:
    """Read a frame."""
    items = []
    offset = 0
    for status, kind, length, *said in meta["items"]:
        end = offset + length
        items.append(Item(status, kind, payload[offset:end], *map(tuple, said)))
        offset = end
    return ItemResults(items)


def error_object(code: str, message: str, request_id: str | None = None) -> dict[str, Any]:
    """The value of `error` in an error body."""
    return {"code": code, "message": message, "request_id": request_id}


class TensorResults:
    """Rows of one batch; those in `not_finite` are errors."""

    __slots__ = ("_columns", "_json", "_method", "_not_finite", "all_finite")

    def __init__(
        self, method: MethodSpec, columns: Mapping[str, Column], not_finite: Sequence[int]
    ) -> None:
        self._method = method
        self._columns = columns
        self._not_finite = not_finite
        self._json: list[bytes] | None = None
        self.all_finite = not not_finite

    @property
    def method(self) -> MethodSpec:
        """The method that answered."""
        return self._method

    def not_finite_row(self, start: int, stop: int) -> int | None:
        """The first row of [start, stop) with NaN or Infinity, counted from `start`."""
        for row in self._not_finite:
            if start <= row < stop:
                return row - start
        return None

    def arrays(self, start: int, stop: int) -> Mapping[str, Array]:
        """Rows [start, stop) of each output, rows first, by name.

        Raises:
            PredictorError: NaN or Infinity, or rows of different shapes.
        """
        row = self.not_finite_row(start, stop)
        if row is not None:
            raise PredictorError(f"{NOT_FINITE} for row {row}")
        arrays: dict[str, Array] = {}
        for name, column in self._columns.items():
            part = column[start:stop]
            if not isinstance(part, np.ndarray):
                shapes = list(dict.fromkeys(row.shape for row in part))
                if len(shapes) > 1:
                    raise PredictorError(
                        f"the rows of output {name!r} have different shapes"
                        f" ({', '.join(str(list(shape)) for shape in shapes[:4])}), which one"
                        " tensor cannot hold; ask for rows of one shape at a time, or in JSON rows"
                    )
                part = np.stack(part)
            arrays[name] = part
        return arrays

    def json_rows(self) -> Sequence[bytes]:
        """JSON text of every row: the value, or an object of the named outputs; written once.

        Rows that are not finite have a text too, which must not be sent; ask not_finite_row.
        """
        if self._json is None:
            if self._method.single_output:
                (column,) = self._columns.values()
                self._json = (
                    json_rows(column) if isinstance(column, np.ndarray) else _json_texts(column)
                )
            else:
                texts = [_json_texts(column) for column in self._columns.values()]
                names = [orjson.dumps(name) for name in self._columns]
                self._json = [
                    b"{%b}" % b",".join(b"%b:%b" % pair for pair in zip(names, row, strict=True))
                    for row in zip(*texts, strict=True)
                ]
        return self._json

    def items(self, start: int, stop: int) -> Sequence[Item]:
        """See Results.items; those that are not finite failed."""
        failed = Item(
            PredictorError.status,
            "json",
            orjson.dumps(error_object(PredictorError.code, NOT_FINITE)),
        )
        not_finite = set(self._not_finite)
        return [
            failed if row in not_finite else Item(OK, "json", text)
            for row, text in enumerate(self.json_rows()[start:stop], start)
        ]

    def joined(self, start: int, stop: int, others: Sequence[tuple[Results, int, int]]) -> Results:
        """See Results.joined."""
        parts: list[tuple[Results, int, int]] = [(self, start, stop), *others]
        if not all(isinstance(part, TensorResults) for part, _, _ in parts):
            return joined_items(parts)
        columns: dict[str, list[Column]] = {name: [] for name in self._columns}
        not_finite: list[int] = []
        offset = 0
        for results, first, last in parts:
            if not isinstance(results, TensorResults) or list(results._columns) != list(columns):  # noqa: SLF001 - the same class
                raise PredictorError(
                    "the predictor answered the parts of one request in different ways"
                )
            for name, column in results._columns.items():  # noqa: SLF001 - the same class
                columns[name].append(column[first:last])
            wrong = (row for row in results._not_finite if first <= row < last)  # noqa: SLF001 - the same class
            not_finite += [row - first + offset for row in wrong]
            offset += last - first
        whole = {name: self._column(name, pieces) for name, pieces in columns.items()}
        return TensorResults(self._method, whole, not_finite)

    def _column(self, name: str, pieces: Sequence[Column]) -> Column:
        """The rows of all pieces; as an array if they have one shape."""
        arrays = [piece for piece in pieces if isinstance(piece, np.ndarray)]
        if len(arrays) == len(pieces) and len({array.shape[1:] for array in arrays}) == 1:
            return np.concatenate(arrays)
        declared = self._method.outputs.get(name)
        if not (self._method.variable if declared is None else declared.variable):
            raise PredictorError(
                "the predictor answered rows of one request with different shapes: "
                + ", ".join(str(list(array.shape[1:])) for array in arrays)
            )
        return [row for piece in pieces for row in piece]

    def to_frame(self, start: int, stop: int) -> tuple[Meta, Sequence[bytes]]:
        """See Results.to_frame."""
        outputs, buffers = [], []
        for name, column in self._columns.items():
            part = column[start:stop]
            if isinstance(part, np.ndarray):
                outputs.append([name, part.dtype.str, list(part.shape)])
                buffers.append(part.tobytes())
            else:
                outputs.append([name, part[0].dtype.str, [list(row.shape) for row in part]])
                buffers += [row.tobytes() for row in part]
        not_finite = [row - start for row in self._not_finite if start <= row < stop]
        return {"kind": "tensors", "outputs": outputs, "not_finite": not_finite}, buffers


def status_of(results: Results, start: int, stop: int) -> int:
    """The HTTP status that rows [start, stop) are answered with, in most languages."""
    if isinstance(results, TensorResults):
        failed = not results.all_finite and results.not_finite_row(start, stop) is not None
        return PredictorError.status if failed else OK
    items = results.items(start, stop)
    return next((item.status for item in items if item.status != OK), OK)


def read_results(method: MethodSpec, meta: Meta, payload: bytes) -> ItemResults | TensorResults:
    """Read a frame of either kind; see the module's docstring. Nothing is copied of tensors.

    Raises:
        TypeError: shapes and payload do not agree.
    """
    if meta["kind"] == "items":
        return item_results(meta, payload)
    columns: dict[str, Column] = {}
    offset = 0
    for name, dtype, shape in meta["outputs"]:
        if shape and isinstance(shape[0], list):
            rows = []
            for row_shape in shape:
                rows.append(np.ndarray(row_shape, dtype, payload, offset))
                offset += rows[-1].nbytes
            columns[name] = rows
        else:
            array: Array = np.ndarray(shape, dtype, payload, offset)
            offset += array.nbytes
            columns[name] = array
    lengths = meta.get("lengths")
    if lengths:
        columns = {name: cut_back(method, name, col, lengths) for name, col in columns.items()}
    return TensorResults(method, columns, meta["not_finite"])


def cut_back(
    method: MethodSpec, name: str, column: Column, lengths: Mapping[str, Sequence[int]]
) -> Column:
    """Rows of an output without what padding added to them; the array itself if that is nothing.

    Args:
        column: Rows of the batch, padded.
        lengths: Of each named dimension in each row.
    """
    tensor = method.outputs.get(name)
    if tensor is None or not isinstance(column, np.ndarray):
        return column
    cuts = [lengths.get(n) if isinstance(n, str) else None for n in tensor.shape]
    if all(
        cut is None or all(n == length for n in cut)
        for cut, length in zip(cuts, column.shape[1:], strict=True)
    ):
        return column
    return [
        row[tuple(slice(None if cut is None else cut[i]) for cut in cuts)]
        for i, row in enumerate(column)
    ]


def _json_texts(column: Column) -> list[bytes]:
    if isinstance(column, np.ndarray):
        return json_rows(column)
    return [json_rows(row[np.newaxis])[0] for row in column]


def named_output(method: MethodSpec) -> str:
    """Name of the only output of a method that answers one array."""
    return next(iter(method.outputs), SINGLE_OUTPUT)


def json_rows(array: Array) -> list[bytes]:
    """JSON text of each row of `array`, (rows, ...), rows >= 1.

    The whole batch is written at once and cut between rows, which is far cheaper than a call a row;
    float32 gets its own shortest text (0.1, not 0.10000000149011612).
    """
    text = orjson.dumps(np.ascontiguousarray(array), option=_NUMPY)
    if _N in text:
        text = _with_infinities(text, array)
    depth = array.ndim - 1
    if depth == 0:
        return text[1:-1].split(b",")
    if not array.size:  # no numbers, no closing brackets to cut at
        return [orjson.dumps(row.tolist()) for row in array]
    opening, closing = b"[" * depth, b"]" * depth
    inner = text[1 + depth : -1 - depth].split(closing + b"," + opening)
    return [b"%b%b%b" % (opening, row, closing) for row in inner]


def json_text(array: Array) -> bytes:
    """JSON text of an array: NaN is null, Infinity and -Infinity are texts of that name."""
    text = orjson.dumps(np.ascontiguousarray(array), option=_NUMPY)
    # No number, true or false has the letter; to search for a byte costs next to nothing.
    return _with_infinities(text, array) if _N in text else text


def _with_infinities(text: bytes, array: Array) -> bytes:
    """The text of an array that orjson wrote, which has null for Infinity too."""
    if not np.isinf(array).any():
        return text
    pieces = text.split(_NULL)
    for i, number in enumerate(array[~np.isfinite(array)]):
        pieces[i] += _NULL if np.isnan(number) else b'"Infinity"' if number > 0 else b'"-Infinity"'
    return b"".join(pieces)
