"""Bodies that are cheap to send and dear to take apart, for every codec, at any length.

A body is made from a seed: the same seed gives the same kind of body at another length, so that
what is worst at 1 MiB can be asked again at the size limit.
"""

import random
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

Headers = tuple[tuple[str, str], ...]
JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
NPY: Final = "application/x-npy"
OCTETS: Final = "application/octet-stream"
GRPC: Final = "application/grpc"

METHODS: Final = ("flat", "wide", "named", "items", "call")
CODE: Final = """
    from batchedapi_serving import Tensor, batched, endpoint


    class Model:
        @batched(inputs=Tensor("FP32", [4]), outputs=Tensor("FP32", []))
        def flat(self, rows):
            return rows.sum(axis=1)

        @batched(inputs=Tensor("FP32", ["n"]), outputs=Tensor("FP32", []))
        def wide(self, rows):
            return rows[:, 0]

        @batched(inputs={"a": Tensor("INT64", ["n"]), "b": Tensor("UINT8", ["n"])})
        def named(self, rows):
            return rows["a"][:, 0]

        @batched
        def items(self, items):
            return [0 for _ in items]

        @endpoint
        def call(self, payload, query_params, headers):
            return 0
"""
"""A predictor with a method of each kind, whose answers are small."""


class Body(NamedTuple):
    """One request."""

    kind: str
    """In words, for the report."""
    method: str
    wire: str
    """plain, v1, v2 or grpc: a value of batchedapi_serving.codecs.Wire."""
    content_type: str
    data: bytes
    headers: Headers = ()


def body_of(seed: int, length: int) -> Body:
    """The body of `seed`, `length` bytes or a little less."""
    rng = random.Random(seed)
    method = rng.choice(METHODS)
    return rng.choice(_FAMILIES)(rng, method, length)


