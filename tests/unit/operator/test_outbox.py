"""The outbox, in virtual time: who is sent when, and what an apiserver in need is spared."""

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from batchedapi_operator.cluster import ObjectKey
from batchedapi_operator.errors import (
    ApplyError,
    ConflictError,
    NamespaceGoingError,
)
from batchedapi_operator.outbox import (
    ADVICE_EVENTS,
    AT_ONCE,
    AUTOSCALER_STATUS,
    EVENTS_AT_ONCE,
    FIGURES_GIVE_WAY,
    METRICS_EVENT,
    RECONCILER_STATUS,
    REPLICAS,
    SAVED_STATUS_WRITES,
    SCALE_EVENT,
    STATE_EVENTS,
    News,
    Outbox,
)

pytestmark = pytest.mark.looptime

KEY = ObjectKey("demo", "iris")
Send = Callable[[], Awaitable[None]]


class Sent:
    """An apiserver that notes what it was told, and when."""

    def __init__(self) -> None:
        self.words: list[tuple[float, str]] = []
        self.error: ApplyError | None = None
        self.takes = 0.0

    def word(self, text: str) -> Send:
        """To be put into an outbox."""

        async def send() -> None:
            self.words.append((asyncio.get_running_loop().time(), text))
            await asyncio.sleep(self.takes)
            if self.error is not None:
                raise self.error

        return send

    @property
    def texts(self) -> list[str]:
        """In order."""
        return [text for _, text in self.words]


def key(number: int) -> ObjectKey:
    """One of many APIs."""
    return ObjectKey("demo", f"api-{number:03d}")


async def outbox_for(seconds: float, put: Callable[[Outbox], None]) -> None:
    """Run one that `put` was called with for `seconds`."""
    outbox = Outbox(monotonic=asyncio.get_running_loop().time)
    put(outbox)
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(seconds)
    assert not running.done()
    running.cancel()


@pytest.mark.parametrize("seed", range(5))
async def test_the_apiserver_gets_no_more_than_ten_statuses_in_any_second(seed: int) -> None:
    """A thousand APIs of an operator that starts must not be a thousand writes.

    Nor does the apiserver get after a pause all that was sent meanwhile.
    """
    chance, came = random.Random(seed), list[float]()

    async def send() -> None:
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.3, 2.0)))
        came.append(asyncio.get_running_loop().time())
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.3, 2.0)))

    def put(outbox: Outbox) -> None:
        for number in range(200):
            outbox.put(key(number), RECONCILER_STATUS, send)

    await outbox_for(200.0, put)

    assert 200 == len(came)
    assert all(
        later - earlier > 1.0 - 1e-5 for earlier, later in zip(came, came[10:], strict=False)
    )


async def test_a_changed_condition_waits_for_no_token_and_goes_before_all_others() -> None:
    """A rollout of many replicas had used them up, and what broke then was told 10 s later."""
    sent = Sent()

    def put(outbox: Outbox) -> None:
        loop = asyncio.get_running_loop()
        for number in range(30):
            outbox.put(key(number), RECONCILER_STATUS, sent.word("count"))
        for second in range(2, 22):
            write = sent.word("broken" if second % 2 else "mended")
            loop.call_at(second, outbox.put, key(0), RECONCILER_STATUS, write, News.CONDITION)
        loop.call_at(1.5, outbox.put, key(99), RECONCILER_STATUS, sent.word("first"),
                     News.CONDITION)  # fmt: skip

    await outbox_for(30.0, put)

    told = [time for time, text in sent.words if text in {"broken", "mended"}]
    assert [pytest.approx(second, abs=1.01) for second in range(2, 22)] == told
    assert sent.texts.index("first") < 25


async def test_what_takes_the_place_of_a_condition_waits_no_longer_than_it() -> None:
    """It has the condition in it."""
    sent = Sent()

    def put(outbox: Outbox) -> None:
        for number in range(20):
            outbox.put(key(number), RECONCILER_STATUS, sent.word("other"))
        outbox.put(KEY, RECONCILER_STATUS, sent.word("broken"), News.CONDITION)
        outbox.put(KEY, RECONCILER_STATUS, sent.word("newer"))

    await outbox_for(5.0, put)

    assert "newer" == sent.texts[0]


