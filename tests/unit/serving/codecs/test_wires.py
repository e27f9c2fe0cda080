"""From the language of a route to its decoder, and what is loaded for it."""

import subprocess
import sys

import pytest

from batchedapi_serving.codecs import RequestHead, Wire, codec_of
from batchedapi_serving.predictor import MethodSpec, Tensor
from protocols import named, single

METHODS = [
    single(Tensor("FP32", [2])),
    named({"input": Tensor("FP32", ["n"])}, {}),
    MethodSpec("predict", batched=True),
    MethodSpec("predict", batched=False),
]
V2 = b'{"inputs":[{"name":"input","datatype":"FP32","shape":[2,2],"data":[1,2,3,4]}]}'


@pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(sorted(method.inputs)))
@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (Wire.PLAIN, b'{"instances":[%b,%b]}'),
        (Wire.V1, b'{"instances":[%b,%b]}'),
        (Wire.V2, V2),
    ],
)
def test_every_kind_of_method_is_spoken_to_in_every_language(
    method: MethodSpec, wire: Wire, value: bytes
) -> None:
    """Firsts 3.7: batched below the protocol, so rows are the same whatever it was."""
    codec = codec_of(method)
    rows = (b'{"input":[1,2]}', b'{"input":[3,4]}') if not method.single_input else (b"[1,2]",) * 2
    body = value if wire is Wire.V2 else value % rows

    decoded = codec.decode(wire, RequestHead(b"application/json", b"", ()), body)

    calls_itself = not method.batched and wire is Wire.PLAIN
    assert (1 if calls_itself else 2) == decoded.rows
    assert decoded.payload[:1] if calls_itself else codec.part(decoded.payload, 1, 2)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("batchedapi_serving.model.batch", ("google.protobuf", "grpc", "msgpack")),
        ("batchedapi_serving", ("numpy", "orjson")),
        ("batchedapi_serving.model.loading", ("numpy", "orjson")),
    ],
)
def test_a_process_loads_no_more_than_it_needs(module: str, absent: tuple[str, ...]) -> None:
    """User code may bring another protobuf; the supervisor stays small."""
    program = f"import sys, {module}; print(*[m for m in {absent!r} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert b"" == done.stdout.strip()
