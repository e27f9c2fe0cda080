"""Traces of real replicas, at a collector that reads OTLP."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest

from batchedapi_core import contract
from batchedapi_serving.codecs import open_inference_pb2 as messages
from certificates import make_certificates
from otlp import HOST, Collector, Received, collector
from ports import free_port
from redis_server import running_redis
from serving import Replica, running_replica, start_replica, write_manifest
from serving import end_replica as end

CODE: Final = """
    from batchedapi_serving import Tensor, batched

    class Model:
        def __init__(self, context):
            self.context = context

        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [2]))
        def predict(self, x):
            return x * 2

        @batched(example="x")
        def told(self, items):
            return [dict(self.context.trace_headers) for _ in items]

        async def decode_text(self, payload):
            return {"decoded in": dict(self.context.trace_headers)}

        def encode_text(self, answer):
            return {**answer, "encoded in": dict(self.context.trace_headers)}

        @batched(example={}, decode="decode_text", encode="encode_text")
        def text(self, items):
            return items
"""
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT: Final = "b7ad6b7169203331"
SAMPLED: Final = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "team=a"}
UNSAMPLED: Final = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
MODEL_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
NEVER: Final = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}


@contextmanager
def traced(
    folder: Path,
    variables: Mapping[str, str] | None = None,
    *,
    arguments: Sequence[str] = (),
    web_processes: int = 1,
    environment: Mapping[str, str] | None = None,
    **spec: Any,
) -> Iterator[tuple[Replica, Collector]]:
    """A replica and its collector; the manifest's own variables say where that is."""
    port = free_port()
    told = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{port}", "OTEL_BSP_SCHEDULE_DELAY": "100",
        **(variables or {}),
    }  # fmt: skip
    env = [{"name": name, "value": value} for name, value in told.items()]
    predictor = {"env": env, "webProcesses": web_processes}
    file = write_manifest(folder, CODE, {**spec, "predictor": predictor})
    with (
        collector(port) as found,
        running_replica(folder, ["-f", str(file), *arguments], environment) as replica,
    ):
        yield replica, found


def post(replica: Replica, path: str, body: Any, headers: Mapping[str, str]) -> httpx.Response:
    """One request on a connection of its own."""
    return httpx.post(f"http://{HOST}:{replica.port}{path}", json=body, headers=dict(headers))


def named(spans: Sequence[Received], name: str) -> Received:
    """The only one of that name."""
    (found,) = [span for span in spans if span.name == name]
    return found


def server_spans(spans: Sequence[Received]) -> list[Received]:
    """The spans of requests."""
    return [span for span in spans if span.server]


@pytest.mark.parametrize("web_processes", [1, 2])
def test_a_callers_trace_goes_through_the_batch_into_the_predictor(
    tmp_path: Path, web_processes: int
) -> None:
    """Request, batch and what the predictor would call, in one trace; from any web process."""
    with traced(tmp_path, NEVER, web_processes=web_processes) as (replica, found):
        asked_and_found(replica, found)


@pytest.mark.parametrize("web_processes", [1, 2])
def test_a_trace_goes_through_a_shared_queue_to_a_worker(
    tmp_path: Path, web_processes: int
) -> None:
    """The same, where web processes have the request's span, and a worker the batch's."""
    with running_redis(tmp_path) as redis:
        queue = {"redis": {"host": HOST, "port": redis.port}}
        with traced(
            tmp_path, NEVER, web_processes=web_processes, environment=redis.environment,
            serverSideBatching={"queue": queue},
        ) as (replica, found):  # fmt: skip
            asked_and_found(replica, found)


def asked_and_found(replica: Replica, found: Collector) -> None:
    """Eight requests with a caller's trace and two without: what is said of the eight."""
    answers = [post(replica, "/api/told", "a", SAMPLED) for _ in range(8)]
    unsampled = [post(replica, "/api/told", "a", headers) for headers in (UNSAMPLED, {})]
    spans = found.wait_for(lambda spans: len(spans) == 16)

    assert [{}, {}] == [answer.json() for answer in unsampled]
    assert not any("traceparent" in answer.headers for answer in unsampled)
    assert {TRACE} == {span.trace_id for span in spans}
    by_id = {span.span_id: span for span in spans}
    for answer in answers:
        request = by_id[answer.headers["traceparent"].split("-")[2]]
        batch = by_id[answer.json()["traceparent"].split("-")[2]]
        assert "team=a" == answer.json()["tracestate"] == request.state == batch.state
        assert (PARENT, request.span_id) == (request.parent_id, batch.parent_id)
        assert ([batch.link], [request.link]) == (request.links, batch.links)
        assert request.start <= batch.start <= batch.end <= request.end
        assert ("POST /api/told", True) == (request.name, request.server)
        assert ("batch told", False) == (batch.name, batch.server)
        facts = {
            "http.request.method": "POST", "http.route": "/api/told", "url.path": "/api/told",
            "url.scheme": "http", "http.response.status_code": 200, "batchedapi.batch.rows": 1,
            "batchedapi.batch.requests": 1,
        }  # fmt: skip
        assert facts.items() <= request.attributes.items()
        assert request.attributes["batchedapi.batch.reason"] in contract.RELEASE_REASONS
        assert 0 <= request.attributes["batchedapi.queue_wait_seconds"] < 10
        assert {"service.name": "api"}.items() <= request.resource.items()


