"""Methods that yield, over real sockets: by curl, httpx and a browser, to the end and to no end."""

import contextlib
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest

from batchedapi_serving.codecs import open_inference_pb2 as messages
from browser import BrowserUnavailableError, browser
from pages import blocks
from ports import HOST, free_port
from serving import Replica, running_replica, write_manifest

PAGE: Final = "https://app.example.com"
KEY: Final = "a-key-of-some-length"
CODE: Final = """
    import asyncio
    import os
    import threading
    import time

    from batchedapi_serving import ItemError, batched, endpoint

    class Model:
        def __init__(self, context):
            self.context = context
            self.go = threading.Event()
            self.made = 0
            self.closed = []

        @endpoint
        def tokens(self, payload, query_params):
            asked = payload if payload is not None else query_params
            try:
                for i in range(int(asked.get("n", 3))):
                    time.sleep(float(asked.get("wait", 0)))
                    self.made = i
                    yield {"token": i, "text": "x" * int(asked.get("size", 1))}
            finally:
                self.closed.append("tokens")

        @endpoint
        async def words(self, payload):
            try:
                for word in payload["words"]:
                    yield word
                    await asyncio.sleep(payload.get("wait", 0))
            finally:
                await asyncio.sleep(0)
                self.closed.append("words")

        @endpoint
        def held(self, payload):
            self.go.clear()
            yield "first"
            self.go.wait(30)
            yield "second"

        @endpoint
        async def doubled(self, payload):
            for item in payload:
                (answer,) = await self.context.submit("double", [item])
                yield answer

        @batched(example=1)
        def double(self, items):
            return [2 * item for item in items]

        @endpoint
        def wrong(self, payload):
            if payload == "at once":
                raise ItemError(422, "no such prompt")
            yield 1
            if payload == "refused":
                raise ItemError(409, "enough")
            if payload == "bytes":
                yield b"\\xff"
            raise KeyError("secret")

        @endpoint
        def release(self, payload):
            self.go.set()

        @endpoint
        def state(self, payload):
            return {"made": self.made, "closed": self.closed, "pid": os.getpid()}
"""
SPEC: Final[dict[str, Any]] = {
    "networking": {"cors": {"allowOrigins": [PAGE]}, "accessLog": True},
    "overload": {"timeout": "60s"},
}
JSON: Final = {"content-type": "application/json"}
END: Final = "event: end\ndata: [DONE]\n\n"
LONG: Final = {"n": 100_000, "wait": 0.005}
FLOOD: Final = {"n": 10_000, "size": 10_000}
"""100 MB: more than the kernel takes for a client that does not read."""


@pytest.fixture(scope="module", params=[1, 2], ids=["one web process", "two web processes"])
def replica(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replica]:
    """The queue is in one process, whichever process a request comes to."""
    folder = tmp_path_factory.mktemp("replica")
    spec = {**SPEC, "predictor": {"webProcesses": request.param}}
    with running_replica(folder, ["-f", str(write_manifest(folder, CODE, spec))]) as running:
        yield running


def url(replica: Replica, method: str) -> str:
    """Where it is asked."""
    return f"http://{HOST}:{replica.port}/api/{method}"


