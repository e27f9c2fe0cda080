"""Advice in the status and in events: what a user should think about, said once."""

import copy
from typing import Any

import pytest
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import KEY

from batchedapi_operator.autoscaling.metrics_page import parse_page
from batchedapi_operator.autoscaling.scrape import Outcome
from batchedapi_operator.cluster import BATCHED_APIS


def advice_of(situation: Situation) -> tuple[str, str]:
    """Status and reason of SpecAdvice."""
    (found,) = [c for c in situation.status["conditions"] if c["type"] == "SpecAdvice"]
    return found["status"], found["reason"]


def events_of(situation: Situation) -> list[str]:
    """Reasons of the events that advise."""
    return [one["reason"] for one in situation.cluster.events if one["action"] == "Advise"]


async def test_nothing_to_say_is_said_too() -> None:
    """A condition that is absent may be one that nobody looked at."""
    plain = Situation()

    await plain.run(60)

    assert ("False", "NothingToSay") == advice_of(plain)
    assert [] == events_of(plain)


async def test_batches_that_outlast_the_latency_target_are_advised_about() -> None:
    """C30: batches of 10 rows in 20 ms; full ones of 1000 rows take 2 s."""
    slow = Situation(serverSideBatching={"maxLatency": "500ms"}, autoscaling={"maxReplicas": 1})
    slow.max_batch_size, slow.rate = 1000, 200.0

    await slow.run(60)

    assert ("True", "IntervalExceedsLatency") == advice_of(slow)
    assert ["IntervalExceedsLatency"] == events_of(slow)


@pytest.mark.parametrize("mode", ["Native", "Off"])
async def test_too_many_processes_are_advised_about_in_every_mode(mode: str) -> None:
    """C04: that much can be told from the manifest alone."""
    many = Situation(
        predictor={"path": "m:C", "processesPerReplica": 7},
        autoscaling={"mode": mode},
        spec_replicas=1 if mode == "Off" else None,
    )
    many.answering = False

    await many.run(60)

    assert ("True", "TooManyProcesses") == advice_of(many)
    assert ["TooManyProcesses"] == events_of(many)


async def test_an_operator_that_starts_again_does_not_say_it_again() -> None:
    """Events are for what is new."""
    many = Situation(predictor={"path": "m:C", "processesPerReplica": 7})
    many.answering = False
    await many.run(60)
    many.restarted()

    await many.run(60)

    assert ["TooManyProcesses"] == events_of(many)


class Heavy(Situation):
    """Its model processes need 600 Mi each."""

    extra = f"batchedapi_model_process_memory_bytes {600 * 2**20}\n"

    async def scrape(self, pods: Any) -> list[Outcome]:
        """As Scraper."""
        text = page(extra=self.extra)
        return [parse_page(text, pod.uid, time=self.now, unix_time=4600.0) for pod in pods]


@pytest.mark.parametrize(
    ("mem", "expected"),
    [("1Gi", ("True", "MemoryMayNotHoldCopies")), ("2Gi", ("False", "NothingToSay"))],
)
async def test_copies_that_do_not_fit_are_advised_about(
    mem: str, expected: tuple[str, str]
) -> None:
    """W07: each process has its own copy, and the limit is for all of them."""
    heavy = Heavy(
        predictor={"path": "m:C", "processesPerReplica": 2}, compute={"mem": mem, "cpu": "1"}
    )

    await heavy.run(60)

    assert expected == advice_of(heavy)


class OneByOne(Heavy):
    """Replicas whose only method takes one request at a time."""

    extra = 'batchedapi_one_by_one{method="predict"} 1.0\n'


async def test_batches_that_are_run_one_by_one_are_advised_about() -> None:
    """C16: the manifest asks for batches that the code has no use for."""
    plain = OneByOne()

    await plain.run(60)

    assert ("True", "BatchedOneByOne") == advice_of(plain)
    assert ["BatchedOneByOne"] == events_of(plain)


async def test_advice_that_comes_second_is_said_too() -> None:
    """The condition's reason is that of the most urgent, and stays what it was."""
    heavy = Heavy(
        predictor={"path": "m:C", "processesPerReplica": 2}, compute={"mem": "1Gi", "cpu": "1"}
    )
    await heavy.run(60)
    edited = copy.deepcopy(heavy.cluster.objects[BATCHED_APIS, KEY])
    edited["spec"]["compute"]["cpu"] = "100m"
    heavy.cluster.put(BATCHED_APIS, edited)
    heavy.refresh()

    await heavy.run(60)

    (condition,) = [c for c in heavy.status["conditions"] if c["type"] == "SpecAdvice"]
    assert "MemoryMayNotHoldCopies" == condition["reason"]
    assert "spec.predictor.processesPerReplica is 2 on 0.1 CPUs" in condition["message"]
    assert ["MemoryMayNotHoldCopies", "TooManyProcesses"] == events_of(heavy)


async def test_what_is_in_effect_is_in_the_status() -> None:
    """Written or not: the manifest here says nothing of sizes."""
    plain = Situation()

    await plain.run(60)

    assert {
        "processesPerReplica": 1,
        "lanes": 1,
        "maxBatchSize": 16,
        "batchInterval": "5ms",
    } == plain.status["effective"]
