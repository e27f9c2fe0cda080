"""The queue in memory, which unit tests use, does what Redis does; and what only Redis has."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from batchedapi_core.shared_queue import ALIVE_SECONDS
from batchedapi_serving.queue.broker import (
    Broker,
    BrokerDownError,
    BrokerFullError,
    BrokerUnfitError,
    Keys,
    Left,
    QueueGoneError,
    QueueSpoiltError,
    TakenEntry,
    unfit,
)
from batchedapi_serving.settings import QueueSettings
from certificates import make_certificates
from fake_broker import FakeBroker, FakeRedis
from ports import HOST
from redis_server import PASSWORD, USER, RedisServer, documented_acl, running_redis

STREAM: Final = "abc:predict"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all."""
    with running_redis(tmp_path_factory.mktemp("redis")) as redis:
        yield redis


def broker_of(redis: RedisServer, api: str, **settings: object) -> Broker:
    """By the user of the guide."""
    values = {"host": HOST, "port": redis.port, "username": USER, "password": PASSWORD}
    return Broker(QueueSettings(**{**values, **settings}), api)  # type: ignore[arg-type]  # names as above


@pytest.fixture(params=["memory", "redis"])
async def broker(request: pytest.FixtureRequest, server: RedisServer) -> AsyncIterator[Broker]:
    """An empty one, connected, with one stream."""
    memory = request.param == "memory"
    found = FakeBroker(FakeRedis(time.time)) if memory else broker_of(server, request.node.name)
    await found.connect()
    await found.open([STREAM])
    yield found
    await found.close()


async def test_rows_are_taken_in_order_once_each(broker: Broker) -> None:
    """Two workers never have the same row."""
    told = await broker.hand_in([(STREAM, b"a"), (STREAM, b"b"), (STREAM, b"c")])

    first = await broker.take("one", {STREAM: 2}, 0.1)
    second = await broker.take("two", {STREAM: 2}, 0.1)
    third = await broker.take("two", {STREAM: 2}, 0.1)

    assert {STREAM: 3} == told.lengths
    assert [b"a", b"b"] == [one.entry for one in first]
    assert [b"c"] == [one.entry for one in second]
    assert [] == list(third)
    assert list(told.places) == [one.place for one in (*first, *second)]


async def test_whoever_waits_for_a_row_has_it_as_it_comes(broker: Broker) -> None:
    """Nothing polls."""
    waiting = asyncio.create_task(broker.take("one", {STREAM: 8}, 5.0))
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await broker.hand_in([(STREAM, b"a")])

    (taken,) = await waiting

    assert b"a" == taken.entry
    assert time.monotonic() - began < 2.0


async def test_answers_come_together_and_rows_leave(broker: Broker) -> None:
    """One element for a batch; what is over takes no memory."""
    await broker.hand_in([(STREAM, b"a"), (STREAM, b"b")])
    taken = await broker.take("one", {STREAM: 2}, 0.1)
    written = await broker.answer(
        [("web", b"1"), ("web", b"2")], {STREAM: [t.place for t in taken]}
    )

    answers = await broker.answers("web", 1.0)
    look = await broker.look([STREAM])

    assert written
    assert [b"1", b"2"] == list(answers)
    assert [] == list(await broker.answers("web", 0.0))
    assert (0, None, 0, True) == look.depths[STREAM]


async def test_a_look_says_what_waits_and_who_lives(broker: Broker) -> None:
    """Rows that run do not count as waiting."""
    await broker.register("one", [STREAM])
    await broker.register("dead", [STREAM])
    signed = [await broker.sign("one", b"says"), await broker.sign("one", b"says")]
    await broker.sign("web", b"")
    await broker.hand_in([(STREAM, b"a"), (STREAM, b"b"), (STREAM, b"c")])
    await broker.take("one", {STREAM: 1}, 0.1)

    look = await broker.look([STREAM, "other"], ["web", "gone"])

    depth = look.depths[STREAM]
    assert (2, 3, True) == (depth.requests, depth.length, depth.exists)
    assert depth.oldest == pytest.approx(look.time, abs=5.0)
    assert (0, None, 0, False) == look.depths["other"]
    assert {"one": b"says", "dead": None} == look.workers
    assert {"web"} == look.alive
    assert [False, True] == signed


