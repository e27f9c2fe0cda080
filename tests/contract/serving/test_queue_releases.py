"""A queue in which another release has written, or anybody: real processes and a real Redis."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import pytest
import redis

import queue_traffic
from batchedapi_core import contract
from batchedapi_serving.ipc import Frame, FrameReader, encode_frame
from mutations import mutated
from ports import HOST
from redis_server import PASSWORD, RedisServer, running_redis
from serving import Replica, running_replica, write_manifest

BASE: Final = "batchedapi:{api}:"
PATIENCE: Final = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server for one test."""
    with running_redis(tmp_path) as started:
        yield started


@pytest.fixture
def client(server: RedisServer) -> Iterator["redis.Redis"]:
    """As somebody who may everything."""
    with redis.Redis(host=HOST, port=server.port, password=PASSWORD, protocol=2) as connected:
        yield connected


def manifest(folder: Path, server: RedisServer) -> str:
    """The predictor of which traffic was recorded."""
    queue = {"redis": {"host": HOST, "port": server.port}}
    spec = {"serverSideBatching": {"queue": queue, "receipt": "Headers"}}
    return str(write_manifest(folder, queue_traffic.CODE, spec))


def frames(data: bytes) -> list[Frame]:
    """Meta and payload of each."""
    return list(FrameReader().feed(data))


