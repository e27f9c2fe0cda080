"""A web app of one's own in front of workers: dynamic_batcher's two programs."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from batchedapi_serving import client as client_module
from batchedapi_serving.client import QueueClient, RowFailedError
from batchedapi_serving.errors import NotReadyError, OverloadedError
from batchedapi_serving.queue.broker import Broker
from ports import HOST, free_port
from raw_http import Response, ask
from redis_server import PASSWORD, USER, RedisServer, running_redis
from serving import running_replica

EXAMPLE: Final = Path(__file__).resolve().parents[3] / "examples" / "09-own-app"
ITEM: Final = {"content": "string", "nested": {"key": "string", "values": [1, 5, 2]}}
PATIENCE: Final = 60.0


@contextlib.contextmanager
def running_app(redis: RedisServer, workers: int) -> Iterator[int]:
    """The example's app in so many processes; its port."""
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "gunicorn", "app:app", "-k", "uvicorn.workers.UvicornWorker",
            f"--workers={workers}", f"--bind={HOST}:{port}", "--timeout=60",
        ],
        cwd=EXAMPLE, env={**os.environ, **redis.environment}, start_new_session=True,
    )  # fmt: skip
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)


async def answered(port: int, number: int) -> Response:
    """An answer of the app, once it listens."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask(port, ITEM, f"/items/test/{number}", patience=PATIENCE)
        except OSError:
            assert time.monotonic() < end, "the app does not listen"
            await asyncio.sleep(0.1)


@contextlib.contextmanager
def running_worker(folder: Path, redis: RedisServer, **environment: str) -> Iterator[Any]:
    """The example's class, without a manifest."""
    (folder / "model.py").write_text((EXAMPLE / "model.py").read_text())
    variables = {**redis.environment, **environment}
    with running_replica(folder, ["model:Items"], variables, command="worker") as worker:
        yield worker


async def test_its_reader_finds_what_the_document_shows(tmp_path: Path) -> None:
    """D03 to D07, D10 to D16, D18: its variables, its curl, its full batch and remainder."""
    batch = {"DYNAMIC_BATCHER__BATCH_SIZE": "64", "DYNAMIC_BATCHER__BATCH_TIME": "2"}
    with (
        running_redis(tmp_path) as redis,
        running_worker(tmp_path, redis, **batch) as worker,
        running_app(redis, workers=4) as port,
    ):
        lone = await answered(port, 1)
        before = worker.metrics()
        answers = await asyncio.gather(*(answered(port, n) for n in range(100)))
        after = worker.metrics()
        text = worker.text()

    shown = lone.json()
    assert {**ITEM["nested"], "values_add1": [2, 6, 3]} == shown["data"]["nested"]  # type: ignore[dict-item]
    assert shown["data"]["name"]
    assert 2.0 <= shown["elapsed_time"]
    assert "delay=0, batch_size=64 batch_time=2" in text
    assert [200] * 100 == [answer.status for answer in answers]
    ran = {
        name: after[name] - before[name]
        for name in ("batchedapi_batch_rows_sum", "batchedapi_batches_total{reason=full}")
    }
    assert {"batchedapi_batch_rows_sum": 100.0, "batchedapi_batches_total{reason=full}": 1.0} == ran


async def test_a_client_gets_values_and_errors_as_over_http(tmp_path: Path) -> None:
    """`await client.predict(name, row)`, and nothing to learn beside it."""
    with running_redis(tmp_path) as redis, running_worker(tmp_path, redis):
        client = QueueClient(
            host=HOST, port=redis.port, username=USER, password=PASSWORD, environment={}
        )
        async with client:
            one = await client.predict("items", ITEM)
            both = await client.predict_many("items", [ITEM, ITEM], "predict")
            with pytest.raises(RowFailedError, match=r"expected nested\.values") as refused:
                await client.predict("items", {"content": 1})

    assert [2, 6, 3] == one["nested"]["values_add1"]
    assert 2 == len({one["name"] for one in both})
    assert 422 == refused.value.row_status


async def test_a_client_without_workers_says_so_in_time(tmp_path: Path) -> None:
    """Nobody has said what they serve; a row of them cannot be checked."""
    with running_redis(tmp_path) as redis:
        async with QueueClient(
            host=HOST, port=redis.port, username=USER, password=PASSWORD, timeout=0.5
        ) as client:
            with pytest.raises(NotReadyError, match="no worker of items"):
                await client.predict("items", ITEM)


