"""Queue entries of another release, or of anybody, are read, or named and lost."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import queue_traffic
from batchedapi_serving.codecs import Codec, codec_of
from batchedapi_serving.codecs.replies import ITEM
from batchedapi_serving.errors import ServingError
from batchedapi_serving.ipc import Frame, FrameReader, encode_frame
from batchedapi_serving.queue.entries import (
    Methods,
    read_answers,
    read_entry,
    read_methods,
    read_worker,
)
from batchedapi_serving.queue.fields import UnreadableError
from mutations import mutated
from queue_room import Room, Web, left_over, room

WORKER: Final = "904cca91250844d48fb9a5e74269e0f9"


def frame(data: bytes) -> Frame:
    """The only one."""
    (found,) = FrameReader().feed(data)
    return found


def methods_text() -> bytes:
    """The methods that the recorded worker serves."""
    ((_, _, _, text),) = queue_traffic.of("HSET", key="methods")
    return text


def worker_text() -> bytes:
    """The recorded worker's sign of life."""
    return next(text for _, _, text, *_ in queue_traffic.of("SET") if text != b"web")


CODECS: Final[dict[str, Codec]] = {
    spec.name: codec_of(spec) for spec in read_methods(methods_text())[0].specs
}


def traffic() -> Iterator[tuple[str, bytes, bytes]]:
    """Method, request and answer of everything that was asked."""
    requests = queue_traffic.of("XADD")
    answers = queue_traffic.of("RPUSH")
    for (_, key, _, _, entry, *_), (_, _, answer) in zip(requests, answers, strict=True):
        yield key.decode().rpartition(":")[2], entry, answer


KINDS: Final = sorted({method: (method, *rest) for method, *rest in [*traffic()][::-1]}.values())
"""The first request and answer of each method."""
_, ENTRY, PACK = next(kind for kind in KINDS if kind[0] == "predict")


# ---------------------------------------------------------------- what was recorded


def test_what_an_earlier_release_asked_and_answered_is_read() -> None:
    """While releases mix, one's web processes ask the other's workers."""
    for method, entry, pack in traffic():
        codec = CODECS[method]
        request = read_entry(entry)
        decoded = request.decoded(ITEM, codec)
        answers, broken = read_answers(pack)

        assert () == request.unread
        assert codec.collate([decoded.payload]).buffers
        assert ([request.number], 0) == ([answer.number for answer in answers], broken)
        assert () == answers[0].unread
        if method == "fails":
            with pytest.raises(ServingError, match="RuntimeError"):
                answers[0].results(codec, decoded.rows)
        else:
            results = answers[0].results(codec, decoded.rows)
            assert decoded.rows == len(results.items(0, decoded.rows))
            assert answers[0].receipt is not None


def test_what_an_earlier_release_says_of_itself_is_read() -> None:
    """Its signature is that of its streams; else its rows would wait for workers of another."""
    methods, at = read_methods(methods_text())
    worker = read_worker(WORKER, worker_text())

    assert {key.split(b":")[3].decode() for _, key, *_ in queue_traffic.of("XADD")} == {
        methods.signature
    }
    assert methods.signature == worker.signature
    assert set(CODECS) == worker.capacity.keys()
    assert at > 0


def test_the_signature_is_the_same_in_this_release() -> None:
    """Web processes and workers of both releases share their streams."""
    methods, _ = read_methods(methods_text())

    assert methods.signature == Methods.of(methods.specs, methods.default).signature


def test_the_signature_of_a_later_release_is_its_own() -> None:
    """A later release may have unknown fields; its workers take requests by its signature."""
    value = orjson.loads(methods_text())
    value["methods"][0]["new"] = 1
    later = orjson.dumps(value)

    methods, _ = read_methods(later)

    assert methods.signature != read_methods(methods_text())[0].signature
    assert methods.signature == read_methods(later)[0].signature


# ---------------------------------------------------------------- each field of each kind


def run_request(method: str, data: bytes) -> tuple[str, ...]:
    """Fields that are unread; what is read can be put into a batch."""
    codec = CODECS[method]
    entry = read_entry(data)
    decoded = entry.decoded(ITEM, codec)
    codec.collate([decoded.payload, codec.part(decoded.payload, 0, decoded.rows)])
    assert 1 <= decoded.rows <= 65536
    return entry.unread


