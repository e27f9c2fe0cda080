"""One batch through the user's method: whatever it does, an answer comes back."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from batchedapi_core.batching import Receipts
from batchedapi_serving import ItemError, Tensor
from batchedapi_serving.codecs import RequestHead, Wire
from batchedapi_serving.codecs.item_codec import CallCodec
from batchedapi_serving.model.batch import BatchRunner, Result
from batchedapi_serving.model.marshalling import split_items
from batchedapi_serving.predictor import MethodSpec
from protocols import codec_of, padded, single

ITEMS = MethodSpec("predict", batched=True)
CALL = MethodSpec("predict", batched=False)
TENSOR = single(Tensor("FP32", [2]), Tensor("FP32", [1]))


class Answering:
    """A predictor that does what it was made with."""

    def __init__(self, behaviour: Any) -> None:
        self._behaviour = behaviour

    def predict(self, *arguments: Any) -> Any:
        """Call it."""
        return self._behaviour(*arguments)


def run(method: MethodSpec, behaviour: Any, rows: int = 2, payload: bytes | None = None) -> Result:
    """One batch of zeros, or of the items 0, 1, ..."""
    if payload is None:
        items = orjson.dumps(list(range(rows)))
        payload = bytes(8 * rows) if method.inputs else items
    runner = BatchRunner(Answering(behaviour), [method])
    return runner.run({"method": "predict", "rows": rows}, payload)


class Masked:
    """Takes what is beside rows; `tokens` is async."""

    def predict(self, x: Any, attention_mask: Any, lengths: Any) -> Any:
        """Of each row, the sum of what was sent, and its length."""
        assert attention_mask.dtype == np.int64
        assert (lengths["tokens"] == attention_mask.sum(axis=1)).all()
        return (x * attention_mask).sum(axis=1)

    async def tokens(self, x: Any, attention_mask: Any) -> Any:
        """The mask itself, with rows along its last dimension."""
        return attention_mask + 0 * x


@pytest.mark.parametrize("pad", [0, 7])
def test_a_method_is_given_the_mask_and_the_lengths_that_it_declares(pad: int) -> None:
    """What fills rows up counts for nothing, whatever it is."""
    spec = padded(single(Tensor("INT64", ["tokens"]), Tensor("INT64", [])), pad)
    encoded = codec_of(spec).from_rows([[1, 2], [3], [4, 5, 6]], "rows")
    batch = codec_of(spec).collate([encoded.payload])
    meta = {"method": "predict", "rows": 3, **batch.meta}

    answer, buffers = BatchRunner(Masked(), [spec]).run(meta, b"".join(batch.buffers))

    assert [pad] * 3 == np.frombuffer(batch.buffers[0], "<i8").reshape(3, 3)[
        [0, 1, 1], [2, 1, 2]
    ].tolist()
    results = codec_of(spec).results(answer, b"".join(buffers))
    assert [b"3", b"3", b"15"] == [item.body for item in results.items(0, 3)]


async def test_a_mask_has_a_dimension_for_each_named_length_and_rows_where_they_are() -> None:
    """As the array beside it has them."""
    tensor = Tensor("INT64", ["a", "b"])
    spec = dataclasses.replace(
        padded(single(tensor, tensor, "tokens")), batch_dim=(2, 2), is_async=True
    )
    codec = codec_of(spec)
    rows = [[[5, 5, 5]], [[5], [5]]]
    batch = codec.collate([codec.from_rows(rows, "rows").payload])
    meta = {"method": "tokens", "rows": 2, **batch.meta}

    runner = BatchRunner(Masked(), [spec])
    answer, buffers = await runner.run_async(meta, b"".join(batch.buffers))

    results = codec.results(answer, b"".join(buffers))
    assert [b"[[1,1,1]]", b"[[1],[1]]"] == [item.body for item in results.items(0, 2)]


def call(behaviour: Any, body: bytes, content_type: bytes = b"", query: bytes = b"") -> Result:
    """One request for a method that takes requests."""
    head = RequestHead(content_type, query, [(b"x-user", b"me")])
    codec = CallCodec(CALL, "api", Receipts.OFF)
    decoded = codec.decode(Wire.PLAIN, head, body)
    return run(CALL, behaviour, 1, b"".join(codec.collate([decoded.payload]).buffers))


def statuses(result: Result) -> list[int]:
    """The status of each item."""
    return [status for status, _, _ in result[0]["items"]]


def bodies(result: Result) -> list[Any]:
    """The body of each item, as JSON."""
    return [orjson.loads(body) for body in result[1]]


def error(result: Result) -> str:
    """The message of a batch that failed as a whole."""
    meta, parts = result
    assert ("error", ()) == (meta["kind"], parts)
    message: str = meta["error"]
    return message


def test_a_tensor_method_gets_an_array_it_may_write_into() -> None:
    """Models work in place; a view over the wire's bytes would be read-only."""

    def double(x: Any) -> Any:
        x += 1
        return x[:, :1]

    meta, (data,) = run(TENSOR, double)

    assert ("tensors", [["output", "<f4", [2, 1]]], []) == tuple(meta.values())
    assert [1, 1] == np.frombuffer(data, "<f4").tolist()


