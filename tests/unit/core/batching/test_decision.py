"""Concrete situations and the expected action; all through the batcher, in virtual time.

Unless stated t(n) = 10 ms + 0.2 ms n, 64 rows a batch, an interval of 20 ms and one lane.
"""

from collections.abc import Sequence
from math import inf

import pytest

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Client,
    Idle,
    Release,
    Request,
    Strategy,
    WaitUntil,
    next_action,
)
from batchedapi_core.batching.traffic import TICK, AnsweredGroup, ThinkTime

FIXED, PER_ROW = 0.010, 0.0002  # seconds


class World:
    """A batcher that knows t(n), its clients and a clock that only this test moves."""

    def __init__(
        self, *, fixed: float = FIXED, per_row: float = PER_ROW, interval: float = 0.020,
        target: float | None = None, strategy: Strategy = Strategy.WINDOW,
    ) -> None:  # fmt: skip
        policy = BatchPolicy(64, interval, strategy, target)
        self.batcher: Batcher = Batcher(policy)
        self.batcher.lane_added(0.0)
        self.fixed, self.per_row, self.now = fixed, per_row, 0.0
        for size in (1, 16, 64) * 16:
            self.batcher.service.observe(size, self.seconds(size))

    def seconds(self, size: int) -> float:
        """The true t(n)."""
        return self.fixed + self.per_row * size

    def arrive(self, *clients: Client, at: float | None = None) -> None:
        """One row of each client; `at` moves the clock."""
        self.now = self.now if at is None else at
        for client in clients:
            self.batcher.arrive(Request(0, "", 1, 1, client, self.now, inf), self.now)

    def start(self) -> list[Request]:
        """A batch of whatever is queued."""
        requests, _ = self.batcher.take(64, self.now)
        self.batcher.started(len(requests), self.now)
        return requests

    def finish(self, requests: list[Request]) -> None:
        """It ends now."""
        self.batcher.finished(requests, self.seconds(len(requests)), self.now)

    def run(self) -> None:
        """A batch of whatever is queued, from start to end."""
        requests = self.start()
        self.now += self.seconds(len(requests))
        self.finish(requests)

    def answer_together(
        self, clients: Sequence[Client], gaps: Sequence[float], rounds: int = 30
    ) -> None:
        """They return after their gaps and are answered together, so often; last just now."""
        for _ in range(rounds):
            answered = self.now
            for gap, client in sorted(zip(gaps, clients, strict=True), key=lambda pair: pair[0]):
                self.arrive(client, at=answered + gap)
            self.run()

    def ask(self) -> Release | WaitUntil | Idle:
        """The decision now."""
        return next_action(self.batcher, self.now)

    def wait(self) -> WaitUntil:
        """The decision now, which has to be a wait."""
        action = self.ask()
        assert isinstance(action, WaitUntil)
        return action


def clients_of(count: int) -> list[Client]:
    """New connections."""
    return [Client() for _ in range(count)]


