"""Bodies that are dear to take apart: what another client of the same web process notices.

    python tests/bench/bodies.py --generated 10000 --worst 100

Every body of a seed (tests/support/hostile_bodies) is decoded at 1 MiB in a process of its own; the
slowest and the largest, half of each, are sent to a replica at the size limit, one at a time,
beside a client that asks as fast as it is answered. It is refused by the web process itself, so
that what it waits for is the web process and no model. The bodies of the fuzzers' corpus, repeated
up to the limit, can be added with --corpus.
"""

import contextlib
import gc
import http.client
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import grpc
from harness.processes import children
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_serving.codecs import RequestHead, Wire, codec_for
from batchedapi_serving.errors import ClientError
from batchedapi_serving.model.loading import method_spec
from batchedapi_serving.processes import freeze_heap
from batchedapi_serving.settings import BatchingSettings, MethodSettings
from hostile_bodies import CODE, GRPC, METHODS, Body, body_of
from ports import HOST, free_port
from serving import Replica, running_replica, write_manifest

MIB: Final = 1 << 20
RANKED_BYTES: Final = MIB
LIMIT_BYTES: Final = 32 * MIB
_CHUNK: Final = 200
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_PATHS: Final = {
    "plain": "/api/{}", "v1": "/v1/models/api.{}:predict", "v2": "/v2/models/api.{}/infer",
}  # fmt: skip


class Ranked(NamedTuple):
    """What one body took to decode, in a process of its own."""

    seed: int
    seconds: float
    bytes: int
    """Memory at its peak, above what was there before."""


def rank(seeds: Sequence[int]) -> list[Ranked]:
    """Decode a body for each seed; for a process of its own."""
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(CODE), namespace)  # noqa: S102 - our own predictor
    codecs = {}
    for name in METHODS:
        spec = method_spec(namespace["Model"], name)
        if spec is None:
            raise AssertionError(f"{name}: no such method")
        codecs[name] = codec_for(spec, MethodSettings(name, None, None, BatchingSettings()), "api")
    freeze_heap()
    gc.disable()
    ranked = []
    for seed in seeds:
        body = body_of(seed, RANKED_BYTES)
        head = RequestHead(
            body.content_type.encode(), b"", [(k.encode(), v.encode()) for k, v in body.headers]
        )
        before = forget_peak(os.getpid())
        began = time.process_time()
        with contextlib.suppress(ClientError):
            codecs[body.method].decode(Wire(body.wire), head, body.data)
        ranked.append(Ranked(seed, time.process_time() - began, peak(os.getpid()) - before))
    return ranked


def forget_peak(pid: int) -> int:
    """Have the peak of a process's memory counted from now on; what it has now, in bytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(pid)


def peak(pid: int) -> int:
    """The most memory that a process had since `forget_peak`, in bytes; 0: it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM 0")
    return int(line.split()[1]) * 1024