def test_an_item_method_gets_a_list_and_answers_a_list() -> None:
    """The answered list has the same length and the same order."""
    result = run(ITEMS, lambda items: [{"n": n + 1} for n in items], 3)

    assert [{"n": 1}, {"n": 2}, {"n": 3}] == bodies(result)
    assert [200, 200, 200] == statuses(result)


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], []], ids=str)
def test_a_list_of_another_length_fails_the_batch(answer: list[int]) -> None:
    """Nobody could know whose answer is whose (Cortex left such clients waiting for ever)."""
    assert f"failed: expected 2 answers, got {len(answer)}" == error(run(ITEMS, lambda _: answer))


@pytest.mark.parametrize("answer", [None, 3, "ab", {"a": 1, "b": 2}], ids=str)
def test_what_is_no_list_fails_the_batch(answer: object) -> None:
    """A string of the right length neither."""
    assert error(run(ITEMS, lambda _: answer)).startswith("failed: expected a list of 2 answers")


def test_an_item_error_in_the_list_fails_one_item() -> None:
    """LitServe fails the whole batch; here the neighbours are answered."""
    result = run(ITEMS, lambda items: [items[0], ItemError(404, "gone")])

    assert [200, 404] == statuses(result)
    assert {"code": "item_failed", "message": "gone", "request_id": None} == bodies(result)[1]


def test_an_item_error_raised_over_one_row_is_that_rows_answer() -> None:
    """Over many it fails the batch, which is then run in halves until it is over one."""

    def refuse(_: object) -> None:
        raise ItemError(409, "no")

    assert [409] == statuses(run(ITEMS, refuse, rows=1))
    meta, _ = run(ITEMS, refuse, rows=2)
    assert ("raised ItemError", True) == (meta["error"], meta["of_a_row"])
    assert [409] == statuses(run(TENSOR, refuse, rows=1))


@pytest.mark.parametrize("exception", [KeyError("secret"), SystemExit(3), RecursionError()])
def test_an_exception_names_its_type_and_not_its_text(exception: BaseException) -> None:
    """The text may hold other clients' data. exit() in a predictor must not end the lane."""

    def fail(_: object) -> None:
        raise exception

    assert f"raised {type(exception).__name__}" == error(run(ITEMS, fail))


@pytest.mark.parametrize("value", [..., {1, 2}, b"bytes", 1j], ids=str)
def test_an_item_that_is_no_json_fails_alone(value: object) -> None:
    """The other answers of the batch are fine."""
    result = run(ITEMS, lambda _: [1, value])

    assert [200, 500] == statuses(result)
    assert "not JSON" in bodies(result)[1]["message"]


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [1.0, float("inf")],
        {"a": {"b": (float("-inf"),)}},
        np.float32("nan"),
        np.array([1.0, np.nan]),
        [None, float("nan")],
    ],
    ids=str,
)
def test_an_item_with_nan_fails_alone(value: object) -> None:
    """Orjson writes null for it, which is another answer."""
    result = run(ITEMS, lambda _: [value, None])

    assert [500, 200] == statuses(result)
    assert "NaN or Infinity" in bodies(result)[0]["message"]