async def test_statuses_that_are_answered_at_once_go_out_ten_a_second() -> None:
    """No slower than they may."""
    sent = Sent()

    def put(outbox: Outbox) -> None:
        for number in range(200):
            outbox.put(key(number), RECONCILER_STATUS, sent.word(str(number)))

    await outbox_for(19.5, put)

    assert 200 == len(sent.words)


async def test_of_one_api_the_newest_is_sent_and_no_older() -> None:
    """News that became outdated while it waited is of no use to anybody."""
    sent = Sent()

    def put(outbox: Outbox) -> None:
        for text in ("old", "newer", "newest"):
            outbox.put(KEY, RECONCILER_STATUS, sent.word(text))

    await outbox_for(30.0, put)

    assert ["newest"] == sent.texts


async def test_a_flapping_api_is_written_six_times_and_then_every_ten_seconds() -> None:
    """A crash loop must not become a write loop, and its neighbours have their turn."""
    sent, outbox = Sent(), Outbox(monotonic=asyncio.get_running_loop().time)
    running = asyncio.create_task(outbox.run())
    for number in range(60):
        outbox.put(KEY, RECONCILER_STATUS, sent.word(str(number)))
        await asyncio.sleep(1.0)
    running.cancel()

    assert SAVED_STATUS_WRITES + 5 <= len(sent.words) <= SAVED_STATUS_WRITES + 7


async def test_figures_give_way_to_states_but_not_for_ever() -> None:
    """A failure is seen before a rate that moved by 5 %; the rate is seen, too."""
    sent = Sent()

    def put(outbox: Outbox) -> None:
        for number in range(100):
            outbox.put(key(number), AUTOSCALER_STATUS, sent.word("figures"), News.FIGURES)
        for number in range(100, 500):
            outbox.put(key(number), RECONCILER_STATUS, sent.word("state"))

    await outbox_for(FIGURES_GIVE_WAY - 1.0, put)
    assert {"state"} == set(sent.texts)

    sent.words.clear()
    await outbox_for(64.0, put)
    assert 100 == sent.texts.count("figures")


async def test_replicas_wait_for_no_status() -> None:
    """They are what clients wait for."""
    sent = Sent()

    def put(outbox: Outbox) -> None:
        for number in range(100):
            outbox.put(key(number), RECONCILER_STATUS, sent.word("status"))
            outbox.put(key(number), REPLICAS, sent.word("replicas"))

    await outbox_for(1.0, put)

    assert 100 == sent.texts.count("replicas")


async def test_replicas_wait_for_no_event() -> None:
    """An apiserver that hangs would hold them up for as long as a request may take.

    One that is caught up with has better to do than to take a hundred events at once.
    """
    sent, hung, outbox = Sent(), Sent(), Outbox(monotonic=asyncio.get_running_loop().time)
    hung.takes = 15.0
    running = asyncio.create_task(outbox.run())
    for number in range(100):
        for kind in (STATE_EVENTS, SCALE_EVENT, ADVICE_EVENTS, METRICS_EVENT):
            outbox.put(key(number), kind, hung.word(kind))
    await asyncio.sleep(1.0)
    for number in range(100):
        outbox.put(key(number), REPLICAS, sent.word("replicas"))
    await asyncio.sleep(1.0)
    running.cancel()

    assert 100 == len(sent.words)
    assert EVENTS_AT_ONCE == len(hung.words)


async def test_a_successor_is_told_after_its_predecessor_was() -> None:
    """Two words of one kind about one name are never under way at once."""
    old, new, outbox = Sent(), Sent(), Outbox(monotonic=asyncio.get_running_loop().time)
    old.takes = 5.0
    running = asyncio.create_task(outbox.run())
    outbox.put(KEY, RECONCILER_STATUS, old.word("predecessor"))
    await asyncio.sleep(1.0)
    outbox.forget(KEY)
    outbox.put(KEY, RECONCILER_STATUS, new.word("successor"))
    await asyncio.sleep(10.0)
    running.cancel()

    (begun, _), (told, _) = *old.words, *new.words
    assert told >= begun + 5.0


async def test_an_api_may_go_between_the_turn_of_a_write_and_its_beginning() -> None:
    """The task that sends was made and has not run: whoever sends for the others must go on."""
    now = asyncio.get_running_loop().time
    sent, outbox = Sent(), Outbox(monotonic=now)
    outbox.put(KEY, RECONCILER_STATUS, sent.word("gone"))
    address = outbox.take(now())
    assert address is not None
    outbox.forget(KEY)
    await outbox.deliver(address)
    outbox.put(KEY, RECONCILER_STATUS, sent.word("successor"))
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(2.0)
    running.cancel()

    assert ["successor"] == sent.texts