def ask(replica: Replica, method: str, payload: Any = None, **headers: str) -> httpx.Response:
    """One request on a connection of its own, read to its end."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        url(replica, method), content=json.dumps(payload), headers=JSON | named, timeout=60
    )


def state(replica: Replica) -> Any:
    """The state that the predictor has recorded."""
    return ask(replica, "state").json()


def total(replica: Replica, pattern: str) -> float:
    """Sum over the methods of what the metrics page has under such names."""
    _, page = replica.admin("/metrics")
    lines = (line for line in page.splitlines() if re.match(pattern, line))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def events(text: str) -> list[tuple[str, str]]:
    """Kind and data of each event; `message` where no kind is said."""
    found = []
    for block in filter(None, text.split("\n\n")):
        fields = [line.partition(": ") for line in block.split("\n")]
        kind = next((value for name, _, value in fields if name == "event"), "message")
        found.append((kind, "\n".join(value for name, _, value in fields if name == "data")))
    return found


def last_error(text: str) -> dict[str, Any]:
    """The error with which a stream ended."""
    kind, data = events(text)[-1]
    assert kind == "error", text[-500:]
    error: dict[str, Any] = json.loads(data)["error"]
    return error


def test_curl_gets_events(replica: Replica) -> None:
    """As of any server of events, also where JSON is accepted as clients of OpenAI's API do it."""
    done = subprocess.run(
        ["curl", "-siN", url(replica, "tokens"), "-d", '{"n": 2}', "-H", "accept: application/json",
         "-H", "content-type: application/json"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    head, _, body = done.stdout.replace("\r\n", "\n").partition("\n\n")

    assert head.startswith("HTTP/1.1 200 OK\ncontent-type: text/event-stream; charset=utf-8\n")
    assert "cache-control: no-cache\nx-accel-buffering: no\n" in head
    assert 'data: {"token":0,"text":"x"}\n\ndata: {"token":1,"text":"x"}\n\n' + END == body


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/jsonl"])
def test_lines_of_json_are_for_who_names_them(replica: Replica, kind: str) -> None:
    """Text is JSON there, since a line must be."""
    answer = ask(replica, "words", {"words": ["a\nb", {"c": 1}]}, accept=f"{kind}, */*;q=0.1")

    assert (200, kind) == (answer.status_code, answer.headers["content-type"])
    assert ["a\nb", {"c": 1}] == [json.loads(line) for line in answer.text.splitlines()]


def test_text_keeps_its_spaces_and_lines(replica: Replica) -> None:
    """Tokens begin with a space, and a newline is a token."""
    answer = ask(replica, "words", {"words": [" a", "\n", "", "[DONE]"]})

    assert [" a", "\n", "", "[DONE]"] == [data for kind, data in events(answer.text)[:-1]]


def test_an_item_comes_before_the_next_is_made(replica: Replica) -> None:
    """It is what a stream is for; nothing on the way waits for more of it."""
    with httpx.stream("GET", url(replica, "held"), timeout=60) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        released = ask(replica, "release").status_code
        rest = [line for line in lines if line]

    assert ("data: first", 200) == (first, released)
    assert ["data: second", "event: end", "data: [DONE]"] == rest


def test_a_stream_may_await_batches(replica: Replica) -> None:
    """`context.submit`, item by item, beside others."""
    assert [("message", str(2 * i)) for i in range(5)] == events(
        ask(replica, "doubled", [0, 1, 2, 3, 4]).text
    )[:-1]


@pytest.mark.parametrize(
    ("payload", "status", "message"),
    [
        ("bug", 500, "the predictor raised KeyError; the server's log has the details"),
        ("refused", 409, "enough"),
        ("bytes", 500, "it yielded bytes that are no UTF-8"),
    ],
)
def test_an_error_is_the_last_event_or_line(
    replica: Replica, payload: str, status: int, message: str
) -> None:
    """In the form of every other error, with the id that the log has; never a traceback."""
    code = "item_failed" if status < 500 else "predictor_failed"
    as_events = ask(replica, "wrong", payload, x_request_id="mine")
    as_lines = ask(replica, "wrong", payload, accept="application/x-ndjson")

    error = last_error(as_events.text)
    assert (200, "mine") == (as_events.status_code, as_events.headers["x-request-id"])
    assert (code, "mine") == (error["code"], error["request_id"])
    assert message in error["message"]
    first, last = as_lines.text.splitlines()
    assert ("1", code) == (first, json.loads(last)["error"]["code"])
    assert "secret" not in as_events.text + as_lines.text


def test_an_error_before_the_first_item_has_its_own_status(replica: Replica) -> None:
    """So who asks wrongly, or too much, learns it as from any other method."""
    refused = ask(replica, "wrong", "at once")
    malformed = httpx.post(url(replica, "tokens"), content=b"{", timeout=60)

    assert (422, "no such prompt") == (refused.status_code, refused.json()["error"]["message"])
    assert (400, "malformed") == (malformed.status_code, malformed.json()["error"]["code"])


def test_a_browser_reads_it_with_eventsource(replica: Replica) -> None:
    """As the guide shows it: a GET whose parameters are in the query; `end` says when to close."""
    (shown,) = [one.text for one in blocks("docs/guides/protocols.md") if one.language == "js"]
    assert '"/chat/tokens?prompt=Hello"' in shown
    read = f"""path => new Promise((resolve, reject) => {{
        const got = [], show = item => got.push(item);
        const complain = error => reject(new Error(error.message));
        {shown.replace('"/chat/tokens?prompt=Hello"', "path")}
        source.addEventListener("end", () => resolve(got));
    }})"""
    try:
        with browser() as chromium:
            page = chromium.new_page()
            page.goto(f"http://{HOST}:{replica.port}/docs")
            got = page.evaluate(read, "/api/tokens?n=200&wait=0.001")
            with pytest.raises(Exception, match="KeyError"):
                page.evaluate(read, "/api/wrong")
    except BrowserUnavailableError as error:
        pytest.skip(str(error))

    assert list(range(200)) == [item["token"] for item in got]


def test_bodies_come_as_to_any_method(replica: Replica) -> None:
    """Large ones through another process, compressed ones too; GET of the others is refused."""
    words = {"words": ["x" * 100_000, "y"]}
    large = ask(replica, "words", words)
    packed = httpx.post(
        url(replica, "words"),
        content=gzip.compress(json.dumps(words).encode()),
        headers={"content-encoding": "gzip", "content-type": "application/json"},
        timeout=60,
    )

    assert ["x" * 100_000, "y", "[DONE]"] == [data for _, data in events(large.text)]
    assert events(large.text) == events(packed.text)
    assert 405 == httpx.get(url(replica, "state"), timeout=60).status_code


def test_a_connection_goes_on_after_a_stream(replica: Replica) -> None:
    """Its end is said; HTTP/1.0 has no word for it but the end of the connection."""
    with httpx.Client(timeout=60) as client:
        both = [client.post(url(replica, "tokens"), json={"n": n}) for n in (3, 0)]
        after = client.post(url(replica, "double"), json=4)
    with socket.create_connection((HOST, replica.port), timeout=60) as old:
        old.sendall(b"GET /api/tokens?n=1 HTTP/1.0\r\n\r\n")
        text = b"".join(iter(lambda: old.recv(65536), b"")).decode()

    assert [4, 1] == [len(events(answer.text)) for answer in both]
    assert (200, 8) == (after.status_code, after.json())
    head, _, body = text.partition("\r\n\r\n")
    assert ("connection: close" in head, "chunked" in head) == (True, False)
    assert 'data: {"token":0,"text":"x"}\n\n' + END == body


def test_other_protocols_say_where_to_go(replica: Replica) -> None:
    """KServe's calls have one answer."""
    v1 = httpx.post(
        f"http://{HOST}:{replica.port}/v1/models/api.tokens:predict",
        json={"instances": [1]}, timeout=60,
    )  # fmt: skip
    v2 = httpx.post(
        f"http://{HOST}:{replica.port}/v2/models/api.tokens/infer", json={"inputs": []}, timeout=60
    )

    assert (406, "streams_only") == (v1.status_code, v1.json()["error"]["code"])
    assert (406, True) == (v2.status_code, "streams its answer" in v2.json()["error"])


def test_pages_of_browsers_may_read_it(replica: Replica) -> None:
    """The head of a stream has what CORS wants, and the access log a line with how it ended."""
    answer = ask(replica, "wrong", "bug", origin=PAGE)
    replica.wait_for(lambda: '"status": 500' in access_lines(replica, "/api/wrong"), "no line")

    assert PAGE == answer.headers["access-control-allow-origin"]


def access_lines(replica: Replica, path: str) -> str:
    """The lines of the access log."""
    lines = (line for line in replica.text().splitlines() if "batchedapi.access" in line)
    return "\n".join(line for line in lines if path in line)


@pytest.mark.parametrize(
    ("method", "payload"), [("tokens", LONG), ("words", {"words": ["a"] * 9999, "wait": 0.01})]
)
def test_who_leaves_closes_the_generator(replica: Replica, method: str, payload: Any) -> None:
    """Its `finally` runs, async or not, and it counts as 499; a model works for nobody."""
    before = state(replica)["closed"].count(method)
    counted = total(replica, 'batchedapi_requests_total{.*code="499"')
    with httpx.stream("POST", url(replica, method), json=payload, timeout=60) as answer:
        next(answer.iter_lines())
    replica.wait_for(
        lambda: state(replica)["closed"].count(method) == before + 1, "was not closed", 30
    )
    replica.wait_for(
        lambda: total(replica, 'batchedapi_requests_total{.*code="499"') == counted + 1, "not 499"
    )
    replica.wait_for(lambda: '"status": 499' in access_lines(replica, method), "no line")


@pytest.mark.parametrize(
    ("method", "payload"), [("tokens", LONG), ("words", {"words": ["a", "b"], "wait": 300})]
)
def test_the_time_of_a_stream_is_the_time_of_its_request(
    replica: Replica, method: str, payload: Any
) -> None:
    """From its arrival to its last item; the rest is not made, and the process lives on."""
    before = state(replica)
    answer = ask(replica, method, payload, x_request_timeout_ms="700")
    error = last_error(answer.text)
    replica.wait_for(
        lambda: state(replica)["closed"].count(method) == before["closed"].count(method) + 1,
        "was not closed",
    )

    assert ("deadline_exceeded", "no answer within 0.7 s as the request asked") == (
        error["code"], error["message"],
    )  # fmt: skip
    assert before["pid"] == state(replica)["pid"]


def test_who_does_not_read_holds_up_nobody_and_is_told_why(replica: Replica) -> None:
    """The generator is not asked for more than is taken; after 10 s of nothing it is closed."""
    closed = state(replica)["closed"].count("tokens")
    with socket.create_connection((HOST, replica.port), timeout=60) as lazy:
        lazy.sendall(request_of("tokens", FLOOD))
        lazy.recv(64)
        seen: list[int] = []

        def stands_still() -> bool:
            time.sleep(0.3)
            seen.append(state(replica)["made"])
            return seen[-2:-1] == seen[-1:] and seen[-1] > 0

        replica.wait_for(stands_still, "was never held up")
        others = ask(replica, "words", {"words": ["a"] * 100})
        replica.wait_for(
            lambda: state(replica)["closed"].count("tokens") == closed + 1, "was not ended", 30
        )
        rest = b"".join(iter(lambda: lazy.recv(1 << 20), b"")).decode()

    assert seen[-1] < FLOOD["n"] / 4
    assert 101 == len(events(others.text))
    assert '"code":"request_timeout"' in rest[-1000:]
    assert "expected its reader to take 1024 bytes a second" in rest[-1000:]
    assert rest.endswith("\r\n0\r\n\r\n")


def request_of(method: str, payload: Any) -> bytes:
    """As bytes."""
    body = json.dumps(payload).encode()
    return (
        f"POST /api/{method} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


class Reading:
    """A stream that a thread reads to its end."""

    def __init__(self, replica: Replica, method: str, payload: Any) -> None:
        self.text = ""
        self.status = 0
        self._replica = replica
        self._thread = threading.Thread(target=self._read, args=(method, payload))
        self._thread.start()

    def _read(self, method: str, payload: Any) -> None:
        target = url(self._replica, method)
        with httpx.stream("POST", target, json=payload, timeout=60) as answer:
            self.status = answer.status_code
            for text in answer.iter_text():
                self.text += text

    def begun(self) -> bool:
        """Whether an item came."""
        return "data: " in self.text

    def whole(self) -> str:
        """All of it."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.text


def test_a_process_that_dies_ends_its_streams_with_the_reason(replica: Replica) -> None:
    """None of what was read is sent twice; the next stream is the next process's."""
    reading = Reading(replica, "tokens", LONG)
    replica.wait_for(reading.begun, "did not begin")
    os.kill(state(replica)["pid"], signal.SIGKILL)
    error = last_error(reading.whole())
    after = ask(replica, "tokens", {"n": 2})

    assert ("predictor_failed", True) == (
        error["code"],
        "died while it streamed" in error["message"],
    )
    assert 3 == len(events(after.text))


@contextlib.contextmanager
def replica_of(folder: Path, spec: dict[str, Any], *arguments: str) -> Iterator[Replica]:
    """Another one."""
    with running_replica(
        folder, ["-f", str(write_manifest(folder, CODE, spec)), *arguments]
    ) as running:
        yield running


@pytest.mark.parametrize("web_processes", [1, 2])
def test_streams_that_end_in_time_end_whole_when_a_replica_stops(
    tmp_path: Path, web_processes: int
) -> None:
    """The others are told why; both kinds have `overload.timeout` from the stop on."""
    spec = {"overload": {"timeout": "4s"}, "predictor": {"webProcesses": web_processes}}
    with replica_of(tmp_path, spec) as replica:
        short = Reading(replica, "tokens", {"n": 60, "wait": 0.03})
        replica.wait_for(short.begun, "did not begin")
        replica.process.send_signal(signal.SIGTERM)
        text = short.whole()
        code = replica.process.wait(30)

    assert (61, True, 0) == (len(events(text)), text.endswith(END), code)


def test_a_stream_counts_as_a_request_until_its_end(tmp_path: Path) -> None:
    """A stream counts for the limit and for the metrics."""
    with replica_of(tmp_path, {"overload": {"maxReplicaConcurrency": 2}}) as replica:
        readings = [Reading(replica, "tokens", {"n": 100, "wait": 0.03}) for _ in range(2)]
        for reading in readings:
            replica.wait_for(reading.begun, "did not begin")
        refused = ask(replica, "words", {"words": ["a"]})
        replica.wait_for(
            lambda: total(replica, "batchedapi_in_flight_requests{") == 2, "not in flight"
        )
        texts = [reading.whole() for reading in readings]
        replica.wait_for(
            lambda: total(replica, "batchedapi_in_flight_requests{") == 0, "still in flight"
        )
        counted = total(replica, 'batchedapi_requests_total{.*code="200"')
        seconds = total(replica, "batchedapi_request_seconds_sum{")

    assert (503, "queue_full") == (refused.status_code, refused.json()["error"]["code"])
    assert [101, 101] == [len(events(text)) for text in texts]
    assert counted == 2
    assert 6 <= seconds


def test_keys_are_asked_for_and_grpc_has_no_streams(tmp_path: Path) -> None:
    """EventSource sends no key: a page that has one reads with fetch."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "one").write_text(KEY)
    port = free_port()
    spec = {"networking": {"apiKeys": {"secretName": "keys"}}}
    arguments = ("--api-keys", "keys", "--grpc-port", str(port))
    with replica_of(tmp_path, spec, *arguments) as replica:
        without = [
            httpx.request(method, url(replica, "tokens"), timeout=60) for method in ("GET", "POST")
        ]
        right = ask(replica, "tokens", {"n": 1}, x_api_key=KEY)
        with grpc.insecure_channel(f"{HOST}:{port}") as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            request = messages.ModelInferRequest(model_name="api.tokens").SerializeToString()
            with pytest.raises(grpc.RpcError) as caught:
                infer(request, timeout=30, metadata=[("x-api-key", KEY)])

    assert [401, 401] == [answer.status_code for answer in without]
    assert 2 == len(events(right.text))
    assert grpc.StatusCode.UNIMPLEMENTED is caught.value.code()
    assert "streams its answer" in caught.value.details()