def around_1ms(count: int) -> list[float]:
    """Gaps of half the clients 1 ms, of the others 1.2 ms."""
    return [0.001] * (count // 2) + [0.0012] * (count - count // 2)


def test_nothing_queued_is_idle() -> None:
    """There is nothing to decide until a request comes."""
    assert Idle() == World().ask()


def test_no_free_lane_is_idle() -> None:
    """The lane that becomes free asks again."""
    world = World()
    world.arrive(Client())
    world.start()
    world.arrive(Client())

    assert Idle() == world.ask()
    assert Idle() == next_action(world.batcher, world.now, ahead=True)  # only a full batch is sent


def test_a_full_queue_goes_at_once() -> None:
    """Nothing can be gained by waiting."""
    world = World()
    world.arrive(*clients_of(100))

    assert Release(64, "full") == world.ask()


def test_an_unknown_model_is_served_eagerly() -> None:
    """Before t(n) is known nothing says that a wait pays."""
    batcher: Batcher = Batcher(BatchPolicy(64, 0.020))
    batcher.lane_added(0.0)
    batcher.arrive(Request(0, "", 1, 1, Client(), 0.0, inf), 0.0)

    assert Release(1, "early") == next_action(batcher, 0.0)


@pytest.mark.parametrize("gap", [0.0001, 0.001, 0.02, 0.5])
def test_a_lone_client_never_waits(gap: float) -> None:
    """Its next request comes only after this answer, so the whole interval would be lost."""
    world, client = World(), Client()
    actions = []
    for _ in range(60):
        world.arrive(client, at=world.now + gap)
        actions.append(world.ask())
        world.run()

    assert {Release(1, "early")} == set(actions)


def test_two_clients_in_turn_merge() -> None:
    """The first back waits for the other, and not a moment longer than until both are here."""
    world, (one, other) = World(), clients_of(2)
    world.answer_together([one, other], [0.0009, 0.0011])
    answered = world.now

    world.arrive(one, at=answered + 0.0005)
    wait = world.wait()
    world.arrive(other, at=answered + 0.0011)

    assert answered + 0.001 < wait.at < answered + 0.003
    assert wait.size == 2
    assert Release(2, "early") == world.ask()


def half_batch(world: World, gaps: Sequence[float]) -> World:
    """Clients of these gaps were just answered; as many others arrived during their batch."""
    clients = clients_of(len(gaps))
    world.answer_together(clients, gaps)
    answered = world.now
    for gap, client in zip(gaps, clients, strict=True):
        world.arrive(client, at=answered + gap)
    batch = world.start()
    world.arrive(*clients_of(len(gaps)))
    world.now += world.seconds(len(gaps))
    world.finish(batch)
    return world


def test_half_batches_merge() -> None:
    """Two halves in turn are a stable state at half the throughput, unless somebody waits."""
    wait = half_batch(World(), around_1ms(32)).wait()

    assert wait.size == 64


def test_the_window_counts_from_the_free_lane() -> None:
    """Otherwise a request queued during a batch has used the interval up and merges with nobody."""
    world = half_batch(World(interval=0.005), around_1ms(32))
    free_since = world.now

    wait = world.wait()

    assert free_since < wait.at <= free_since + 0.005


def test_one_over_the_batch_size_waits_for_the_full_batch() -> None:
    """65 clients: the odd one must not run alone in every second batch."""
    world, odd = World(), Client()
    clients = clients_of(64)
    world.answer_together(clients, around_1ms(64))
    world.arrive(odd)

    wait = world.wait()

    assert wait.at < world.now + 0.003
    assert wait.size == 64


def test_clients_that_left_cost_one_short_wait() -> None:
    """When nobody comes, who is here goes at the time the wait ends."""
    world = World()
    world.answer_together(clients_of(63), around_1ms(63))
    world.arrive(Client())

    world.now = world.wait().at

    assert Release(1, "early") == world.ask()


def test_clients_that_think_longer_than_they_save_are_not_awaited() -> None:
    """16 rows saved at 10 ms each are less than 16 rows delayed by 21 ms each."""
    world = half_batch(World(), [0.019] * 8 + [0.021] * 8)

    assert Release(16, "early") == world.ask()


def test_slow_returners_are_thought_over_before_all_are_back() -> None:
    """63 clients back within 14 to 34 ms: the first waits, but those here not for the last ones."""
    world, clients = World(interval=0.100), clients_of(63)
    gaps = [0.014 + 0.020 * i / 62 for i in range(63)]
    world.answer_together(clients, gaps)
    answered = world.now
    world.arrive(clients[0], at=answered + gaps[0])

    wait = world.wait()
    for gap, client in zip(gaps[1 : wait.size], clients[1:], strict=False):
        world.arrive(client, at=answered + gap)

    assert 1 < wait.size < 63
    assert wait.size == world.batcher.queue.size
    assert Release(wait.size, "early") == world.ask()


def test_who_is_back_already_is_not_awaited_again() -> None:
    """Six quick clients are here: the wait is for the six slower ones, then it is over."""
    world, clients = World(), clients_of(12)
    world.answer_together(clients, [0.0001] * 6 + [0.001] * 6)
    world.arrive(*clients[:6], at=world.now + 0.0001)

    assert world.wait().size == 12


def test_a_wait_for_a_late_client_goes_on_to_its_end() -> None:
    """The usual time of return is over and the other may come any moment: one more is worth it."""
    world, (one, other) = World(), clients_of(2)
    world.answer_together([one, other], [0.0009, 0.0011])
    answered = world.now
    world.arrive(one, at=answered + 0.0009)
    end = world.wait().at

    world.now = answered + 0.9 * (end - answered)

    assert WaitUntil(end, 2) == world.ask()


def test_a_cheap_model_is_not_kept_waiting() -> None:
    """With 0.05 ms of fixed cost there is nothing to save."""
    world = half_batch(World(fixed=0.00005, per_row=0.000012), around_1ms(16))

    assert Release(16, "early") == world.ask()


def test_poisson_strangers_are_served_eagerly() -> None:
    """For them the exact optimum beats eager service by less than 1 %."""
    world = World()
    for i in range(200):
        world.arrive(Client(), at=world.now + 0.002)
        if i % 5 == 4:
            world.run()
    world.arrive(*clients_of(9), at=world.now + 0.002)

    assert Release(9, "early") == world.ask()


def bursty_world() -> World:
    """Thirty bursts of fifty rows within 1 ms were served."""
    world = World()
    world.arrive(Client())
    world.run()
    for start in range(1, 31):
        for i in range(50):
            world.arrive(Client(), at=start + i * 20e-6)
        world.run()
    return world


def test_bursts_are_collected() -> None:
    """The first row of a burst waits for the others."""
    world = bursty_world()
    world.arrive(Client(), at=100.0)

    wait = world.wait()

    assert 100.0009 < wait.at < 100.002
    assert wait.size == 0


def test_a_burst_ends() -> None:
    """When its usual time is over, who is here goes."""
    world = bursty_world()
    world.arrive(Client(), at=100.0)

    world.now = world.wait().at

    assert Release(1, "early") == world.ask()


def test_regulars_do_not_wait_for_a_strangers_burst() -> None:
    """A burst is a guess; clients known to be all here are not delayed for it."""
    world, clients = bursty_world(), clients_of(2)
    world.answer_together(clients, [0.001, 0.001])
    world.arrive(Client(), *clients, at=world.now + 0.001)

    assert Release(3, "early") == world.ask()


@pytest.mark.parametrize("queued", [20, 40])
def test_two_lanes_share_the_clients(queued: int) -> None:
    """64 known rows are 32 for each lane: 20 wait for more, 40 do not."""
    world, clients = World(), clients_of(63)
    world.batcher.lane_added(0.0)
    world.arrive(Client())
    world.start()
    world.answer_together(clients, [0.0001] * 31 + [0.00012] * 32)
    world.arrive(*clients[:queued], at=world.now + 0.00005)

    action = world.ask()

    if queued == 20:
        assert isinstance(action, WaitUntil)
        assert action.size == 0
    else:
        assert Release(40, "early") == action


@pytest.mark.parametrize("interval", [0.0, 0.0005])
def test_the_interval_bounds_every_wait(interval: float) -> None:
    """The user's promise of how long a request is held, a tick more for who is due; 0: never."""
    world = World(interval=interval)
    world.answer_together(clients_of(64), around_1ms(64))
    world.arrive(Client())
    arrived = world.now

    if interval:
        world.now = world.wait().at

    assert pytest.approx(arrived + (interval and interval + TICK)) == world.now
    assert Release(1, "interval") == world.ask()


def test_an_interval_that_ends_as_clients_come_splits_nobody() -> None:
    """62 of them think for 0.99 to 1.01 ms, as long as the interval is."""
    world, clients = World(interval=0.001), clients_of(62)
    gaps = [0.00099 + 0.00002 * n / 61 for n in range(62)]
    world.answer_together(clients, gaps)
    world.arrive(Client(), Client())

    wait = world.wait()

    assert wait.size == 64
    assert wait.at >= world.now + max(gaps)


def test_a_latency_target_nearly_used_up_ends_the_wait() -> None:
    """21 ms queued + 1.2 * 10.2 ms of service leave nothing of 30 ms."""
    world, clients = World(target=0.030), clients_of(64)
    world.answer_together(clients, around_1ms(64), rounds=29)
    world.arrive(*clients, at=world.now + 0.001)
    batch = world.start()
    world.arrive(Client())
    world.now += world.seconds(64)
    world.finish(batch)

    assert Release(1, "deadline") == world.ask()


def test_a_latency_target_shortens_the_wait() -> None:
    """The wait ends where the time left is what the batch is expected to take, and a fifth."""
    world = World(target=0.0127)
    world.answer_together(clients_of(64), around_1ms(64))
    world.arrive(Client())

    assert pytest.approx(world.now + 0.0127 - 1.2 * 0.0102) == world.wait().at


def test_draining_waits_for_nobody() -> None:
    """A pod that was told to stop answers what it has."""
    world = World()
    world.answer_together(clients_of(64), around_1ms(64))
    world.arrive(Client())
    world.batcher.draining = True

    assert Release(1, "drain") == world.ask()


def test_fixed_holds_a_partial_batch_for_the_interval_from_the_oldest() -> None:
    """The rule of the batching servers people come from; nothing is learned into it."""
    world = World(strategy=Strategy.FIXED)
    world.arrive(Client(), at=1.0)
    world.arrive(Client(), at=1.015)

    waiting = world.ask()
    world.now = 1.02

    assert WaitUntil(1.02, 64) == waiting
    assert Release(2, "interval") == world.ask()


def test_fixed_counts_the_time_a_lane_was_busy() -> None:
    """Unlike Window, the interval runs from the arrival whatever the lanes do."""
    world = World(strategy=Strategy.FIXED)
    world.arrive(*clients_of(64), at=1.0)
    batch = world.start()
    world.arrive(Client(), at=1.001)
    world.now = 1.0228
    world.finish(batch)

    assert Release(1, "interval") == world.ask()


def test_a_wait_shorter_than_the_clock_resolves_is_none() -> None:
    """A wait until now would make the caller ask again at once, for ever."""
    world, now = World(), 1e14  # seconds, where a float steps by 16 ms
    world.batcher.lane_added(0.0)
    world.arrive(Client())
    world.start()
    world.arrive(*clients_of(20), at=now)
    group = AnsweredGroup(ThinkTime(0.010), now)
    group.size = group.away = 20  # 0.3 more rows make this lane's fair share: 1 ms away
    group.start = now
    world.batcher.returning.groups = [group]

    assert Release(20, "early") == world.ask()


def test_the_same_question_twice_gets_the_same_answer() -> None:
    """A decision that changed what it reads would depend on how often it is asked."""
    world = World()
    world.answer_together(clients_of(64), around_1ms(64))
    world.arrive(*clients_of(3))

    assert world.wait() == world.wait()


def test_immediate_releases_whatever_waits() -> None:
    """No rule, no learning: a lane is free."""
    world = World(strategy=Strategy.IMMEDIATE)
    world.arrive(*clients_of(3))

    assert Release(3, "early") == world.ask()
