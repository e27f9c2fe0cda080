"""How requests become batches, seen from outside: sizes, waits, concurrency, and who left."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from raw_http import ask, connected, request_bytes
from serving import Replica, running_replica, write_manifest

CODE = """
    import json, os, threading, time
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            self.config = config
            self.index = context.worker_index
            self.inside = 0
            self.lock = threading.Lock()

        @batched(example=-1)
        def predict(self, items):
            with self.lock:
                self.inside += 1
                inside = self.inside
            began = time.time()
            time.sleep(0 if items[0] == -1 else self.config.get("seconds", 0))
            with self.lock:
                self.inside -= 1
            ended = time.time()
            if "journal" in self.config and items[0] != -1:
                with open(self.config["journal"], "a") as journal:
                    journal.write(json.dumps(items) + chr(10))
            fact = {"worker": self.index, "inside": inside, "rows": len(items), "pid": os.getpid()}
            fact = {**fact, "began": began, "ended": ended}
            return [{"id": item, **fact} for item in items]
"""


def manifest(folder: Path, *, config: dict[str, Any], batching: dict[str, Any], **more: Any) -> str:
    """The predictor above with that config and batching."""
    spec = {"predictor": {"config": config, **more}, "serverSideBatching": batching}
    return str(write_manifest(folder, CODE, spec))


async def ask_all(replica: Replica, values: range) -> list[dict[str, Any]]:
    """All at once, each over a connection of its own; answers in order."""
    responses = await asyncio.gather(*(ask(replica.port, value) for value in values))
    assert {200} == {response.status for response in responses}
    assert list(values) == [response.json()["id"] for response in responses]
    return [response.json() for response in responses]


async def test_a_hundred_requests_are_a_full_batch_and_the_rest_at_the_time_limit(
    tmp_path: Path,
) -> None:
    """D15: batches of 64 and 36; the interval is half a second instead of two."""
    file = manifest(
        tmp_path,
        config={"seconds": 0.02},
        batching={"maxBatchSize": 64, "batchInterval": "500ms", "strategy": "Fixed"},
    )
    with running_replica(tmp_path, ["-f", file]) as replica:
        began = time.monotonic()
        answers = await ask_all(replica, range(100))
        seconds = time.monotonic() - began
        metrics = replica.metrics()

    assert [36] * 36 + [64] * 64 == sorted(answer["rows"] for answer in answers)
    assert (1, 1) == tuple(
        metrics[f"batchedapi_batches_total{{reason={r}}}"] for r in ("full", "interval")
    )
    assert 0.5 <= seconds < 3
    assert metrics["batchedapi_batch_rows_sum"] == 100
    assert metrics["batchedapi_batch_rows_count"] == 2


PLAIN = """
    class Model:
        def {name}(self, payload, query_params, headers):
            if payload == 3:
                raise ValueError("three")
            return {{"id": payload, "query": query_params, "type": headers["content-type"]}}
"""


async def test_code_for_one_request_runs_in_batches_as_it_is(tmp_path: Path) -> None:
    """C16: it appears like a single prediction; each fails alone, and the log says no gain."""
    batching = {"maxBatchSize": 32, "batchInterval": "300ms", "strategy": "Fixed"}
    code = PLAIN.format(name="predict")
    file = str(write_manifest(tmp_path, code, {"serverSideBatching": batching}))
    with running_replica(tmp_path, ["-f", file]) as replica:
        asked = (ask(replica.port, n, f"/predict?n={n}") for n in range(8))
        answers = await asyncio.gather(*asked)
        metrics = replica.metrics()
        lines = [json.loads(line) for line in replica.text().splitlines()]

    assert [200, 200, 200, 500, 200, 200, 200, 200] == [one.status for one in answers]
    assert all(
        {"id": n, "query": {"n": str(n)}, "type": "application/json"} == one.json()
        for n, one in enumerate(answers)
        if n != 3
    )
    assert "raised ValueError" in answers[3].json()["error"]["message"]
    assert (8, 1, 1) == tuple(
        metrics[f"batchedapi_{name}"]
        for name in ("batch_rows_sum", "batch_rows_count", "one_by_one")
    )
    (said,) = [line for line in lines if line["message"].startswith("nothing is gained")]
    assert ("predict", 32) == (said["method"], said["max_batch_size"])


async def test_an_object_that_is_called_itself_is_served(tmp_path: Path) -> None:
    """B12: `methods: [{name: __call__}]`, at the name of the API as `predict` would be."""
    spec = {"predictor": {"methods": [{"name": "__call__"}]}}
    file = str(write_manifest(tmp_path, PLAIN.format(name="__call__"), spec))
    with running_replica(tmp_path, ["-f", file]) as replica:
        answers = [
            await ask(replica.port, 1, path) for path in ("/api", "/predict", "/api/__call__")
        ]

    assert [(200, 1)] * 3 == [(one.status, one.json()["id"]) for one in answers]


async def test_with_the_two_variables_alone_a_batch_is_full_or_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D07: as the batcher does that they come from; the time is 0.5 s instead of two."""
    monkeypatch.setenv("DYNAMIC_BATCHER__BATCH_SIZE", "64")
    monkeypatch.setenv("DYNAMIC_BATCHER__BATCH_TIME", "0.5")
    file = manifest(tmp_path, config={}, batching={})
    with running_replica(tmp_path, ["-f", file]) as replica:
        began = time.monotonic()
        (lone,) = await ask_all(replica, range(1))
        seconds = time.monotonic() - began
        hundred = await ask_all(replica, range(100))
        metrics = replica.metrics()

    assert lone["rows"] == 1
    assert seconds >= 0.5
    assert [36] * 36 + [64] * 64 == sorted(answer["rows"] for answer in hundred)
    assert (1, 2) == tuple(
        metrics[f"batchedapi_batches_total{{reason={r}}}"] for r in ("full", "interval")
    )


