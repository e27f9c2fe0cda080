"""How many connections there may be, who leaves for one more, and how many bytes are held."""

import asyncio

import pytest

from batchedapi_serving.web.limits import (
    ACTIVE,
    BODIES_BYTES,
    MOST_CONNECTIONS,
    MOST_REFUSED,
    NOBODY,
    RESERVED_DESCRIPTORS,
    BodyBudget,
    ConnectionLimit,
    HeldBodies,
    descriptors_wanted,
    most_connections,
)
from connections import Peer, Server

GET = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\n1"


@pytest.mark.parametrize(
    ("descriptors", "concurrency", "grpc", "expected"),
    [
        (1 << 20, 1024, False, MOST_CONNECTIONS),
        (1 << 20, 1024, True, MOST_CONNECTIONS),
        (1 << 20, 30_000, False, 60_000),
        (4096, 1024, False, 4096 - RESERVED_DESCRIPTORS),
        (4096, 1024, True, (4096 - RESERVED_DESCRIPTORS) // 2),
        (600, 1024, False, 300),
    ],
)
def test_as_many_as_there_are_descriptors_for(
    descriptors: int, concurrency: int, *, grpc: bool, expected: int
) -> None:
    """The reserve is not for clients; of very few descriptors they get half."""
    assert expected == most_connections(descriptors, concurrency, grpc=grpc)
    wanted = descriptors_wanted(concurrency, grpc=grpc)
    assert max(expected, MOST_CONNECTIONS) == most_connections(wanted, concurrency, grpc=grpc)


def test_those_leave_that_are_idle_for_longest() -> None:
    """A share of the most, so that the next ones need not look."""
    limit = ConnectionLimit(128)
    connections = [(float(number), "a", f"idle since {number}") for number in range(128)]

    leaving = limit.who_leaves(reversed(connections), "a", 200.0)

    assert (True, False) == (limit.is_full(129), limit.is_full(128))
    assert ["idle since 0", "idle since 1"] == leaving


def test_nobody_leaves_who_is_busy_or_was_a_moment_ago() -> None:
    """The next request of the latter is mostly on its way."""
    connections = [
        (None, "a", "busy"), (100.0 - ACTIVE / 2, "a", "used"), (100.0 - ACTIVE, "a", "idle"),
    ]  # fmt: skip

    assert ["idle"] == ConnectionLimit(1).who_leaves(connections, "a", 100.0)


def test_when_all_were_busy_nobody_looks_for_a_moment() -> None:
    """Ten thousand that ask in vain must not cost ten thousand looks over ten thousand."""
    limit = ConnectionLimit(1)
    looks = ((None, 50.0), (0.0, 50.05), (0.0, 50.11))

    found = [limit.who_leaves([(since, "a", "one")], "a", now) for since, now in looks]

    assert [[], [], ["one"]] == found


def test_an_address_that_was_turned_away_does_not_turn_away_another() -> None:
    """One client that opens all connections at once is refused just before another one comes."""
    limit = ConnectionLimit(3)
    young = [(100.0, "greedy", number) for number in range(3)]

    assert [] == limit.who_leaves(young, "greedy", 100.0)
    assert [0] == limit.who_leaves(young, "new", 100.01)
    assert [] == limit.who_leaves(young, "greedy", 100.02)


def test_the_address_with_most_connections_makes_room_for_another() -> None:
    """However young they are: one client that opens all of them would lock others out."""
    many = [(100.0, "greedy", f"greedy {number}") for number in range(3)]
    others = [(0.0, "patient", "patient")]

    assert ["greedy 0"] == ConnectionLimit(4).who_leaves([*others, *many], "new", 100.0)


def test_an_address_with_more_connections_sends_away_none_of_others() -> None:
    """Its own that are idle leave, and while there are none it has to wait."""
    limit = ConnectionLimit(4)
    others = [(0.0, "patient", "patient")]
    young = [(100.0, "greedy", f"greedy {number}") for number in range(3)]
    old = [(10.0, "greedy", "old")]

    assert [] == limit.who_leaves([*others, *young], "greedy", 100.0)
    assert ["old"] == limit.who_leaves([*others, *young, *old], "greedy", 101.0 - ACTIVE / 2)


def full(server: Server, most: int) -> list[Peer]:
    """As many clients as there is room for."""
    server.frontend.connection_limit = ConnectionLimit(most)
    return [server.connect() for _ in range(most)]


@pytest.mark.looptime
async def test_an_idle_connection_makes_room_for_another() -> None:
    """The one that was idle for longest; the newcomer is served."""
    server = Server()
    first, second = full(server, 2)
    for wire in (second, first):
        wire.send(GET)
        await asyncio.sleep(0.5)
    await asyncio.sleep(ACTIVE)

    third = server.connect()
    third.send(GET)
    await asyncio.sleep(0.5)

    assert [False, True, False] == [wire.is_closing() for wire in (first, second, third)]
    assert [[200]] * 3 == [wire.statuses for wire in (first, second, third)]


@pytest.mark.looptime
async def test_when_all_are_busy_one_more_is_told_so() -> None:
    """503 and the end; those who are served do not notice."""
    server = Server(seconds=lambda _: 5.0)
    busy = full(server, 2)
    for wire in busy:
        wire.send(GET)
    await asyncio.sleep(2)

    one_more = server.connect()
    one_more.send(GET[:30])
    one_more.send(GET[30:])
    await asyncio.sleep(5)

    assert ([503], ["1"], True) == (
        one_more.statuses,
        one_more.header("retry-after"),
        one_more.ended,
    )
    assert b'"code":"too_many_connections"' in one_more.received
    assert [[200]] * 2 == [wire.statuses for wire in busy]
    assert [503] == server.engine.codes


@pytest.mark.looptime
async def test_too_many_that_are_refused_are_dropped() -> None:
    """They have descriptors, too."""
    server = Server(seconds=lambda _: 5.0)
    for wire in full(server, 8):
        wire.send(GET)

    more = [server.connect() for _ in range(2 + 3)]

    assert [False] * 2 + [True] * 3 == [wire.aborted for wire in more]
    assert 10_000 + MOST_REFUSED == ConnectionLimit(10_000).most_open


MIB = 1 << 20


def test_a_body_counts_from_its_first_piece_to_its_answer() -> None:
    """An announced body that has not come takes nothing from others."""
    budget = BodyBudget(MIB)
    held = HeldBodies(budget, "a")

    sizes = []
    for step in (
        lambda: held.coming(1000),
        lambda: held.coming(3000),
        lambda: held.answering(3000),
        lambda: held.coming(500),
        held.released,
        lambda: held.coming(900),
        held.released,
    ):
        step()
        sizes.append(budget.held)

    assert [1000, 3000, 3000, 3500, 0, 900, 0] == sizes


def test_who_brings_too_much_is_refused_and_keeps_what_it_has() -> None:
    """Others go on with what it gives back."""
    budget = BodyBudget(MIB)
    first, second = HeldBodies(budget, "a"), HeldBodies(budget, "b")

    assert first.coming(BODIES_BYTES - MIB)
    assert not second.coming(MIB + 1)
    assert not second.answering(MIB + 1)
    assert second.coming(MIB)
    assert not second.coming(MIB + 1)
    first.released()
    assert second.coming(MIB + 1)
    assert MIB + 1 == budget.held


def test_two_bodies_of_the_largest_size_always_fit() -> None:
    """Otherwise a large `maxBodySize` would be one that nobody can send."""
    budget = BodyBudget(BODIES_BYTES)

    fits = [HeldBodies(budget, "a").answering(BODIES_BYTES) for _ in range(3)]

    assert [True, True, False] == fits
    assert "at most 402653184" in str(budget.error())


class Leaving:
    """Holdings by name, and who left."""

    def __init__(self) -> None:
        self.budget = BodyBudget(MIB)
        self.left: list[str] = []

    def of(self, owner: str, name: str) -> HeldBodies:
        """One that can leave."""
        return HeldBodies(self.budget, owner, lambda: self.left.append(name))


def test_the_owner_who_holds_most_makes_room_for_one_who_holds_less() -> None:
    """One key, or one address, would have the whole budget otherwise, for as long as it likes."""
    world = Leaving()
    many = [world.of("greedy", f"upload {number}") for number in range(8)]
    for held in many:
        assert held.coming(BODIES_BYTES // 8)

    assert not world.of("greedy", "own").coming(MIB)
    assert world.of("small", "other").coming(MIB)

    assert ["upload 0"] == world.left
    assert BODIES_BYTES - BODIES_BYTES // 8 + MIB == world.budget.held


def test_nobody_takes_more_than_another_has() -> None:
    """Two who want all of it would take it from each other for ever."""
    world = Leaving()
    assert world.of("a", "a").coming(BODIES_BYTES // 2)
    assert world.of("b", "b").coming(BODIES_BYTES // 2 - 1)

    assert not world.of("b", "one more").coming(MIB)
    assert not world.of("c", "large").coming(BODIES_BYTES // 2)

    assert [] == world.left


def test_what_is_being_answered_leaves_last() -> None:
    """The most was done for it; for an answer that is not read there is nothing left to do."""
    world = Leaving()
    third = BODIES_BYTES // 3
    assert world.of("greedy", "answered").answering(third)
    assert world.of("greedy", "coming").coming(third)
    world.of("greedy", "unread").waiting(third)
    other = world.of("other", "other")

    left = []
    for size in (third // 2, third, third + MIB):
        other.coming(size)
        left.append(tuple(world.left))

    assert [("unread",), ("unread",), ("unread", "coming")] == left


def test_an_answer_finds_room_where_others_do_not_read_theirs() -> None:
    """Also those of the same owner: behind a proxy all clients have one address."""
    world = Leaving()
    for number in range(4):
        world.of("proxy", f"reader {number}").waiting(BODIES_BYTES // 3)

    assert ["reader 0"] == world.left
    assert world.of("proxy", "upload").coming(MIB)
    assert ["reader 0", "reader 1"] == world.left


def test_who_cannot_leave_stays() -> None:
    """A call over gRPC that is being answered, say."""
    budget = BodyBudget(MIB)
    assert HeldBodies(budget, "greedy").answering(BODIES_BYTES)

    assert not HeldBodies(budget, "other").coming(1)


def test_what_is_held_moves_with_its_owner() -> None:
    """Before its key is read a connection is its address's."""
    world = Leaving()
    held = world.of("address", "moved")
    assert held.coming(BODIES_BYTES)
    held.owned_by("key")
    assert not world.of("key", "own").coming(1)

    assert world.of("address", "next").coming(1)

    assert ["moved"] == world.left


def test_what_nobody_holds_is_forgotten() -> None:
    """An entry for each address that ever came would grow without end."""
    budget = BodyBudget(MIB)
    for number in range(100):
        held = HeldBodies(budget, str(number))
        held.coming(MIB)
        held.released()

    assert not budget._owners
    assert 0 == budget.held


def test_who_has_shown_no_key_gives_way_to_all() -> None:
    """They are one owner together, and push out nobody but each other."""
    world = Leaving()
    assert world.of("key", "upload").coming(BODIES_BYTES - MIB)
    nobody = [world.of(NOBODY, f"head {number}") for number in range(3)]

    assert [True] * 3 == [held.coming(MIB // 2) for held in nobody]
    assert ["head 0"] == world.left
    assert not world.of(NOBODY, "too much").coming(2 * MIB)
    assert world.of("key", "next").coming(MIB)

    assert ["head 0", "head 1", "head 2"] == world.left
