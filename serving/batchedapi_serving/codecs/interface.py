"""The interface of codecs, and the values that pass between codecs, web and dispatch.

    codec_for ── tensor_codec, named_codec, item_codec      one for each kind of method
                 │  from_row, from_rows, from_arrays -> Encoded
              wires ── plain, v1, msgpack_rows, open_inference, open_inference_grpc, openai

A language takes its message apart into parsed rows or arrays, has the codec check and encode them,
and joins the Encoded with a Reply of its own to a DecodedRequest. Results are of two kinds
whatever the method: TensorResults and ItemResults; every Reply can write both.
"""

import enum
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import orjson

from batchedapi_core.batching import Receipts
from batchedapi_serving.errors import ServingError
from batchedapi_serving.ipc import Meta
from batchedapi_serving.predictor import MethodSpec

Array: TypeAlias = np.ndarray[Any, Any]


class Wire(enum.Enum):
    """The language of a route; within it, the content type decides."""

    PLAIN = "plain"
    """An item, `{"instances": [...]}`, npy or msgpack; the answer is written the same way."""
    V1 = "v1"
    """`{"instances": [...]}` as KServe and TensorFlow Serving know it."""
    V2 = "v2"
    """Open Inference Protocol, JSON and binary tensors."""
    GRPC = "grpc"
    """Open Inference Protocol, a ModelInferRequest; the answer is a ModelInferResponse."""
    EMBEDDINGS = "embeddings"
    """OpenAI's `/v1/embeddings`, for the method of that name."""
    RERANK = "rerank"
    """`/v1/rerank` of Jina and Cohere, likewise; errors are OpenAI's."""


class Head(Protocol):
    """Everything beside the body that a decoder may look at; header names in lower case."""

    @property
    def content_type(self) -> bytes:
        """As sent; empty if none was."""

    @property
    def query(self) -> bytes:
        """The part of the target after `?`."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """In the order they were sent."""


class RequestHead(NamedTuple):
    """A Head and nothing else; see there."""

    content_type: bytes
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]


class Receipt(NamedTuple):
    """The batch that a request rode in; of an oversize request, the batch of its last part."""

    batch: str
    rows: int
    requests: int
    my_rows: int
    queue_seconds: float
    exec_seconds: float
    reason: str
    replica: str
    worker_index: int


class Answer(NamedTuple):
    """A response, short of the HTTP framing."""

    status: int
    content_type: bytes
    body: bytes
    retry_after: int = 0
    """Whole seconds; 0: no such header."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further ones, names in lower case."""


class Item(NamedTuple):
    """Answer of one row."""

    status: int
    kind: str
    """json, text or bytes."""
    body: bytes
    """The error object as JSON if the row failed."""
    said: tuple[int, Mapping[str, str]] | None = None
    """Status and headers of the predictor's own, of a row that did not fail; names in lower
    case."""

    def value(self) -> Any:
        """The predictor's answer, of a row that did not fail."""
        if self.kind == "json":
            return orjson.loads(self.body)
        return self.body.decode() if self.kind == "text" else self.body


class Results(Protocol):
    """The answer of one batch, in no language yet; a request's rows are a slice of it."""

    def joined(
        self, start: int, stop: int, others: "Sequence[tuple[Results, int, int]]"
    ) -> "Results":
        """Rows [start, stop) followed by slices of other batches: an oversize request's answer.

        Raises:
            PredictorError: the slices do not fit together.
        """

    def items(self, start: int, stop: int) -> Sequence[Item]:
        """Status, kind and body of each of rows [start, stop); see codecs/results."""

    def to_frame(self, start: int, stop: int) -> tuple[Meta, Sequence[bytes]]:
        """Rows [start, stop) as a frame that the codec's `results` reads back."""


class Reply(Protocol):
    """How one request is to be answered."""

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """The response for rows [start, stop).

        Raises:
            ServingError: this language cannot say it.
        """

    def problem(self, error: ServingError, request_id: str | None) -> Answer:
        """The response that an error is answered with."""


class DecodedRequest(NamedTuple):
    """A checked request."""

    rows: int
    payload: Any
    """The codec's own."""
    reply: Reply
    sizes: Sequence[int] | None = None
    """Cost of each row in the method's own unit (`size_of`), each >= 1; None: one each."""
    shapes: Sequence[Hashable] | None = None
    """Lengths of each row's variable dimensions; None: all have the one shape."""


class Collated(NamedTuple):
    """A batch as it goes to a model process."""

    meta: Mapping[str, Any]
    """Joins `method` and `rows` in the frame's meta."""
    buffers: Sequence[bytes]
    """Sent one after the other."""


class Encoded(NamedTuple):
    """Checked rows, as DecodedRequest wants them."""

    rows: int
    payload: Any
    sizes: Sequence[int] | None = None
    shapes: Sequence[Hashable] | None = None

    def decoded(self, reply: Reply) -> DecodedRequest:
        """A request of these rows that is to be answered by `reply`."""
        return DecodedRequest(self.rows, self.payload, reply, self.sizes, self.shapes)


class Codec(Protocol):
    """The codec of one method: reads its requests, makes its batches, reads their results."""

    method: MethodSpec
    api_name: str
    receipts: Receipts
    pads_to: int
    """Length up to which rows share a batch whatever their lengths, as BatchPolicy says."""

    def decode(self, wire: Wire, head: Head, body: bytes) -> DecodedRequest:
        """Check and take apart one request.

        Raises:
            ClientError: 400, 413, 415 or 422; the message names the place.
        """

    def from_row(self, row: Any, place: str, head: Head | None = None) -> Encoded:
        """One parsed row; `place` is its own path, as in "item". See from_rows."""

    def from_rows(self, rows: Sequence[Any], place: str, head: Head | None = None) -> Encoded:
        """Parsed rows, each a JSON-like value: what JSON or msgpack reads.

        Args:
            rows: At least one, at most contract.MAX_BATCH_SIZE_LIMIT (check_row_count).
            place: Path of the list: row 3 is called `instances[3]`.
            head: Of the request; a method that takes whole requests is given its query and headers.

        Raises:
            InvalidInputError: a row is not what the method takes (NaN and Infinity included).
        """

    def from_arrays(self, arrays: Mapping[str, Array], place: str) -> Encoded:
        """Named arrays, rows first.

        Args:
            arrays: One for each input the method declares, by name; a method that declares none
                takes any: each row is an item, of several arrays an object.
            place: What messages call an array: `inputs` gives `inputs['ids']`.

        Raises:
            InvalidInputError: names, shapes or types do not fit, values are not finite, no row.
            TooLargeError: more rows than there may be.
        """

    def part(self, payload: Any, start: int, stop: int) -> Any:
        """Rows [start, stop) of a payload."""

    def fits(self, rows: int, payload: Any) -> bool:
        """Whether a payload that comes from another process is one of so many rows of this codec.

        Raises:
            TypeError: it is not; as other errors of values that are of another type.
        """

    def collate(self, payloads: Sequence[Any]) -> Collated:
        """The body of a batch frame."""

    def results(self, meta: Meta, payload: bytes) -> Results:
        """Read a model process's answer to one batch."""