@pytest.mark.parametrize("kind", KINDS, ids=[method for method, *_ in KINDS])
def test_a_request_with_any_field_changed_is_run_or_named(kind: tuple[str, bytes, bytes]) -> None:
    """A missing field, one more, or one of another type; nothing else is raised."""
    method, entry, _ = kind
    meta, payload = frame(entry)
    outcomes = {}
    for what, changed in mutated(meta):
        try:
            outcomes[what] = run_request(method, encode_frame(changed, [payload]))
        except UnreadableError as error:
            outcomes[what] = (str(error),)

    for what, unread in outcomes.items():
        if what.endswith("added"):
            assert () == unread, what
        elif what.endswith("removed") and what.count(".") == 0 and what != "trace removed":
            assert unread, what
    assert outcomes["trace = -1"] == ("trace",)
    assert "payload" in str(outcomes["payload = True"])


@pytest.mark.parametrize("kind", KINDS, ids=[method for method, *_ in KINDS])
def test_an_answer_with_any_field_changed_is_given_or_named(kind: tuple[str, bytes, bytes]) -> None:
    """An answer that is given has as many rows as the request."""
    method, entry, pack = kind
    rows = read_entry(entry).rows
    meta, payload = frame(pack)
    outcomes: dict[str, Any] = {}
    for what, changed in mutated(meta):
        answers, broken = read_answers(encode_frame(changed, [payload]))
        outcomes[what] = broken
        for answer in answers:
            try:
                results = answer.results(CODECS[method], rows)
            except ServingError:
                outcomes[what] = answer.unread
            except UnreadableError as error:
                outcomes[what] = str(error)
            else:
                outcomes[what] = answer.unread
                assert rows == len(results.items(0, rows)), what
                results.to_frame(0, rows)
            assert answer.receipt is None or len(answer.receipt.replica) >= 0

    assert 1 == outcomes["answer removed"]
    assert 1 == outcomes["answer = True"]
    assert ("trace",) == outcomes["trace = -1"]
    if method != "fails":
        assert ("receipt",) == outcomes["receipt = 'text'"]
        assert isinstance(outcomes["kind = None"], str)
    assert not any(unread for what, unread in outcomes.items() if what.endswith("added"))


def test_a_sign_of_life_with_any_field_changed_is_read_or_named() -> None:
    """As above."""
    outcomes = {}
    for what, changed in mutated(orjson.loads(worker_text())):
        try:
            read_worker(WORKER, orjson.dumps(changed))
            outcomes[what] = True
        except UnreadableError:
            outcomes[what] = False

    assert all(outcomes[what] for what in outcomes if "." not in what and what.endswith("added"))
    top = [read for what, read in outcomes.items() if what.endswith("removed") and "." not in what]
    assert [False] * 5 == top


def test_methods_with_any_field_changed_are_read_or_named() -> None:
    """The methods that can be read have codecs."""
    outcomes = {}
    for what, changed in mutated(orjson.loads(methods_text()), except_in="example"):
        try:
            for spec in read_methods(orjson.dumps(changed))[0].specs:
                codec_of(spec)
            outcomes[what] = True
        except UnreadableError:
            outcomes[what] = False

    assert all(read for what, read in outcomes.items() if what.endswith("added"))
    assert not outcomes["methods removed"]
    assert not outcomes["methods.0.name = ''"]
    assert not outcomes["methods.3.inputs.0.1 = 'text'"]
    assert not outcomes["default = 'text'"]


@given(st.binary(max_size=200), st.sampled_from(KINDS), st.data())
def test_any_bytes_are_read_or_named(
    noise: bytes, kind: tuple[str, bytes, bytes], data: st.DataObject
) -> None:
    """By nobody's release: cut, overwritten or random."""
    method, entry, pack = kind
    at = data.draw(st.integers(0, len(entry)))
    for text in (noise, entry[:at], entry[:at] + noise + entry[at + len(noise) :]):
        with contextlib.suppress(UnreadableError):
            run_request(method, text)
        with contextlib.suppress(UnreadableError):
            read_worker(WORKER, text)
    at = data.draw(st.integers(0, len(pack)))
    for text in (noise, pack[:at], pack[:at] + noise + pack[at + len(noise) :]):
        for answer in read_answers(text)[0]:
            with contextlib.suppress(UnreadableError, ServingError):
                answer.results(CODECS[method], 1)