async def test_a_sign_of_life_ends_by_itself_or_in_order(broker: Broker) -> None:
    """Whoever dies says nothing."""
    await broker.register("one", [STREAM])
    await broker.sign("one", b"says")
    await broker.sign("two", b"says")
    await broker.gone("two")
    at_once = await broker.look([], ["one", "two"])
    await asyncio.sleep(ALIVE_SECONDS + 0.2)
    later = await broker.look([], ["one"])
    await broker.forget(["one"])

    assert {"one"} == at_once.alive
    assert set() == later.alive
    assert {"one": None} == later.workers
    assert {} == (await broker.look([])).workers


async def test_what_a_dead_worker_had_is_claimed_once(broker: Broker) -> None:
    """And what it had twice says so."""
    await broker.hand_in([(STREAM, b"a")])
    (taken,) = await broker.take("one", {STREAM: 1}, 0.1)
    await asyncio.sleep(0.6)
    owners = await broker.owners([STREAM])
    (left,) = await broker.left("one", [STREAM])
    await broker.sign("two", b"")
    claimed = await broker.claim("two", [left])
    again = await broker.claim("three", [left])
    mine = await broker.mine("two", [STREAM])

    assert {"one"} == owners
    assert (taken.place, 1) == (left.place, left.deaths)
    assert [TakenEntry(STREAM, taken.place, b"a", 1)] == list(claimed)
    assert [] == list(again)
    assert [TakenEntry(STREAM, taken.place, b"a", 1)] == list(mine)
    assert [2] == [one.deaths for one in await broker.left("two", [STREAM])]