def test_clients_that_share_a_batch_are_linked_to_the_same_span(tmp_path: Path) -> None:
    """One batch, many traces: it is in the first one's, and every other leads to it."""
    with traced(tmp_path) as (replica, found):

        async def together() -> None:
            async with httpx.AsyncClient(base_url=f"http://{HOST}:{replica.port}") as client:
                rounds = range(20)
                for _ in rounds:
                    body = [1.0, 2.0]
                    await asyncio.gather(*(client.post("/api", json=body) for _ in range(16)))

        asyncio.run(together())
        spans = found.wait_for(lambda spans: len(server_spans(spans)) == 320)

    requests = {span.link: span for span in server_spans(spans)}
    batches = [span for span in spans if not span.server]
    assert 320 == len(requests) == len({trace for trace, _ in requests})
    assert any(len(batch.links) > 1 for batch in batches)
    for batch in batches:
        assert len(batch.links) == batch.attributes["batchedapi.batch.requests"]
        assert (batch.trace_id, batch.parent_id) == batch.links[0]
        assert all(requests[link].links == [batch.link] for link in batch.links)


def test_decode_and_encode_are_in_the_trace_too(tmp_path: Path) -> None:
    """Both may call other services; the row's own batch is under the call that submitted it."""
    with traced(tmp_path, NEVER) as (replica, found):
        answer = post(replica, "/api/text", "a", SAMPLED).json()
        spans = found.wait_for(lambda spans: len(spans) == 4)

    request, call = named(spans, "POST /api/text"), named(spans, "batch text")
    rows, batch = named(spans, "submit text.batch"), named(spans, "batch text.batch")
    chain = [PARENT, request.span_id, call.span_id, rows.span_id]
    assert chain == [span.parent_id for span in (request, call, rows, batch)]
    traceparent = f"00-{TRACE}-{call.span_id}-01"
    assert [traceparent] * 2 == [
        answer[when]["traceparent"] for when in ("decoded in", "encoded in")
    ]


def test_a_refused_row_and_a_large_body_have_spans(tmp_path: Path) -> None:
    """Whatever is answered to a prediction; 4xx is the client's fault, and fails no span."""
    rows = [[1.0, 2.0]] * 20_000
    with traced(tmp_path) as (replica, found):
        refused = post(replica, "/api", ["wrong"], {"x-request-id": "mine"})
        large = post(replica, "/api", {"instances": rows}, {})
        spans = found.wait_for(lambda spans: len(server_spans(spans)) == 2)

    assert (422, 200) == (refused.status_code, large.status_code)
    first, second = sorted(server_spans(spans), key=lambda span: span.start)
    facts = {"http.response.status_code": 422, "batchedapi.request_id": "mine"}
    assert facts.items() <= first.attributes.items()
    assert ([], False) == (first.links, first.failed)
    batches = {span.link for span in spans if not span.server}
    assert batches == set(second.links)


