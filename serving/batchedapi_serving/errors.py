"""Every error a client or an operator of the server can meet.

ServingError
├── ClientError            the request is wrong
│   ├── MalformedError            400
│   ├── UnauthenticatedError      401
│   ├── NoSuchRouteError          404
│   ├── MethodNotAllowedError     405
│   ├── StreamsOnlyError          406
│   ├── TooSlowError              408
│   ├── TooLargeError             413
│   ├── UnsupportedTypeError      415
│   ├── InvalidInputError         422
│   ├── HeadersTooLargeError      431
│   └── UnsupportedCodingError    501
├── OverloadedError        the request is right, the moment is not
│   ├── LateError                 429
│   ├── QueueFullError            503
│   ├── BodiesFullError           503
│   ├── NoRoomError               503
│   ├── DrainingError             503
│   └── NotReadyError             503
├── DeadlineExceededError         504
└── PredictorError                500
    └── LoadError          the predictor cannot be started
"""

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from batchedapi_core.redaction import without_secrets


class ServingError(Exception):
    """Base of all.

    Attributes:
        status: HTTP status, the same for all of a class.
        code: The machine-readable word beside it.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"


class ClientError(ServingError):
    """The request cannot be answered, now or later."""

    status = 400
    code = "bad_request"


class MalformedError(ClientError):
    """The body or the HTTP message cannot be parsed."""

    code = "malformed"


class UnauthenticatedError(ClientError):
    """The request brings no key of `networking.apiKeys`."""

    status = 401
    code = "unauthenticated"


class NoSuchRouteError(ClientError):
    """Nothing is served under this path, or there is no such method."""

    status = 404
    code = "not_found"


class MethodNotAllowedError(ClientError):
    """The path exists, but not for this HTTP method."""

    status = 405
    code = "method_not_allowed"


class StreamsOnlyError(ClientError):
    """The method answers with a stream, and the language of the request has none."""

    status = 406
    code = "streams_only"


class TooSlowError(ClientError):
    """The request was not sent in time, or the stream that answers it is not read."""

    status = 408
    code = "request_timeout"


class TooLargeError(ClientError):
    """The body is above `overload.maxBodySize`."""

    status = 413
    code = "too_large"


class UnsupportedTypeError(ClientError):
    """The content type is none of those this method takes."""

    status = 415
    code = "unsupported_type"


class InvalidInputError(ClientError):
    """Shape, type or range of a value is not what the predictor declared."""

    status = 422
    code = "invalid_input"


class HeadersTooLargeError(ClientError):
    """Request line and headers are above the limit."""

    status = 431
    code = "headers_too_large"


class UnsupportedCodingError(ClientError):
    """A transfer coding other than `chunked`."""

    status = 501
    code = "unsupported_coding"


class OverloadedError(ServingError):
    """The request is right, the moment is not: try again after `retry_after` seconds.

    Attributes:
        retry_after: Whole seconds, at least 1, as the header wants them.
    """

    status = 503
    code = "overloaded"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = max(1, math.ceil(retry_after))


class LateError(OverloadedError):
    """The answer is expected to miss `serverSideBatching.maxLatency`."""

    status = 429
    code = "late"

    @classmethod
    def expected(cls, retry_after: float) -> Self:
        """Refuse a request; `retry_after` is in seconds."""
        return cls(
            "the answer is expected to take longer than serverSideBatching.maxLatency; relax it, or"
            " add replicas",
            retry_after,
        )


class QueueFullError(OverloadedError):
    """`overload.maxReplicaConcurrency` requests are in the replica, or `maxLength` in the queue."""

    code = "queue_full"

    @classmethod
    def of_replica(cls, limit: int, retry_after: float = 1.0) -> Self:
        """Refuse a request, as `limit` others are in the replica."""
        return cls(
            f"{limit} requests are in this replica (overload.maxReplicaConcurrency)", retry_after
        )


class BodiesFullError(OverloadedError):
    """A web process holds as many bytes for its clients as it may, and this client most of them."""

    code = "bodies_full"


class NoRoomError(OverloadedError):
    """As many connections are open as the process can have, and none may be closed for this one."""

    code = "too_many_connections"


class DrainingError(OverloadedError):
    """The replica is stopping, or the `QueueClient` was closed."""

    code = "draining"


class NotReadyError(OverloadedError):
    """The model is still being loaded, or the queue cannot be reached."""

    code = "not_ready"


class DeadlineExceededError(ServingError):
    """No answer within `overload.timeout`, or the shorter time that the request came with."""

    status = 504
    code = "deadline_exceeded"

    @classmethod
    def after(cls, seconds: float, *, hurried: bool) -> Self:
        """`hurried`: the time is the request's own."""
        whose = "as the request asked" if hurried else "(overload.timeout)"
        return cls(f"no answer within {seconds:g} s {whose}")


class PredictorError(ServingError):
    """The user's code raised, died or answered something else than it declared."""

    code = "predictor_failed"

    @classmethod
    def logged(cls, what: str) -> Self:
        """The error of a request whose own row failed; `what` says how, in two words."""
        return cls(f"the predictor {what}; the server's log has the details")


class LoadError(PredictorError):
    """The predictor cannot be started; no request gets it. URLs in it are without their secrets.

    Attributes:
        reason: The word for the ModelLoaded condition.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(without_secrets(message))
        self.reason = reason


def brief(value: Any, most: int = 80) -> str:
    """The first `most` characters of `repr(value)`, without writing the rest of it.

    A client chooses how large a value is that an error quotes.
    """
    text = ""
    for piece in _pieces(value, most):
        text += piece
        if len(text) >= most:
            break
    return text[:most]


def _pieces(value: Any, most: int) -> Iterator[str]:
    match value:
        case list() if value:
            for i, member in enumerate(value):
                yield ", " if i else "["
                yield brief(member, most)
            yield "]"
        case dict() if value:
            for i, (name, member) in enumerate(value.items()):
                yield f"{', ' if i else '{'}{brief(name, most)}: "
                yield brief(member, most)
            yield "}"
        case str() | bytes():
            yield repr(value if len(value) <= most else value[: most + 1])
        case _:
            yield repr(value)