async def test_all_that_a_worker_had_is_found_again(broker: Broker) -> None:
    """However much it is: nobody else takes what a worker has that lives."""
    count = 2500
    for _ in range(count // 250):
        await broker.hand_in([(STREAM, b"a")] * 250)
    taken = await broker.take("one", {STREAM: count}, 0.1)

    mine = await broker.mine("one", [STREAM])

    assert count == len(taken)
    assert [one.place for one in taken] == [one.place for one in mine]


async def test_who_left_is_not_taken(broker: Broker) -> None:
    """Nor is it there any more."""
    told = await broker.hand_in([(STREAM, b"a"), (STREAM, b"b")])
    places = [place for place in told.places if place is not None]
    await broker.withdraw([(STREAM, places[0])])

    there = await broker.there([(STREAM, place) for place in places])
    taken = await broker.take("one", {STREAM: 8}, 0.1)

    assert {places[1]} == there
    assert [b"b"] == [one.entry for one in taken]
    assert set() == await broker.there([])


async def test_what_a_revision_serves_stays_until_it_is_forgotten(broker: Broker) -> None:
    """For web processes while no worker runs."""
    await broker.publish("1", b"old")
    await broker.publish("2", b"new", ["1"])

    assert {"2": b"new"} == await broker.published()


async def test_a_stream_that_is_gone_is_told(broker: Broker) -> None:
    """Redis was emptied: there is nothing to take from."""
    with pytest.raises(QueueGoneError):
        await broker.take("one", {"never:made": 1}, 0.1)


# ---------------------------------------------------------------- Redis alone


async def test_a_run_that_ended_is_told_and_another_is_connected_to(tmp_path: Path) -> None:
    """Its data are lost with it."""
    with running_redis(tmp_path) as redis:
        broker = broker_of(redis, "api")
        await broker.connect()
        await broker.open([STREAM])
        before = (await broker.look([STREAM])).depths[STREAM].exists
        redis.kill()
        with pytest.raises(BrokerDownError):
            await broker.look([STREAM])
        redis.start()
        await broker.connect()
        after = (await broker.look([STREAM])).depths[STREAM].exists
        await broker.close()

    assert (True, False) == (before, after)


async def test_a_wrong_password_names_the_variable(server: RedisServer) -> None:
    """Whoever changed it finds out where."""
    broker = broker_of(server, "api", password="wrong")  # noqa: S106 - of a test
    with pytest.raises(BrokerDownError, match="REDIS__PASSWORD"):
        await broker.connect()
    await broker.close()


async def test_prefixes_keep_tenants_apart(server: RedisServer) -> None:
    """Two APIs of one name on one Redis; each tenant has what the guide shows, and all of it."""
    tenants = ("us", "them")
    for tenant in tenants:
        server.add_user(tenant, tenant)
    ours, theirs = (
        broker_of(server, "same", prefix=f"{tenant}:", username=tenant) for tenant in tenants
    )
    await everything(ours)
    for one in (ours, theirs):
        await one.connect()
        await one.open([STREAM])
    await ours.hand_in([(STREAM, b"a")])

    taken = await theirs.take("one", {STREAM: 1}, 0.1)
    for one in (ours, theirs):
        await one.close()

    assert [] == list(taken)


def as_another_tenant(broker: Broker) -> list[Callable[[], Awaitable[Any]]]:
    """All that has to do with keys; each alone is refused."""
    return [
        lambda: broker.sign("one", b"says"),
        lambda: broker.gone("one"),
        lambda: broker.look([STREAM], ["one"]),
        broker.published,
        lambda: broker.publish("1", b"says"),
        lambda: broker.hand_in([(STREAM, b"a")]),
        lambda: broker.withdraw([(STREAM, "1-1")]),
        lambda: broker.there([(STREAM, "1-1")]),
        lambda: broker.answers("web", 0.0),
        lambda: broker.answers("web", 0.1),
        lambda: broker.open([STREAM]),
        lambda: broker.register("one", [STREAM]),
        lambda: broker.forget(["one"]),
        lambda: broker.take("one", {STREAM: 1}, 0.1),
        lambda: broker.mine("one", [STREAM]),
        lambda: broker.answer([("web", b"stolen")], {STREAM: ["1-1"]}),
        lambda: broker.owners([STREAM]),
        lambda: broker.left("one", [STREAM]),
        lambda: broker.claim("one", [Left(STREAM, "1-1", 1)]),
    ]


async def test_no_tenant_reads_or_answers_rows_of_another(server: RedisServer) -> None:
    """Whoever names another's prefix in a manifest has a worker there, but for these rights."""
    server.add_user("owner", "owner")
    server.add_user("thief", "thief")
    owner = broker_of(server, "same", prefix="owner:", username="owner")
    thief = broker_of(server, "same", prefix="owner:", username="thief")
    await owner.connect()
    await owner.open([STREAM])
    told = await owner.hand_in([(STREAM, b"card 1234")])
    await thief.connect()
    for steal in as_another_tenant(thief):
        with pytest.raises(BrokerDownError, match=r"(?i)no permission.*one-queue\.md"):
            await steal()
    taken = await owner.take("one", {STREAM: 1}, 0.1)
    for one in (owner, thief):
        await one.close()

    assert list(told.places) == [one.place for one in taken]


@pytest.mark.parametrize(
    ("prefix", "api"),
    [("", "a}:rows"), ("", "{"), ("", ""), ("{a}:", "api"), ("a b:", "api"), ("", "a\n")],
)
def test_no_name_and_no_prefix_leads_elsewhere(prefix: str, api: str) -> None:
    """Braces are the slot of a Redis Cluster, and end where the name does."""
    with pytest.raises(ValueError, match="expected"):
        Keys(prefix, api)


async def test_tls_checks_the_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An authority of one's own is named by SSL_CERT_FILE; any other server is refused."""
    made = make_certificates(tmp_path)
    files = ["--tls-cert-file", str(made.server), "--tls-key-file", str(made.server)]
    files += ["--tls-ca-cert-file", str(made.authority), "--tls-auth-clients", "no"]
    with running_redis(tmp_path, *files, tls=True) as redis:
        stranger = broker_of(redis, "api", tls=True, host="localhost")
        with pytest.raises(BrokerDownError):
            await stranger.connect()
        monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))
        known = broker_of(redis, "api", tls=True, host="localhost")
        await known.connect()
        await known.open([STREAM])
        await known.close()


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"redis_version": "6.2.1"}, "too old"),
        ({"redis_version": "7.2.4", "maxmemory_policy": "volatile-lru"}, "noeviction"),
        ({"redis_version": "7.0.15", "maxmemory_policy": "noeviction"}, None),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, None),
    ],
)
def test_a_server_that_could_lose_rows_is_unfit(told: dict[str, str], says: str | None) -> None:
    """The message has the remedy."""
    problem = unfit(told)

    assert (says is None) == (problem is None)
    assert says is None or says in str(problem)


async def test_an_eviction_policy_is_refused(tmp_path: Path) -> None:
    """By what INFO says, which a user without CONFIG may ask."""
    with running_redis(tmp_path, "--maxmemory-policy", "allkeys-lru") as redis:
        broker = broker_of(redis, "api")
        with pytest.raises(BrokerUnfitError, match="allkeys-lru"):
            await broker.connect()
        await broker.close()


