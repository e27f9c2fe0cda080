"""Requests of every kind, good and bad, with the status that each must get.

Of predictors with three sorts of methods: tensors of two numbers, JSON items, whole requests.
"""

import io
import json
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np

from raw_http import request_bytes

MAX_BODY: Final = 100_000
"""overload.maxBodySize of the replicas that are asked."""


class Case(NamedTuple):
    """A request and the status it must get."""

    name: str
    status: int
    data: bytes
    has_body: bool = True


def post(name: str, status: int, body: bytes, path: str = "/predict", **headers: str) -> Case:
    """An ordinary POST; header names are written with underscores."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return Case(name, status, request_bytes(path, body, named))


def raw(name: str, status: int, data: bytes, *, has_body: bool = True) -> Case:
    """Exactly these bytes."""
    return Case(name, status, data, has_body)


def saved(array: Any) -> bytes:
    """The bytes that numpy.save writes."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def chunked(body: bytes, *, size: int = 7, headers: bytes = b"") -> bytes:
    """A POST whose length is not known beforehand."""
    chunks = (body[i : i + size] for i in range(0, len(body), size))
    encoded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return (
        b"POST /predict HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n"
        b"content-type: application/json\r\n" + headers + b"\r\n" + encoded + b"0\r\n\r\n"
    )