async def test_nothing_is_left_of_an_api_that_is_gone() -> None:
    """Also where something was under way: names come and go for years."""
    sent, outbox = Sent(), Outbox(monotonic=asyncio.get_running_loop().time)
    sent.takes, sent.error = 5.0, ApplyError("no answer", 0)
    running = asyncio.create_task(outbox.run())
    for kind in (RECONCILER_STATUS, REPLICAS, SCALE_EVENT):
        outbox.put(KEY, kind, sent.word(kind))
    await asyncio.sleep(1.0)
    outbox.forget(KEY)
    await asyncio.sleep(10.0)
    running.cancel()

    assert 3 == len(sent.words)
    assert not outbox._boxes


@pytest.mark.parametrize("status", [None, 404])
async def test_what_was_sent_is_not_kept(status: int | None) -> None:
    """It holds whole documents, and there are several for each of a thousand APIs."""
    sent, outbox = Sent(), Outbox(monotonic=asyncio.get_running_loop().time)
    sent.error = None if status is None else ApplyError("not found", status)
    word = sent.word("status")
    kept = weakref.ref(word)
    outbox.put(KEY, RECONCILER_STATUS, word)
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(1.0)
    del word
    sent.error = None  # whose traceback has it, too
    gc.collect()

    assert 1 == len(sent.words)
    assert kept() is None
    running.cancel()


async def test_a_refused_write_is_tried_again_ever_more_slowly_and_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Today's every 2 s for each API would be all of the pace; others go out as ever."""
    sent, bad = Sent(), Sent()
    bad.error = ApplyError("422 not a status", 422)

    def put(outbox: Outbox) -> None:
        outbox.put(KEY, AUTOSCALER_STATUS, bad.word("bad"))
        outbox.put(key(1), AUTOSCALER_STATUS, sent.word("good"))

    await outbox_for(600.0, put)

    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(bad.words)]
    assert 45.0 <= pauses[-1] <= 60.0
    assert len(bad.words) < 20
    assert ["good"] == sent.texts
    assert len(bad.words) == len(caplog.records)


async def test_a_rest_is_over_when_the_clock_is_next_to_its_end() -> None:
    """A timer may be over by less than the clock can tell: that must not be a loop without end."""
    sent, now = Sent(), 100.0
    sent.error = ApplyError("later", 503)
    outbox = Outbox(monotonic=lambda: now)
    outbox.put(KEY, REPLICAS, sent.word("three"))
    address = outbox.take(now)
    assert address is not None
    await outbox.deliver(address)

    end = outbox._boxes[address].rests_until

    assert outbox.take(end - 1e-3) is None
    assert address == outbox.take(end - 1e-9)