async def test_a_redis_without_memory_keeps_whom_it_knows(tmp_path: Path) -> None:
    """Signs of life, registering and opening are refused then even where they change nothing."""
    with running_redis(tmp_path) as redis:
        broker = broker_of(redis, "api")
        await broker.connect()
        await broker.open([STREAM])
        await broker.publish("1", b"says")
        await broker.register("known", [STREAM])
        await broker.sign("known", b"says")
        await broker.hand_in([(STREAM, b"a"), (STREAM, b"b")])
        taken = await broker.take("known", {STREAM: 1}, 0.1)
        redis.ask("CONFIG", "SET", "maxmemory", "1")

        await broker.connect()
        await broker.open([STREAM])
        await broker.publish("1", b"says")
        await broker.register("known", [STREAM])
        signed = await broker.sign("known", b"says")
        told = await broker.hand_in([(STREAM, b"c")])
        done = {STREAM: [one.place for one in taken]}
        written = await broker.answer([("web", b"1")], done)
        nothing_to_write = await broker.answer([], done)
        for unknown in (
            broker.open(["other:predict"]),
            broker.publish("2", b"says"),
            broker.register("unknown", [STREAM]),
            broker.sign("unknown", b"says"),
        ):
            with pytest.raises(BrokerFullError, match="maxmemory"):
                await unknown
        look = await broker.look([STREAM], ["known"])
        await broker.close()

    assert (True, False, True) == (signed, written, nothing_to_write)
    assert [None] == list(told.places)
    assert ({"known": b"says"}, {"known"}) == (look.workers, look.alive)
    assert 1 == look.depths[STREAM].length


async def test_streams_stay_for_a_week_after_a_worker_last_said_that_it_is_there(
    server: RedisServer,
) -> None:
    """Counted from when it connected, they went away under a worker that ran for longer."""
    broker = broker_of(server, "week")
    await broker.connect()
    await broker.open([STREAM])
    await broker.register("one", [STREAM])
    (key,) = server.keys("*week*rows*")
    server.ask("EXPIRE", key, "10")
    await broker.register("one", [STREAM])
    left = int(server.ask("TTL", key))
    await broker.close()

    assert 7 * 24 * 3600 == pytest.approx(left, abs=60)


async def test_rows_of_an_earlier_run_say_so(tmp_path: Path) -> None:
    """A snapshot may be older than what was run of it."""
    with running_redis(tmp_path) as redis:
        broker = broker_of(redis, "api")
        await broker.connect()
        await broker.open([STREAM])
        await broker.hand_in([(STREAM, b"a"), (STREAM, b"b"), (STREAM, b"c")])
        before = await broker.take("one", {STREAM: 1}, 0.1)
        redis.ask("SAVE")
        redis.kill()
        redis.start()
        await broker.connect()
        await broker.hand_in([(STREAM, b"d")])
        mine = await broker.mine("one", [STREAM])
        taken = await broker.take("two", {STREAM: 8}, 0.1)
        await asyncio.sleep(0.6)
        claimed = await broker.claim("three", await broker.left("one", [STREAM]))
        await broker.close()

    assert [(b"a", False)] == [(one.entry, one.restored) for one in before]
    assert [(b"a", True)] * 2 == [(one.entry, one.restored) for one in (*mine, *claimed)]
    assert [(b"b", True), (b"c", True), (b"d", False)] == [
        (one.entry, one.restored) for one in taken
    ]


async def test_a_row_of_an_older_build_is_of_this_run(server: RedisServer) -> None:
    """It says nothing of a run; while versions mix its clients would all be refused."""
    broker = broker_of(server, "older")
    await broker.connect()
    await broker.open([STREAM])
    server.ask("XADD", *server.keys("*older*rows*"), "*", "r", "a")
    (taken,) = await broker.take("one", {STREAM: 1}, 0.1)
    await broker.close()

    assert (b"a", False) == (taken.entry, taken.restored)


async def everything(broker: Broker) -> None:
    """Each command that is ever sent to Redis, those after a death and at an end too."""
    await broker.connect()
    await broker.open([STREAM])
    await broker.publish("1", b"says", ["0"])
    await broker.published()
    await broker.register("one", [STREAM])
    await broker.sign("one", b"says")
    await broker.look([STREAM], ["one"])
    told = await broker.hand_in([(STREAM, b"a"), (STREAM, b"b"), (STREAM, b"c")])
    places = [(STREAM, place) for place in told.places if place is not None]
    await broker.there(places)
    await broker.withdraw(places[2:])
    taken = await broker.take("one", {STREAM: 2}, 0.1)
    await broker.mine("one", [STREAM])
    await broker.owners([STREAM])
    await asyncio.sleep(0.6)
    claimed = await broker.claim("two", await broker.left("one", [STREAM]))
    assert 2 == len(taken) == len(claimed)
    await broker.answer([("web", b"1")], {STREAM: [one.place for one in taken]})
    await broker.answers("web", 1.0)
    await broker.answers("web", 0.0)
    await broker.forget(["two"])
    await broker.gone("one")


