"""Lists of a real apiserver, which come in pages."""

import pytest
from tests.contract.operator.world import World

from batchedapi_operator import kube
from batchedapi_operator.cluster import CONFIG_MAPS
from batchedapi_operator.views import ChildView

pytestmark = pytest.mark.cluster


async def test_a_list_of_metadata_is_whole_however_many_pages_it_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With who wrote each object, and the version from which a watch misses nothing."""
    monkeypatch.setattr(kube, "OBJECTS_A_PAGE", 2)
    names = [f"listed-{number}" for number in range(5)]
    for name in names:
        labels = {"tested": "lists"}
        await world.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": labels}, "data": {}})

    found, version = await world.kube.list_metadata(CONFIG_MAPS, world.namespace, "tested=lists")

    assert names == [ChildView.of(body).name for body in found]
    assert all(body["metadata"]["managedFields"][0]["manager"] for body in found)
    await world.delete(CONFIG_MAPS, names[-1])
    events = world.kube.watch_metadata(CONFIG_MAPS, world.namespace, version, 30, silent=35)
    async for event in events:
        if event["object"]["metadata"]["name"] == names[-1]:
            assert "DELETED" == event["type"]
            break
    await events.aclose()