NPY = "application/x-npy"
MSGPACK = "application/msgpack"
GOOD = b'{"instances": [[1, 2], [3, 4]]}'
TENSOR_CASES = [
    post("item", 200, b"[1, 2]"),
    post("instances", 200, GOOD),
    post("list of rows", 200, b"[[1, 2], [3, 4]]"),
    post("list of one row", 200, b"[[1, 2]]", "/api"),
    post("list of more rows than a batch", 200, b"[" + b"[1, 2]," * 80 + b"[3, 4]]"),
    post("named endpoint", 200, b"[1, 2]", "/api"),
    post("named method", 200, b"[1, 2]", "/api/predict"),
    post("query", 200, b"[1, 2]", "/predict?a=1&b=%20"),
    post("escaped path", 200, b"[1, 2]", "/pre%64ict"),
    post("json with charset", 200, b"[1, 2]", content_type="application/json; charset=utf-8"),
    post("json suffix", 200, b"[1, 2]", content_type="application/vnd.x+json"),
    post("whitespace", 200, b" [1,\n2] "),
    post("npy", 200, saved(np.ones((3, 2), "<f4")), content_type=NPY),
    post("npy of float64", 200, saved(np.ones((1, 2))), content_type=NPY),
    post("npy in Fortran order", 200, saved(np.asfortranarray(np.eye(2))), content_type=NPY),
    post("oversize", 200, json.dumps({"instances": [[n, n] for n in range(50)]}).encode()),
    post("request id", 200, b"[1, 2]", x_request_id="abc"),
    raw("chunked", 200, chunked(GOOD)),
    raw("expect", 200, request_bytes("/predict", GOOD, {"expect": "100-continue"})),
    raw("http/1.0", 200, request_bytes("/predict", GOOD, version="1.0")),
    raw("http/1.0 keep-alive", 200,
        request_bytes("/predict", GOOD, {"connection": "keep-alive"}, version="1.0")),
    raw("close", 200, request_bytes("/predict", GOOD, {"connection": "close"})),
    raw("no content type", 200,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\n[1,2]"),
    raw("upper case headers", 200,
        b"POST /predict HTTP/1.1\r\nHOST: t\r\nCONTENT-LENGTH: 5\r\nCONTENT-TYPE: application/json"
        b"\r\n\r\n[1,2]"),
    post("empty", 400, b""),
    post("no json", 400, b"{"),
    post("NaN", 400, b"[NaN, 1]"),
    post("two values", 400, b"[1, 2] [3, 4]"),
    post("no utf-8", 400, b'["\xff"]'),
    post("too deep", 400, b"[" * 65 + b"]" * 65),
    post("no npy", 400, b"[1, 2]", content_type=NPY),
    post("short npy", 400, saved(np.ones((3, 2), "<f4"))[:-1], content_type=NPY),
    post("hostile npy", 400, b"\x93NUMPY\x01\x00\x10\x00{" + b"(" * 15, content_type=NPY),
    post("request id in an error", 400, b"{", x_request_id="abc"),
    raw("not http", 400, b"NONSENSE\r\n\r\n"),
    raw("no colon", 400, b"POST /predict HTTP/1.1\r\nno colon\r\n\r\n"),
    raw("bad length", 400, b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: x\r\n\r\n"),
    raw("bad chunk", 400,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n"),
    raw("length and chunked", 400,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\ntransfer-encoding: chunked"
        b"\r\n\r\n0\r\n\r\n"),
    raw("two lengths", 400,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n"
        b"[1,2]"),
    raw("space before the colon", 400,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length : 5\r\n\r\n[1,2]"),
    raw("chunked is not last", 400,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    post("no route", 404, b"[1, 2]", "/nowhere"),
    post("no route, other method", 404, b"[1, 2]", "/api/other"),
    post("request id in a 404", 404, b"[1, 2]", "/nowhere", x_request_id="abc"),
    raw("get", 405, request_bytes("/predict", b"", method="GET")),
    raw("head", 405, request_bytes("/predict", b"", method="HEAD"), has_body=False),
    raw("put", 405, request_bytes("/predict", b"[1, 2]", method="PUT")),
    raw("delete", 405, request_bytes("/api", b"", method="DELETE")),
    post("too large", 413, b"[1, " + b" " * MAX_BODY + b"2]"),
    raw("too large by content-length", 413,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 999999999999\r\n\r\n"),
    raw("too large in chunks", 413, chunked(b" " * (MAX_BODY + 1), size=5000)),
    post("form", 415, b"a=1", content_type="application/x-www-form-urlencoded"),
    post("text", 415, b"[1, 2]", content_type="text/plain"),
    post("request id in a 415", 415, b"[1, 2]", content_type="a/b", x_request_id="x" * 300),
    post("short row", 422, b"[1]"),
    post("path is named", 422, b'{"instances": [[1, 2], [3, "x"]]}'),
    post("path in a list is named", 422, b'[[1, 2], [3, "x"]]'),
    post("list of rows too deep", 422, b"[[[1, 2]]]"),
    post("bool", 422, b"[1, true]"),
    post("object", 422, b'{"a": 1}'),
    post("null", 422, b"null"),
    post("no rows", 422, b'{"instances": []}'),
    post("out of range", 422, b"[1, 1e39]"),
    post("npy shape", 422, saved(np.ones((1, 3), "<f4")), content_type=NPY),
    post("npy type", 422, saved(np.array([["a", "b"]])), content_type=NPY),
    post("npy NaN", 422, saved(np.array([[1, np.nan]], "<f4")), content_type=NPY),
    raw("long header", 431,
        b"POST /predict HTTP/1.1\r\nhost: t\r\nx: " + b"a" * 70_000 + b"\r\n\r\n"),
    raw("long target", 431, b"POST /predict?" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: t\r\n\r\n"),
    raw("many headers", 431,
        b"POST /predict HTTP/1.1\r\n"
        + b"".join(b"x-%d: %b\r\n" % (n, b"v" * 80) for n in range(1000)) + b"\r\n"),
    post("raised", 500, b"[666, 1]"),
    post("raised in a list", 500, b"[[1, 2], [666, 1]]"),
    post("NaN answer in a list", 500, b"[[1, 2], [777, 1]]"),
    post("NaN answer", 500, b"[777, 1]"),
    post("refused", 409, b"[409, 1]"),
    post("refused in a list", 409, b"[[1, 2], [409, 1]]"),
    post("refused in npy", 409, saved(np.array([[409, 1]], "<f4")), content_type=NPY),
    post("timeout", 504, b"[504, 1]"),
]  # fmt: skip
V1, V2 = "/v1/models/api:predict", "/v2/models/api/infer"


def tensor_v2(rows: list[list[float]], **changes: Any) -> bytes:
    """An inference request of the Open Inference Protocol."""
    tensor = {
        "name": "input", "datatype": "FP32", "shape": [len(rows), 2],
        "data": [number for row in rows for number in row],
    }  # fmt: skip
    return json.dumps({"id": "mine", "inputs": [{**tensor, **changes}]}).encode()


def binary_v2(name: str, status: int, rows: int, raw_bytes: bytes, *, length: int = 0) -> Case:
    """The same with its numbers behind the JSON."""
    size = {"binary_data_size": len(raw_bytes)}
    tensor = {"name": "input", "datatype": "FP32", "shape": [rows, 2], "parameters": size}
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {
        "inference_header_content_length": str(length or len(text)),
        "content_type": "application/octet-stream",
    }
    return post(name, status, text + raw_bytes, V2, **headers)


V2_DEEP = b'{"inputs": ' + b"[" * 80 + b"]" * 80 + b"}"
HEADERS_CASES = [
    post("long timeout of the client", 200, b"[1, 2]", x_request_timeout_ms="60000"),
    post("timeout of zero", 400, b"[1, 2]", x_request_timeout_ms="0"),
    post("timeout in words", 400, b"[1, 2]", x_request_timeout_ms="soon"),
    post("timeout on v2", 400, tensor_v2([[1, 2]]), V2, x_request_timeout_ms="-1"),
    post("gzip, cut short", 400, b"\x1f\x8b\x08\x00", content_encoding="gzip"),
    post("deflate", 415, b"[1, 2]", content_encoding="deflate"),
    post("identity", 200, b"[1, 2]", content_encoding="identity"),
    post("id with odd bytes", 200, b"[1, 2]", x_request_id="a\xffb"),
    post("timeout of the client", 504, b"[505, 1]", x_request_timeout_ms="200"),
]
PROTOCOL_CASES = [
    post("v1", 200, GOOD, V1),
    post("v1 named", 200, GOOD, "/v1/models/api.predict:predict"),
    post("v1 escaped", 200, GOOD, "/v1/models/%61pi:predict"),
    post("v1 without instances", 422, b"[1, 2]", V1),
    post("v1 no json", 400, b"{", V1),
    post("v1 path is named", 422, b'{"instances": [[1, "x"]]}', V1),
    post("v1 raised", 500, b'{"instances": [[666, 1]]}', V1),
    post("v1 other model", 404, GOOD, "/v1/models/other:predict"),
    post("v1 other verb", 405, GOOD, "/v1/models/api:explain"),
    raw("v1 get of a prediction", 405, request_bytes(V1, b"", method="GET")),
    raw("v1 model", 200, request_bytes("/v1/models/api", b"", method="GET")),
    post("v2", 200, tensor_v2([[1, 2], [3, 4]]), V2),
    post("v2 nested", 200, tensor_v2([[1, 2], [3, 4]], data=[[1, 2], [3, 4]]), V2),
    post("v2 version", 200, tensor_v2([[1, 2]]), "/v2/models/api/versions/1/infer"),
    post("v2 named", 200, tensor_v2([[1, 2]]), "/v2/models/api.predict/infer"),
    post("v2 oversize", 200, tensor_v2([[n, n] for n in range(50)]), V2),
    binary_v2("v2 binary", 200, 2, np.ones(4, "<f4").tobytes()),
    binary_v2("v2 binary too short", 422, 3, np.ones(4, "<f4").tobytes()),
    binary_v2("v2 binary NaN", 422, 1, np.array([1, np.nan], "<f4").tobytes()),
    binary_v2("v2 header length beyond the body", 400, 1, b"\0" * 8, length=100_000),
    post("v2 no json", 400, b"{", V2),
    post("v2 too deep", 400, V2_DEEP, V2),
    post("v2 other name", 422, tensor_v2([[1, 2]], name="x"), V2),
    post("v2 other type", 422, tensor_v2([[1, 2]], datatype="BYTES"), V2),
    post("v2 shape and data differ", 422, tensor_v2([[1, 2]], shape=[2, 2]), V2),
    post("v2 negative shape", 422, tensor_v2([[1, 2]], shape=[-1, 2]), V2),
    post("v2 raised", 500, tensor_v2([[666, 1]]), V2),
    post("v2 refused", 409, tensor_v2([[409, 1]]), V2),
    post("v2 request id in an error", 400, b"{", V2, x_request_id="abc"),
    post("v2 other model", 404, tensor_v2([[1, 2]]), "/v2/models/other/infer"),
    post("v2 other version", 404, tensor_v2([[1, 2]]), "/v2/models/api/versions/9/infer"),
    post("missing", 200, b'[[1, null], ["Infinity", "NaN"]]', "/api/missing"),
    post("missing one", 200, b"[null, 1]", "/api/missing"),
    post("missing npy", 200, saved(np.array([[1, np.nan]], "<f4")), "/api/missing",
         content_type=NPY),
    post("missing msgpack", 200, msgpack.packb([1.0, float("-inf")]), "/api/missing",
         content_type=MSGPACK),
    post("missing v1", 200, b'{"instances": [[1, null]]}', "/v1/models/api.missing:predict"),
    post("missing v2", 200, tensor_v2([[1, 2]], data=[None, "-Infinity"]),
         "/v2/models/api.missing/infer"),
    post("missing as another word", 422, b'[1, "nan"]', "/api/missing"),
    post("missing as no JSON", 400, b"[1, NaN]", "/api/missing"),
    raw("v2 server", 200, request_bytes("/v2", b"", method="GET")),
    raw("v2 live", 200, request_bytes("/v2/health/live", b"", method="GET")),
    raw("v2 ready", 200, request_bytes("/v2/health/ready", b"", method="GET")),
    raw("v2 model", 200, request_bytes("/v2/models/api", b"", method="GET")),
    raw("v2 model ready", 200, request_bytes("/v2/models/api/ready", b"", method="GET")),
    raw("v2 no such model", 404, request_bytes("/v2/models/other/ready", b"", method="GET")),
    raw("v2 put", 405, request_bytes(V2, b"{}", method="PUT")),
    post("msgpack", 200, msgpack.packb([1.0, 2.0]), content_type=MSGPACK),
    post("msgpack list of rows", 200, msgpack.packb([[1, 2], [3, 4]]), content_type=MSGPACK),
    post("msgpack instances", 200, msgpack.packb({"instances": [[1, 2]]}), content_type=MSGPACK),
    post("msgpack cut", 400, msgpack.packb([1.0, 2.0])[:-1], content_type=MSGPACK),
    post("msgpack of nothing known", 400, b"\xc1", content_type=MSGPACK),
    post("msgpack short row", 422, msgpack.packb([1.0]), content_type=MSGPACK),
    post("msgpack that promises 4 GB", 400, b"\xdd\xff\xff\xff\xff", content_type=MSGPACK),
    post("msgpack too deep", 400, b"\x91" * 5000, content_type=MSGPACK),
]  # fmt: skip
ITEM_CASES = [
    post("v1", 200, b'{"instances": [1, "x"]}', "/v1/models/api:predict"),
    post("v2 text", 200, b'{"inputs": [{"name": "input", "datatype": "BYTES", "shape": [2],'
         b' "data": ["a", "b"]}]}', "/v2/models/api/infer"),
    post("v2 item error", 409, b'{"inputs": [{"name": "input", "datatype": "BYTES", "shape": [1],'
         b' "data": ["conflict"]}]}', "/v2/models/api/infer"),
    post("msgpack", 200, msgpack.packb({"a": [1, None]}), content_type=MSGPACK),
    post("item", 200, b'{"a": [1, null, "\xc3\xa9"]}'),
    post("scalar", 200, b"3"),
    post("list is one item", 200, b"[[1, 2], [3, 4]]"),
    post("instances", 200, b'{"instances": [1, {"b": 2}, "x"]}'),
    post("item error", 409, b'"conflict"'),
    post("item error among many", 409, b'{"instances": [1, "conflict", 2]}'),
    post("NaN", 500, b'"nan"'),
    post("npy", 415, saved(np.ones(2)), content_type=NPY),
]  # fmt: skip
CALL_CASES = [
    post("json", 200, b'{"instances": [1]}', "/api?q=1&q=2&e=", x_user="me"),
    post("text body", 200, b"a,b", content_type="text/csv"),
    post("other body", 200, b"\x89PNG", content_type="image/png"),
    post("text answer", 200, b'"text"'),
    post("bytes answer", 200, b'"bytes"'),
    post("refused", 403, b'"refused"'),
    post("no json", 400, b"{"),
]