@pytest.mark.parametrize(
    "error",
    [
        ApplyError("404", 404),
        NamespaceGoingError("403", 403),
    ],
)
async def test_what_is_gone_is_not_written_to_again(
    error: ApplyError, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name may be another's by now. Users delete APIs: nobody is warned of that."""
    sent = Sent()
    sent.error = error

    await outbox_for(60.0, lambda outbox: outbox.put(KEY, AUTOSCALER_STATUS, sent.word("late")))

    assert 1 == len(sent.words)
    assert not caplog.records


async def test_what_somebody_else_wrote_in_between_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another status of the same API that arrives at that moment is no reason to lose this one."""
    sent = Sent()
    sent.error = ConflictError("409 the object has been modified", 409)

    await outbox_for(30.0, lambda outbox: outbox.put(KEY, RECONCILER_STATUS, sent.word("status")))

    assert 2 <= len(sent.words)
    assert not caplog.records


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("end", [Outbox.withdraw, lambda outbox, key, _kind: outbox.forget(key)])
async def test_what_is_withdrawn_while_it_is_sent_and_fails_is_not_sent_again(
    end: Callable[[Outbox, ObjectKey, str], None], *, newer: bool
) -> None:
    """An API that was paused meanwhile must not be scaled later; what comes after holds."""
    sent, outbox = Sent(), Outbox(monotonic=asyncio.get_running_loop().time)
    sent.takes, sent.error = 5.0, ApplyError("no answer", 0)
    running = asyncio.create_task(outbox.run())
    outbox.put(KEY, REPLICAS, sent.word("old"))
    await asyncio.sleep(1.0)
    assert ["old"] == sent.texts

    end(outbox, KEY, REPLICAS)
    if newer:
        outbox.put(KEY, REPLICAS, sent.word("newer"))
    await asyncio.sleep(60.0)
    running.cancel()

    assert {"old", "newer"} == set(sent.texts) if newer else ["old"] == sent.texts
    assert 1 == sent.texts.count("old")


async def test_an_apiserver_that_hangs_holds_up_who_puts_nothing_in_and_is_caught_up_with() -> None:
    """Requests end after a time; the newest of each API goes out when it answers again."""
    sent, beats = Sent(), list[float]()
    loop = asyncio.get_running_loop()
    outbox = Outbox(monotonic=loop.time, beat=lambda: beats.append(loop.time()))
    sent.takes, sent.error = 15.0, ApplyError("no answer", 0)
    running = asyncio.create_task(outbox.run())
    for look in range(90):  # three minutes
        for number in range(100):
            outbox.put(key(number), REPLICAS, sent.word(f"{number} at {look}"))
        await asyncio.sleep(2.0)
    assert AT_ONCE * 13 >= len(sent.words)
    assert max(later - earlier for earlier, later in pairwise(beats)) <= 5.0

    sent.takes, sent.error = 0.01, None
    sent.words.clear()
    answers = loop.time()
    await asyncio.sleep(60.0)
    running.cancel()

    newest = {f"{number} at 89" for number in range(100)}
    done = {text: time for time, text in sent.words if text in newest}
    assert newest == done.keys()
    assert max(done.values()) - answers <= 15.0 + 10.0  # those under way end first


@pytest.mark.parametrize(("status", "times"), [(0, 2), (503, 2), (422, 1)])
async def test_an_apiserver_that_answers_again_ends_the_rests_of_what_it_did_not_answer(
    status: int, times: int
) -> None:
    """The rests of many add up to more than anybody should wait; what was refused has its own."""
    sent, outbox = Sent(), Outbox(monotonic=asyncio.get_running_loop().time)
    sent.error = ApplyError("no", status)
    running = asyncio.create_task(outbox.run())
    outbox.put(KEY, REPLICAS, sent.word("replicas"))
    await asyncio.sleep(0.2)

    outbox.go_on()
    await asyncio.sleep(0.1)
    running.cancel()

    assert times == len(sent.words)


@pytest.mark.parametrize(("status", "times"), [(504, [0.0, 5.0]), (403, [0.0])])
async def test_what_was_sent_before_the_apiserver_answered_again_and_fails_after_it_does_not_rest(
    status: int, times: list[float]
) -> None:
    """An apiserver that was stopped gives up what it was asked before, once it goes on."""
    sent, outbox = Sent(), Outbox(monotonic=asyncio.get_running_loop().time)
    sent.takes, sent.error = 5.0, ApplyError("gave up", status)
    running, began = asyncio.create_task(outbox.run()), asyncio.get_running_loop().time()
    outbox.put(KEY, REPLICAS, sent.word("replicas"))
    await asyncio.sleep(4.0)

    outbox.go_on()
    await asyncio.sleep(1.2)
    running.cancel()

    assert times == [pytest.approx(time - began, abs=0.01) for time, _ in sent.words]


async def test_what_is_withdrawn_or_of_an_api_that_is_gone_is_not_sent() -> None:
    """A decision that no longer holds must not be carried out late."""
    sent = Sent()

    def put(outbox: Outbox) -> None:
        outbox.put(KEY, REPLICAS, sent.word("withdrawn"))
        outbox.withdraw(KEY, REPLICAS)
        outbox.put(key(1), REPLICAS, sent.word("gone"))
        outbox.forget(key(1))

    await outbox_for(60.0, put)

    assert [] == sent.words


async def test_once_another_replica_leads_nothing_more_is_sent() -> None:
    """It was decided before that one decided, whatever is under way or waits to be tried again."""
    sent, outbox = Sent(), Outbox(monotonic=asyncio.get_running_loop().time)
    sent.takes, sent.error = 1.0, ApplyError("no answer", 0)
    running = asyncio.create_task(outbox.run())
    for number in range(3):
        outbox.put(key(number), REPLICAS, sent.word(str(number)))
        await asyncio.sleep(0.4)
    outbox.clear()
    await asyncio.sleep(600.0)
    running.cancel()

    assert ["0", "1", "2"] == sent.texts
    assert not outbox._boxes
