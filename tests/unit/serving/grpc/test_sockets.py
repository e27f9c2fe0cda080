"""Figures of connections from the kernel, over real sockets."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from batchedapi_serving.grpc.sockets import Peer, Sockets, lowest_free_descriptor, peer_of


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:10.0.0.1:5000", Peer("10.0.0.1", 5000)),
        ("ipv6:%5B::1%5D:5000", Peer("::1", 5000)),
        ("ipv6:[fe80::1%25eth0]:5000", Peer("fe80::1%eth0", 5000)),
    ],
)
def test_a_peer_is_read_as_grpc_writes_it(text: str, peer: Peer) -> None:
    """Brackets and the names of interfaces are escaped."""
    assert peer == peer_of(text)


@contextlib.contextmanager
def connected(
    family: int, listens: str, asks: str
) -> Iterator[tuple[Sockets, socket.socket, Peer]]:
    """Both ends in this process, as gRPC's are; the client's end, and what the server calls it."""
    with socket.create_server(
        (listens, 0), family=family, dualstack_ipv6=listens == "::"
    ) as server:
        sockets = Sockets()
        sockets.port = server.getsockname()[1]
        with socket.create_connection((asks, sockets.port)) as client, server.accept()[0]:
            yield sockets, client, Peer(*client.getsockname()[:2])


@pytest.mark.parametrize(
    ("family", "listens", "asks"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
    ],
)
def test_bytes_are_counted_of_either_family(family: int, listens: str, asks: str) -> None:
    """An address of IPv4 at a socket of both is that address."""
    with connected(family, listens, asks) as (sockets, client, peer):
        client.sendall(b"12345")

        moved = sockets.moved(peer)

        assert (peer,) == sockets.peers()
    assert moved is not None
    assert (0, 5) == moved


def test_a_connection_that_nobody_knows_has_no_figures() -> None:
    """The connection may have another port, be closed, or never have existed."""
    with connected(socket.AF_INET, "127.0.0.1", "127.0.0.1") as (sockets, _, peer):
        assert sockets.moved(Peer("127.0.0.1", peer.port + 1)) is None
        sockets.close(Peer("127.0.0.1", peer.port + 1))
    assert () == sockets.peers()
    assert sockets.moved(peer) is None


def test_a_closed_connection_ends_for_both() -> None:
    """The client reads its end."""
    with connected(socket.AF_INET, "127.0.0.1", "127.0.0.1") as (sockets, client, peer):
        sockets.close(peer)

        assert b"" == client.recv(1)


def test_the_lowest_free_descriptor_grows_with_those_that_are_open() -> None:
    """And is free again."""
    lowest = lowest_free_descriptor()
    taken = os.dup(0)
    try:
        assert lowest == taken
        assert lowest < lowest_free_descriptor()
    finally:
        os.close(taken)
