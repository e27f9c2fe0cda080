"""The choice of leader and of release: Leases in memory, a clock that is moved by hand."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from prometheus_client.exposition import generate_latest
from tests.unit.operator.worlds import MemoryLeases

from batchedapi_core import contract
from batchedapi_operator.admin import OperatorMetrics
from batchedapi_operator.cluster import CONFIG_MAPS, Namespaces, ObjectKey
from batchedapi_operator.election import (
    ACTING,
    CLAIM_SECONDS,
    LEADER_SECONDS,
    WANTED,
    Held,
    Permit,
    SeenLease,
    seen,
)
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube, _permitted
from batchedapi_operator.leader import LOOK_SECONDS, QUIET_SECONDS, Elector, Identity

SYSTEM: Final = "system"
CLAIM: Final = CONFIG_MAPS, ObjectKey("team", contract.CLAIM)


class World:
    """One clock, one apiserver, and replicas whose rounds are run by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.apiserver = MemoryLeases()

    def replica(self, process: str, *named: str, release: str = "first") -> "Replica":
        """A replica of a release, for some namespaces or all."""
        return Replica(self, process, Namespaces(named), release)

    async def run(self, seconds: float, *replicas: "Replica") -> None:
        """Rounds of each replica, twice a second."""
        end = self.now + seconds
        while self.now < end:
            for one in replicas:
                await one.round()
            assert 1 >= sum(one.permit.valid for one in replicas), "two may write"
            self.now += 0.5


class Replica:
    """An elector, and what it was told to do."""

    def __init__(self, world: World, process: str, namespaces: Namespaces, release: str) -> None:
        self.told: list[str] = []
        self.permit = Permit(lambda: world.now)
        kube: Any = world.apiserver
        identity = Identity(process, ObjectKey(SYSTEM, release), namespaces)
        self.elector = Elector(kube, identity, self.permit, lambda: world.now)

    async def round(self) -> None:
        """One round of its election."""

        async def end() -> None:
            self.told.append("end")

        await self.elector._go_round(
            lambda: self.told.append("begin"), lambda: self.told.append("go on"), end
        )


async def test_one_replica_leads_and_the_other_takes_over_when_it_is_gone() -> None:
    """Within the duration of the Lease and a look, by what the other one saw."""
    world = World()
    first, second = world.replica("a"), world.replica("b")
    await world.run(5.0, first, second)
    assert (["begin"], []) == (first.told, second.told)

    await world.run(LEADER_SECONDS + 1.5, second)

    assert not first.permit.valid
    assert second.permit.valid
    assert ["begin"] == second.told


async def test_a_replica_that_was_stopped_and_woken_ends_before_it_writes() -> None:
    """Its permit is over by its own clock before anybody else's begins."""
    world = World()
    first, second = world.replica("a"), world.replica("b")
    await world.run(5.0, first, second)
    await world.run(20.0, second)

    assert not first.permit.valid
    await first.round()

    assert (["begin", "end"], False) == (first.told, first.permit.valid)


async def test_a_replica_that_ends_gives_the_lease_back_and_the_other_has_it_at_once() -> None:
    """An update or a drained node costs no ten seconds."""
    world = World()
    first, second = world.replica("a"), world.replica("b")
    await world.run(5.0, first, second)

    first.permit.end()
    await first.elector.resign()
    await second.round()

    assert second.permit.valid


async def test_a_claim_stands_while_the_replica_that_made_it_is_dead() -> None:
    """A process that died at its first start costs the time of its Lease, and not the claim's."""
    world = World()
    first = world.replica("a", "team")
    await world.run(2.0, first)
    assert WANTED == Held.of(world.apiserver.kept[CLAIM]).state

    again = world.replica("b", "team")
    await world.run(QUIET_SECONDS + 2.0, again)

    assert (["begin"], True) == (again.told, again.permit.valid)


