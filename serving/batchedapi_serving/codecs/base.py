"""What every codec offers, and the values that pass between codecs, web and dispatch."""

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from batchedapi_serving.dispatch.frames import Meta


class Form(enum.Enum):
    """How the request was written, which is how its answer is written."""

    ITEM = "item"
    """One JSON value, answered by one JSON value."""
    INSTANCES = "instances"
    """`{"instances": [...]}`, answered by `{"predictions": [...]}`."""
    NPY = "npy"
    """An array of rows, answered by an array of rows."""
    CALL = "call"
    """Anything, for a method that takes one request at a time."""


class Head(Protocol):
    """What a decoder may look at beside the body; header names in lower case."""

    @property
    def content_type(self) -> bytes:
        """As sent; empty if none was."""

    @property
    def query(self) -> bytes:
        """What follows `?` in the target."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """In the order they were sent."""


class RequestHead(NamedTuple):
    """A Head and nothing else; see there."""

    content_type: bytes
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]


class Decoded(NamedTuple):
    """A checked request."""

    form: Form
    rows: int
    payload: Any
    """The codec's own: bytes of the rows, or one bytes object a row."""


class Answer(NamedTuple):
    """A response, short of the HTTP framing."""

    status: int
    content_type: bytes
    body: bytes
    retry_after: int = 0
    """Whole seconds; 0: no such header."""


class Results(Protocol):
    """What one batch answered; a request's rows are a slice of it."""

    def answer(self, form: Form, start: int, stop: int) -> Answer:
        """The response for rows [start, stop)."""

    def joined(
        self, start: int, stop: int, others: "Sequence[tuple[Results, int, int]]"
    ) -> "Results":
        """Rows [start, stop) followed by slices of other batches: an oversize request's answer."""


class Codec(Protocol):
    """Of one method."""

    def decode(self, head: Head, body: bytes) -> Decoded:
        """Check and take apart one request.

        Raises:
            ClientError: 400, 415 or 422; the message names the JSON path.
        """

    def part(self, payload: Any, start: int, stop: int) -> Any:
        """Rows [start, stop) of a payload."""

    def collate(self, payloads: Sequence[Any]) -> Sequence[bytes]:
        """The body of a batch frame: buffers that are sent one after the other."""

    def results(self, meta: Meta, payload: bytes) -> Results:
        """Read a model process's answer to one batch."""
