"""The traffic through Redis between a web process and a worker, as recorded of one commit.

`python tests/support/queue_traffic.py` records the working tree: every kind of request, answer and
sign of life, as the commands by which they came to Redis, into `queue_traffic.json` beside this.
What is there is of an earlier release and is read by tests; it is recorded anew only where what is
written has changed, and what was recorded before goes on to be read.
"""

import ast
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from ports import HOST
from redis_server import PASSWORD, RedisServer, running_redis
from serving import running_replica, write_manifest

FILE: Final = Path(__file__).with_suffix(".json")
CODE: Final = """
    from batchedapi_serving import ItemError, SizeOf, Tensor, batched, endpoint

    class Model:
        @batched(example={"id": 0}, max_batch_size=8)
        def predict(self, items):
            return [
                ItemError(422, "expected no bad") if item.get("bad") else item for item in items
            ]

        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [1]))
        def sums(self, rows):
            return rows.sum(axis=1, keepdims=True)

        @batched(
            inputs={"ids": Tensor("INT64", ["tokens"]), "scale": Tensor("FP64", [])},
            outputs={"ids": Tensor("INT64", ["tokens"]), "mean": Tensor("FP64", [])},
            size_of=SizeOf.length("tokens"),
        )
        def scaled(self, rows):
            return {"ids": rows["ids"], "mean": rows["ids"].mean(axis=1) * rows["scale"]}

        @batched(example="text", size_of=SizeOf.bytes())
        def texts(self, items):
            return [text.upper() for text in items]

        @endpoint
        def fails(self, item):
            raise RuntimeError("as asked")

        @endpoint
        def one(self, item):
            return item
"""
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_WRITES: Final = ("XADD", "RPUSH", "SET", "HSET", "SADD", "XGROUP")
_TRACE: Final = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
_ASKS: Final = (
    ("predict", {"id": 1}),
    ("predict", {"instances": [{"id": 2}, {"id": 3, "bad": True}]}),
    ("sums", [1.5, 2.0]),
    ("sums", {"instances": [[1.0, 2.0], [3.0, 4.0]]}),
    ("scaled", {"ids": [1, 2, 3], "scale": 0.5}),
    ("scaled", {"instances": [{"ids": [4, 5], "scale": 2.0}, {"ids": [6], "scale": 1.0}]}),
    ("texts", "grün"),
    ("fails", {"id": 4}),
    ("one", {"id": 5}),
)
FIRST: Final = dict(reversed(_ASKS))
"""Of each method, what was asked first."""

Command = list[bytes]


def recorded() -> list[Command]:
    """The commands that an earlier release wrote, each with its arguments."""
    lines = json.loads(FILE.read_text())
    return [[word.encode("latin-1") for word in line] for line in lines]


def of(command: str, *, key: str = "") -> Iterator[Command]:
    """The recorded commands of that name, with keys that contain `key`."""
    for words in recorded():
        if words[0] == command.encode() and key.encode() in words[1]:
            yield words


def record(folder: Path) -> list[Command]:
    """Writes of one web process and one worker of this working tree; a sign of life once each."""
    with running_redis(folder) as redis:
        spec = {
            "serverSideBatching": {
                "queue": {"redis": {"port": redis.port}},
                "receipt": "Headers",
            },
        }
        file = str(write_manifest(folder, CODE, spec))
        log = folder / "monitor.log"
        collector = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        environment = {**redis.environment, **collector}
        with (
            log.open("wb") as output,
            running_replica(folder, ["-f", file], environment, command="worker"),
            _monitor(redis, output.fileno()),
            running_replica(folder, ["-f", file], environment, command="worker"),
            running_replica(folder, ["-f", file], environment, command="web") as web,
        ):
            time.sleep(1.0)
            _ask_all(web.port)
            time.sleep(1.0)
        lines = log.read_text().splitlines()
    return list(_distinct(lines))


@contextlib.contextmanager
def _monitor(redis: RedisServer, output: int) -> Iterator[None]:
    client = ["redis-cli", "-p", str(redis.port), "-a", PASSWORD, "--no-auth-warning", "MONITOR"]
    process = subprocess.Popen(client, stdout=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _ask_all(port: int) -> None:
    for method, body in _ASKS:
        for headers in ({}, _TRACE):
            answer = httpx.post(f"http://{HOST}:{port}/api/{method}", json=body, headers=headers)
            print(method, answer.status_code, file=sys.stderr)


def _distinct(lines: list[str]) -> Iterator[Command]:
    """The commands that write; of signs of life and registrations the first of each process."""
    seen = set()
    for line in lines:
        words = [ast.literal_eval(f"b{word}") for word in _QUOTED.findall(line)]
        if not words or words[0] not in map(str.encode, _WRITES):
            continue
        once = tuple(words[:2]) if words[0] == b"SET" else tuple(words)
        if words[0] in {b"XADD", b"RPUSH"} or once not in seen:
            seen.add(once)
            yield words


def main() -> None:
    """Record this working tree."""
    with tempfile.TemporaryDirectory() as folder:
        commands = record(Path(folder))
    lines = [json.dumps([word.decode("latin-1") for word in words]) for words in commands]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