def test_null_text_and_none_are_fine_answers() -> None:
    """Only a number that is not finite is not."""
    values = [None, "null", {"null": [None, 1.5]}, np.array([1, 2])]

    result = split_items(values, {"rows": 4})

    assert [None, "null", {"null": [None, 1.5]}, [1, 2]] == bodies(result)


def test_arrays_as_items_may_have_any_layout() -> None:
    """Rows of a transposed array, slices, and an array for the whole list."""
    transposed = np.arange(6).reshape(3, 2).T

    assert [[0, 2, 4], [1, 3, 5]] == bodies(split_items(transposed, {"rows": 2}))
    assert [[0, 2]] == bodies(split_items([np.arange(4)[::2]], {"rows": 1}))
    assert [500] == statuses(split_items([np.array([object()])[::1]], {"rows": 1}))


def test_a_surrogate_in_a_message_does_not_break_the_answer() -> None:
    """It is no valid UTF-8; the client gets a question mark."""
    result = run(ITEMS, lambda _: [ItemError(400, "bad \ud800"), 1])

    assert bodies(result)[0]["message"] == "bad ?"


def test_a_plain_method_gets_payload_query_and_headers() -> None:
    """C17: (payload, query_params, headers), one request at a time."""
    seen: list[Sequence[object]] = []

    def remember(*arguments: object) -> dict[str, int]:
        seen.append(arguments)
        return {"ok": 1}

    result = call(remember, b'{"a": [1]}', query=b"q=1&q=2&empty=")

    assert [({"a": [1]}, {"q": "2", "empty": ""}, {"x-user": "me"})] == seen
    assert [{"ok": 1}] == bodies(result)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [(b"text/plain", "h\xe9"), (b"image/png", "h\xe9".encode()), (b"", "h\xe9")],
)
def test_the_payload_is_json_text_or_bytes_by_content_type(
    content_type: bytes, expected: object
) -> None:
    """A picture is not text, and CSV is."""
    seen: list[object] = []
    body = "h\xe9".encode() if content_type else '"h\xe9"'.encode()

    call(lambda payload, *_: seen.append(payload), body, content_type)

    assert [expected] == seen


@pytest.mark.parametrize(
    ("value", "kind", "body"),
    [
        (b"\x00\x01", "bytes", b"\x00\x01"),
        ("h\xe9", "text", "h\xe9".encode()),
        ([1], "json", b"[1]"),
    ],
    ids=["bytes", "text", "json"],
)
def test_the_answer_of_a_plain_method_has_the_kind_of_its_value(
    value: object, kind: str, body: bytes
) -> None:
    """Bytes become octet-stream, str text/plain, anything else JSON."""
    meta, parts = call(lambda *_: value, b"1")

    assert [[200, kind, len(body)]] == meta["items"]
    assert [body] == list(parts)


def test_an_item_error_is_a_plain_methods_answer_too() -> None:
    """Returned or raised."""

    def refuse(*_: object) -> None:
        raise ItemError(403, "no")

    assert (
        [403] == statuses(call(refuse, b"1")) == statuses(call(lambda *_: ItemError(403, ""), b"1"))
    )


def test_an_awaitable_is_no_answer_of_a_plain_function() -> None:
    """A forgotten `async`; what to write is in the message, and nothing is left unawaited."""

    async def later(*_: object) -> int:
        return 1

    assert error(call(later, b"1")) == (
        "failed: predict answered an awaitable, but is no coroutine function;"
        " write async def predict"
    )


def test_a_generator_is_no_answer() -> None:
    """Its items come when nobody checks their number any more."""
    message = error(run(ITEMS, lambda items: (item for item in items)))

    assert message == "failed: predict yields its answer; return it whole"


def test_a_method_that_is_not_there_is_an_error_like_others() -> None:
    """The lane lives on."""
    runner = BatchRunner(Answering(None), [ITEMS])

    assert error(runner.run({"method": "other", "rows": 1}, b"[]")) == (
        "failed: there is no method 'other'"
    )


class OutOfMemoryError(RuntimeError):
    """As torch and cupy name theirs."""


class DerivedError(OutOfMemoryError):
    """A library's own subclass of that error."""