async def test_names_of_any_bytes_are_those_of_the_dead(server: RedisServer) -> None:
    """Messages of such a worker are claimed like any other's, and its name is forgotten."""
    broker, odd = broker_of(server, "names"), "\udcff\udcfe"
    await broker.connect()
    await broker.open([STREAM])
    await broker.hand_in([(STREAM, b"a")])
    with redis.Redis(host=HOST, port=server.port, password=PASSWORD) as anybody:
        anybody.sadd("batchedapi:{names}:workers", b"\xff\xfe")
        anybody.hset("batchedapi:{names}:methods", b"\xff\xfe", "says")
        rows = {f"batchedapi:{{names}}:rows:{STREAM}": ">"}
        anybody.xreadgroup("workers", b"\xff\xfe", rows)
    found = (await broker.look([STREAM])).workers, await broker.published()
    await asyncio.sleep(0.6)
    claimed = await broker.claim("one", await broker.left(odd, [STREAM]))
    await broker.forget([odd])
    await broker.publish("1", b"says", [odd])
    after = (await broker.look([STREAM])).workers, await broker.published()
    await broker.close()

    assert ({odd: None}, {odd: b"says"}) == found
    assert [b"a"] == [one.entry for one in claimed]
    assert ({}, {"1": b"says"}) == after


async def test_a_stream_that_takes_no_more_is_made_anew(server: RedisServer) -> None:
    """An entry with the last place there is, by anybody: Redis would refuse all others for ever."""
    broker = broker_of(server, "last")
    await broker.connect()
    await broker.open([STREAM])
    last = f"{2**64 - 1}-{2**64 - 1}"
    server.ask("XADD", f"batchedapi:{{last}}:rows:{STREAM}", last, "r", "a")
    with pytest.raises(QueueSpoiltError):
        await broker.hand_in([(STREAM, b"b")])
    await broker.connect()
    await broker.open([STREAM])
    told = await broker.hand_in([(STREAM, b"b")])
    await broker.close()

    assert {STREAM: 1} == told.lengths


async def test_what_the_guide_grants_is_enough(server: RedisServer) -> None:
    """And the test below has something to take away."""
    broker = broker_of(server, "enough")
    await everything(broker)
    await broker.close()


async def test_all_keys_of_an_api_are_in_one_slot_of_a_redis_cluster(tmp_path: Path) -> None:
    """Whatever its prefix; a command with keys of two slots would be refused."""
    with running_redis(tmp_path, "--cluster-enabled", "yes") as redis:
        redis.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        redis.add_user("tenant", "namespace")
        broker = broker_of(redis, "api", prefix="namespace:", username="tenant")
        async with asyncio.timeout(60.0):
            while True:
                with contextlib.suppress(BrokerDownError):  # it has not seen its slots yet
                    await everything(broker)
                    break
                await asyncio.sleep(0.1)
        await broker.close()
        slots = {redis.ask("CLUSTER", "KEYSLOT", key).strip() for key in redis.keys("*")}

    assert 1 == len(slots)


SELDOM: Final = frozenset({
    "+select",  # of another database than 0
    "+xgroup|delconsumer",  # of a worker that was forgotten after a minute
})  # fmt: skip


@pytest.mark.parametrize("right", sorted({r for r in documented_acl() if r[0] == "+"} - SELDOM))
async def test_a_missing_right_is_told_with_its_remedy(server: RedisServer, right: str) -> None:
    """By its name, and by none of the other errors that may follow from it."""
    server.ask("ACL", "SETUSER", USER, right.replace("+", "-"))
    broker = broker_of(server, right)
    try:
        with pytest.raises(BrokerDownError) as told:
            await everything(broker)
    finally:
        server.ask("ACL", "SETUSER", USER, right)
    await broker.close()

    assert right.removeprefix("+") in str(told.value).lower()
    assert "one-queue.md" in str(told.value)
