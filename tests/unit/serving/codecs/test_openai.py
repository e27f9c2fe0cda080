"""`/v1/embeddings` and `/v1/rerank`: from their bodies to rows, and from answers to theirs."""

import base64
from typing import Any

import numpy as np
import orjson
import pytest

from batchedapi_serving.codecs import Answer, DecodedRequest, RequestHead, Wire
from batchedapi_serving.errors import (
    ClientError,
    LateError,
    MalformedError,
    NoSuchRouteError,
    NotReadyError,
    PredictorError,
    UnsupportedTypeError,
)
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.web.responses import problem_on
from protocols import JSON_HEAD, RECEIPT, codec_of, failed_item, items, single, tensors

EMBEDDINGS = MethodSpec("embeddings", batched=True)
RERANK = MethodSpec("rerank", batched=True)
IDS = single(Tensor("INT64", ["tokens"]), Tensor("FP32", [2]), "embeddings")


def decoded(body: Any, method: MethodSpec = EMBEDDINGS) -> DecodedRequest:
    """A request of the language that is called after the method."""
    return codec_of(method).decode(Wire(method.name), JSON_HEAD, orjson.dumps(body))


def answered(body: Any, results: Any, rows: int, method: MethodSpec = EMBEDDINGS) -> Answer:
    """The answer to a request whose rows begin at the second of the batch."""
    return decoded(body, method).reply.answer(results, 1, 1 + rows, RECEIPT)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ("a b", ["a b"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3], "a"], [[1, 2], [3], "a"]),
    ],
)
def test_each_input_is_a_row(given: Any, rows: list[Any]) -> None:
    """OpenAI's four types of input; a list of numbers is one row of token ids."""
    assert [orjson.dumps(row) for row in rows] == decoded({"input": given}).payload


def test_token_ids_are_rows_of_a_tensor() -> None:
    """A method of tensors is asked like any other, and what it refuses is told with its place."""
    assert [(2,), (1,)] == [row.lengths for row in decoded({"input": [[1, 2], [3]]}, IDS).payload]
    with pytest.raises(MalformedError, match=r"^input: expected .*'a text'"):
        decoded({"input": "a text"}, IDS)


def test_a_document_is_a_row_with_its_query() -> None:
    """Documents are texts, or objects that hold one, as both APIs have had them."""
    rows = decoded({"query": "q", "documents": ["a", {"text": "b"}]}, RERANK)

    assert [b'["q","a"]', b'["q","b"]'] == rows.payload


@pytest.mark.parametrize(
    ("method", "body", "message"),
    [
        (EMBEDDINGS, [], "body: expected an object with input, model"),
        (EMBEDDINGS, {}, "input: expected a text, token ids, or a list of either, got None"),
        (EMBEDDINGS, {"input": []}, "input: expected a text, token ids"),
        (EMBEDDINGS, {"input": [True]}, r"input\[0\]: expected a text or a list of token ids"),
        (EMBEDDINGS, {"input": ["a", [1.5]]}, r"input\[1\]: expected a text or a list of token"),
        (EMBEDDINGS, {"input": "a", "encoding_format": "int8"}, "encoding_format: expected float"),
        (EMBEDDINGS, {"input": "a", "dimensions": True}, "dimensions: expected an integer of"),
        (EMBEDDINGS, {"input": "a", "task": "x"}, "task: expected no members but input, model"),
        (RERANK, {"documents": ["a"]}, "query: expected a text, got None"),
        (RERANK, {"query": "a", "documents": "b"}, "documents: expected a list of texts"),
        (RERANK, {"query": "a", "documents": [{}]}, r"documents\[0\]: expected a text, or"),
        (RERANK, {"query": "a", "documents": ["b"], "top_n": 0}, "top_n: expected an integer"),
        (RERANK, {"query": "a", "documents": ["b"], "return_documents": 1}, "return_documents: "),
    ],
)
def test_a_wrong_body_is_400_and_names_the_member(
    method: MethodSpec, body: Any, message: str
) -> None:
    """OpenAI says 400 where we say 422 elsewhere; its client makes a BadRequestError of it."""
    with pytest.raises(MalformedError, match=f"^{message}"):
        decoded(body, method)


def test_only_json_for_a_model_that_is_served_is_taken() -> None:
    """The API's name, or the method's as v1 and v2 know it."""
    assert 1 == decoded({"input": "a", "model": "iris.embeddings"}).rows
    with pytest.raises(NoSuchRouteError, match="model: expected 'iris', got 'gpt'"):
        decoded({"input": "a", "model": "gpt"})
    with pytest.raises(UnsupportedTypeError):
        codec_of(EMBEDDINGS).decode(Wire.EMBEDDINGS, RequestHead(b"text/plain", b"", ()), b"{}")


def test_vectors_are_answered_in_the_order_of_inputs() -> None:
    """As the model wrote them; tokens that it tells are counted."""
    results = items(0, [0.1, 0.2], {"embedding": [0.3], "tokens": 7})

    answer = answered({"input": ["a", "b"]}, results, 2)

    expected = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.1, 0.2]},
            {"object": "embedding", "index": 1, "embedding": [0.3]},
        ],
        "model": "iris",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert expected == orjson.loads(answer.body)
    assert (b"x-batchedapi-my-rows", b"2") in answer.headers


