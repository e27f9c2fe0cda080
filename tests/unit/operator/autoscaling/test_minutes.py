"""The record of minutes: when it is written, what survives, and what begins anew."""

import logging
from typing import Any, Final

import pytest
from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import KEY, UID, WALL

from batchedapi_core import contract
from batchedapi_core.scaling.minutes import MINUTE, Minute, Minutes
from batchedapi_operator.cluster import CONFIG_MAPS, JsonObject, ObjectKey
from batchedapi_operator.errors import ApplyError

RECORD: Final = ObjectKey(KEY.namespace, f"{KEY.name}-record")


def busy(**spec: Any) -> Situation:
    """One replica at 400 rows/s, 20 of 100 ms in a batch for each of its two lanes."""
    situation = Situation(**spec)
    situation.rate = 400.0
    return situation


def written(situation: Situation) -> int:
    """How often the record was."""
    return sum(what == f"ConfigMap/{RECORD.name}" for _, what in situation.cluster.writes)


def body(situation: Situation) -> JsonObject:
    """Its ConfigMap."""
    return situation.cluster.objects[CONFIG_MAPS, RECORD]


def minutes(situation: Situation) -> list[Minute]:
    """What it has."""
    known = Minutes.restored(body(situation)["data"][contract.RECORD_KEY])
    assert known is not None
    return list(known)


async def test_it_is_written_every_ten_minutes_and_says_what_each_brought() -> None:
    """No sooner: it is up to 60 KiB. The first minute of the ten is another one of each API."""
    situation = busy()

    await situation.run(230.0)
    early = written(situation)
    await situation.run(1180.0)

    assert (0, 2) == (early, written(situation))
    found = minutes(situation)
    assert list(range(found[0].time, found[0].time + len(found))) == [one.time for one in found]
    assert int(WALL.timestamp() // MINUTE) == found[0].time
    assert 14 == len(found)
    for one in found[1:]:
        assert (400.0, 400.0, 1.0) == pytest.approx((one.demand, one.rows, one.replicas), rel=0.012)
        assert 0.4 == pytest.approx(one.busy, abs=0.01)  # 40 batches of 20 ms a second, two lanes


async def test_it_goes_with_its_api_and_is_no_revision_of_it() -> None:
    """Those are told by the label and the controller, deleted when unused, and looked at anew."""
    situation = busy(childMetadata={"labels": {"team": "a"}})

    await situation.run(700.0)

    metadata = body(situation)["metadata"]
    (owner,) = metadata["ownerReferences"]
    assert (UID, None) == (owner["uid"], owner.get("controller"))
    assert "a" == metadata["labels"]["team"]
    assert contract.LABEL_API not in metadata["labels"]
    assert set() == situation.store.concerned(CONFIG_MAPS, body(situation))


async def test_another_operator_goes_on_with_it() -> None:
    """After a restart or an upgrade, and ten minutes after the last write at the earliest."""
    situation = busy()
    await situation.run(700.0)
    before = minutes(situation)
    situation.restarted()

    await situation.run(130.0)
    early = written(situation)
    await situation.run(60.0)

    assert (1, 2) == (early, written(situation))
    after = minutes(situation)
    assert before == after[: len(before)]
    assert before[0].time + 13 == after[-1].time


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "record of minutes begun"),
        ({contract.RECORD_KEY: "7"}, "record of minutes damaged, a new one is begun"),
        ({}, "record of minutes damaged, a new one is begun"),
    ],
    ids=["deleted", "damaged", "emptied"],
)
async def test_one_that_is_lost_or_damaged_begins_anew(
    data: JsonObject | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With what came since the last write; the log says so, and nothing else is different."""
    caplog.set_level(logging.INFO)
    situation = busy()
    await situation.run(700.0)
    begin = minutes(situation)[0].time
    if data is None:
        del situation.cluster.objects[CONFIG_MAPS, RECORD]
    else:
        body(situation)["data"] = data
    caplog.clear()

    await situation.run(600.0)

    assert said in caplog.messages
    assert begin + 4 == minutes(situation)[0].time
    assert 10 == len(minutes(situation))
    assert "Active" == situation.reason("AutoscalingActive")


async def test_a_config_map_of_somebody_else_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may be the source of an API."""
    theirs = {"metadata": {"name": RECORD.name, "namespace": RECORD.namespace, "uid": "theirs"}}
    situation = busy()
    situation.cluster.put(CONFIG_MAPS, {**theirs, "data": {"model.py": "pass"}})

    await situation.run(700.0)

    assert 0 == written(situation)
    assert {"model.py": "pass"} == body(situation)["data"]
    assert "minutes not recorded: the name of their ConfigMap is somebody else's" in caplog.messages


async def test_one_that_lost_its_owner_is_gone_on_with() -> None:
    """`kubectl delete --cascade=orphan` leaves it, and the API comes back."""
    situation = busy()
    await situation.run(700.0)
    before = minutes(situation)
    del body(situation)["metadata"]["ownerReferences"]

    await situation.run(600.0)

    assert before == minutes(situation)[: len(before)]
    assert len(before) < len(minutes(situation))
    assert UID == body(situation)["metadata"]["ownerReferences"][0]["uid"]


async def test_minutes_that_could_not_be_written_are_not_lost() -> None:
    """The apiserver may be away for an hour."""
    situation = busy()
    down = ApplyError("down", 0)
    situation.cluster.fail = lambda _, what: down if what.startswith("ConfigMap") else None
    await situation.run(3600.0)
    situation.cluster.fail = lambda _verb, _what: None

    await situation.run(1200.0)

    assert 1 <= written(situation) <= 3
    assert 60 <= len(minutes(situation))
    assert all(one.demand is not None for one in minutes(situation))