def test_a_torn_pack_costs_only_what_is_torn() -> None:
    """And what cannot be read in the middle costs nobody behind it."""
    answers = [pack for _, _, pack in traffic()][:3]
    spoilt = encode_frame({"answer": "text"}), (4).to_bytes(4, "little") + bytes(8) + b"nope"

    read, broken = read_answers(b"".join([answers[0], *spoilt, answers[1], answers[2][:-1]]))

    assert ([1, 2], 3) == ([answer.number for answer in read], broken)


@pytest.mark.parametrize("dtype", ["|O", "<M8[s]", "<U4", "|V4", "(2,)<f4"])
def test_no_array_is_made_of_a_type_that_a_model_cannot_answer(dtype: str) -> None:
    """Numpy takes the bytes of objects for addresses, and the process is gone."""
    (pack,) = [pack for method, _, pack in KINDS if method == "sums"]
    meta, payload = frame(pack)
    meta["outputs"][0][1] = dtype
    (answer,), _ = read_answers(encode_frame(meta, [payload]))

    with pytest.raises(UnreadableError, match="results"):
        answer.results(CODECS["sums"], 1)


# ---------------------------------------------------------------- web processes and workers


def request_of(web: Web, number: int, changes: dict[str, Any], payload: bytes) -> bytes:
    """A recorded request, as if that web process had handed it in."""
    return encode_frame({**changes, "web": web.engine.line.name, "request": number}, [payload])


async def answered(here: Room, web: Web) -> None:
    """Good ones are, by processes that live."""
    asked = [web.ask({"id": n}) for n in range(8)]
    answers = [await one.answer() for one in asked]
    await asyncio.sleep(1.0)

    assert [{"id": n} for n in range(8)] == [orjson.loads(answer.body) for answer in answers]
    assert not any(task.done() for task in here.tasks)
    assert 0 == left_over(here.redis)


@pytest.mark.looptime
async def test_requests_that_cannot_be_read_cost_nobody_else_anything() -> None:
    """Each field of a request changed: it leaves the queue, is counted, and good ones are run."""
    meta, payload = frame(ENTRY)
    expected = 0
    async with room() as here:
        worker = await here.worker()
        web = await here.web()
        (stream,) = here.redis.streams.values()
        numbers = itertools.count(1 << 32)
        for _, changed in mutated(meta):
            data = encode_frame(changed, [payload])
            if changed.get("web") == meta["web"] and changed.get("request") == meta["request"]:
                data = request_of(web, next(numbers), changed, payload)
            try:
                expected += bool(run_request("predict", data))
            except UnreadableError:
                expected += 1
            place = here.redis.place()
            stream.entries[place], stream.runs[place] = data, here.redis.run
        for odd in (b"", b"\0" * 40, b"no frame"):
            place = here.redis.place()
            stream.entries[place], stream.runs[place] = odd, here.redis.run
        here.redis.tell()
        await answered(here, web)

    assert expected + 3 == worker.unread > 60


@pytest.mark.looptime
async def test_a_request_of_which_only_the_asker_is_known_is_answered() -> None:
    """Its client would wait until its time is over."""
    async with room() as here:
        worker = await here.worker(seconds=5.0)
        web = await here.web()
        asked = web.ask({"id": 1})
        (number,) = web.engine._held.by_number
        (stream,) = here.redis.streams.values()
        await asyncio.sleep(0.1)
        worker.die()
        ((place, data),) = stream.entries.items()
        meta, payload = frame(data)
        del meta["rows"]
        stream.entries[place] = encode_frame(meta, [payload])
        other = await here.worker()
        answer = await asked.answer()

    assert (500, 1) == (answer.status, other.unread)
    assert b"another release" in answer.body
    assert number == meta["request"]


