"""`/v1/embeddings` as clients of OpenAI ask it, and `/v1/rerank` as those of Jina and Cohere do.

Both are answered by the method of that name, of any kind. Each input is a row of `embeddings`: a
text, or a list of token ids. Each document is a row of `rerank`: [query, document]. The answer to a
row is a vector, or a score; or an object that tells the row's tokens too:
{"embedding": [...], "tokens": 7}, {"score": 0.5, "tokens": 7}.

Sources: https://platform.openai.com/docs/api-reference/embeddings, https://jina.ai/reranker,
https://docs.cohere.com/reference/rerank
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import orjson

from batchedapi_core import contract
from batchedapi_serving.codecs.interface import (
    Answer,
    Codec,
    DecodedRequest,
    Head,
    Item,
    Receipt,
    Results,
    Wire,
)
from batchedapi_serving.codecs.json_values import (
    check_row_count,
    is_json,
    parse_items,
    parse_json,
    unsupported,
)
from batchedapi_serving.codecs.open_inference_metadata import model_name
from batchedapi_serving.codecs.replies import JSON_TYPE, item_text, receipt_headers
from batchedapi_serving.codecs.results import OK, error_object
from batchedapi_serving.errors import (
    InvalidInputError,
    LateError,
    MalformedError,
    NoSuchRouteError,
    OverloadedError,
    PredictorError,
    ServingError,
    brief,
)

OF_EMBEDDINGS: Final = ("input", "model", "encoding_format", "dimensions", "user")
"""Members of a request; `user` changes nothing at OpenAI either."""
OF_RERANK: Final = ("query", "documents", "model", "top_n", "return_documents")
_PLACE: Final = re.compile(rf"({'|'.join((*OF_EMBEDDINGS, *OF_RERANK))})\b")
"""How a message begins that is about one member."""
Options: TypeAlias = Mapping[str, Any]


def decode_openai(
    codec: Codec, wire: Literal[Wire.EMBEDDINGS, Wire.RERANK], head: Head, body: bytes
) -> DecodedRequest:
    """A request of one of the two; see Codec.decode.

    Raises:
        MalformedError: wherever another language says InvalidInputError: these APIs say 400.
    """
    decode = _embeddings if wire is Wire.EMBEDDINGS else _rerank
    try:
        return decode(codec, head, body)
    except InvalidInputError as error:
        raise MalformedError(str(error)) from error


def _embeddings(codec: Codec, head: Head, body: bytes) -> DecodedRequest:
    asked = _options(codec, head, body, OF_EMBEDDINGS)
    given = asked.get("input")
    form = asked.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise InvalidInputError(f"encoding_format: expected float or base64, got {brief(form)}")
    dimensions = _count(asked, "dimensions")
    if isinstance(given, str) or _is_tokens(given):
        rows: list[Any] = [given]
        encoded = codec.from_row(given, "input", head)
    else:
        rows = _list_of(given, "input", "a text, token ids, or a list of either")
        for i, row in enumerate(rows):
            if not (isinstance(row, str) or _is_tokens(row)):
                raise InvalidInputError(
                    f"input[{i}]: expected a text or a list of token ids, got {brief(row)}"
                )
        encoded = codec.from_rows(rows, "input", head)
    tokens = sum(len(row) for row in rows if not isinstance(row, str))
    reply = EmbeddingsReply(asked["model"], tokens, dimensions, packed=form == "base64")
    return encoded.decoded(reply)


def _rerank(codec: Codec, head: Head, body: bytes) -> DecodedRequest:
    asked = _options(codec, head, body, OF_RERANK)
    query = asked.get("query")
    if not isinstance(query, str):
        raise InvalidInputError(f"query: expected a text, got {brief(query)}")
    texts = []
    for i, given in enumerate(_list_of(asked.get("documents"), "documents", "a list of texts")):
        text = given.get("text") if isinstance(given, dict) else given
        if not isinstance(text, str):
            raise InvalidInputError(
                f'documents[{i}]: expected a text, or {{"text": ...}}, got {brief(given)}'
            )
        texts.append(text)
    returned = asked.get("return_documents") or False
    if type(returned) is not bool:
        raise InvalidInputError(f"return_documents: expected true or false, got {brief(returned)}")
    encoded = codec.from_rows([[query, text] for text in texts], "documents", head)
    most = _count(asked, "top_n") or len(texts)
    return encoded.decoded(RerankReply(asked["model"], most, tuple(texts) if returned else ()))


def _options(codec: Codec, head: Head, body: bytes, members: Sequence[str]) -> Options:
    """The object of a request, for a model that is served here.

    Raises:
        InvalidInputError: it is no object, or has other members.
        NoSuchRouteError: for another model.
        UnsupportedTypeError: it is no JSON.
    """
    if not is_json(head.content_type):
        raise unsupported(head.content_type, contract.JSON)
    asked = parse_json(body) if codec.method.inputs else parse_items(body)
    if type(asked) is not dict:
        raise InvalidInputError(
            f"body: expected an object with {', '.join(members)}, got {brief(asked)}"
        )
    for name in asked:
        if name not in members:
            raise InvalidInputError(
                f"{name:.80}: expected no members but {', '.join(members)}; leave it out"
            )
    name = codec.api_name
    model = asked.setdefault("model", name)
    if model not in (name, model_name(name, codec.method.name)):
        raise NoSuchRouteError(f"model: expected {name!r}, got {brief(model)}")
    return asked


def _is_tokens(value: Any) -> bool:
    return type(value) is list and bool(value) and all(type(token) is int for token in value)


def _list_of(value: Any, place: str, expected: str) -> list[Any]:
    if type(value) is not list or not value:
        raise InvalidInputError(f"{place}: expected {expected}, got {brief(value)}")
    check_row_count(len(value))
    return value


def _count(asked: Options, place: str) -> int | None:
    value = asked.get(place)
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidInputError(f"{place}: expected an integer of at least 1, got {brief(value)}")
    return value


class _Reply:
    """Errors have OpenAI's shape, which its client makes its own exceptions of."""

    __slots__ = ()

    def problem(self, error: ServingError, request_id: str | None) -> Answer:
        """See Reply.problem."""
        return openai_problem(error, request_id)


