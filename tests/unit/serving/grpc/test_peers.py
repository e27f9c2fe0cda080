"""One Client for each connection."""

from batchedapi_core.batching import Client
from batchedapi_serving.grpc.peers import Peers


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