@pytest.mark.looptime
async def test_answers_that_cannot_be_read_are_told_to_those_who_wait() -> None:
    """Each field of an answer changed; nobody waits longer, and nobody gets another's."""
    meta, payload = frame(PACK)
    changes = [changed for _, changed in mutated(meta)]
    async with room(max_batch_size=1) as here:
        await here.worker(seconds=1000.0)
        web = await here.web()
        asked = [web.ask({"id": n}, timeout=900.0) for n in range(len(changes))]
        await asyncio.sleep(1.0)
        packs = []
        for number, changed in zip(list(web.engine._held.by_number), changes, strict=True):
            told = changed
            if changed.get("answer") == meta["answer"] and changed.get("answer") is not True:
                told = {**changed, "answer": number}
            packs.append(encode_frame(told, [payload]))
        here.redis.lists[web.engine.line.name] = [
            b"".join(packs),
            b"torn",
            encode_frame({"hello": 1}),
        ]
        here.redis.tell()
        await asyncio.sleep(1.0)
        statuses = [answer.status for one in asked for answer in one.answers]
        ended = [task.done() for task in here.tasks]

    assert {200, 500} == set(statuses)
    assert not any(ended)
    assert len(changes) - 20 <= len(statuses) < len(changes)
    assert web.unread > 60


@pytest.mark.looptime
@pytest.mark.parametrize("kind", ["workers", "methods"])
async def test_what_others_say_of_themselves_ends_nobody(kind: str) -> None:
    """Signs of life, and what revisions serve: those that run, and those that start meanwhile."""
    text = worker_text() if kind == "workers" else methods_text()
    async with room() as here:
        worker = await here.worker()
        web = await here.web()
        odd = [json.dumps(changed).encode() for _, changed in mutated(orjson.loads(text))][:200]
        for number, said in enumerate([*odd, b"", b"not json", b"[]", b"\xff"]):
            name = f"other-{number}"
            if kind == "methods":
                here.redis.methods[name] = said
            else:
                here.redis.workers |= {name, "\udcff\udcfe", "", "a b"}
                here.redis.alive[name] = (here.loop.time() + 5.0, said)
        late, young = await here.worker(), await here.web()
        if kind == "workers":
            for process in (worker, late, web, young):
                assert process.unread > 10, process
            await asyncio.sleep(10.0)  # nobody hears of them any more
            assert {worker.puller.line.name, late.puller.line.name} == here.redis.workers
        else:
            assert late.unread > 10
            assert len(here.redis.methods) <= 8
        await answered(here, web)
        await answered(here, young)


@pytest.mark.looptime
async def test_a_worker_that_cannot_be_read_is_alive_and_counted_once() -> None:
    """Its rows are its own; a web process counted three a second."""
    async with room() as here:
        worker = await here.worker(seconds=3.0)
        web = await here.web()
        asked = web.ask({"id": 1})
        await asyncio.sleep(0.5)
        worker.die()
        name = worker.puller.line.name
        here.redis.alive[name] = (here.loop.time() + 10.0, b'{"of": "another release"}')
        other = await here.worker()
        await asyncio.sleep(8.0)
        taken = len(other.world.batches)
        answer = await asked.answer()

    assert (0, 1, 1) == (taken, other.unread, web.unread)
    assert 200 == answer.status


@pytest.mark.looptime
async def test_a_reason_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever may write to Redis could fill the log."""
    async with room() as here:
        worker = await here.worker()
        (stream,) = here.redis.streams.values()
        for _ in range(100):
            place = here.redis.place()
            stream.entries[place], stream.runs[place] = b"no frame", here.redis.run
        here.redis.tell()
        await asyncio.sleep(2.0)

    assert 100 == worker.unread
    assert 1 == sum("cannot be read" in record.message for record in caplog.records)


@pytest.mark.looptime
async def test_methods_that_somebody_deleted_are_said_again() -> None:
    """A web process that starts later would never know them."""
    async with room() as here:
        await here.worker()
        here.redis.methods.clear()
        await asyncio.sleep(11.0)
        web = await here.web()
        answer = await web.ask({"id": 1}).answer()

    assert 200 == answer.status
