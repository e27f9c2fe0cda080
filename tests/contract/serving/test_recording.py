"""`batchedapi serve --record`: what is in the file, and that nothing waits for it."""

import asyncio
import itertools
import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc

from batchedapi_core import contract
from ports import HOST, free_port
from raw_http import Response, ask, connected
from serving import Replica, end_replica, running_replica, start_replica
from serving import write_manifest as manifest_of

CODE = """
    import time
    from batchedapi_serving import Tensor, batched

    class Model:
        @batched(example="x", max_batch_size=64)
        def predict(self, items):
            time.sleep(0.002)
            return [len(item) for item in items]

        @batched(inputs=Tensor("FP32", ["length"]), outputs=Tensor("FP32", []))
        def total(self, rows):
            return rows.sum(axis=1)
"""
PAYLOAD = "my-own-payload"


def manifest(folder: Path, **spec: Any) -> str:
    """The predictor above."""
    return str(manifest_of(folder, CODE, spec))


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Every line as JSON; the last one is whole, too."""
    text = file.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def ended(replica: Replica) -> tuple[int, int]:
    """Requests written and dropped, as the log of the last web process says."""
    records = [json.loads(line) for line in replica.text().splitlines() if line.startswith("{")]
    (record,) = [one for one in records if one.get("message") == "recording ended"]
    return record["requests"], record["dropped"]


async def load(port: int, clients: int, requests: int) -> list[Response]:
    """Closed-loop clients, each with a connection of its own; of one to three rows."""

    async def client(number: int) -> list[Response]:
        answers = []
        async with connected(port) as connection:
            for n in range(requests):
                rows = [PAYLOAD] * (1 + (number + n) % 3)
                answers.append(
                    await connection.post_json(contract.PATH_PREDICT, {"instances": rows})
                )
        return answers

    of_clients = await asyncio.gather(*(client(number) for number in range(clients)))
    return list(itertools.chain.from_iterable(of_clients))


def rows_of(answers: list[Response]) -> list[int]:
    """The rows of each answer, ascending."""
    return sorted(len(answer.json()["predictions"]) for answer in answers)


async def test_every_request_of_all_web_processes_is_one_line(tmp_path: Path) -> None:
    """Four clients ask each of two web processes; times ascend, and no payload is anywhere."""
    file, record = manifest(tmp_path), tmp_path / "record.jsonl"
    arguments = ["-f", file, "--web-processes", "2", "--record", str(record)]
    began = time.monotonic()
    with running_replica(tmp_path, arguments) as replica:
        replica.wait_for(lambda: len(replica.children("web")) == 2, "no two web processes")
        answers = await load(replica.port, 8, 100)
        seconds = time.monotonic() - began
        assert 0 == replica.stop()
        written = ended(replica)

    lines = lines_of(record)
    times = [line["t"] for line in lines]
    assert {200} == {answer.status for answer in answers}
    assert (800, 0) == written
    assert rows_of(answers) == sorted(line["rows"] for line in lines)
    assert {("t", "rows", "lengths", "method")} == {tuple(line) for line in lines}
    assert {(None, "predict")} == {(line["lengths"], line["method"]) for line in lines}
    assert sorted(times) == times
    assert 0.0 < times[0] <= times[-1] < seconds
    assert PAYLOAD not in record.read_text()


async def test_every_protocol_is_recorded_with_method_and_lengths(tmp_path: Path) -> None:
    """Rows of 1, 2, 3 and 4 numbers: JSON, v1, v2 over HTTP and gRPC; a refused body is none."""
    file, record = manifest(tmp_path), tmp_path / "record.jsonl"
    grpc_port = free_port()
    arguments = ["-f", file, "--record", str(record), "--grpc-port", str(grpc_port)]
    tensor = {"name": "input", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    with running_replica(tmp_path, arguments) as replica:
        statuses = [
            (await ask(replica.port, value, path)).status
            for value, path in (
                ([1], "/api/total"),
                ({"instances": [[1, 2], [3, 4]]}, "/v1/models/api.total:predict"),
                ({"inputs": [tensor]}, "/v2/models/api.total/infer"),
                ({"instances": [[1, 2], [3]]}, "/api/total"),
                ({"instances": []}, "/api/total"),
            )
        ]
        with triton_grpc.InferenceServerClient(f"{HOST}:{grpc_port}") as client:
            infer = triton_grpc.InferInput("input", [1, 4], "FP32")
            infer.set_data_from_numpy(np.ones((1, 4), dtype=np.float32))
            client.infer("api.total", [infer])
        replica.stop()

    assert [200, 200, 200, 200, 422] == statuses
    lines = lines_of(record)
    assert {"total"} == {line["method"] for line in lines}
    assert [1, 2, 1, 2, 1] == [line["rows"] for line in lines]
    assert [[1], [2, 2], [3], [2, 1], [4]] == [line["lengths"] for line in lines]


async def test_a_full_disk_fails_no_request_and_is_said_at_the_end(tmp_path: Path) -> None:
    """The web process may write 32 KB to a file: half of the lines; its log is below that."""
    file, record = manifest(tmp_path), tmp_path / "record.jsonl"
    with running_replica(tmp_path, ["-f", file, "--record", str(record)]) as replica:
        (web,) = replica.children("web")
        resource.prlimit(web, resource.RLIMIT_FSIZE, (32768, resource.RLIM_INFINITY))
        answers = await load(replica.port, 8, 125)
        assert 0 == replica.stop()
        written, dropped = ended(replica)

    assert {200} == {answer.status for answer in answers}
    assert (1000, len(lines_of(record))) == (written + dropped, written)
    assert 100 < dropped < 900
    assert 1 == replica.text().count("recording: requests are dropped")


async def test_a_web_process_that_is_killed_leaves_whole_lines_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    """Times go on from the same start; what it had not yet written is lost."""
    file, record = manifest(tmp_path), tmp_path / "record.jsonl"
    with running_replica(tmp_path, ["-f", file, "--record", str(record)]) as replica:
        await load(replica.port, 4, 25)
        replica.wait_for(lambda: len(lines_of(record)) == 100, "not written")
        (web,) = replica.children("web")
        os.kill(web, signal.SIGKILL)
        replica.wait_for(lambda: replica.children("web") not in ([], [web]), "not replaced")
        replica.wait_ready()
        await load(replica.port, 4, 25)
        replica.stop()

    times = [line["t"] for line in lines_of(record)]
    assert 200 == len(times)
    assert sorted(times) == times


async def test_refused_requests_are_part_of_the_load(tmp_path: Path) -> None:
    """One at a time is let in; a simulation of more replicas would let in the others."""
    record = tmp_path / "record.jsonl"
    file = manifest(
        tmp_path,
        overload={"maxReplicaConcurrency": 1},
        serverSideBatching={"batchInterval": "300ms", "strategy": "Fixed"},
    )
    with running_replica(tmp_path, ["-f", file, "--record", str(record)]) as replica:
        answers = await asyncio.gather(*(ask(replica.port, "x") for _ in range(5)))
        replica.stop()

    assert [200, 503, 503, 503, 503] == sorted(answer.status for answer in answers)
    assert 5 == len(lines_of(record))


def test_a_file_with_something_in_it_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    """Exit code 1, as for a port that is taken, and the file is as it was."""
    record = tmp_path / "record.jsonl"
    record.write_text("an hour of work\n")
    replica = start_replica(tmp_path, ["-f", manifest(tmp_path), "--record", str(record)])
    try:
        code = replica.process.wait(30.0)
    finally:
        end_replica(replica)

    assert 1 == code
    assert f"--record {record}: expected a new or empty file" in replica.text()
    assert "an hour of work\n" == record.read_text()
