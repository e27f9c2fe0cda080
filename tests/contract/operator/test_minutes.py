"""The record of minutes, against a real apiserver; when it is written is tested without one."""

from datetime import UTC, datetime
from typing import Final

import pytest
from tests.contract.operator.test_operator import IN_IMAGE
from tests.contract.operator.world import World, until

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI
from batchedapi_core.scaling.minutes import MOST_CHARACTERS, Minute, Minutes
from batchedapi_operator.autoscaling.writes import Writes
from batchedapi_operator.cluster import BATCHED_APIS, CONFIG_MAPS
from batchedapi_operator.errors import ConflictError
from batchedapi_operator.reconcile.plan import parsed

pytestmark = pytest.mark.cluster
NOON: Final = 29_000_160
NAME: Final = "minutes-record"


def brought(count: int) -> list[Minute]:
    """As many minutes until noon, of demand that comes back every 97."""
    rates = [100.0 + time % 97 for time in range(NOON - count, NOON)]
    return [Minute(NOON - count + n, r, 1.1 * r, r, 2.0, 1.0) for n, r in enumerate(rates)]


async def kept(world: World, name: str = NAME) -> list[Minute]:
    """What the record has."""
    found = await world.get(CONFIG_MAPS, name)
    assert found is not None
    known = Minutes.restored(found["data"][contract.RECORD_KEY])
    assert known is not None
    return list(known)


async def made(world: World, name: str) -> BatchedAPI:
    """An API as the operator reads it."""
    return parsed(await world.create_api(name, {"predictor": IN_IMAGE}))


async def test_the_record_is_written_read_back_put_right_and_goes_with_its_api(
    world: World,
) -> None:
    """By whoever is the operator then: nothing of it is remembered anywhere else."""
    api, ten_days = await made(world, "minutes"), brought(14400)

    await Writes(world.kube, lambda: datetime.now(UTC)).record(api, ten_days)
    await Writes(world.kube, lambda: datetime.now(UTC)).record(
        api, [ten_days[-1]._replace(time=NOON)]
    )

    found = await kept(world)
    assert (NOON - 14399, NOON, 14400) == (found[0].time, found[-1].time, len(found))
    body = await world.get(CONFIG_MAPS, NAME)
    assert body is not None
    assert len(body["data"][contract.RECORD_KEY]) <= MOST_CHARACTERS
    assert {} == await world.revisions("minutes")  # it is none of them
    await world.patch(CONFIG_MAPS, NAME, {"data": {contract.RECORD_KEY: "damaged"}})
    await Writes(world.kube, lambda: datetime.now(UTC)).record(api, ten_days[-3:])
    assert 3 == len(await kept(world))
    await world.delete(BATCHED_APIS, "minutes")

    async def gone() -> bool:
        return await world.get(CONFIG_MAPS, NAME) is None

    await until(gone, "the record to be collected")


async def test_two_that_write_at_once_lose_nothing(world: World) -> None:
    """Whoever comes second is told, and tries again with what is there."""
    api = await made(world, "contended")
    writes = Writes(world.kube, lambda: datetime.now(UTC))
    await writes.record(api, brought(10))
    live = world.kube.get

    async def then_another(*arguments: object) -> object:
        found = await live(*arguments)  # type: ignore[arg-type] # as it was called
        await world.patch(
            CONFIG_MAPS, "contended-record", {"metadata": {"labels": {"somebody": "was-here"}}}
        )
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.kube, "get", then_another)
        with pytest.raises(ConflictError):
            await writes.record(api, brought(5))

    assert 10 == len(await kept(world, f"{api.metadata.name}-record"))
    await world.delete(BATCHED_APIS, api.metadata.name)
