"""One queue for all replicas: web processes, workers and a real Redis, each of which may die."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from raw_http import Response, ask
from redis_server import USER, RedisServer, running_redis
from serving import Replica, end_replica, running_replica, start_replica, write_manifest

CODE: Final = """
    import os, time
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            self.seconds = config.get("seconds", 0.01)
            self.ran = config["ran"]

        @batched(example={"id": 0}, max_batch_size=8)
        def predict(self, items):
            with open(self.ran, "a") as file:
                file.write("".join(f"{item['id']}\\n" for item in items))
            if any(item.get("dies") for item in items):  # as if its machine were gone
                parent = os.getppid()
                for pid in open(f"/proc/{parent}/task/{parent}/children").read().split():
                    if "batchedapi_serving.worker" in open(f"/proc/{pid}/cmdline").read():
                        os.kill(int(pid), 9)
            time.sleep(self.seconds)
            return [{"id": item["id"]} for item in items]
"""
PATIENCE: Final = 60.0


def manifest(
    folder: Path, server: RedisServer, *, seconds: float = 0.01, timeout: str = "60s", **more: Any
) -> str:
    """The predictor above; `more` is of `serverSideBatching`."""
    ran = folder / "ran"
    ran.touch()
    queue = {"redis": {"host": "127.0.0.1", "port": server.port, **more.pop("redis", {})}}
    spec = {
        "predictor": {
            "config": {"ran": str(ran), "seconds": seconds},
            "warmup": {"enabled": False},  # it would run items, too
        },
        "serverSideBatching": {"queue": queue, **more},
        "overload": {"timeout": timeout},
    }
    return str(write_manifest(folder, CODE, spec))


@contextlib.contextmanager
def running(
    folder: Path, redis: RedisServer, file: str, *, web: int = 1, workers: int = 1
) -> Iterator[tuple[list[Replica], list[Replica]]]:
    """Ready web processes and workers, each a replica of its own."""
    started: list[Replica] = []
    try:
        for command, count in (("worker", workers), ("web", web)):
            started += [
                start_replica(folder, ["-f", file], redis.environment, command=command)
                for _ in range(count)
            ]
        for one in started:
            one.wait_ready()
        yield started[workers:], started[:workers]
    finally:
        for one in started:
            end_replica(one)


async def asked(port: int, number: int, **more: Any) -> Response:
    """One item."""
    return await ask(port, {"instances": [{"id": number, **more}]}, patience=PATIENCE)


async def asked_until_answered(port: int, number: int) -> Response:
    """The same, again and again while it is refused, as a client does that may come back."""
    async with asyncio.timeout(PATIENCE):
        while (answer := await asked(port, number)).status == 503:  # noqa: ASYNC110 - of another program
            await asyncio.sleep(0.2)
    return answer


async def load(
    ports: Sequence[int], count: int, *, at_once: int = 16
) -> tuple[Counter[int], list[int]]:
    """Ask for items 0 to count - 1, over all ports; statuses, and the ids whose answer is wrong."""
    statuses: Counter[int] = Counter()
    wrong: list[int] = []
    numbers = iter(range(count))

    async def client(port: int) -> None:
        for number in numbers:
            answer = await asked(port, number)
            statuses[answer.status] += 1
            if answer.status == 200 and answer.json() != {"predictions": [{"id": number}]}:
                wrong.append(number)

    await asyncio.gather(*(client(ports[i % len(ports)]) for i in range(at_once)))
    return statuses, wrong


async def length(redis: RedisServer, key: str, expected: str) -> None:
    """Wait until so many requests are in a stream."""
    async with asyncio.timeout(PATIENCE):
        while (await asyncio.to_thread(redis.ask, "XLEN", key)).strip() != expected:  # noqa: ASYNC110 - of another program
            await asyncio.sleep(0.02)


def kill_all(replica: Replica) -> None:
    """SIGKILL to every process of it at once, as a machine that is gone."""
    for pid in (replica.pid, *replica.children()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    replica.process.wait()


def ran(folder: Path) -> Counter[int]:
    """How often each item was run."""
    return Counter(int(line) for line in (folder / "ran").read_text().split())


# ---------------------------------------------------------------- as it should be


async def test_one_command_runs_both_roles_with_the_queue_between_them(tmp_path: Path) -> None:
    """D03: what works on a laptop is what runs in a cluster; nothing is left when it ends."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis)
        with running_replica(tmp_path, ["-f", file], redis.environment) as replica:
            statuses, wrong = await load([replica.port], 100)
            metrics = replica.metrics()
            exit_code = replica.stop()
        lengths = [redis.ask("XLEN", key).strip() for key in redis.keys("*rows*")]

    assert ({200: 100}, []) == (dict(statuses), wrong)
    assert 1.0 == metrics["batchedapi_role{role=replica}"]
    assert 100.0 == metrics["batchedapi_requests_total{code=200}"]
    assert 100.0 == metrics["batchedapi_batch_rows_sum"]
    assert 0 == exit_code
    assert ["0"] == lengths


