"""Servers that start side by side listen on ports of their own."""

import socket

import pytest

import ports
from ports import HOST, free_port, free_ports, own_ports


def test_no_port_is_given_twice_while_its_server_may_still_start() -> None:
    """Two calls for one replica, of which neither server listens yet."""
    some = len(own_ports()) // 4
    given = [port for _ in range(some) for port in (free_port(), *free_ports(2))]
    assert len(given) == len(set(given))
    assert set(given) <= set(own_ports())


def test_a_port_that_is_listened_on_is_not_given() -> None:
    """Whoever began it."""
    taken = free_port()
    with socket.create_server((HOST, taken)):
        given = {free_port() for _ in own_ports()}
    assert taken not in given


def test_more_ports_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how many there are."""
    monkeypatch.setattr(ports, "own_ports", lambda: range(3))
    with pytest.raises(OSError, match=r"free ports: expected 4 in range\(0, 3\), got"):
        free_ports(4)
