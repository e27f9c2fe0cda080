"""Servers that start side by side listen on ports of their own."""

import socket

import pytest

from ports import HOST, free_port, free_ports, own_ports


def test_no_port_is_given_twice_while_its_server_may_still_start() -> None:
    """Two calls for one replica, of which neither server listens yet."""
    given = [port for _ in range(100) for port in (free_port(), *free_ports(2))]
    assert len(given) == len(set(given))
    assert set(given) <= set(own_ports())


def test_a_port_that_is_listened_on_is_not_given() -> None:
    """Whoever began it."""
    taken = free_port()
    with socket.create_server((HOST, taken)):
        given = {free_port() for _ in range(len(own_ports()) - 100)}
    assert taken not in given


def test_more_ports_than_there_are_is_an_error() -> None:
    """Which says how many there are."""
    with pytest.raises(OSError, match="free ports: expected"):
        free_ports(len(own_ports()) + 1)