async def test_a_claim_is_made_while_the_lease_of_a_dead_replica_runs_out() -> None:
    """Dead between Lease and claim: both times pass at once, and not one after the other."""
    world = World()
    await world.run(0.5, world.replica("a", "team"))
    del world.apiserver.kept[CLAIM]

    again = world.replica("b", "team")
    await world.run(QUIET_SECONDS + 2.0, again)

    assert (["begin"], True) == (again.told, again.permit.valid)


async def test_a_claim_that_was_anothers_meanwhile_stands_from_then_on() -> None:
    """Whoever took it away has to be able to do so again."""
    world = World()
    first = world.replica("a", "team")
    await world.run(2.0, first)
    again = world.replica("b", "team")
    await world.run(8.0, again)
    claim = world.apiserver.kept[CLAIM]
    claim["data"]["leaseTransitions"] = str(int(claim["data"]["leaseTransitions"]) + 2)
    claim["metadata"]["resourceVersion"] = "theirs"

    await world.run(QUIET_SECONDS - 2.0, again)

    assert not again.permit.valid


@pytest.mark.parametrize("named", [(), ("team",)], ids=["all", "named"])
async def test_a_silent_apiserver_changes_no_leader(named: tuple[str, ...]) -> None:
    """Nobody could renew: whoever led goes on with all that it knows."""
    world = World()
    first, second = world.replica("a", *named), world.replica("b", *named)
    await world.run(QUIET_SECONDS + 10.0, first, second)
    assert ["begin"] == first.told

    world.apiserver.silent = True
    await world.run(600.0, first, second)
    assert not first.permit.valid
    assert first.elector.leads
    assert "no answer" in first.elector.trouble
    world.apiserver.silent = False
    await world.run(5.0, second, first)

    assert (["begin", "go on"], []) == (first.told, second.told)


@pytest.mark.parametrize(
    ("mine", "theirs", "what"),
    [
        ((), (), "all namespaces"),
        (("x", "team"), ("team",), "namespace team"),
        ((), ("team",), "namespace team"),
        (("team",), (), "namespace team"),
    ],
    ids=["all and all", "named and named", "all, then named", "named, then all"],
)
async def test_a_second_release_is_refused_until_the_first_is_gone(
    mine: tuple[str, ...], theirs: tuple[str, ...], what: str
) -> None:
    """Whatever the two were installed for; the sentence names the other one."""
    world = World()
    first = world.replica("a", *mine)
    second = world.replica("b", *theirs, release="second")
    await world.run(QUIET_SECONDS + 10.0, first)
    await world.run(120.0, first, second)

    assert ["begin"] == first.told
    assert [] == second.told
    assert what in second.elector.trouble
    assert f"{SYSTEM}/first" in second.elector.trouble
    assert second.elector.trouble in world.apiserver.events
    assert "" == first.elector.trouble

    await world.run(CLAIM_SECONDS + 2 * LOOK_SECONDS + QUIET_SECONDS + 5.0, second)
    assert (["begin"], "") == (second.told, second.elector.trouble)

    await world.run(60.0, second, first)
    assert not first.permit.valid
    assert f"{SYSTEM}/second" in first.elector.trouble


async def test_of_two_releases_that_begin_together_at_most_one_acts() -> None:
    """Each says so before it looks, so that one sees the other at least."""
    world = World()
    both = world.replica("a"), world.replica("b", release="second")

    await world.run(120.0, *both)

    assert 1 == sum(one.permit.valid for one in both)


async def test_releases_for_other_namespaces_do_not_meet() -> None:
    """Each tenant may have an operator of its own."""
    world = World()
    first, second = world.replica("a", "one"), world.replica("b", "two", release="second")
    for one in (first, second):
        for _ in range(80):
            await one.round()
            world.now += 0.25

    assert (["begin"], ["begin"]) == (first.told, second.told)


async def test_a_rollout_of_the_first_release_lets_no_second_in() -> None:
    """The Lease is given back to its own replicas; to others it is alive for a while."""
    world = World()
    first, second = world.replica("a"), world.replica("b", release="second")
    await world.run(10.0, first, second)
    first.permit.end()
    await first.elector.resign()
    await world.run(15.0, second)
    successor = world.replica("c")

    await world.run(30.0, second, successor)

    assert (["begin"], []) == (successor.told, second.told)


