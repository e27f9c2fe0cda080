"""The client that a call belongs to, and an answer's status and headers over gRPC."""

import pytest
from grpc import StatusCode

from batchedapi_core import contract
from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer
from batchedapi_serving.grpc.service import Peers, message, status_code, trailing_metadata


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (200, StatusCode.OK),
        (400, StatusCode.INVALID_ARGUMENT),
        (404, StatusCode.NOT_FOUND),
        (413, StatusCode.RESOURCE_EXHAUSTED),
        (422, StatusCode.INVALID_ARGUMENT),
        (429, StatusCode.RESOURCE_EXHAUSTED),
        (431, StatusCode.RESOURCE_EXHAUSTED),
        (499, StatusCode.CANCELLED),
        (500, StatusCode.INTERNAL),
        (503, StatusCode.UNAVAILABLE),
        (504, StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_each_status_has_its_twin(status: int, code: StatusCode) -> None:
    """A client's retry policy depends on the status code."""
    assert code is status_code(status)


def test_every_status_there_is_has_a_code() -> None:
    """An ItemError may have any; only 200 is OK."""
    codes = {status: status_code(status) for status in range(400, 600)}

    assert StatusCode.OK not in codes.values()
    assert StatusCode.INVALID_ARGUMENT is codes[418]
    assert StatusCode.INTERNAL is codes[599]
    assert all(status_code(status) is not StatusCode.UNKNOWN for status in contract.STATUS_CODES)


def test_receipt_retry_after_and_request_id_go_into_the_trailing_metadata() -> None:
    """HTTP has the same values in response headers."""
    answer = Answer(503, b"", b"", 3, ((b"x-batchedapi-batch-id", b"b-7"),))

    expected = [
        ("x-batchedapi-batch-id", "b-7"),
        ("retry-after", "3"),
        ("x-request-id", "my-id"),
    ]
    assert expected == list(trailing_metadata(answer, "my-id"))
    assert [] == list(trailing_metadata(Answer(200, b"", b""), None))


def test_metadata_is_ascii() -> None:
    """The library refuses the whole call otherwise."""
    answer = Answer(200, b"", b"", 0, ((b"x-batchedapi-replica", "größe".encode("latin-1")),))

    assert [("x-batchedapi-replica", "gr??e")] == list(trailing_metadata(answer, None))


def test_a_long_message_is_cut() -> None:
    """It travels in a header, and a client refuses headers above 8 KiB with an error of its own."""
    assert 2000 == len(message(Answer(422, b"", b"x" * 100_000)))


def test_a_connection_keeps_its_client() -> None:
    """The policy learns from it when it comes back."""
    peers = Peers(lambda: None, lambda _: None)

    first = peers.client("ipv4:10.0.0.1:5000")

    assert first is peers.client("ipv4:10.0.0.1:5000")
    assert first is not peers.client("ipv4:10.0.0.1:5001")


def test_the_connection_silent_longest_is_forgotten() -> None:
    """No close is told of; a dead connection must not be remembered, nor awaited, for ever."""
    gone: list[Client] = []
    peers = Peers(lambda: None, gone.append, most=2)
    a, b = peers.client("a"), peers.client("b")

    peers.client("a")
    peers.client("c")

    assert [b] == gone
    assert a is peers.client("a")
    assert b is not peers.client("b")


def test_a_connection_is_told_of_once() -> None:
    """A replica that stops listens on while new ones come; those that stay say nothing of it."""
    told: list[str] = []
    peers = Peers(lambda: told.append("connected"), lambda _: None)

    for peer in ("a", "a", "b", "a"):
        peers.client(peer)

    assert 2 == len(told)