async def test_rows_of_all_web_processes_reach_every_worker(tmp_path: Path) -> None:
    """D05, D18: two web processes and two workers, each a program of its own, are one server."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis)
        with running(tmp_path, redis, file, web=2, workers=2) as (web, workers):
            statuses, wrong = await load([one.port for one in web], 400, at_once=64)
            pages = [one.metrics() for one in workers]
            received = [one.metrics()["batchedapi_rows_received_total"] for one in web]

    assert ({200: 400}, []) == (dict(statuses), wrong)
    assert 400.0 == sum(received)
    assert all(page["batchedapi_batch_rows_sum"] > 0 for page in pages)
    assert [1.0, 1.0] == [page["batchedapi_role{role=worker}"] for page in pages]
    assert {1} == set(ran(tmp_path).values())


async def test_rows_wait_for_the_first_worker_and_a_long_poll_tells_of_them(tmp_path: Path) -> None:
    """An API at zero depends on both: requests are held, and the scaler hears of them at once."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis)
        with running(tmp_path, redis, file) as ((web,), (worker,)):
            worker.stop()
            began = time.monotonic()
            empty = web.admin("/queue?wait=0.2")
            waited = time.monotonic() - began
            told = asyncio.create_task(asyncio.to_thread(web.admin, "/queue?wait=20"))
            await asyncio.sleep(0.1)
            waiting = asyncio.create_task(asked(web.port, 7))
            status, text = await told
            with running_replica(tmp_path, ["-f", file], redis.environment, command="worker"):
                answer = await waiting

    assert (200, {"rows": 0, "requests": 0, "oldest_seconds": 0.0}) == (
        empty[0],
        json.loads(empty[1]),
    )
    assert 0.2 <= waited
    assert 200 == status
    assert (1, 1) == (json.loads(text)["rows"], json.loads(text)["requests"])
    assert 200 == answer.status


async def test_who_leaves_takes_its_row_out_of_the_queue(tmp_path: Path) -> None:
    """Nobody waits for it, so no worker should run it."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis)
        with running(tmp_path, redis, file) as ((web,), (worker,)):
            worker.stop()
            asking = asyncio.create_task(asked(web.port, 1))
            (key,) = redis.keys("*rows*")
            await length(redis, key, "1")
            asking.cancel()
            await length(redis, key, "0")


async def test_a_queue_at_its_length_refuses_with_retry_after(tmp_path: Path) -> None:
    """An endless queue answers everybody too late."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis, redis={"maxLength": 4}, timeout="5s")
        with running(tmp_path, redis, file) as ((web,), (worker,)):
            worker.stop()
            answers = await asyncio.gather(*(asked(web.port, n) for n in range(6)))

    assert {503: 2, 504: 4} == Counter(answer.status for answer in answers)
    refused = next(answer for answer in answers if answer.status == 503)
    assert "maxLength" in refused.error["message"]
    assert int(refused.headers["retry-after"]) >= 1


async def test_methods_of_all_kinds_are_served_through_the_queue(tmp_path: Path) -> None:
    """Async methods, what a predictor submits, decode and encode: a row is a row."""
    code = """
        from batchedapi_serving import batched

        class Model:
            def __init__(self, config, context):
                self.submit = context.submit

            @batched(example={"id": 0})
            def double(self, items):
                return [{"id": 2 * item["id"]} for item in items]

            async def predict(self, item):
                once = await self.submit("double", [item])
                return (await self.submit("double", once))[0]

            def read(self, item):
                return {"id": item["id"] + 1}

            @batched(example={"id": 0}, decode="read")
            def decoded(self, items):
                return items
    """
    with running_redis(tmp_path) as redis:
        spec = {"serverSideBatching": {"queue": {"redis": {"port": redis.port}}}}
        file = str(write_manifest(tmp_path, code, spec))
        with running(tmp_path, redis, file) as ((web,), _):
            answers = {
                name: await ask(web.port, {"id": 3}, path=f"/api/{name}")
                for name in ("double", "predict", "decoded")
            }

    assert {"double": 6, "predict": 12, "decoded": 4} == {
        name: answer.json().get("id", answer.body) for name, answer in answers.items()
    }


# ---------------------------------------------------------------- workers die