async def test_processes_times_threads_batches_run_at_once_and_the_fifth_waits(
    tmp_path: Path,
) -> None:
    """C08, C09, W02, W09: two processes of two threads; every process has its own index."""
    file = manifest(
        tmp_path,
        config={"seconds": 0.6},
        batching={"maxBatchSize": 1},
        processesPerReplica=2,
        threadsPerProcess=2,
    )
    with running_replica(tmp_path, ["-f", file]) as replica:
        replica.wait_for(lambda: replica.metrics()["batchedapi_lanes"] == 4, "no four lanes")
        answers = await ask_all(replica, range(5))
        three = await ask_all(replica, range(3))

    *four, fifth = sorted(answers, key=lambda answer: float(answer["began"]))
    first_end = min(answer["ended"] for answer in four)
    assert all(answer["began"] < first_end for answer in four)
    assert fifth["began"] >= first_end
    assert [0, 0, 1, 1] == sorted(answer["worker"] for answer in four)
    assert {1, 2} == {answer["inside"] for answer in four}
    assert {1} == {answer["rows"] for answer in (*answers, *three)}
    first_end = min(answer["ended"] for answer in three)
    assert all(answer["began"] < first_end for answer in three)


async def test_there_are_as_many_processes_as_are_asked_for_and_all_work_at_once(
    tmp_path: Path,
) -> None:
    """C03, N12, W01, W09: four of them, with indices from 0 and a batch each."""
    file = manifest(
        tmp_path, config={"seconds": 0.6}, batching={"maxBatchSize": 1}, processesPerReplica=4
    )
    with running_replica(tmp_path, ["-f", file]) as replica:
        replica.wait_for(lambda: replica.metrics()["batchedapi_lanes"] == 4, "no four lanes")
        answers = await ask_all(replica, range(4))
        pids = set(replica.children("model"))

    assert [0, 1, 2, 3] == sorted(answer["worker"] for answer in answers)
    assert pids == {answer["pid"] for answer in answers}
    assert len(pids) == 4
    first_end = min(answer["ended"] for answer in answers)
    assert all(answer["began"] < first_end for answer in answers)


async def test_one_call_for_many_rows_is_faster_than_a_call_for_each(tmp_path: Path) -> None:
    """B01, C13: 30 ms a call, whatever it holds; 32 clients ask at once, and all wait for it."""
    seconds = []
    for size in (1, 32):
        batching = {"maxBatchSize": size, "batchInterval": "1s", "strategy": "Fixed"}
        file = manifest(tmp_path, config={"seconds": 0.03}, batching=batching)
        with running_replica(tmp_path, ["-f", file]) as replica:
            answers = await ask_all(replica, range(32))
        assert {size} == {answer["rows"] for answer in answers}
        began, ended = (sorted(answer[name] for answer in answers) for name in ("began", "ended"))
        seconds.append(ended[-1] - began[0])

    assert 32 * 0.03 <= seconds[0]
    assert seconds[1] < seconds[0] / 4