def test_a_lease_runs_from_when_it_was_seen_and_not_from_what_it_says() -> None:
    """Dates in it are of clocks that may be anywhere."""
    held = Held("a", 10.0, 1, "7", ACTING, "*")
    first = seen(None, held, 50.0)

    assert first == seen(first, held, 58.0)
    assert not first.free(59.9)
    assert first.free(60.0)
    assert not seen(first, Held("a", 10.0, 1, "8", ACTING, "*"), 58.0).free(60.0)
    assert SeenLease(Held("", 10.0, 1, "9", WANTED, "*"), 60.0).free(60.0)


def test_a_lease_that_others_wrote_is_read_all_the_same() -> None:
    """Anybody may write one."""
    body = {"metadata": {"name": contract.CLAIM, "namespace": "x", "resourceVersion": "3"}}

    assert Held("", LEADER_SECONDS, 0, "3", "", "") == Held.of(body)
    odd = {"leaseDurationSeconds": "long", "leaseTransitions": "-1"}
    assert Held("", LEADER_SECONDS, 0, "3", "", "") == Held.of({**body, "data": odd})


def test_a_permit_is_over_a_little_before_its_lease() -> None:
    """And for good once the process ends."""
    now = [100.0]
    permit = Permit(lambda: now[0])
    seen_valid = [permit.valid]

    permit.extend(110.0)
    seen_valid.append(permit.valid)
    now[0] = 109.2
    seen_valid.append(permit.valid)
    permit.extend(200.0)
    permit.end()

    assert [False, True, False, False] == [*seen_valid, permit.valid]


@dataclass
class Protocol:
    """The protocol of a connection, with the errors that its reader is told."""

    told: list[BaseException] = field(default_factory=list)

    def set_exception(self, error: BaseException) -> None:
        """As aiohttp's."""
        self.told.append(error)


async def test_a_write_that_was_about_to_go_out_does_not_once_the_permit_is_over() -> None:
    """It waited for a connection, or the whole process was stopped since it was begun."""
    permit = Permit(lambda: 100.0)
    asked, protocol = SimpleNamespace(method="PATCH"), Protocol()
    request: Any = _permitted(permit)

    await request.write_bytes(asked, None, SimpleNamespace(protocol=protocol))

    (error,) = protocol.told
    assert "leads no more" in str(error)


class Client:
    """Stands in for the client: what a request was given, and success."""

    timeout = 0.0
    query: Any = ()

    async def param_serialize(self, *_: Any, query_params: Any, **_named: Any) -> tuple[()]:
        """As the client's."""
        self.query = query_params
        return ()

    async def call_api(self, *, _request_timeout: Any) -> Any:
        """As the client's."""
        self.timeout = _request_timeout.total

        async def read() -> bytes:
            return b"{}"

        return SimpleNamespace(response=SimpleNamespace(status=200, read=read))


async def test_a_write_is_refused_where_this_replica_does_not_lead_and_else_has_what_is_left() -> (
    None
):
    """The rest of the Lease's time is the limit, for us and for the apiserver."""
    permit = Permit(lambda: 100.0)
    client = Client()
    kube = Kube(cast("Any", client), permit)

    with pytest.raises(ApplyError, match="does not lead at present") as refused:
        await kube.scale(ObjectKey("demo", "iris"), 1, uid="uid")
    permit.extend(104.5)
    await kube.scale(ObjectKey("demo", "iris"), 1, uid="uid")

    assert refused.value.unheard
    assert 0 == permit.under_way
    assert 4.0 == client.timeout
    assert ("timeout", "4000ms") in client.query


@pytest.mark.parametrize("leads", [True, False])
def test_the_gauge_says_who_leads(leads: bool) -> None:  # noqa: FBT001 - a case
    """The sum over all replicas is one, or an alert."""
    page = generate_latest(OperatorMetrics(lambda: leads).registry).decode()

    assert f"\n{contract.OPERATOR_LEADER} {float(leads)}\n" in page
