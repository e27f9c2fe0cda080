"""Which bodies are taken apart elsewhere: by what of them has to be parsed, not by their length."""

import pytest

from batchedapi_serving.codecs.base import RequestHead
from batchedapi_serving.codecs.grpc_fields import asked_of
from batchedapi_serving.grpc.open_inference_pb2 import ModelInferRequest
from batchedapi_serving.predictor.method import MethodSpec
from batchedapi_serving.predictor.tensor import Tensor
from batchedapi_serving.web.large_bodies import is_large, is_large_beside

KIB = 1024
PIXELS = MethodSpec("pixels", batched=True, inputs={"x": Tensor("UINT8", ["bytes"])})
ITEMS = MethodSpec("items", batched=True)
RAW_HEADER = b"inference-header-content-length"


def head(content_type: str, described: int | None = None) -> RequestHead:
    """Of a body of which the first `described` bytes are JSON, if any are."""
    headers = [] if described is None else [(RAW_HEADER, b"%d" % described)]
    return RequestHead(content_type.encode(), b"", headers)


@pytest.mark.parametrize(
    ("method", "content_type", "described", "length", "expected"),
    [
        pytest.param(PIXELS, "application/json", None, 64 * KIB, False, id="JSON that is short"),
        pytest.param(PIXELS, "application/json", None, 64 * KIB + 1, True, id="JSON"),
        pytest.param(PIXELS, "application/msgpack", None, 16 * KIB + 1, True, id="msgpack"),
        pytest.param(PIXELS, "application/x-npy", None, 1024 * KIB, False, id="npy"),
        pytest.param(PIXELS, "application/x-npy", None, 1024 * KIB + 1, True, id="npy, long"),
        pytest.param(ITEMS, "application/x-npy", None, 16 * KIB + 1, True, id="npy to items"),
        pytest.param(PIXELS, "application/octet-stream", 200, 600 * KIB, False, id="raw"),
        pytest.param(PIXELS, "application/octet-stream", 200, 1024 * KIB + 1, True, id="raw, long"),
        pytest.param(PIXELS, "application/octet-stream", 17 * KIB, 90 * KIB, True, id="its head"),
        pytest.param(ITEMS, "application/octet-stream", 200, 17 * KIB, True, id="raw to items"),
        pytest.param(PIXELS, "application/octet-stream", 10**9, 17 * KIB, True, id="no such head"),
    ],
)
def test_a_body_is_large_by_what_of_it_is_parsed(
    method: MethodSpec, content_type: str, described: int | None, length: int, *, expected: bool
) -> None:
    """An image of 600 KiB of raw numbers takes less time than 64 KiB of JSON."""
    assert expected is is_large(method, head(content_type, described), bytes(length))


@pytest.mark.parametrize("datatype", [b"BYTES", b"\\u0042YTES"], ids=["plain", "escaped"])
def test_raw_texts_are_parsed(datatype: bytes) -> None:
    """Each of them becomes an object, however short it is."""
    text = b'{"inputs":[{"datatype":"%b"}]}' % datatype

    large = is_large(PIXELS, head("application/octet-stream", len(text)), text + bytes(17 * KIB))

    assert large


@pytest.mark.parametrize(("datatype", "expected"), [("UINT8", False), ("BYTES", True)])
def test_of_a_message_raw_tensors_are_not_parsed(datatype: str, *, expected: bool) -> None:
    """The same over gRPC, where what describes them may stand behind them."""
    message = ModelInferRequest(model_name="api", raw_input_contents=[bytes(300 * KIB)] * 2)
    message.inputs.add(name="x", datatype=datatype, shape=[2])
    body = message.SerializeToString()

    large = is_large_beside(PIXELS, len(body), asked_of(body).raw)

    assert expected is large