async def test_what_a_dead_worker_had_is_run_by_others_within_seconds(tmp_path: Path) -> None:
    """Nothing that was accepted is lost with a pod, and nobody is answered twice."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis, seconds=0.2)
        with running(tmp_path, redis, file, workers=2) as ((web,), (first, second)):
            loading = asyncio.create_task(load([web.port], 300, at_once=32))
            await asyncio.sleep(1.0)
            await asyncio.to_thread(kill_all, first)
            statuses, wrong = await loading
            retaken = second.metrics()["batchedapi_rows_retaken_total"]

    assert ({200: 300}, []) == (dict(statuses), wrong)
    assert retaken > 0
    assert set(range(300)) == ran(tmp_path).keys()


async def test_with_fail_batch_nothing_that_was_taken_runs_twice(tmp_path: Path) -> None:
    """A client that books a payment prefers an error to being charged twice."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis, seconds=0.2, onItemError="FailBatch")
        with running(tmp_path, redis, file, workers=2) as ((web,), (first, _)):
            loading = asyncio.create_task(load([web.port], 120, at_once=32))
            await asyncio.sleep(0.7)
            await asyncio.to_thread(kill_all, first)
            statuses, wrong = await loading

    assert {200, 503} == statuses.keys()
    assert 120 == statuses.total()
    assert [] == wrong
    assert {1} == set(ran(tmp_path).values())


async def test_a_row_that_kills_its_workers_fails_alone(tmp_path: Path) -> None:
    """In company once, then alone: the neighbours are answered, and no worker dies a third time."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis, seconds=0.05)
        with running(tmp_path, redis, file) as ((web,), _):
            asking = asyncio.create_task(asked(web.port, 0, dies=True))
            answers = await asyncio.gather(*(asked(web.port, n) for n in range(1, 8)))
            culprit = await asking

    assert [200] * 7 == [answer.status for answer in answers]
    assert 500 == culprit.status
    assert 3 == ran(tmp_path)[0]


async def test_a_worker_that_is_asked_to_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    """A rollout or a scale-in costs nobody anything."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis, seconds=0.05, onItemError="FailBatch")
        with running(tmp_path, redis, file, workers=2) as ((web,), (first, second)):
            loading = asyncio.create_task(load([web.port], 200, at_once=32))
            await asyncio.sleep(0.5)
            exit_code = await asyncio.to_thread(first.stop)
            statuses, wrong = await loading
            retaken = second.metrics()["batchedapi_rows_retaken_total"]

    assert ({200: 200}, []) == (dict(statuses), wrong)
    assert (0, 0.0) == (exit_code, retaken)
    assert {1} == set(ran(tmp_path).values())


# ---------------------------------------------------------------- web processes die


async def test_rows_of_a_dead_web_process_are_not_run(tmp_path: Path) -> None:
    """Nobody could be told their answers."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis)
        with running(tmp_path, redis, file, web=2) as ((dead, web), (worker,)):
            worker.stop()
            lost = [asyncio.create_task(asked(dead.port, n)) for n in range(5)]
            (key,) = redis.keys("*rows*")
            await length(redis, key, "5")
            await asyncio.to_thread(kill_all, dead)
            await asyncio.gather(*lost, return_exceptions=True)
            await asyncio.sleep(2.0)
            with running_replica(tmp_path, ["-f", file], redis.environment, command="worker"):
                answer = await asked(web.port, 99)

    assert 200 == answer.status
    assert {99: 1} == ran(tmp_path)


# ---------------------------------------------------------------- Redis dies


@pytest.mark.parametrize("keeps", [True, False], ids=["with its data", "without"])
async def test_a_redis_that_is_killed_and_comes_back_costs_nobody_an_answer(
    tmp_path: Path,
    keeps: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Web processes hand in again what is not there any more; nobody is answered twice."""
    with running_redis(tmp_path, keeps=keeps) as redis:
        file = manifest(tmp_path, redis, seconds=0.05)
        with running(tmp_path, redis, file, web=2, workers=2) as (web, workers):
            loading = asyncio.create_task(load([one.port for one in web], 400, at_once=32))
            for _ in range(3):
                await asyncio.sleep(0.4)
                await asyncio.to_thread(redis.kill)
                await asyncio.to_thread(redis.start)
            statuses, wrong = await loading
            ended = [one.process.poll() for one in (*web, *workers)]

    assert ({200: 400}, []) == (dict(statuses), wrong)
    assert [None] * 4 == ended


