"""The id of a request in the body of its error, wherever the error was written."""

import json

import msgpack
import orjson
import pytest

from batchedapi_serving.codecs import Answer, RequestHead
from batchedapi_serving.codecs.msgpack_rows import MsgpackReply
from batchedapi_serving.codecs.replies import INSTANCES, ITEM, JSON_TYPE, named, problem_answer
from batchedapi_serving.codecs.results import item_results
from batchedapi_serving.errors import MalformedError
from batchedapi_serving.model.marshalling import split_items
from batchedapi_serving.predictor import ItemError

HEAD = RequestHead(b"", b"", ())
TRICKY = 'say "request_id":null, \\ and more'


def answered(values: list[object], reply: object = INSTANCES) -> Answer:
    """The reply to a predictor's answers, split as a model process does it."""
    meta, buffers = split_items(values, {"rows": len(values)})
    results = item_results(meta, b"".join(buffers))
    return reply.answer(results, 0, len(values), None)  # type: ignore[attr-defined,no-any-return]  # all are


@pytest.mark.parametrize("request_id", ["mine", 'with "quotes" and \\', "x" * 200])
def test_an_item_that_failed_is_answered_with_the_id(request_id: str) -> None:
    """The header alone is lost when a body is logged; of many rows, the answer's own error."""
    one = named(answered([ItemError(409, TRICKY)], ITEM), request_id)
    many = named(answered([{"request_id": None}, ItemError(409, TRICKY)]), request_id)

    error = json.loads(one.body)["error"]
    assert {"code": "item_failed", "message": TRICKY, "request_id": request_id} == error
    body = json.loads(many.body)
    assert request_id == body["error"]["request_id"]
    assert {"request_id": None} == body["predictions"][0]


@pytest.mark.parametrize("reply", [ITEM, INSTANCES], ids=["item", "instances"])
def test_in_msgpack_too(reply: object) -> None:
    """The same structure."""
    packed = MsgpackReply(reply, b"application/x-msgpack")  # type: ignore[arg-type]  # both are
    answer = named(answered([ItemError(409, TRICKY)], packed), "mine")

    assert msgpack.unpackb(answer.body)["error"]["request_id"] == "mine"


def test_an_id_that_is_there_stays_and_other_bodies_are_left_alone() -> None:
    """An error may be written with its id, and a binary body has no place for one."""
    known = problem_answer(MalformedError("no"), "first")
    text = Answer(409, JSON_TYPE, orjson.dumps({"error": TRICKY}))
    raw = Answer(409, b"application/octet-stream", b'"request_id":null')

    assert (known, text, raw) == (named(known, "x"), named(text, "x"), named(raw, "x"))