def worst_of(ranked: Sequence[Ranked], count: int) -> list[Ranked]:
    """The slowest, and the largest of the others; as many of each."""
    slow = sorted(ranked, key=lambda one: -one.seconds)[: count // 2]
    rest = sorted(set(ranked) - set(slow), key=lambda one: -one.bytes)[: count - len(slow)]
    return [*slow, *rest]


class Neighbour:
    """A client in a process of its own, that asks again as soon as it is answered."""

    def __init__(self, port: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_ask, args=(port, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def longest(self) -> float:
        """The longest wait since it was asked last, in seconds, one that goes on included."""
        self._pipe.send(None)
        found: float = self._pipe.recv()
        return found

    def stop(self) -> None:
        """End it."""
        self._pipe.close()
        self._process.join(10)


def _ask(port: int, pipe: multiprocessing.connection.Connection) -> None:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    longest = 0.0
    with contextlib.suppress(EOFError):
        while True:
            began = time.monotonic()
            connection.request("POST", "/api/flat", b"[1]", {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            if response.status != 422:  # it is for `flat`, which wants four numbers
                raise AssertionError(f"expected 422, got {response.status}")
            longest = max(longest, time.monotonic() - began)
            if pipe.poll(0.002):
                pipe.recv()
                pipe.send(longest)
                longest = 0.0


class Seen(NamedTuple):
    """What one body did to a replica."""

    kind: str
    status: str
    length: int
    seconds: float
    wait: float
    """The longest of the neighbour, in seconds."""
    web: int
    """Bytes of memory above what was there before, of the web process and of its codec process."""
    codec: int


def send(replica: Replica, grpc_port: int, body: Body) -> str:
    """Ask with a body; the status that it is answered with."""
    if body.content_type == GRPC:
        with grpc.insecure_channel(f"{HOST}:{grpc_port}") as channel:
            try:
                channel.unary_unary(_INFER)(body.data, timeout=60)
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"
    connection = http.client.HTTPConnection(HOST, replica.port, timeout=60)
    try:
        path = _PATHS[body.wire].format(body.method)
        headers = {"content-type": body.content_type, **dict(body.headers)}
        connection.request("POST", path, body.data, headers)
        return str(connection.getresponse().status)
    finally:
        connection.close()


def look(replica: Replica, grpc_port: int, neighbour: Neighbour, body: Body) -> Seen:
    """Send one body and see what others notice."""
    (web,) = replica.children("web")
    codecs = children(web, "batchedapi_serving.web.codec_process")
    before = {pid: forget_peak(pid) for pid in (web, *codecs)}
    neighbour.longest()
    began = time.monotonic()
    status = send(replica, grpc_port, body)
    seconds = time.monotonic() - began
    wait = neighbour.longest()
    codec = sum(peak(pid) - before[pid] for pid in codecs)
    return Seen(body.kind, status, len(body.data), seconds, wait, peak(web) - before[web], codec)


@contextlib.contextmanager
def replica_with_grpc(folder: Path) -> Iterator[tuple[Replica, int]]:
    """Everything at its default, and gRPC."""
    grpc_port = free_port()
    spec = {"networking": {"grpc": True}}
    manifest = str(write_manifest(folder, CODE, spec))
    arguments = ["-f", manifest, "--grpc-port", str(grpc_port)]
    with running_replica(folder, arguments) as replica:
        yield replica, grpc_port


def corpus_bodies(folder: Path, most: int) -> Iterator[Body]:
    """Inputs of the fuzzers, each repeated up to the limit: by method and wire of its two bytes."""
    kinds = (
        ("plain", "application/json"), ("plain", "application/x-npy"),
        ("plain", "application/msgpack"), ("v1", "application/json"), ("v2", "application/json"),
    )  # fmt: skip
    for file in sorted(folder.iterdir(), key=lambda file: -file.stat().st_size)[:most]:
        data = file.read_bytes()
        if len(data) > 3:
            wire, kind = kinds[data[1] % len(kinds)]
            method = METHODS[data[0] % len(METHODS)]
            whole = data[3:] * (LIMIT_BYTES // len(data[3:]))
            yield Body(f"corpus {file.name}", method, wire, kind, whole)


def table_of(seen: Sequence[Seen], calm: Sequence[float]) -> Table:
    """The worst by what others wait, then by memory."""
    by_wait = sorted(seen, key=lambda one: -one.wait)[:12]
    by_memory = sorted(set(seen) - set(by_wait), key=lambda one: -(one.codec + one.web))[:8]
    rows = [
        [
            one.kind[:60].replace("|", "/"),
            one.status,
            f"{one.length / MIB:.1f}",
            f"{one.seconds:.2f}",
            f"{one.wait * 1000:.0f}",
            f"{one.web / MIB:.0f}",
            f"{one.codec / MIB:.0f}",
            f"{(one.web + one.codec) / one.length:.1f}",
        ]
        for one in (*by_wait, *by_memory)
    ]
    waits = sorted(one.wait * 1000 for one in seen)
    title = (
        f"{len(seen)} bodies at the size limit; wait of another client: longest"
        f" {waits[-1]:.0f} ms, median of the longest {waits[len(waits) // 2]:.0f} ms, beside nobody"
        f" {max(calm) * 1000:.0f} ms; memory at most"
        f" {max((one.web + one.codec) / one.length for one in seen):.1f} x the body"
    )
    columns = ["body", "status", "MiB", "s", "wait ms", "web MiB", "codec MiB", "x body"]
    return Table(title, columns, rows)


@click.command(help=help_of(__doc__))
@click.option("--generated", default=10_000, show_default=True, help="Bodies that are ranked.")
@click.option("--worst", default=100, show_default=True, help="Of them, that are sent.")
@click.option("--corpus", type=click.Path(path_type=Path, file_okay=False), help="Of the fuzzers.")
@out_option
def main(generated: int, worst: int, corpus: Path | None, out: Path | None) -> None:
    """See the module."""
    facts = environment()
    chunks = [range(i, min(i + _CHUNK, generated)) for i in range(0, generated, _CHUNK)]
    # A process for each chunk: what one body leaves behind is not the next one's.
    context = multiprocessing.get_context("spawn")
    with context.Pool(2, maxtasksperchild=1) as pool:
        ranked = [one for part in pool.imap(rank, chunks) for one in part]
    chosen = worst_of(ranked, worst)
    seen, calm = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        replica_with_grpc(Path(folder)) as (
            replica,
            grpc_port,
        ),
    ):
        webs = replica.children()
        neighbour = Neighbour(replica.port)
        look(replica, grpc_port, neighbour, body_of(chosen[0].seed, MIB))  # the codec process
        bodies = (body_of(one.seed, LIMIT_BYTES - 1000) for one in chosen)
        more = () if corpus is None else corpus_bodies(corpus, worst)
        for body in itertools.chain(bodies, more):
            seen.append(look(replica, grpc_port, neighbour, body))
            neighbour.longest()
            time.sleep(0.3)
            calm.append(neighbour.longest())
        neighbour.stop()
        lost = set(webs) - set(replica.children())
    statuses = Counter(one.status for one in seen)
    slowest = max(ranked, key=lambda one: one.seconds)
    notes = [
        f"{len(ranked)} bodies ranked at 1 MiB: the slowest took {slowest.seconds:.2f} s of CPU.",
        f"Answers: {json.dumps(statuses)}. Processes lost: {len(lost)}.",
    ]
    measured = {"seen": [one._asdict() for one in seen], "calm": calm}
    report("bodies", facts, [table_of(seen, calm)], notes=notes, measured=measured, out=out)
    if lost:
        raise SystemExit("a process was lost")


if __name__ == "__main__":
    main()