def soon(condition: Any, what: str) -> Any:
    """The value of `condition()`, once it is true."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def asked(replica: Replica, method: str, body: Any) -> httpx.Response:
    """One request over HTTP."""
    return httpx.post(f"http://{HOST}:{replica.port}/api/{method}", json=body, timeout=PATIENCE)


def test_a_worker_answers_what_a_web_process_of_an_earlier_release_asks(
    tmp_path: Path, server: RedisServer, client: "redis.Redis"
) -> None:
    """Its recorded requests, in its streams; each answer is what that release answered."""
    requests, answers = list(queue_traffic.of("XADD")), list(queue_traffic.of("RPUSH"))
    key = answers[0][1].decode()
    client.set(f"{BASE}alive:{key.rpartition(':')[2]}", "web", px=int(1000 * PATIENCE))
    with running_replica(
        tmp_path, ["-f", manifest(tmp_path, server)], server.environment, command="worker"
    ) as worker:
        for command in requests:
            client.execute_command(*command)
        soon(lambda: client.llen(key) and not any(map(client.xlen, client.keys("*rows*"))), "rows")
        packs = b"".join(client.lrange(key, 0, -1))
        unread = worker.metrics()[contract.METRIC_QUEUE_UNREADABLE]

    expected = {one.meta["answer"]: one for _, _, pack in answers for one in frames(pack)}
    for meta, payload in frames(packs):
        before = expected.pop(meta["answer"])
        assert before.meta.get("error") == meta.get("error")
        assert (before.meta.get("items"), before.payload) == (meta.get("items"), payload)
    assert {} == expected
    assert 0 == unread


def test_a_web_process_is_answered_by_a_worker_of_an_earlier_release(
    tmp_path: Path, server: RedisServer, client: "redis.Redis"
) -> None:
    """It serves what that said of itself, and understands its recorded answers."""
    recorded = queue_traffic.recorded()
    told = next(words for words in recorded if words[0] == b"SET" and words[2] != b"web")
    for words in recorded:
        if words[0] in {b"XGROUP", b"HSET"}:
            client.execute_command(*words)
    client.sadd(f"{BASE}workers", told[1].rpartition(b":")[2])
    client.set(told[1], told[2], px=int(1000 * PATIENCE))
    answers = {}
    for (_, key, *_), (_, _, pack) in zip(
        queue_traffic.of("XADD"), queue_traffic.of("RPUSH"), strict=True
    ):
        answers.setdefault(key, frames(pack)[0])
    file = manifest(tmp_path, server)
    with running_replica(tmp_path, ["-f", file], server.environment, command="web") as web:
        got = {}
        for method, body in queue_traffic.FIRST.items():
            got[method] = asyncio.run(_answered_by_hand(web, client, method, body, answers))
        unread = web.metrics()[contract.METRIC_QUEUE_UNREADABLE]

    assert {"fails": 500} == {name: one.status_code for name, one in got.items() if one.is_error}
    assert {"id": 1} == got["predict"].json()
    assert [3.5] == got["sums"].json()
    assert {"ids": [1, 2, 3], "mean": 1.0} == got["scaled"].json()
    assert "GRÜN" == got["texts"].json()
    assert got["predict"].headers["x-batchedapi-reason"]
    assert 0 == unread


async def _answered_by_hand(
    web: Replica, client: "redis.Redis", method: str, body: Any, answers: dict[bytes, Frame]
) -> httpx.Response:
    """Ask, and answer as the worker did of which traffic was recorded."""
    asking = asyncio.create_task(asyncio.to_thread(asked, web, method, body))
    (key,) = (key for key in answers if key.endswith(b":" + method.encode()))
    streams = {key: ">"}
    found: Any = None
    while not found:
        found = await asyncio.to_thread(client.xreadgroup, "workers", "old", streams, 1, 100)
    ((_, ((place, fields),)),) = found
    ((meta, _),) = frames(fields[b"r"])
    answer = {**answers[key].meta, "answer": meta["request"]}
    client.rpush(f"{BASE}answers:{meta['web']}", encode_frame(answer, [answers[key].payload]))
    client.xack(key, "workers", place)
    client.xdel(key, place)
    return await asking


def keys_of(client: "redis.Redis", kind: str) -> list[bytes]:
    """The keys that somebody else might have written."""
    found: list[bytes] = list(client.keys(f"{BASE}{kind}*"))
    if kind == "answers":
        webs = (key for key in client.keys(f"{BASE}alive:*") if client.get(key) == b"web")
        found = [f"{BASE}answers:".encode() + key.rpartition(b":")[2] for key in webs]
    return found


@pytest.mark.parametrize("kind", ["workers", "methods", "rows", "alive", "answers"])
def test_a_key_of_another_type_is_made_anew(
    tmp_path: Path, server: RedisServer, client: "redis.Redis", kind: str
) -> None:
    """It is ours by its name: whoever waits is answered, and nobody ends."""
    with running_replica(
        tmp_path, ["-f", manifest(tmp_path, server)], server.environment
    ) as replica:
        first = asked(replica, "predict", {"id": 1})
        keys = keys_of(client, kind)
        for key in keys:
            client.delete(key)
            if kind == "alive":
                client.hset(key, "field", "x")
            else:
                client.set(key, "x")
        answered = soon(
            lambda: (one := asked(replica, "predict", {"id": 2})).status_code == 200 and one,
            "no answer",
        )
        soon(lambda: replica.metrics()[contract.METRIC_QUEUE_UNREADABLE] or kind == "alive", kind)
        restarts = [
            value
            for name, value in replica.metrics().items()
            if name.startswith(contract.METRIC_PROCESS_RESTARTS)
        ]

    assert keys
    assert [{"id": 1}, {"id": 2}] == [first.json(), answered.json()]
    assert [0.0, 0.0] == restarts


def test_messages_that_cannot_be_read_cost_nobody_else_anything(
    tmp_path: Path, server: RedisServer, client: "redis.Redis"
) -> None:
    """A sample of each kind with each field changed, beside requests that are all answered."""
    with running_replica(
        tmp_path, ["-f", manifest(tmp_path, server)], server.environment
    ) as replica:
        asked(replica, "predict", {"id": 0})
        (web,) = keys_of(client, "answers")
        statuses, written = [], 0
        for number, write in enumerate(itertools.islice(_odd(client, web), 0, None, 13)):
            write()
            written += 1
            if number % 5 == 0:
                statuses.append(asked(replica, "predict", {"id": number}).json())
        soon(lambda: not any(map(client.xlen, client.keys(f"{BASE}rows*"))), "rows stay")
        unread = replica.metrics()[contract.METRIC_QUEUE_UNREADABLE]
        restarts = replica.metrics()[f"{contract.METRIC_PROCESS_RESTARTS}{{role=web}}"]
        told = replica.text().count("cannot be read, perhaps")

    assert [{"id": number} for number in range(0, written, 5)] == statuses
    assert unread > written / 4
    assert 0 == restarts
    assert told < unread


def _odd(client: "redis.Redis", answers: bytes) -> Iterator[Any]:
    """Functions that write one odd message each."""
    entry, pack = next(queue_traffic.of("XADD"))[4], next(queue_traffic.of("RPUSH"))[2]
    ((request, payload),), ((answer, body),) = frames(entry), frames(pack)
    (rows,) = client.keys(f"{BASE}rows:*:predict")
    web = answers.rpartition(b":")[2].decode()
    numbers = itertools.count(1 << 32)
    for _, changed in mutated(request):
        told = {**changed, "web": web, "request": next(numbers)}
        for meta in (changed, told):
            yield lambda meta=meta: client.xadd(rows, {"r": encode_frame(meta, [payload])})
    for fields in ({"x": "y"}, {"r": ""}, {"r": b"\0" * 40, "s": ""}):
        yield lambda fields=fields: client.xadd(rows, fields)
    for _, changed in mutated(answer):
        yield lambda meta=changed: client.rpush(answers, encode_frame(meta, [body]))
    yield lambda: client.rpush(answers, b"\0" * 30)
    sign = next(words[2] for words in queue_traffic.of("SET") if words[2] != b"web")
    for number, (_, changed) in enumerate(mutated(orjson.loads(sign))):
        name = f"other-{number}"
        yield lambda name=name, changed=changed: (
            client.sadd(f"{BASE}workers", name, b"\xff\xfe"),
            client.set(f"{BASE}alive:{name}", orjson.dumps(changed), px=500),
        )
    ((_, _, _, text),) = queue_traffic.of("HSET")
    for number, (_, changed) in enumerate(mutated(orjson.loads(text), except_in="example")):
        yield lambda number=number, changed=changed: client.hset(
            f"{BASE}methods", f"other-{number}", orjson.dumps(changed)
        )
