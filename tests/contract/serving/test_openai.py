"""`/v1/embeddings` and `/v1/rerank` of a real replica, the first asked by OpenAI's own client."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from ports import HOST
from raw_http import ask
from serving import Replica

CODE = """
    import numpy as np

    from batchedapi_serving import ItemError, batched

    class Model:
        @batched(example="text", max_batch_size=256)
        def embeddings(self, inputs):  # the length, then the first two characters or ids
            return [self._vector(value) for value in inputs]

        def _vector(self, value):
            if value == "poison":
                return ItemError(422, "not this text")
            if value == "crash":
                raise RuntimeError("a bug of the model")
            first = [float(ord(c)) for c in value[:2]] if isinstance(value, str) else value[:2]
            tokens = len(value.split()) if isinstance(value, str) else len(value)
            vector = np.array([len(value), *first, 0, 0], np.float32)[:3] / 3
            return {"embedding": vector, "tokens": tokens}

        @batched(example=["question", "answer"])
        def rerank(self, pairs):  # words in common
            return [float(len({*q.split()} & {*d.split()})) for q, d in pairs]
"""


@pytest.fixture(scope="module")
def client(replica: Replica) -> Iterator[openai.OpenAI]:
    """OpenAI's client as its users have it; without its second tries, which hide errors."""
    base = f"http://{HOST}:{replica.port}/v1"
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as made:
        yield made


def vector_of(text: str) -> Any:
    """What the model answers."""
    first = [float(ord(c)) for c in text[:2]]
    return np.array([len(text), *first, 0, 0], np.float32)[:3] / 3


def embedded_rows(replica: Replica) -> float:
    """Rows in batches of `embeddings` so far."""
    line = 'batchedapi_batch_rows_sum{method="embeddings"} '
    return float(replica.admin("/metrics")[1].split(line)[1].split()[0])


@pytest.mark.parametrize("count", [1, 100, 2048])
@pytest.mark.parametrize("form", [{}, {"encoding_format": "base64"}, {"encoding_format": "float"}])
def test_a_request_of_many_inputs_is_many_rows(
    client: openai.OpenAI, replica: Replica, count: int, form: Any
) -> None:
    """2,048 is as many as OpenAI takes. Without a format the client asks for base64."""
    texts = [f"{i} words of text" for i in range(count)]
    before = embedded_rows(replica)

    answer = client.embeddings.create(model="api", input=texts, **form)

    assert list(range(count)) == [one.index for one in answer.data]
    vectors: list[Any] = [one.embedding for one in answer.data]
    if form == {"encoding_format": "base64"}:  # whoever asks for it decodes it
        vectors = [np.frombuffer(base64.b64decode(one), "<f4") for one in vectors]
    np.testing.assert_allclose([vector_of(text) for text in texts], vectors, rtol=1e-6)
    assert (4 * count, 4 * count) == (answer.usage.prompt_tokens, answer.usage.total_tokens)
    assert "api" == answer.model
    assert count == embedded_rows(replica) - before


@pytest.mark.parametrize(
    ("given", "rows"),
    [("one text", ["one text"]), ([7, 8, 9], [[7, 8, 9]]), ([[7, 8], [9]], [[7, 8], [9]])],
)
def test_an_input_is_a_text_or_token_ids_or_a_list_of_them(
    client: openai.OpenAI, given: Any, rows: list[Any]
) -> None:
    """The four types of OpenAI's reference; the model sees them as they were sent."""
    answer = client.embeddings.create(model="api", input=given, encoding_format="float")

    assert [pytest.approx(len(row) / 3) for row in rows] == [d.embedding[0] for d in answer.data]


@pytest.mark.parametrize(
    ("wrong", "kind", "param", "said"),
    [
        ({"input": []}, openai.BadRequestError, "input", "input: expected a text, token ids"),
        ({"input": ["a", None]}, openai.BadRequestError, "input", "input[1]: expected a text"),
        ({"input": ["a", []]}, openai.BadRequestError, "input", "input[1]: expected a text"),
        ({"input": [2**70]}, openai.BadRequestError, None, "integers of 64 bits"),
        ({"encoding_format": "hex"}, openai.BadRequestError, "encoding_format", "got 'hex'"),
        ({"dimensions": 0}, openai.BadRequestError, "dimensions", "an integer of at least 1"),
        ({"dimensions": 2}, openai.BadRequestError, "dimensions", "expected 3, the only length"),
        ({"extra_body": {"task": "x"}}, openai.BadRequestError, None, "task: expected no members"),
        ({"model": "other"}, openai.NotFoundError, "model", "expected 'api', got 'other'"),
        ({"input": ["poison"]}, openai.UnprocessableEntityError, "input", "input[0]: not this"),
        ({"input": "crash"}, openai.InternalServerError, None, "the predictor raised RuntimeError"),
        ({"timeout": 5, "extra_headers": {"x-request-timeout-ms": "x"}}, openai.BadRequestError,
         None, "x-request-timeout-ms"),
    ],
)  # fmt: skip
def test_errors_are_the_clients_own_classes(
    client: openai.OpenAI, wrong: Any, kind: type[openai.APIStatusError], param: str, said: str
) -> None:
    """With message, type, param and code, as whoever reads OpenAI's errors expects."""
    with pytest.raises(kind) as caught:
        client.embeddings.create(**{"model": "api", "input": "text", **wrong})

    body: Any = caught.value.body
    assert said.lower() in body["message"].lower()
    assert (param, body["code"]) == (caught.value.param, caught.value.code)
    server = caught.value.status_code >= 500
    assert ("server_error" if server else "invalid_request_error") == caught.value.type
    assert caught.value.request_id == body["request_id"]


async def test_a_rerank_is_sorted_by_score(replica: Replica) -> None:
    """The best first, each with the index of its document; documents only if they are asked for."""
    documents = ["nothing", {"text": "red fox"}, "the red dog"]
    asked = {"query": "the red fox", "documents": documents, "model": "api"}

    plain = (await ask(replica.port, asked, "/v1/rerank")).json()
    best = await ask(replica.port, {**asked, "top_n": 1, "return_documents": True}, "/v1/rerank")

    found = [(one["index"], one["relevance_score"]) for one in plain["results"]]
    assert [(1, 2.0), (2, 2.0), (0, 0.0)] == found
    first = {"index": 1, "relevance_score": 2.0, "document": {"text": "red fox"}}
    assert [first] == best.json()["results"]


async def test_other_methods_and_wrong_paths_are_told_in_the_same_words(replica: Replica) -> None:
    """A client of OpenAI's reads no other shape, also of what never reached the method."""
    answer = await ask(replica.port, {}, "/v1/rerank")

    assert 400 == answer.status
    error = json.loads(answer.body)["error"]
    assert {"message", "type", "param", "code", "request_id"} == set(error)
    assert "query: expected a text, got None" == error["message"]