@dataclass(frozen=True, slots=True)
class EmbeddingsReply(_Reply):
    """Writes vectors in the order of their inputs; see Reply."""

    model: str
    tokens: int
    """Token ids of the request."""
    dimensions: int | None
    """The length that each vector has to have; None: any."""
    packed: bool
    """A vector is a text: its numbers as 32-bit floats, little endian."""

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply.answer."""
        items = results.items(start, stop)
        failed = _failed(items, "input", receipt)
        if failed is not None:
            return failed
        told = [_value(item, "embedding", unread=not self._reads) for item in items]
        data = [
            {"object": "embedding", "index": i, "embedding": self._vector(value)}
            for i, (value, _) in enumerate(told)
        ]
        tokens = sum(tokens for _, tokens in told) or self.tokens
        return _answer({"data": data}, self.model, tokens, receipt)

    @property
    def _reads(self) -> bool:
        """Whether the numbers of a vector are looked at."""
        return self.packed or self.dimensions is not None

    def _vector(self, value: Any) -> Any:
        if not self._reads and type(value) in (list, orjson.Fragment):
            return value
        try:
            vector = np.array(value, "<f4")
        except (TypeError, ValueError):
            vector = np.zeros(())
        if vector.ndim != 1:
            raise PredictorError(f"embeddings: expected a list of numbers, got {brief(value)}")
        if self.dimensions not in (None, len(vector)):
            raise MalformedError(
                f"dimensions: expected {len(vector)}, the only length of this model, or nothing,"
                f" got {self.dimensions}"
            )
        return base64.b64encode(vector.tobytes()).decode() if self.packed else value


@dataclass(frozen=True, slots=True)
class RerankReply(_Reply):
    """Writes scores, the best first; see Reply."""

    model: str
    most: int
    """Results at most."""
    documents: tuple[str, ...]
    """To send back; empty: none."""

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply.answer."""
        items = results.items(start, stop)
        failed = _failed(items, "documents", receipt)
        if failed is not None:
            return failed
        told = [_value(item, "score") for item in items]
        scores = [_score(value) for value, _ in told]
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: self.most]
        ranked: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in best]
        if self.documents:
            ranked = [{**one, "document": {"text": self.documents[one["index"]]}} for one in ranked]
        tokens = sum(tokens for _, tokens in told)
        return _answer({"results": ranked}, self.model, tokens, receipt)


def _value(item: Item, name: str, *, unread: bool = False) -> tuple[Any, int]:
    """The value that a row is answered with, and the tokens that the answer tells.

    A list that nobody reads (`unread`) stays the text that it is.
    """
    text = item_text(item.kind, item.body)
    if unread and text.startswith(b"["):
        return orjson.Fragment(text), 0
    answer = orjson.loads(text)
    if type(answer) is not dict:
        return answer, 0
    tokens = answer.get("tokens", 0)
    if type(tokens) is not int:
        raise PredictorError(f"tokens: expected an integer, got {brief(tokens)}")
    return answer.get(name), tokens


def _score(value: Any) -> float:
    if type(value) not in (int, float):
        raise PredictorError(f"rerank: expected a number, got {brief(value)}")
    return float(value)


def _answer(found: Options, model: str, tokens: int, receipt: Receipt | None) -> Answer:
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    body = orjson.dumps({"object": "list", **found, "model": model, "usage": usage})
    return Answer(OK, JSON_TYPE, body, headers=receipt_headers(receipt))


def _failed(items: Sequence[Item], place: str, receipt: Receipt | None) -> Answer | None:
    """The answer to a request of which a row failed: these APIs have no place for the others."""
    failed = next((i for i, item in enumerate(items) if item.status != OK), None)
    if failed is None:
        return None
    error = orjson.loads(items[failed].body)
    message = f"{place}[{failed}]: {error['message']}"
    body = _error(items[failed].status, error["code"], message)
    return Answer(items[failed].status, JSON_TYPE, body, headers=receipt_headers(receipt))


def openai_problem(error: ServingError, request_id: str | None = None) -> Answer:
    """The response that an error is answered with."""
    retry_after = error.retry_after if isinstance(error, OverloadedError) else 0
    body = _error(error.status, error.code, str(error), request_id)
    return Answer(error.status, JSON_TYPE, body, retry_after)


def _error(status: int, code: str, message: str, request_id: str | None = None) -> bytes:
    """Our error body, and what clients of OpenAI read beside it."""
    kind = "server_error" if status >= ServingError.status else "invalid_request_error"
    place = _PLACE.match(message)
    told = error_object(code, message, request_id)
    told["type"] = "rate_limit_error" if status == LateError.status else kind
    told["param"] = None if place is None else place[0]
    return orjson.dumps({"error": told})
