"""Errors as responses, each in the language of its route, with an id that can be quoted."""

import logging
import os
from typing import Final, assert_never

from batchedapi_serving.codecs import Answer, Reply, Wire
from batchedapi_serving.codecs.open_inference import open_inference_problem
from batchedapi_serving.codecs.problems import named, problem_answer
from batchedapi_serving.errors import ServingError

log = logging.getLogger(__name__)

ERROR: Final = 400
"""Statuses from here on are errors."""
_SERVER_ERROR: Final = 500
_EXPECTED: Final = frozenset({503, 504})
"""An overload answers thousands a second of these, and the metrics count them."""
_SHOWN: Final = 500
"""Bytes of an error body that its log line shows."""


def problem_on(
    wire: Wire, error: ServingError, request_id: str | None, reply: Reply | None = None
) -> Answer:
    """The response that `error` is answered with.

    Args:
        wire: Of the route.
        error: What happened.
        request_id: For the body, where the language has a place for it.
        reply: Of the request, if it could be decoded: it knows best.
    """
    if reply is not None:
        return reply.problem(error, request_id)
    match wire:
        case Wire.PLAIN | Wire.V1:
            return problem_answer(error, request_id)
        case Wire.V2 | Wire.GRPC:
            return open_inference_problem(error)
    assert_never(wire)


def new_request_id() -> str:
    """For a request that failed and whose client gave it none."""
    return os.urandom(16).hex()


def finished_error(answer: Answer, path: str, request_id: str) -> Answer:
    """An error as it goes out: with its id, which a line in the log has too if it is our fault."""
    answer = named(answer, request_id)
    if answer.status >= _SERVER_ERROR:
        _log_failure(answer, path, request_id)
    return answer


def _log_failure(answer: Answer, path: str, request_id: str) -> None:
    """One line, so that a quoted id leads to the reason."""
    level = logging.DEBUG if answer.status in _EXPECTED else logging.ERROR
    if log.isEnabledFor(level):
        facts = {
            "status": answer.status,
            "path": path,
            "request_id": request_id,
            "answer": answer.body[:_SHOWN].decode("utf-8", "replace"),
        }
        log.log(level, "request failed", extra=facts)