@pytest.mark.parametrize(
    ("exception", "oom"),
    [
        (MemoryError(), True),
        (OutOfMemoryError(), True),
        (DerivedError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("out of luck"), False),
        (ValueError("CUDA out of memory"), False),
    ],
    ids=str,
)
def test_running_out_of_memory_is_told_apart(exception: Exception, *, oom: bool) -> None:
    """C24: a smaller batch may fit, and is tried."""

    def fail(_: object) -> None:
        raise exception

    meta, _ = run(ITEMS, fail)

    assert ("error", oom) == (meta["kind"], meta["oom"])
    assert meta["error"] == f"raised {type(exception).__name__}"


class Several:
    """A predictor with methods of all kinds, one of them named as models name theirs."""

    def __call__(self, items: list[Any]) -> list[Any]:
        """B12: batchable like any other."""
        return [item + 1 for item in items]

    def double(self, x: Any) -> Any:
        """With a tensor."""
        return x[:, :1] * 2


def test_each_frame_runs_the_method_it_names() -> None:
    """B12, C20: several methods on one predictor, `__call__` too."""
    runner = BatchRunner(
        Several(),
        [dataclasses.replace(ITEMS, name="__call__"), dataclasses.replace(TENSOR, name="double")],
    )

    items = runner.run({"method": "__call__", "rows": 2}, b"[1,2]")
    _, (data,) = runner.run({"method": "double", "rows": 1}, np.array([3, 4], "<f4").tobytes())

    assert [2, 3] == bodies(items)
    assert [6] == np.frombuffer(data, "<f4").tolist()


STUCK = RuntimeError("CUDA error: device-side assert triggered")


class Breaking:
    """Answers items, but for "bad" ones; broken for ever by a "break"."""

    def __init__(self) -> None:
        self.broken: Exception | None = None
        self.error_of_warm: Exception | None = None
        self.runs = 0

    def predict(self, items: list[Any]) -> list[Any]:
        """The items."""
        self.runs += 1
        if "warm" in items and self.error_of_warm is not None:
            raise self.error_of_warm
        if "break" in items:
            self.broken = KeyError("not known for a device's")
        if self.broken is not None:
            raise self.broken
        for text, error in (("bad", ValueError()), ("refused", ItemError(410, "")),
                            ("large", MemoryError())):  # fmt: skip
            if text in items:
                raise error
        return items


def runner_with_probe(predictor: Breaking, rows: int = 1) -> Any:
    """Runs batches of items, with a probe of so many; answers the metas of the results."""
    runner = BatchRunner(predictor, [ITEMS])
    warm = orjson.dumps(["warm"] * rows)
    runner.probes["predict"] = {"method": "predict", "rows": rows}, warm

    def ask(*items: str) -> dict[str, Any]:
        return runner.run({"method": "predict", "rows": len(items)}, orjson.dumps(items))[0]

    return ask


def test_a_lost_device_makes_the_process_unfit_at_once() -> None:
    """S2: nothing after it can succeed."""
    predictor = Breaking()
    ask = runner_with_probe(predictor)
    predictor.broken = STUCK

    assert ask("good")["unfit"]
    assert 1 == predictor.runs


def test_after_many_failures_in_a_row_the_warm_up_row_tells_whose_fault_it_is() -> None:
    """The eighth batch is not answered: it runs again in another process."""
    predictor = Breaking()
    ask = runner_with_probe(predictor)

    found = [ask("break"), *(ask("good") for _ in range(7))]

    assert [False] * 7 + [True] == ["unfit" in one for one in found]
    assert 8 + 1 == predictor.runs


@pytest.mark.parametrize("item", ["bad", "refused", "large"])
def test_wrong_rows_alone_never_make_a_process_unfit(item: str) -> None:
    """However many; and the probe costs every eighth batch of them one row."""
    predictor = Breaking()
    ask = runner_with_probe(predictor)

    found = [ask(item, item) for _ in range(100)]

    assert not any("unfit" in one for one in found)
    assert predictor.runs <= 100 + 100 // 8


def test_a_success_between_failures_begins_the_count_anew() -> None:
    """And a refused row is no success."""
    predictor = Breaking()
    ask = runner_with_probe(predictor)
    for _ in range(7):
        ask("bad")
    ask("refused")
    before = predictor.runs
    ask("bad")
    assert 2 == predictor.runs - before  # with the probe

    for _ in range(7):
        ask("bad")
    ask("good")
    before = predictor.runs
    ask("bad")
    assert 1 == predictor.runs - before


