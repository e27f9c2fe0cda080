"""Reading what the wrk script prints."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from harness.servers import Server
from harness.wrk import parse, timed

OUTPUT = """Running 1s test @ http://127.0.0.1:25000/predict
  1 threads and 64 connections
  2100 requests in 2.00s, 300.00KB read
BENCH {"requests":2100,"duration_us":2000000,"connect":1,"read":2,"write":3,"status":100,\
"timeout":4,"p50_us":1500,"p99_us":4000,"max_us":9000,"right":1990,"wrong":10}
"""


def test_refused_requests_do_not_count_as_throughput() -> None:
    """A server that answers 503 quickly must not look fast."""
    result = parse(OUTPUT)

    assert 1000.0 == result.rate
    assert (100, 10, 110) == (result.refused, result.broken, result.errors)


def test_latencies_are_in_seconds() -> None:
    """Wrk counts microseconds; units are converted here and nowhere else."""
    result = parse(OUTPUT)

    assert (0.0015, 0.004) == (result.p50, result.p99)
    assert (1990, 10) == (result.right, result.wrong)


def test_output_without_figures_is_an_error_that_shows_it() -> None:
    """Wrk says why it failed in words, and they must not be lost."""
    with pytest.raises(ValueError, match="unable to connect"):
        parse("unable to connect to 127.0.0.1:25000 Connection refused")


class _Recorder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[bytes, str]]] = []

    def do_POST(self) -> None:
        """Keep the body and the id."""
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((body, self.headers["x-request-id"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_requests_differ_in_their_lengths_and_ids_but_not_in_what_they_say() -> None:
    """Bytes that repeat would measure what no client sends."""
    with HTTPServer(("127.0.0.1", 0), _Recorder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = Server("recorder", 0, server.server_port, "/", 0, None)  # type: ignore[arg-type]  # no process of its own
        timed(place, b"[1.5,2.25]", connections=1, seconds=1)
        server.shutdown()
        thread.join()
    bodies = [body for body, _ in _Recorder.seen]

    assert {(1.5, 2.25)} == {tuple(json.loads(body)) for body in bodies}
    assert len({len(body) for body in bodies}) > 4
    assert len({name for _, name in _Recorder.seen}) > 100