def test_tokens_that_nobody_tells_are_the_ids_that_were_sent() -> None:
    """Only the model knows how many tokens a text has: without a word of it there are none."""
    results = tensors(IDS, output=np.array([[0, 0], [1, 2], [3, 4]], np.float32))

    ids = answered({"input": [[1, 2, 3], [4]], "model": "iris.embeddings"}, results, 2, IDS)
    text = answered({"input": "a"}, items(0, [1.0]), 1)

    assert 4 == orjson.loads(ids.body)["usage"]["total_tokens"]
    assert [[1, 2], [3, 4]] == [one["embedding"] for one in orjson.loads(ids.body)["data"]]
    assert "iris.embeddings" == orjson.loads(ids.body)["model"]
    assert 0 == orjson.loads(text.body)["usage"]["total_tokens"]


def test_base64_is_of_floats_in_32_bits() -> None:
    """The form that OpenAI's client asks for unless it is told another."""
    asked = {"input": "a", "encoding_format": "base64", "dimensions": 2}

    answer = answered(asked, items(0, [0.1, -2]), 1)

    (one,) = orjson.loads(answer.body)["data"]
    assert np.array([0.1, -2], "<f4").tobytes() == base64.b64decode(one["embedding"])


@pytest.mark.parametrize("form", ["float", "base64"])
@pytest.mark.parametrize("value", [5, "text", {"vector": [1]}, {"embedding": {"a": 1}}, None])
def test_an_answer_that_is_no_vector_is_the_models_mistake(value: Any, form: str) -> None:
    """500, and not a vector that a client could not read."""
    with pytest.raises(PredictorError, match="embeddings: expected a list of numbers, got"):
        answered({"input": "a", "encoding_format": form}, items(0, value), 1)


@pytest.mark.parametrize("value", [[[1.0]], ["a"]])
def test_a_list_is_looked_into_where_its_numbers_are_read(value: Any) -> None:
    """What is sent on as text was written by the model as such."""
    with pytest.raises(PredictorError, match="embeddings: expected a list of numbers, got"):
        answered({"input": "a", "dimensions": 1}, items(0, value), 1)


def test_another_length_than_the_models_is_refused() -> None:
    """Cutting vectors is for models that were trained for it."""
    with pytest.raises(MalformedError, match="dimensions: expected 2, the only length of this"):
        answered({"input": "a", "dimensions": 3}, items(0, [1, 2]), 1)


def test_scores_are_sorted_and_those_asked_for_are_told() -> None:
    """Equal scores stay in the order of their documents."""
    asked = {"query": "q", "documents": ["a", "b", "c"], "top_n": 2, "return_documents": True}
    results = items(0, 1, {"score": 2.5, "tokens": 9}, 1.0)

    answer = orjson.loads(answered(asked, results, 3, RERANK).body)

    assert answer["results"] == [
        {"index": 1, "relevance_score": 2.5, "document": {"text": "b"}},
        {"index": 0, "relevance_score": 1.0, "document": {"text": "a"}},
    ]
    assert {"prompt_tokens": 9, "total_tokens": 9} == answer["usage"]


@pytest.mark.parametrize("value", ["best", [1], {"scores": 1}, True])
def test_an_answer_that_is_no_score_is_the_models_mistake(value: Any) -> None:
    """Nothing is sorted by it."""
    with pytest.raises(PredictorError, match="rerank: expected a number, got"):
        answered({"query": "q", "documents": ["a"]}, items(0, value), 1, RERANK)


def test_tokens_are_an_integer() -> None:
    """They are added up."""
    with pytest.raises(PredictorError, match="tokens: expected an integer, got '7'"):
        answered({"input": "a"}, items(0, {"embedding": [1], "tokens": "7"}), 1)


@pytest.mark.parametrize(
    ("method", "body", "member"),
    [
        (EMBEDDINGS, {"input": ["a", "b"]}, "input"),
        (RERANK, {"query": "a", "documents": ["a", "b"]}, "documents"),
    ],
)
def test_one_row_that_fails_fails_its_request(method: MethodSpec, body: Any, member: str) -> None:
    """With its own status and place: neither API has a word for half an answer."""
    answer = answered(body, items(0, [1], failed_item(422, "not this one")), 2, method)

    error = orjson.loads(answer.body)["error"]
    assert (422, f"{member}[1]: not this one") == (answer.status, error["message"])
    assert ("item_failed", member) == (error["code"], error["param"])


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (MalformedError("input[3].x: expected y"), "invalid_request_error", "input"),
        (MalformedError("inputs: expected y"), "invalid_request_error", None),
        (LateError("late", 2), "rate_limit_error", None),
        (NotReadyError("wait"), "server_error", None),
    ],
)
def test_errors_have_openais_shape(
    error: ClientError | LateError | NotReadyError, kind: str, param: str | None
) -> None:
    """Before a route is known as well; with our code and id in it as on every other route."""
    answers = [
        problem_on(Wire.RERANK, error, "r-1"),
        decoded({"input": "a"}).reply.problem(error, "r-1"),
    ]

    for answer in answers:
        assert {
            "error": {
                "code": error.code, "message": str(error), "request_id": "r-1",
                "type": kind, "param": param,
            }
        } == orjson.loads(answer.body)  # fmt: skip
        assert (error.status, getattr(error, "retry_after", 0)) == answer[:1] + answer[3:4]
