"""`kubectl batchedapi why` against an apiserver that answers over a real socket."""

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.unit.operator.plugin.test_history import decision

from batchedapi_operator.plugin.main import main

API: Final = "/apis/batchedapi.dev/v1alpha1/namespaces/demo/batchedapis/iris"
DECISIONS: Final = (
    "/api/v1/namespaces/batchedapi-system/services/batchedapi-operator-metrics:admin/proxy"
    "/decisions/demo/iris?last=5"
)
STATUS: Final = {"status": {"autoscaling": {"lastDecision": decision(30, 30)}}}
OLDER: Final = {"decisions": [decision(15, 25, 4), decision(0, 10, 2)]}
REFUSED: Final = {"kind": "Status", "reason": "Forbidden", "message": "no"}

Answers = dict[str, tuple[int, Mapping[str, Any]]]


@pytest.fixture
def answers() -> Answers:
    """What the apiserver says, by path."""
    return {API: (200, STATUS), DECISIONS: (200, OLDER)}


@pytest.fixture
def apiserver(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ThreadingHTTPServer]:
    """An HTTP server with those answers, and a kubeconfig that leads to it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer, or say that there is no such thing."""
            status, body = answers.get(self.path, (404, {"kind": "Status", "message": self.path}))
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [
            {"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "demo"}},
            {"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "elsewhere"}},
        ],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def why(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["why", "iris", *arguments])


@pytest.mark.usefixtures("apiserver")
def test_the_newest_decision_needs_nothing_but_the_api() -> None:
    """Whoever may see the API may know why it has as many replicas."""
    told = why()

    assert 0 == told.exit_code, told.output
    assert "3 replicas (Demand)\ndecided 2026-01-02T03:04:30Z" in told.output
    assert "TIMES" not in told.output


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize(
    ("policy", "first"),
    [
        ("", "nothing is decided now: External, spec.replicas decides; the last decision:"),
        ("CapacitySLO", "3 replicas (Demand)"),
    ],
    ids=["others decide", "metrics are missing"],
)
def test_a_decision_from_before_others_decided_is_not_told_as_that_of_today(
    answers: Answers, policy: str, first: str
) -> None:
    """The status keeps the last one in mode External, too; a pause of ours says it itself."""
    condition = {
        "type": "AutoscalingActive",
        "status": "False",
        "reason": "External",
        "message": "spec.replicas decides",
    }
    told = {**STATUS["status"]["autoscaling"], "policy": policy}
    answers[API] = (200, {"status": {"autoscaling": told, "conditions": [condition]}})

    assert first == why().output.splitlines()[0]


@pytest.mark.usefixtures("apiserver")
def test_older_ones_come_from_the_operator_the_newest_first() -> None:
    """Through the apiserver: users need no way to the operator's pod (F3)."""
    told = why("--last", "5")

    assert 0 == told.exit_code, told.output
    lines = told.output.splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("TIME ")) + 1 :]
    assert ["30", "25", "10"] == [line[17:19] for line in table]


@pytest.mark.usefixtures("apiserver")
def test_as_json_it_is_the_decisions_as_they_are() -> None:
    """For programs, with every term in full."""
    told = json.loads(why("--last", "5", "-o", "json").output)

    assert [STATUS["status"]["autoscaling"]["lastDecision"], *OLDER["decisions"]] == told


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, REFUSED, "kubectl create rolebinding decisions-reader -n batchedapi-system"),
        (404, {"kind": "Status", "reason": "NotFound"}, "--operator-namespace"),
        (503, {"kind": "Status", "message": "no endpoints available"}, "is the operator running?"),
        (200, {"another": "server"}, "expected decisions"),
        (500, {"kind": "Status"}, "answered 500"),
    ],
)
def test_an_operator_that_cannot_be_asked_is_told_with_the_remedy(
    answers: Answers, status: int, body: Mapping[str, Any], words: str
) -> None:
    """Most users may not proxy to services at first."""
    answers[DECISIONS] = (status, body)

    told = why("--last", "5")

    assert 1 == told.exit_code
    assert words in told.output


@pytest.mark.usefixtures("apiserver")
def test_an_operator_that_has_just_started_leaves_what_the_status_has(answers: Answers) -> None:
    """Its own 404 is an answer."""
    answers[DECISIONS] = (404, {"error": "no decision about BatchedAPI demo/iris"})

    told = why("--last", "5")

    assert 0 == told.exit_code, told.output
    assert 2 == told.output.count("03:04:30Z")


@pytest.mark.usefixtures("apiserver")
def test_the_operator_may_be_elsewhere(answers: Answers) -> None:
    """Another release, another namespace."""
    moved = DECISIONS.replace("batchedapi-system", "ops").replace("batchedapi-operator", "mine")
    answers[moved] = answers.pop(DECISIONS)

    told = why(
        "--last", "5", "--operator-namespace", "ops", "--operator-service", "mine-metrics"
    )  # fmt: skip

    assert 0 == told.exit_code, told.output


@pytest.mark.usefixtures("apiserver")
def test_a_context_that_is_named_brings_its_namespace() -> None:
    """As with kubectl; the current context's namespace is not meant."""
    told = why("--context", "other")

    assert 1 == told.exit_code
    assert "no BatchedAPI 'iris' in namespace 'elsewhere'" in told.output