def test_grpc_metadata_carries_the_trace_in_and_out(tmp_path: Path) -> None:
    """As headers do over HTTP; names are those of the conventions for RPC."""
    port = free_port()
    tensor = messages.ModelInferRequest.InferInputTensor(
        name="input", datatype="FP32", shape=[1, 2], contents={"fp32_contents": [1.0, 2.0]}
    )
    asked = messages.ModelInferRequest(model_name="api", inputs=[tensor])
    wrong = messages.ModelInferRequest(model_name="nobody")
    with (
        traced(tmp_path, NEVER, arguments=["--grpc-port", str(port)]) as (_, found),
        grpc.insecure_channel(f"{HOST}:{port}") as channel,
    ):
        infer = channel.unary_unary(MODEL_INFER, messages.ModelInferRequest.SerializeToString)
        metadata = tuple(SAMPLED.items())
        _, call = infer.with_call(asked, metadata=metadata, timeout=30)
        infer.with_call(asked, timeout=30)
        with pytest.raises(grpc.RpcError):
            infer(wrong, metadata=metadata, timeout=30)
        spans = found.wait_for(lambda spans: len(spans) == 3)

    answered, refused = sorted(server_spans(spans), key=lambda span: span.start)
    batch = named(spans, "batch predict")
    told = dict(call.initial_metadata())["traceparent"]
    assert f"00-{TRACE}-{answered.span_id}-01" == told
    assert (PARENT, answered.span_id) == (answered.parent_id, batch.parent_id)
    assert [batch.link] == answered.links
    assert {
        "rpc.system.name": "grpc", "rpc.method": MODEL_INFER[1:], "rpc.response.status_code": "OK",
    }.items() <= answered.attributes.items()  # fmt: skip
    assert ("NOT_FOUND", False) == (
        refused.attributes["rpc.response.status_code"], refused.failed,
    )  # fmt: skip


def test_a_collector_that_is_away_costs_no_request_and_is_counted(tmp_path: Path) -> None:
    """Nobody listens there; what could not be sent is a figure on the page, and one line."""
    with traced(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) as (replica, _):
        answers = [post(replica, "/api", [1.0, 2.0], {}) for _ in range(50)]
        replica.wait_for(
            lambda: replica.metrics()[contract.METRIC_SPANS_DROPPED] > 0, "no span was dropped", 60
        )
        log = replica.text()

    assert {200} == {answer.status_code for answer in answers}
    assert 1 == log.count("spans are dropped: the collector does not take them")
    assert "Retrying" not in log


def test_what_is_not_sent_yet_is_sent_when_the_replica_stops(tmp_path: Path) -> None:
    """Within the drain: whoever looks for the last requests before a rollout finds them."""
    variables = {
        "OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b", "OTEL_SERVICE_NAME": "mine",
    }  # fmt: skip
    with traced(tmp_path, variables) as (replica, found):
        for _ in range(3):
            post(replica, "/api", [1.0, 2.0], {})
        assert [] == found.spans
        replica.stop()

    assert 6 == len(found.spans)
    assert {"mine"} == {span.resource["service.name"] for span in found.spans}
    assert "a b" == found.requests[0]["x-key"]


def test_a_request_that_may_be_sent_again_is(tmp_path: Path) -> None:
    """A collector that restarts answers 503; nothing is lost of it."""
    with traced(tmp_path) as (replica, found):
        found.statuses += [503, 503]
        post(replica, "/api", [1.0, 2.0], {})
        found.wait_for(lambda spans: len(spans) == 2)

        assert 0 == replica.metrics()[contract.METRIC_SPANS_DROPPED]


def test_a_collector_behind_tls_is_trusted_and_shown_who_sends(tmp_path: Path) -> None:
    """Both files are PEM, as everywhere; the collector takes nobody without a certificate."""
    made = make_certificates(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(made.authority))
    tls.load_cert_chain(made.server)
    tls.verify_mode = ssl.CERT_REQUIRED
    port = free_port()
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://localhost:{port}",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(made.authority),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(made.server),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(made.server),
    }
    with collector(port, tls) as found, traced(tmp_path, variables) as (replica, _):
        post(replica, "/api", [1.0, 2.0], {})
        found.wait_for(lambda spans: len(spans) == 2)

        assert 0 == replica.metrics()[contract.METRIC_SPANS_DROPPED]


def test_a_variable_that_cannot_be_followed_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    """Not a trace that never comes; on the terminal, and in a cluster in the status."""
    file = write_manifest(tmp_path, CODE, {})
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }  # fmt: skip
    replica = start_replica(tmp_path, ["-f", str(file)], variables)
    try:
        code = replica.process.wait(60)
    finally:
        end(replica)

    assert 0 != code
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: expected http/protobuf" in replica.text()
    assert "Traceback" not in replica.text()


def test_a_replica_that_traces_nothing_loads_nothing_for_it() -> None:
    """Neither a web process, nor a model process, nor the supervisor."""
    program = (
        "import sys, json, batchedapi_serving.web_process, batchedapi_serving.model.__main__,"
        " batchedapi_serving.cli.serve; print(json.dumps(sorted(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )

    loaded = set(json.loads(ran.stdout))
    assert "batchedapi_serving.tracing.spans" in loaded
    for name in ("batchedapi_serving.tracing.sending", "opentelemetry.sdk", "requests"):
        assert name not in loaded
