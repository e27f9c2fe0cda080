"""Data for the page about all APIs: lines of the status, and pages of one API's replicas."""

from collections.abc import Sequence

from tests.unit.operator.worlds import (
    KEY,
    api_body,
    deployment_body,
    pod_body,
    replica_set_body,
)

from batchedapi_operator.admin import MOST_APIS, MOST_REPLICAS, FleetCollector
from batchedapi_operator.store import Store
from batchedapi_operator.views import PodView


class Replicas:
    """Answers for every pod but one that is called silent."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def whole_pages(self, pods: Sequence[PodView]) -> list[str | None]:
        """The name of each, as its page."""
        self.asked += [pod.name for pod in pods]
        return [None if pod.name == "silent" else f"page of {pod.name}" for pod in pods]


def store_of(*pods: str) -> Store:
    """The API of worlds.py with some replicas."""
    store = Store()
    store.put_api({**api_body(), "status": {"phase": "Ready", "message": "2 pods start"}})
    store.put_deployment(KEY, deployment_body())
    store.put_replica_set(KEY, replica_set_body())
    for pod in pods:
        store.put_pod(KEY, pod_body(pod))
    return store


async def test_replicas_are_read_of_the_chosen_api_alone() -> None:
    """Nobody looks at the others, and reading has a price."""
    replicas = Replicas()
    fleet = FleetCollector(store_of("iris-1", "silent"), replicas.whole_pages)

    nothing_chosen = await fleet.look("")
    unknown = await fleet.look("demo/nobody")
    asked_before = list(replicas.asked)
    found = await fleet.look(str(KEY))

    assert [] == asked_before
    assert nothing_chosen == unknown
    line = {"api": str(KEY), "phase": "Ready", "ready": None, "wanted": None, "why": "2 pods start"}
    assert {
        "apis": [line], "more": 0, "pages": {"iris-1": "page of iris-1"}, "missing": 1
    } == found  # fmt: skip


async def test_a_large_fleet_is_cut_and_the_chosen_one_stays() -> None:
    """The page says how many are left out, of APIs and of replicas."""
    replicas = Replicas()
    store = store_of(*(f"iris-{number}" for number in range(MOST_REPLICAS + 3)))
    for number in range(MOST_APIS + 4):
        other = api_body()
        other["metadata"] |= {"name": f"a-{number}", "uid": f"uid-{number}"}
        store.put_api(other)

    found = await FleetCollector(store, replicas.whole_pages).look(str(KEY))

    assert str(KEY) in {line["api"] for line in found["apis"]}
    assert (MOST_APIS, 5, 3) == (len(found["apis"]), found["more"], found["missing"])
    assert MOST_REPLICAS == len(replicas.asked)