def test_without_warm_up_rows_nothing_is_a_probe() -> None:
    """A row of a client is not: it may be wrong, or must not run twice."""
    predictor = Breaking()
    runner = BatchRunner(predictor, [ITEMS])

    found = [
        runner.run({"method": "predict", "rows": 1}, orjson.dumps([item]))[0]
        for item in ["break", *["good"] * 50]
    ]

    assert not any("unfit" in one for one in found)


def test_a_lane_that_answers_while_another_counts_breaks_nothing() -> None:
    """An error of the counts, which they share, would end the process and blame all it runs."""

    class OtherLaneAnswers(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            runner.run({"method": "predict", "rows": 1}, b'["good"]')
            return super().get(key, default)

    runner = BatchRunner(Breaking(), [ITEMS])
    probe = {"method": "predict", "rows": 1}, b'["warm"]'
    for _ in range(7):
        runner.run({"method": "predict", "rows": 1}, b'["bad"]')
    runner.probes = OtherLaneAnswers(predict=probe)

    result, _ = runner.run({"method": "predict", "rows": 1}, b'["bad"]')

    assert ("error", False) == (result["kind"], "unfit" in result)


@pytest.mark.parametrize("error", [MemoryError(), ItemError(503, "not now")])
def test_a_probe_that_finds_no_memory_or_is_refused_ends_nothing(error: Exception) -> None:
    """Other lanes have the memory just now; the next probe asks again."""
    predictor = Breaking()
    ask = runner_with_probe(predictor, rows=2)
    for _ in range(7):
        ask("bad")
    predictor.error_of_warm = error

    assert "unfit" not in ask("bad")

    ask("break")
    predictor.error_of_warm = None
    assert [False] * 6 + [True] == ["unfit" in ask("good") for _ in range(7)]


async def test_an_async_method_is_probed_as_well() -> None:
    """On its loop."""

    class Later(Breaking):
        async def predict(self, items: list[Any]) -> list[Any]:  # type: ignore[override]
            return super().predict(items)

    runner = BatchRunner(Later(), [dataclasses.replace(ITEMS, is_async=True)])
    runner.probes["predict"] = {"method": "predict", "rows": 1}, b'["warm"]'

    found = [
        (await runner.run_async({"method": "predict", "rows": 1}, orjson.dumps([item])))[0]
        for item in ["break", *["good"] * 7]
    ]

    assert [False] * 7 + [True] == ["unfit" in one for one in found]


LARGE = 1 << 15
ABOUT = b'{"json":false,"text":false,"query":"","headers":[]}'


@pytest.mark.parametrize(
    ("method", "rows", "payload"),
    [
        (single(Tensor("FP32", [LARGE])), 2, bytes(8 * LARGE)),
        (single(Tensor("FP32", ["n"])), 2, bytes(8 * LARGE)),
        (ITEMS, 2, orjson.dumps(["x" * LARGE] * 2)),
        (CALL, 1, b"\x33\0\0\0" + ABOUT + bytes(LARGE)),
    ],
    ids=["one tensor", "variable", "items", "call"],
)
def test_what_a_method_gets_is_its_own_although_the_payload_is_memory_of_the_next_batch(
    method: MethodSpec, rows: int, payload: bytes
) -> None:
    """Copied once, where it is turned into arguments, and nowhere before."""
    memory = bytearray(payload)
    kept: list[Any] = []

    def keeps(given: Any, *_: Any) -> Any:
        kept.append(given)
        return given

    meta = {"method": "predict", "rows": rows, "lengths": {"n": [LARGE] * rows}}
    BatchRunner(Answering(keeps), [method]).run(meta, memoryview(memory))
    before = bytes(kept[0]) if isinstance(kept[0], bytes | np.ndarray) else list(kept[0])
    memory[:] = b"\xff" * len(memory)
    after = bytes(kept[0]) if isinstance(kept[0], bytes | np.ndarray) else list(kept[0])

    assert before == after
    if isinstance(kept[0], np.ndarray):
        kept[0] += 1  # it may be written into


def test_a_large_answer_is_framed_where_it_is() -> None:
    """Its next copy is into the memory that the other process reads."""
    answer = np.ones((2, LARGE), "<f4")

    _, (contents,) = run(single(Tensor("FP32", [2]), Tensor("FP32", [LARGE])), lambda _: answer)

    assert np.shares_memory(np.frombuffer(contents, "<f4"), answer)
    assert bytes(contents) == answer.tobytes()


async def test_of_an_async_method_a_large_answer_is_copied_at_once() -> None:
    """Another call may write into the same array before the frame is sent."""
    answer = np.ones((2, LARGE), "<f4")
    method = single(Tensor("FP32", [2]), Tensor("FP32", [LARGE]))
    runner = BatchRunner(Answering(lambda _: answer), [method])

    _, (contents,) = await runner.run_async({"method": "predict", "rows": 2}, bytes(16))

    assert type(contents) is bytes


def calls(
    behaviour: Any, bodies: Sequence[bytes], method: MethodSpec = CALL, codec: Any = None
) -> Result:
    """Several requests that waited together, for a method that takes one."""
    codec = codec or CallCodec(method, "api", Receipts.OFF)
    head = RequestHead(b"application/json", b"q=1", [(b"x-user", b"me")])
    decoded = [codec.decode(Wire.PLAIN, head, body) for body in bodies]
    collated = codec.collate([one.payload for one in decoded])
    meta = {"method": "predict", "rows": len(bodies), **collated.meta}
    payload = b"".join(collated.buffers)
    runner = BatchRunner(Answering(behaviour), [method])
    if not method.is_async:
        return runner.run(meta, payload)
    return asyncio.run(runner.run_async(meta, payload))


ASYNC_CALL = dataclasses.replace(CALL, is_async=True)


def as_async(behaviour: Any) -> Any:
    """The same behind an await."""

    async def answer(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return behaviour(*arguments)

    return answer


@pytest.mark.parametrize(("method", "wrap"), [(CALL, lambda f: f), (ASYNC_CALL, as_async)])
def test_a_batch_of_a_plain_method_is_one_call_a_request(method: MethodSpec, wrap: Any) -> None:
    """C16: it still appears like a single prediction; payload, query and headers are each one's."""
    seen: list[Any] = []

    def remember(*arguments: Any) -> Any:
        seen.append(arguments)
        return [arguments[0], "text", b"bytes"][len(seen) - 1]

    result = calls(wrap(remember), [b'{"a": 1}', b"2", b"[3]"], method)

    assert [({"a": 1},), (2,), ([3],)] == [arguments[:1] for arguments in seen]
    assert [({"q": "1"}, {"x-user": "me"})] * 3 == [arguments[1:] for arguments in seen]
    assert ["json", "text", "bytes"] == [kind for _, kind, _ in result[0]["items"]]
    assert [b'{"a":1}', b"text", b"bytes"] == [bytes(body) for body in result[1]]


@pytest.mark.parametrize(("method", "wrap"), [(CALL, lambda f: f), (ASYNC_CALL, as_async)])
def test_of_requests_that_run_one_by_one_each_fails_alone(method: MethodSpec, wrap: Any) -> None:
    """C16: with the status and the words that it would have alone; nothing is run twice."""
    asked: list[Any] = []

    def behave(payload: Any, *_: Any) -> Any:
        asked.append(payload)
        if payload == 1:
            raise ValueError
        if payload == 2:
            raise ItemError(404, "no such thing")
        return (one for one in "a") if payload == 3 else payload

    result = calls(wrap(behave), [b"0", b"1", b"2", b"3", b"4"], method)

    assert [0, 1, 2, 3, 4] == asked
    assert [200, 500, 404, 500, 200] == statuses(result)
    messages = [one["message"] for one in bodies(result)[1:4]]
    assert messages[0] == "the predictor raised ValueError; the server's log has the details"
    assert messages[1] == "no such thing"
    assert "predict yields its answer; return it whole" in messages[2]


def test_memory_that_ran_out_is_told_of_all_of_them() -> None:
    """The batch is halved then, as any other."""

    def behave(*_: Any) -> Any:
        raise MemoryError

    result = calls(behave, [b"0", b"1"])

    assert ("error", True) == (result[0]["kind"], result[0]["oom"])