def _repeated(unit: bytes, length: int) -> bytes:
    return unit * max(1, length // max(1, len(unit)))


# ---------------------------------------------------------------- JSON

_ATOMS: Final = (
    "[]", "{}", "0", "7", "-1", "0.1", "1e9", "1e-300", "123456789", "12345678901234567890123",
    '""', '"a"', '"ab"', '"\\u00e9"', '"\\n\\\\"', '"\u4e16\u754c"', "null", "true", "[[]]", "[0]",
    "[1,2,3,4]", "[0.5,0.25,0.1,1e3]", '{"a":0}', '{"a":[],"b":{}}', '{"a":[1],"b":[2]}',
    "[[0],[1]]",
)  # fmt: skip


def _json_unit(rng: random.Random) -> str:
    atoms = [rng.choice(_ATOMS) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
    return rng.choice(("{}", "[{}]", "[[{}]]")).format(",".join(atoms))


def _json_list(rng: random.Random, length: int) -> bytes:
    unit = (_json_unit(rng) + "," + " " * rng.choice((0, 0, 3))).encode()
    return b"[" + _repeated(unit, length - 4) + b"0]"


def _json_object(rng: random.Random, length: int) -> bytes:
    unit = _json_unit(rng)
    key = rng.choice(("{i:x}", "same", "\\u00e9{i}", "k" * 20 + "{i}"))
    member = f'"{key}":{unit},'
    count = max(1, length // (len(member) + 3))
    text = "".join([member.replace("{i:x}", f"{i:x}").replace("{i}", str(i)) for i in range(count)])
    return b"{" + text.encode()[: length - 12].rpartition(b",")[0] + b"}"


def _json_text(rng: random.Random, length: int) -> bytes:
    unit = rng.choice((",", "[", '\\"', "\\\\", "\u00e9", "\\u0000", "a,b:[{")).encode()
    return b'["' + _repeated(unit, length - 4) + b'"]'


def _json_deep(rng: random.Random, length: int) -> bytes:
    levels = rng.choice((60, 1000, length // 2))
    tower = b"[" * levels + b"]" * levels
    return b"[" + b",".join([tower] * max(1, length // (len(tower) + 1))) + b"]"


_JSON: Final[tuple[Callable[[random.Random, int], bytes], ...]] = (
    _json_list, _json_list, _json_list, _json_object, _json_text, _json_deep,
)  # fmt: skip


def _json(rng: random.Random, method: str, length: int) -> Body:
    value = rng.choice(_JSON)(rng, length - 40)
    wrap = rng.choice(("", '{"instances":%s}', '{"instances":[%s]}', '{"a":%s,"b":[1]}'))
    data = wrap.encode() % value if wrap else value
    if rng.random() < 0.1:
        data = data[:-1]  # ends too early, after everything was built
    wire = "v1" if "instances" in wrap and rng.random() < 0.3 else "plain"
    return Body(f"JSON {data[:28]!r}...", method, wire, JSON, data)


def _v2_json(rng: random.Random, method: str, length: int) -> Body:
    datatype = rng.choice(("FP32", "INT64", "UINT8", "BOOL", "BYTES", "FP64"))
    unit = {"BOOL": b"true,", "BYTES": b'"a",'}.get(datatype, rng.choice((b"0,", b"7,", b"0.5,")))
    count = max(1, (length - 200) // len(unit))
    if rng.random() < 0.2:
        data = b'{"inputs":[%b{}]}' % _repeated(b"{},", length - 20)
    elif rng.random() < 0.2:
        data = b'{"inputs":[],"outputs":[%b{}]}' % _repeated(b'{"name":"a"},', length - 40)
    else:
        numbers = (unit * count)[:-1]
        shape = rng.choice((b"1,%d" % count, b"%d" % count, b"%d,4" % (count // 4)))
        data = b'{"inputs":[{"name":"a","datatype":"%b","shape":[%b],"data":[%b]}]}' % (
            datatype.encode(),
            shape,
            numbers,
        )
    return Body(f"v2 JSON {data[:28]!r}... {datatype}", method, "v2", JSON, data)


# ---------------------------------------------------------------- raw tensors

_WIDTHS: Final = {"FP32": 4, "FP64": 8, "UINT8": 1, "INT64": 8, "BOOL": 1}


def _v2_raw(rng: random.Random, method: str, length: int) -> Body:
    datatype = rng.choice((*_WIDTHS, "BYTES", "BYTES"))
    if datatype == "BYTES":
        element = rng.choice((b"", b"a", b"{}", b"[[],[]]"))
        raw = _repeated(struct.pack("<I", len(element)) + element, length - 300)
        count = len(raw) // (4 + len(element))
    else:
        raw = bytes(_WIDTHS[datatype]) * max(1, (length - 300) // _WIDTHS[datatype] // 4 * 4)
        count = len(raw) // _WIDTHS[datatype]
    shape = rng.choice((f"[1,{count}]", f"[{count}]", f"[{count // 4},4]"))
    text = (
        f'{{"inputs":[{{"name":"a","datatype":"{datatype}","shape":{shape},'
        f'"parameters":{{"binary_data_size":{len(raw)}}}}}]}}'
    ).encode()
    headers = (("inference-header-content-length", str(len(text))),)
    return Body(f"v2 raw {datatype} {shape}", method, "v2", OCTETS, text + raw, headers)


def _npy(rng: random.Random, method: str, length: int) -> Body:
    descr, width = rng.choice((("<f4", 4), ("|u1", 1), ("<f8", 8), ("|b1", 1), ("<i8", 8)))
    count = max(4, (length - 128) // width // 4 * 4)
    shape = rng.choice((
        f"({count // 4}, 4)", f"(1, {count})", f"({count},)", f"({count // 4}, 2, 2)",
        "(" + "1," * rng.choice((40, 4000)) + ")", f"({count * 10**9}, 4)", "(0, 4)",
    ))  # fmt: skip
    order = rng.choice(("True", "False"))
    head = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    head = head.ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head + bytes(count * width)
    return Body(f"npy {descr} {shape[:30]} {order}", method, "plain", NPY, data)


# ---------------------------------------------------------------- msgpack

_PACKED: Final = (
    b"\x90", b"\x80", b"\x00", b"\xff", b"\xc0", b"\xc3", b"\xa0", b"\xa1a", b"\xa2ab", b"\xc4\x00",
    b"\xd9\x00", b"\xcb" + bytes(8), b"\xca" + bytes(4), b"\xcb\x7f\xf8" + bytes(6), b"\x91\x90",
    b"\x81\xa1a\x00", b"\x82\xa1a\x90\xa1b\x80", b"\x94\x00\x01\x02\x03", b"\xd4\x01\x00",
    b"\xcf" + b"\xff" * 8, b"\xdc\x00\x00", b"\x92\x91\x00\x91\x01",
)  # fmt: skip


def _msgpack(rng: random.Random, method: str, length: int) -> Body:
    unit = b"".join(rng.choice(_PACKED) for _ in range(rng.choice((1, 1, 1, 3))))
    one = rng.choice(_PACKED)
    form = rng.choice(("list", "list", "list", "instances", "map", "stream", "deep", "claims"))
    match form:
        case "list" | "instances":
            count = max(1, (length - 20) // len(one))
            data = b"\xdd" + struct.pack(">I", count) + one * count
            data = b"\x81\xa9instances" + data if form == "instances" else data
        case "map":
            count = max(1, length // (5 + len(one)))
            pairs = (b"\xa4%b%b" % (struct.pack(">I", i & 0x7F7F7F7F), one) for i in range(count))
            data = b"\xdf" + struct.pack(">I", count) + b"".join(pairs)
        case "stream":
            data = _repeated(unit, length)
        case "deep":
            data = _repeated(b"\x91", length - 1) + b"\x90"
        case _:
            data = _repeated(b"\xdd" + struct.pack(">I", length), length)
    return Body(f"msgpack {form} {data[:16]!r}...", method, "plain", MSGPACK, data)


# ---------------------------------------------------------------- gRPC


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


_FIELDS: Final = (
    field(5, b""), field(6, b""), field(4, b""), field(7, b""), field(1, b""), field(9, b""),
    field(5, field(4, b"")), field(6, field(2, b"")), field(5, field(5, b"")), b"\x18\x01",
    field(4, field(1, b"a") + field(2, b"")), b"\x4b\x4c", field(6, field(1, b"output")),
    field(5, b"\x18\x01" * 20), field(4, field(1, b"a") + field(2, field(3, b"") * 9)),
)  # fmt: skip
_CONTENTS: Final[dict[str, tuple[str, Callable[[int], bytes], int]]] = {
    "bool packed": ("BOOL", lambda n: field(1, b"\x01" * n), 1),
    "int packed": ("INT32", lambda n: field(2, b"\x01" * n), 1),
    "int64 packed": ("INT64", lambda n: field(3, b"\x01" * n), 1),
    "int64 unpacked": ("INT64", lambda n: b"\x18\x01" * n, 2),
    "fp32 packed": ("FP32", lambda n: field(6, bytes(4 * n)), 4),
    "fp32 unpacked": ("FP32", lambda n: (b"\x35" + bytes(4)) * n, 5),
    "fp64 packed": ("FP64", lambda n: field(7, bytes(8 * n)), 8),
    "bytes": ("BYTES", lambda n: field(8, b"") * n, 2),
    "texts": ("BYTES", lambda n: field(8, b"a") * n, 3),
}


def _grpc(rng: random.Random, method: str, length: int) -> Body:
    head = field(1, f"api.{method}".encode())
    if rng.random() < 0.4:
        unit = b"".join(rng.choice(_FIELDS) for _ in range(rng.choice((1, 1, 2))))
        return Body(f"gRPC {unit[:16]!r}...", method, "grpc", GRPC, head + _repeated(unit, length))
    kind = rng.choice((*_CONTENTS, "raw FP32", "raw BYTES", "raw UINT8"))
    if kind in _CONTENTS:
        datatype, contents, width = _CONTENTS[kind]
        count = max(4, (length - 60) // width // 4 * 4)
        tail, inner = b"", field(5, contents(count))
    else:
        datatype = kind.split()[1]
        width = {"FP32": 4, "UINT8": 1, "BYTES": 4}[datatype]
        count = max(4, (length - 60) // width // 4 * 4)
        tail, inner = field(7, bytes(width * count)), b""
    lengths = rng.choice(((1, count), (count,), (count // 4, 4)))
    shape = b"".join(b"\x18" + _varint(n) for n in lengths)
    tensor = field(1, b"a") + field(2, datatype.encode()) + shape + inner
    return Body(f"gRPC {kind} {lengths}", method, "grpc", GRPC, head + field(5, tensor) + tail)


_FAMILIES: Final = (
    _json, _json, _json, _v2_json, _v2_raw, _npy, _msgpack, _msgpack, _grpc, _grpc,
)  # fmt: skip