@pytest.mark.parametrize(
    ("settings", "does", "says"),
    [
        ({"port": 1}, (), f"{HOST}:1"),
        ({"password": "wrong"}, (), "REDIS__PASSWORD"),
        ({}, ("ACL", "SETUSER", USER, "-hgetall"), "hgetall"),
        ({}, ("CONFIG", "SET", "maxmemory", "1"), "maxmemory"),
        ({}, ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"), "noeviction"),
    ],
    ids=["nobody listens", "wrong password", "a right is missing", "no memory", "evicts"],
)
async def test_a_client_whose_redis_cannot_be_used_says_why_in_five_seconds(
    tmp_path: Path, settings: dict[str, Any], does: tuple[str, ...], says: str
) -> None:
    """And not after its timeout that there is no worker."""
    with running_redis(tmp_path) as redis:
        if does:
            redis.ask(*does)
        known = {"port": redis.port, "password": PASSWORD, **settings}
        async with QueueClient(host=HOST, username=USER, **known) as client:
            began = time.monotonic()
            with pytest.raises(OverloadedError, match=says):
                await client.predict("items", ITEM)
            took = time.monotonic() - began
            with pytest.raises(OverloadedError, match=says):
                await client.predict("items", ITEM)
            again = time.monotonic() - began - took

    assert 4.0 < took < 20.0
    assert again < 4.0


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Accepts, and never answers; its port."""
    connected = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append((reader, writer))

    server = await asyncio.start_server(accept, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _, writer in connected:
            writer.close()


@pytest.mark.parametrize(
    ("within", "says", "least", "most"),
    [(1.0, "has not answered", 1.0, 5.0), (60.0, "no answer within 5 s", 9.0, 20.0)],
    ids=["its time is over first", "it waits for long"],
)
async def test_a_client_of_a_silent_redis_says_so_and_ends_at_once(
    within: float, says: str, least: float, most: float
) -> None:
    """It is not the workers that are missing; and nobody is there who could be told of its end."""
    async with silent_server() as port:
        began = time.monotonic()
        async with QueueClient(host=HOST, port=port, environment={}, timeout=within) as client:
            with pytest.raises(NotReadyError, match=says):
                await client.predict("items", ITEM)
        took = time.monotonic() - began

    assert least <= took < most


async def test_a_client_whose_time_is_over_first_says_why_redis_cannot_be_used() -> None:
    """The reason is known before it is given up."""
    async with QueueClient(host=HOST, port=1, environment={}, timeout=2.0) as client:
        with pytest.raises(NotReadyError, match=f"{HOST}:1"):
            await client.predict("items", ITEM)


async def test_a_client_is_told_why_its_rows_were_not_handed_in(tmp_path: Path) -> None:
    """It has worked before, and works again after."""
    with running_redis(tmp_path) as redis, running_worker(tmp_path, redis):
        async with QueueClient(
            host=HOST, port=redis.port, username=USER, password=PASSWORD
        ) as client:
            await client.predict("items", ITEM)
            redis.ask("ACL", "SETUSER", USER, "-xadd")
            with pytest.raises(NotReadyError, match="xadd"):
                await client.predict("items", ITEM)
            redis.ask("ACL", "SETUSER", USER, "+xadd")
            after = None
            async with asyncio.timeout(PATIENCE):
                while after is None:
                    await asyncio.sleep(0.2)
                    with contextlib.suppress(NotReadyError):  # it has not connected anew
                        after = await client.predict("items", ITEM)

    assert after


def client_of(redis: RedisServer, **more: Any) -> QueueClient:
    """One with the rights of the guide, as a user of its own."""
    redis.add_user("app", "batchedapi")
    return QueueClient(
        host=HOST, port=redis.port, username="app", password=PASSWORD, environment={}, **more
    )


async def answered_in_time(client: QueueClient) -> Any:
    """An answer, by a client that may be refused for a while."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(OverloadedError):
                return await client.predict("items", ITEM)
            await asyncio.sleep(0.1)


def connections(redis: RedisServer) -> int:
    """The number of connections of such clients."""
    return redis.ask("CLIENT", "LIST").count("user=app ")


async def until(condition: Any, what: str) -> None:
    """Wait until it is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("trouble", ["restarted", "long away", "connections killed", "stood still"])
async def test_a_client_is_answered_after_trouble_with_redis(tmp_path: Path, trouble: str) -> None:
    """Requests during the trouble are answered or refused, those after it are answered."""
    with running_redis(tmp_path) as redis, running_worker(tmp_path, redis):
        async with client_of(redis) as client:
            await client.predict("items", ITEM)
            meanwhile = asyncio.gather(
                *(client.predict("items", ITEM) for _ in range(20)), return_exceptions=True
            )
            await asyncio.sleep(0)
            if trouble == "connections killed":
                redis.ask("CLIENT", "KILL", "TYPE", "normal")
            elif trouble == "stood still":
                redis.signal(signal.SIGSTOP)
                await asyncio.sleep(8.0)
                redis.signal(signal.SIGCONT)
            else:
                redis.kill()
                await asyncio.sleep(8.0 if trouble == "long away" else 0.5)
                redis.start()
                redis.add_user("app", "batchedapi")
            after = await answered_in_time(client)
            results = await meanwhile

    assert [2, 6, 3] == after["nested"]["values_add1"]
    unanswered = [one for one in results if not isinstance(one, dict)]
    assert all(isinstance(one, OverloadedError) for one in unanswered), unanswered
    assert not unanswered or trouble in {"long away", "stood still"}


def test_a_client_goes_on_in_another_loop_and_in_a_process_that_was_forked(tmp_path: Path) -> None:
    """Scripts call asyncio.run again and again; servers fork after their app has begun."""
    with running_redis(tmp_path) as redis, running_worker(tmp_path, redis):
        client = client_of(redis)
        first = asyncio.run(client.predict("items", ITEM))
        loop = asyncio.new_event_loop()
        second = loop.run_until_complete(client.predict("items", ITEM))
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = int(not asyncio.run(client.predict("items", ITEM)))
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        third = loop.run_until_complete(client.predict("items", ITEM))
        loop.run_until_complete(client.close())
        loop.close()

    assert 0 == os.waitstatus_to_exitcode(status)
    assert all((first, second, third))


async def test_a_line_to_nobody_is_closed(tmp_path: Path) -> None:
    """A name may come from a path that anybody may ask for."""
    with running_redis(tmp_path) as redis:
        async with client_of(redis, timeout=5.0) as client:
            asked = (client.predict(f"nobody-{number}", ITEM) for number in range(8))
            results = await asyncio.gather(*asked, return_exceptions=True)
            await until(lambda: not connections(redis), "connections stay")
            keys = redis.keys("*")

    assert {NotReadyError} == set(map(type, results))
    assert [] == keys


async def test_a_line_that_nobody_uses_is_closed_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever say that an API is gone, so its line is closed when idle."""
    monkeypatch.setattr(client_module, "_IDLE_SECONDS", 0.5)
    with running_redis(tmp_path) as redis, running_worker(tmp_path, redis):
        async with client_of(redis) as client:
            await client.predict("items", ITEM)
            used = connections(redis)
            await until(lambda: not connections(redis), "connections stay")
            again = await client.predict("items", ITEM)

    assert used >= 3
    assert again


async def test_a_line_that_ends_tells_who_waits_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was: they would wait until their time is over, and so would all that come."""
    with running_redis(tmp_path) as redis, running_worker(tmp_path, redis) as worker:
        async with client_of(redis) as client:
            await client.predict("items", ITEM)
            os.kill(worker.pid, signal.SIGSTOP)  # it starts nobody anew
            for pid in worker.children():
                os.kill(pid, signal.SIGSTOP)
            waiting = asyncio.create_task(client.predict("items", ITEM))
            await asyncio.sleep(0.1)
            with monkeypatch.context() as broken:
                broken.setattr(Broker, "look", lambda *_: 1 / 0)
                with pytest.raises(OverloadedError):
                    await waiting
            for pid in (worker.pid, *worker.children()):
                os.kill(pid, signal.SIGCONT)
            after = await answered_in_time(client)

    assert after


@pytest.mark.parametrize("settings", [{"prefix": "{x}:"}, {"prefix": "a b"}])
def test_a_prefix_with_braces_is_refused(settings: dict[str, Any]) -> None:
    """Before anything is connected."""
    with pytest.raises(ValueError, match="expected a prefix"):
        QueueClient(environment={}, **settings)