async def test_with_fail_batch_a_lost_queue_is_told_and_nothing_runs_twice(tmp_path: Path) -> None:
    """Nobody knows what was taken: 503, and the client decides."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis, seconds=0.2, onItemError="FailBatch")
        with running(tmp_path, redis, file) as ((web,), _):
            loading = asyncio.create_task(load([web.port], 100, at_once=32))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(redis.kill)
            await asyncio.to_thread(redis.start)
            statuses, wrong = await loading

    assert {200, 503} == statuses.keys()
    assert (100, []) == (statuses.total(), wrong)
    assert {1} == set(ran(tmp_path).values())


async def test_with_fail_batch_a_snapshot_that_is_older_makes_nothing_run_twice(
    tmp_path: Path,
) -> None:
    """In it rows wait, or are with a worker, that were run and answered since."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis, seconds=2.0, onItemError="FailBatch")
        with running(tmp_path, redis, file) as ((web,), (worker,)):
            (key,) = redis.keys("*rows*")
            loading = asyncio.create_task(load([web.port], 32, at_once=32))
            await length(redis, key, "32")
            redis.ask("SAVE")
            await asyncio.to_thread(
                worker.wait_for, lambda: len(ran(tmp_path)) > 8, "not run", PATIENCE
            )
            await asyncio.to_thread(redis.kill)
            await asyncio.to_thread(redis.start)
            statuses, wrong = await loading
            after = await asked_until_answered(web.port, 100)

    assert (32, []) == (statuses.total(), wrong)
    assert {200, 503} == statuses.keys()
    assert 200 == after.status
    assert {1} == set(ran(tmp_path).values())


async def test_a_redis_that_stands_still_delays_and_then_refuses(tmp_path: Path) -> None:
    """A short pause is a delay; beyond the limit 503 with Retry-After, and all is well after it."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis)
        with running(tmp_path, redis, file) as ((web,), (worker,)):
            with redis.paused():
                short = asyncio.create_task(asked(web.port, 1))
                await asyncio.sleep(1.0)
            delayed = await short
            with redis.paused():
                refused = await asked(web.port, 2)
            after = await asked_until_answered(web.port, 3)
            ended = [web.process.poll(), worker.process.poll()]

    assert 200 == delayed.status
    assert 503 == refused.status
    assert "retry-after" in refused.headers
    assert 200 == after.status
    assert [None, None] == ended


async def test_a_redis_without_memory_refuses_and_recovers(tmp_path: Path) -> None:
    """Answers are written all the same, once rows that are over have left."""
    with running_redis(tmp_path, "--maxmemory", "4mb") as redis:
        file = manifest(tmp_path, redis, seconds=0.05, timeout="20s")
        with running(tmp_path, redis, file) as ((web,), _):
            large = "x" * 200_000
            answers = await asyncio.gather(*(asked(web.port, n, text=large) for n in range(60)))
            after = await asked(web.port, 100)

    assert {200, 503} == {answer.status for answer in answers}
    assert any("memory" in answer.error["message"] for answer in answers if answer.status == 503)
    assert 200 == after.status


async def test_a_redis_without_any_memory_loses_nothing(tmp_path: Path) -> None:
    """Not even signs of life have room then: whoever asks is told, and all is answered after it.

    That nobody is taken for dead meanwhile is told where time is virtual: here a machine may stall.
    """
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis, seconds=2.0)
        with running(tmp_path, redis, file, workers=2) as ((web,), workers):
            running_before = asyncio.create_task(asked(web.port, 1))
            await asyncio.to_thread(web.wait_for, lambda: bool(ran(tmp_path)), "not run", PATIENCE)
            redis.ask("CONFIG", "SET", "maxmemory", "1")
            refused = await asked(web.port, 2)

            def has_run() -> bool:
                return running_before.done() or any("no memory" in one.text() for one in workers)

            await asyncio.to_thread(web.wait_for, has_run, "not answered", PATIENCE)
            redis.ask("CONFIG", "SET", "maxmemory", "0")
            answers = [await running_before, await asked_until_answered(web.port, 3)]
            ended = [one.process.poll() for one in (web, *workers)]

    assert 503 == refused.status
    assert "maxmemory" in refused.error["message"]
    assert [{"predictions": [{"id": 1}]}, {"predictions": [{"id": 3}]}] == [
        answer.json() for answer in answers
    ]
    assert [None] * 3 == ended
    assert {1, 3} == ran(tmp_path).keys()


@pytest.mark.parametrize("right", ["time", "smembers", "xinfo|groups", "xreadgroup"])
async def test_a_worker_that_lacks_a_right_says_so_and_waits_for_it(
    tmp_path: Path, right: str
) -> None:
    """It does not end of it, nor is it ready, nor is the queue empty."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis)
        redis.ask("ACL", "SETUSER", USER, f"-{right}")
        worker = start_replica(tmp_path, ["-f", file], redis.environment, command="worker")
        try:
            worker.wait_for(lambda: f"'{right}'" in worker.text(), "not told", PATIENCE)
            await asyncio.sleep(3.0)
            ready = worker.admin("/readyz")[0]
            text = worker.text()
            redis.ask("ACL", "SETUSER", USER, f"+{right}")
            await asyncio.to_thread(worker.wait_ready)
        finally:
            end_replica(worker)

    assert 503 == ready
    assert 1 == text.count("the queue cannot be reached")
    assert "one-queue.md" in text