async def test_one_thread_is_never_entered_twice(tmp_path: Path) -> None:
    """C07, D01, W03: the default is safe for models that are not."""
    file = manifest(tmp_path, config={"seconds": 0.02}, batching={"maxBatchSize": 2})
    with running_replica(tmp_path, ["-f", file]) as replica:
        answers = await ask_all(replica, range(60))

    assert {1} == {answer["inside"] for answer in answers}
    assert max(answer["rows"] for answer in answers) == 2


async def test_rows_of_a_client_that_left_are_not_run(tmp_path: Path) -> None:
    """A cancelled request in the queue costs nothing; it is counted as 499."""
    journal = tmp_path / "journal"
    file = manifest(
        tmp_path,
        config={"seconds": 0.5, "journal": str(journal)},
        batching={"maxBatchSize": 4, "batchInterval": "0s"},
    )
    with running_replica(tmp_path, ["-f", file]) as replica:
        running = asyncio.create_task(ask(replica.port, 1))
        await asyncio.sleep(0.2)
        async with connected(replica.port) as leaving:
            await leaving.send(request_bytes("/predict", b"2"))
            await asyncio.sleep(0.1)
        stays = await ask(replica.port, 3)
        await running
        metrics = replica.metrics()

    assert stays.status == 200
    assert [[1], [3]] == [json.loads(line) for line in journal.read_text().splitlines()]
    assert metrics["batchedapi_requests_total{code=499}"] == 1
    assert metrics["batchedapi_rows_rejected_total{reason=disconnected}"] == 1


async def test_above_the_limit_requests_get_503_with_retry_after(tmp_path: Path) -> None:
    """Bounded, so that a replica under too much load stays alive and says when to come back."""
    spec = {
        "predictor": {"config": {"seconds": 0.5}},
        "serverSideBatching": {"maxBatchSize": 1},
        "overload": {"maxReplicaConcurrency": 3},
    }
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, CODE, spec))]) as replica:
        responses = await asyncio.gather(*(ask(replica.port, n) for n in range(6)))

    refused = [response for response in responses if response.status != 200]
    assert [503] * 3 == [response.status for response in refused]
    assert {"queue_full"} == {response.error["code"] for response in refused}
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)


async def test_what_would_be_late_gets_429_with_retry_after(tmp_path: Path) -> None:
    """B21, B22: refused at once, with the remedies in the message."""
    file = manifest(
        tmp_path,
        config={"seconds": 0.1},
        batching={"maxBatchSize": 2, "batchInterval": "5ms", "maxLatency": "250ms"},
    )
    with running_replica(tmp_path, ["-f", file]) as replica:
        for n in range(6):
            await ask(replica.port, n)
        responses = await asyncio.gather(*(ask(replica.port, n) for n in range(40)))
        metrics = replica.metrics()

    late = [response for response in responses if response.status == 429]
    assert 20 < len(late) < 40
    assert {200, 429} == {response.status for response in responses}
    assert "relax it, or add replicas" in late[0].error["message"]
    assert int(late[0].headers["retry-after"]) >= 1
    assert len(late) == metrics["batchedapi_rows_rejected_total{reason=latency}"]


FIRST = """
    import time
    from batchedapi_serving import batched

    class Model:
        @batched(example=0, max_batch_size=64)
        def predict(self, items):
            time.sleep(0.01 + 0.0002 * len(items))
            return items

        @batched(max_batch_size=64)
        def unseen(self, items):
            time.sleep(0.01 + 0.0002 * len(items))
            return items
"""


@pytest.mark.parametrize("path", ["/predict", "/api/unseen"])
async def test_a_first_burst_is_not_refused(tmp_path: Path, path: str) -> None:
    """10 x t(64) is enough for 64, warmed up or not."""
    file = write_manifest(tmp_path, FIRST, {"serverSideBatching": {"maxLatency": "228ms"}})
    with running_replica(tmp_path, ["-f", str(file)]) as replica:
        await ask(replica.port, 1, path)  # all that is known of clients' batches
        answers = await asyncio.gather(*(ask(replica.port, n, path) for n in range(64)))

    assert {200} == {answer.status for answer in answers}
    assert list(range(64)) == [answer.json() for answer in answers]


async def test_an_oversize_request_is_answered_whole(tmp_path: Path) -> None:
    """N14: more rows than one batch holds."""
    file = manifest(tmp_path, config={}, batching={"maxBatchSize": 4}, processesPerReplica=2)
    with running_replica(tmp_path, ["-f", file]) as replica:
        response = await ask(replica.port, {"instances": list(range(50))})

    assert list(range(50)) == [row["id"] for row in response.json()["predictions"]]
    assert max(row["rows"] for row in response.json()["predictions"]) <= 4
