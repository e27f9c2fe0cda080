"""Every decoder of every kind of method, fed with bytes that atheris mutates towards new code.

    python tests/fuzz/decoders.py --runs 1000000

The first byte of an input chooses the method, the second the wire and the content type.
"""

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(include=["batchedapi_serving.codecs"]):
    # These are imported with the first request of their wire, which would be too late here.
    from batchedapi_serving.codecs import (  # noqa: F401
        Codec,
        DecodedRequest,
        RequestHead,
        Wire,
        codec_for,
        msgpack_rows,
        open_inference,
        open_inference_grpc,
    )

from batchedapi_serving.errors import ClientError
from batchedapi_serving.model.loading import method_spec
from batchedapi_serving.predictor import SizeOf, Tensor, batched
from batchedapi_serving.settings import BatchingSettings, MethodSettings

SECONDS_AT_LEAST: Final = 0.02
SECONDS_A_BYTE: Final = 50e-6
"""Instrumented, decoding is about ten times as slow as it is served."""
BYTES_AT_LEAST: Final = 256 * 1024
"""What is imported, compiled or cached with the first of its kind."""
BYTES_A_BYTE: Final = 200
"""An object of one name takes 232 bytes where its text takes eight; 20 hold from 1 MiB on."""
MEASURED: Final = 8
"""Of so many lengths one."""
ROOT: Final = Path(__file__).resolve().parents[2]


class Predictors:
    """One method of each kind."""

    @batched(inputs=Tensor("FP32", [4]), outputs=Tensor("FP32", []))
    def flat(self, rows: object) -> object:
        """Fixed numbers."""
        return rows

    @batched(inputs=Tensor("BOOL", [2, 3]))
    def nested(self, rows: object) -> object:
        """Fixed booleans in two dimensions."""
        return rows

    @batched(
        inputs={"ids": Tensor("INT64", ["tokens"]), "mask": Tensor("UINT8", ["tokens"])},
        size_of=SizeOf.length(of="tokens"),
    )
    def ragged(self, rows: object) -> object:
        """Several inputs of variable length."""
        return rows

    @batched(inputs={"ids": Tensor("INT64", ["tokens"], pad=0)})
    def padded(self, rows: object) -> object:
        """Rows of different lengths in one batch."""
        return rows

    @batched(size_of=SizeOf.bytes())
    def items(self, rows: object) -> object:
        """Any JSON."""
        return rows

    def call(self, *about: object) -> object:
        """One request at a time."""
        return about


def codecs() -> list[Codec]:
    """A codec for each method."""
    made = []
    for name in ("flat", "nested", "ragged", "padded", "items", "call"):
        spec = method_spec(Predictors, name)
        if spec is None:
            raise AssertionError(f"{name}: no such method")
        settings = MethodSettings(name, None, None, BatchingSettings())
        made.append(codec_for(spec, settings, "api"))
    return made


HEADS: Final = {
    Wire.PLAIN: ("application/json", "application/x-npy", "application/x-msgpack", "text/plain"),
    Wire.V1: ("application/json",),
    Wire.V2: ("application/json", "application/octet-stream"),
    Wire.GRPC: ("application/grpc",),
}
CHOICES: Final = [(wire, kind) for wire, kinds in HEADS.items() for kind in kinds]

_NPY_HEAD: Final = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), }"
SEEDS: Final = (
    b"[1,2,3,4]",
    b'{"instances":[[1,2,3,4],[5,6,7,8]]}',
    b'{"ids":[1,2,3],"mask":[1,1,0]}',
    b'{"inputs":[{"name":"input","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}',
    (
        b'{"id":"x","inputs":[{"name":"ids","shape":[1,2],"datatype":"INT64","data":[1,2]},'
        b'{"name":"mask","shape":[1,2],"datatype":"UINT8","parameters":{"binary_data_size":2}}],'
        b'"outputs":[{"name":"output","parameters":{"binary_data":true}}]}\1\1'
    ),
    b"\x93NUMPY\x01\0v\0%b\n%b" % (_NPY_HEAD.ljust(117), bytes(16)),
    b"\x81\xa9instances\x91\x94\1\2\3\4",
    b"\n\3api*\x1c\n\5input\x12\4FP32\x1a\2\1\4",
)


def count(outcomes: dict[str, int], outcome: str, runs: int) -> None:
    """After the last run, print how often there was what: libFuzzer ends without returning."""
    outcomes[outcome] += 1
    if sum(outcomes.values()) == runs:
        print(json.dumps(outcomes), flush=True)


def rows_of(codec: Codec, wire: Wire, head: RequestHead, body: bytes) -> DecodedRequest | None:
    """The rows of a body; None: it is refused."""
    try:
        return codec.decode(wire, head, body)
    except ClientError:
        return None


def affordable(decode: Callable[[], DecodedRequest | None], body: bytes) -> DecodedRequest | None:
    """The result of `decode`, if its cost is in proportion to the length of the body.

    Raises:
        AssertionError: it took too long three times, or too much memory.
    """
    most = SECONDS_AT_LEAST + len(body) * SECONDS_A_BYTE
    for _ in range(3):  # a machine that is busy is slow once
        began = time.process_time()
        decoded = decode()
        took = time.process_time() - began
        if took <= most:
            break
    else:
        raise AssertionError(f"{len(body)} bytes: expected at most {most:.3f} s, took {took:.3f} s")
    if len(body) % MEASURED == 0:  # to measure memory costs three times as much as to decode
        tracemalloc.start()
        decode()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if peak > BYTES_AT_LEAST + len(body) * BYTES_A_BYTE:
            raise AssertionError(f"{len(body)} bytes: took {peak} bytes of memory")
    return decoded


def main() -> None:
    """Run until the number of runs is reached or something escapes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wire", choices=[wire.value for wire in Wire])
    options = parser.parse_args()
    made = codecs()
    choices = [c for c in CHOICES if options.wire in {None, c[0].value}]
    outcomes = dict.fromkeys(("short", "rows", "refused"), 0)

    def one(data: bytes) -> None:
        if len(data) < 3:
            count(outcomes, "short", options.runs)
            return
        codec = made[data[0] % len(made)]
        wire, kind = choices[data[1] % len(choices)]
        headers: list[tuple[bytes, bytes]] = []
        if kind == "application/octet-stream":  # how many bytes of it are JSON
            headers.append((b"inference-header-content-length", b"%d" % (data[2] * 4)))
        head = RequestHead(kind.encode(), b"", headers)
        decoded = affordable(lambda: rows_of(codec, wire, head, data[3:]), data[3:])
        if decoded is None:
            count(outcomes, "refused", options.runs)
            return
        if decoded.rows < 1:
            raise AssertionError(f"rows: expected at least one, got {decoded.rows}")
        count(outcomes, "rows", options.runs)
        for row in range(min(decoded.rows, 3)):
            codec.collate([codec.part(decoded.payload, row, row + 1)])

    folder = ROOT / ".run" / "fuzz"
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS):
        for method in range(len(made)):
            for choice in range(len(choices)):
                name = corpus / f"seed-{number}-{method}-{choice}"
                name.write_bytes(bytes((method, choice, len(seed) // 4)) + seed)
    atheris.Setup(
        [
            sys.argv[0], f"-runs={options.runs}", f"-seed={options.seed}", "-max_len=2048",
            "-rss_limit_mb=4096", "-timeout=20", f"-artifact_prefix={folder}/", "-verbosity=1",
            "-print_final_stats=1", str(corpus),
        ],
        one,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main()