def test_a_worker_without_its_queue_is_never_ready_and_stops_when_told(tmp_path: Path) -> None:
    """It had been ready for its first three seconds, and went on until it was killed."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis)
        redis.kill()
        worker = start_replica(tmp_path, ["-f", file], redis.environment, command="worker")
        try:
            worker.wait_for(lambda: worker.admin("/startupz")[0] == 200, "not loaded", PATIENCE)
            end = time.monotonic() + 4.0
            ready = set()
            while time.monotonic() < end:
                ready.add(worker.admin("/readyz")[0])
                time.sleep(0.05)
            began = time.monotonic()
            exit_code = worker.stop()
            took = time.monotonic() - began
        finally:
            end_replica(worker)

    assert {503} == ready
    assert 0 == exit_code
    assert took < 15.0  # and not as long as it may drain


async def test_all_stop_while_redis_stands_still(tmp_path: Path) -> None:
    """As long as one question to it may take, and not as long as a request."""
    with running_redis(tmp_path) as redis:
        file = manifest(tmp_path, redis)
        with running(tmp_path, redis, file) as ((web,), (worker,)), redis.paused():
            await asyncio.sleep(1.0)
            began = time.monotonic()
            exits = await asyncio.gather(
                *(asyncio.to_thread(one.stop) for one in (web, worker)),
            )
            took = time.monotonic() - began

    assert [0, 0] == exits
    assert took < 15.0


def refused(folder: Path, redis: RedisServer, file: str) -> str:
    """The log of a worker that ends with exit code 1 at its start."""
    worker = start_replica(folder, ["-f", file], redis.environment, command="worker")
    try:
        exit_code = worker.process.wait(PATIENCE)
    finally:
        end_replica(worker)
    assert 1 == exit_code
    return worker.text()


def test_a_redis_that_may_throw_rows_away_is_refused_at_the_start(tmp_path: Path) -> None:
    """An eviction policy loses accepted requests without a word."""
    with running_redis(tmp_path, "--maxmemory-policy", "allkeys-lru") as redis:
        file = manifest(tmp_path, redis)
        text = refused(tmp_path, redis, file)

    assert "maxmemory-policy is allkeys-lru" in text
    assert "set it to noeviction" in text


def test_a_method_that_streams_is_refused_beside_a_queue(tmp_path: Path) -> None:
    """Answers come whole through the queue: that is said at the start, and not to a client."""
    code = """
        class Model:
            def predict(self, item):
                yield item
    """
    with running_redis(tmp_path) as redis:
        spec = {"serverSideBatching": {"queue": {"redis": {"port": redis.port}}}}
        file = str(write_manifest(tmp_path, code, spec))
        text = refused(tmp_path, redis, file)

    assert "expected no method that streams beside spec.serverSideBatching.queue" in text


def with_other_methods(file: Path) -> None:
    """Change what the predictor of a manifest declares."""
    file.write_text(file.read_text().replace("max_batch_size=8", "max_batch_size=4"))


async def test_other_methods_never_get_each_others_rows(tmp_path: Path) -> None:
    """A rollout: rows go to workers of the methods that checked them, and to the new ones after."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    with running_redis(tmp_path) as redis:
        before = manifest(old, redis)
        after = manifest(new, redis)
        with_other_methods(Path(after))
        with running(old, redis, before) as ((web,), (worker,)):
            loading = asyncio.create_task(load([web.port], 600, at_once=8))
            other = start_replica(new, ["-f", after], redis.environment, command="worker")
            try:
                await asyncio.to_thread(other.wait_ready)
                await asyncio.to_thread(worker.stop)
                statuses, wrong = await loading
                late = await asked(web.port, 1000)
                streams = redis.keys("*rows*")
            finally:
                end_replica(other)

    assert ({200: 600}, []) == (dict(statuses), wrong)
    assert 200 == late.status
    assert 2 == len(streams)
    assert ran(old)
    assert ran(new)
    assert not ran(old).keys() & ran(new).keys()
