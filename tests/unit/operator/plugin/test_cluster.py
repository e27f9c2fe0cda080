"""Asking operators: one that does not answer keeps nobody from asking the next."""

import contextlib
import json
import socket
import threading
from types import SimpleNamespace
from typing import Any

import click
import pytest
from kubernetes import client
from kubernetes.stream.ws_client import PortForward

from batchedapi_operator.plugin import cluster
from batchedapi_operator.plugin.cluster import (
    ForwardError,
    OperatorPod,
    operator_pods,
    read_decisions,
)

DOWN = click.ClickException("does not answer")
DECISIONS = (200, json.dumps({"decisions": [{"desired": 3}]}).encode())


def pods_are(monkeypatch: pytest.MonkeyPatch, **deleted: str | None) -> None:
    """Running pods by name, and since when each is being deleted."""
    found = [
        SimpleNamespace(
            metadata=SimpleNamespace(name=name, deletion_timestamp=since),
            status=SimpleNamespace(phase="Running"),
            spec=SimpleNamespace(containers=[SimpleNamespace(env=None)]),
        )
        for name, since in deleted.items()
    ]
    answer = SimpleNamespace(items=found)
    monkeypatch.setattr(client.CoreV1Api, "list_namespaced_pod", lambda *_args, **_options: answer)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param({"a": DOWN, "b": DECISIONS}, [{"desired": 3}], id="the second decides"),
        pytest.param({"a": (404, b""), "b": DECISIONS}, [{"desired": 3}], id="not the first's"),
        pytest.param({"a": (404, b""), "b": (404, b"")}, [], id="nobody's"),
        pytest.param({"a": DOWN, "b": (404, b"")}, None, id="maybe that of the one that is down"),
        pytest.param({"a": DOWN, "b": DOWN}, None, id="all are down"),
    ],
)
def test_every_operator_is_asked_before_one_is_given_up(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], expected: list[Any] | None
) -> None:
    """While one is replaced there are two, and one of them does not answer."""

    def ask(pod: OperatorPod, _path: str) -> tuple[int, bytes]:
        answer: Any = answers[pod.name]
        if answer is DOWN:
            raise DOWN
        return answer  # type: ignore[no-any-return] # of the test's own table

    pods_are(monkeypatch, a=None, b=None)
    monkeypatch.setattr(cluster, "ask_operator", ask)

    if expected is None:
        with pytest.raises(click.ClickException, match="does not answer"):
            read_decisions("ns", "demo", "iris", 3)
    else:
        assert expected == read_decisions("ns", "demo", "iris", 3)


def test_a_pod_that_is_being_deleted_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is Running until its last process has ended."""
    pods_are(monkeypatch, old="2026-01-02T03:04:05Z", new=None)

    assert ["new"] == [pod.name for pod in operator_pods("ns")]


def test_a_forward_that_is_never_accepted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's handshake has no time limit of its own."""
    over = threading.Event()
    monkeypatch.setattr(cluster, "SECONDS", 0.01)
    monkeypatch.setattr(cluster, "portforward", lambda *_args, **_options: over.wait(60.0))

    try:
        with pytest.raises(click.ClickException, match=r"pod 'a'.* does not answer: .*in 0\.01 s"):
            cluster.ask_operator(OperatorPod("ns", "a", "operator"), "/")
    finally:
        over.set()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"


class Silent:
    """The websocket of a forward, to an API server that takes all and says nothing."""

    connected = True

    def __init__(self) -> None:
        self.sock, self._server = socket.socketpair()

    def fileno(self) -> int:
        """For select."""
        return self.sock.fileno()

    def close(self) -> None:
        """As the client does."""
        self.connected = False
        self.sock.close()
        self._server.close()


@pytest.mark.parametrize(
    ("page", "most"),
    [
        pytest.param(OK % 999999 + 9999 * b"x", 10, id="large"),
        pytest.param(OK % 1 + b"xyz", -1, id="more than it said"),
        pytest.param(b"no HTTP\r\n\r\nat all", -1, id="something else"),
    ],
)  # fmt: skip
def test_what_is_left_of_an_answer_ends_the_forward_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, page: bytes, most: int
) -> None:
    """The client's thread would print one on the user's terminal; here pytest fails for it."""
    forward = PortForward(Silent(), [8081])
    (thread,) = [one for one in threading.enumerate() if one.name.endswith("proxy: 8081")]
    forward.local_ports[8081].python.sendall(page)
    monkeypatch.setattr(cluster, "_forwarded", lambda *_: forward)

    with contextlib.suppress(ForwardError):
        cluster.get_forwarded("ns", "pod", 8081, "/metrics", seconds=20.0, most=most)
    thread.join(20.0)

    assert not thread.is_alive()
    assert not forward.connected
