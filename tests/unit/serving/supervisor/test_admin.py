"""The admin port: health and metrics, whatever the other processes do."""

import pytest

from batchedapi_core import contract
from batchedapi_serving.metrics import slots
from batchedapi_serving.predictor.files import PredictorMetrics
from batchedapi_serving.supervisor.admin import AdminApp, Answer


def get(path: str, *, method: str = "GET", started: bool = True, ready: bool = True) -> Answer:
    """Status, content type and body."""
    memory = memoryview(bytearray(slots.BYTES)).cast("d")
    app = AdminApp(memory, started=lambda: started, ready=lambda: ready, methods=lambda: ())
    return app.answer(method, *path.split("?"))


@pytest.mark.parametrize(
    ("path", "started", "ready", "status"),
    [
        ("/livez", False, False, 200),
        ("/startupz", False, False, 503),
        ("/startupz", True, False, 200),
        ("/readyz", True, False, 503),
        ("/readyz", True, True, 200),
        ("/metrics", False, False, 200),
        ("/", True, True, 200),
        ("/ui/page.js", True, True, 200),
        ("/ui/uplot.js", True, True, 200),
        ("/ui/../admin.py", True, True, 404),
        ("/metrics/", True, True, 404),
    ],
)
def test_probes_say_what_is(path: str, *, started: bool, ready: bool, status: int) -> None:
    """A loading model is alive but not started; a draining replica is started but not ready."""
    assert status == get(path, started=started, ready=ready)[0]


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 405), ("DELETE", 405)])
def test_only_reading_is_served(method: str, status: int) -> None:
    """Nothing here changes anything."""
    assert status == get("/livez", method=method)[0]


def test_the_page_has_its_content_type() -> None:
    """Prometheus chooses its parser by it."""
    _, content_type, body = get("/metrics")

    assert b"process_start_time_seconds" in body
    assert content_type.startswith("text/plain; version=")


def test_the_operator_gets_a_page_of_what_it_reads_and_everybody_else_the_whole() -> None:
    """Another query is no reason to refuse: Prometheus may be told to send one."""
    _, _, narrow = get(f"{contract.PATH_METRICS}?{contract.QUERY_SCALING}")
    _, _, whole = get(f"{contract.PATH_METRICS}?other=1")

    assert b"#" not in narrow
    assert b"process_start_time_seconds 0.0\n" in narrow
    assert b"# HELP process_start_time_seconds" in whole


def test_a_page_that_cannot_be_made_costs_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    """Probes are answered as before: nothing that a predictor measures ends the port."""

    def fail() -> PredictorMetrics:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    memory = memoryview(bytearray(slots.BYTES)).cast("d")
    app = AdminApp(
        memory, started=lambda: True, ready=lambda: True, methods=lambda: (), measured=fail
    )

    assert 500 == app.answer("GET", "/metrics")[0]
    assert 200 == app.answer("GET", "/readyz")[0]
    assert ["admin page failed"] == [record.message for record in caplog.records]
