"""The autoscaler's loop: what it observes, writes and leaves alone."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.worlds import (
    KEY,
    WALL,
    MemoryCluster,
    api_body,
    deliver_all,
    deployment_body,
    pod_body,
    replica_set_body,
)

from batchedapi_operator.admin import OperatorMetrics
from batchedapi_operator.autoscaling.loop import Autoscaler
from batchedapi_operator.autoscaling.metrics_page import parse_page
from batchedapi_operator.autoscaling.scrape import Outcome
from batchedapi_operator.cluster import BATCHED_APIS, DEPLOYMENTS, JsonObject, ObjectKey, rfc3339
from batchedapi_operator.errors import ApplyError, MetricsUnavailableError
from batchedapi_operator.outbox import Outbox
from batchedapi_operator.store import Store
from batchedapi_operator.views import PodView


class Situation:
    """One API with pods whose load the test sets, and a clock it moves."""

    extra = ""
    """More lines of a page, with places for the rows that ran and four times as many."""

    def __init__(self, *, replicas: int = 1, spec_replicas: int | None = None, **spec: Any) -> None:
        self.cluster = MemoryCluster()
        self.store = Store()
        self.now = 0.0
        self.rate = 0.0
        self.rows = 0.0
        self.answering = True
        self.batch = (10, 10, 0.020)
        """Rows, requests and seconds of every batch."""
        self.cost_each: float | None = None
        """Of every row; None: an older replica, which exports no sizes."""
        self.max_batch_size = 16
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while pods are asked."""
        self.metrics = OperatorMetrics()
        if spec_replicas is not None:
            spec["replicas"] = spec_replicas
        self.cluster.put(BATCHED_APIS, api_body(**spec))
        self.cluster.put(DEPLOYMENTS, deployment_body(replicas=replicas, ready=replicas))
        self.pods = replicas
        self.refresh()
        self.autoscaler = self.restarted()

    def restarted(self) -> Autoscaler:
        """An operator that knows nothing but what is in the cluster."""
        self.outbox = Outbox(monotonic=lambda: self.now)
        self.autoscaler = Autoscaler(
            self.cluster,
            self.store,
            self,
            self.metrics,
            self.outbox,
            wall=lambda: WALL + timedelta(seconds=self.now),
            monotonic=lambda: self.now,
        )
        return self.autoscaler

    def refresh(self) -> None:
        """Bring the store up to date, as the watches would."""
        self.store.put_api(self.cluster.objects[BATCHED_APIS, KEY])
        self.store.put_deployment(KEY, self.cluster.objects[DEPLOYMENTS, KEY])
        self.store.put_replica_set(KEY, replica_set_body())
        for number in range(self.pods):
            self.store.put_pod(KEY, pod_body(f"iris-{number}"))

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """As Scraper: pods that have been up for an hour, in batches that are all alike."""
        self.meanwhile()
        if not self.answering:
            return [MetricsUnavailableError("unreachable", "down") for _ in pods]
        rows = self.rows / max(1, len(pods))
        rows_each, requests_each, seconds_each = self.batch
        batches = rows / rows_each
        text = page(
            received=rows,
            rows=rows,
            batches=batches,
            requests=batches * requests_each,
            size=None if self.cost_each is None else rows * self.cost_each,
            seconds=batches * seconds_each,
            full=0,
            max_batch_size=self.max_batch_size,
            extra=self.extra.format(rows=rows, padded=4 * rows),
        )
        return [
            parse_page(text, pod.uid, time=self.now, unix_time=4600.0 + self.now) for pod in pods
        ]

    async def run(self, seconds: float) -> None:
        """Rounds every 5 s."""
        end = self.now + seconds
        while self.now < end:
            self.now += 5.0
            self.rows += 5.0 * self.rate
            await self.autoscaler.round()
            await deliver_all(self.outbox)
            self.refresh()

    @property
    def replicas(self) -> int:
        """The replicas of the Deployment."""
        count: int = self.cluster.objects[DEPLOYMENTS, KEY]["spec"]["replicas"]
        return count

    @property
    def status(self) -> dict[str, Any]:
        """The status of the API."""
        found: dict[str, Any] = self.cluster.objects[BATCHED_APIS, KEY].get("status", {})
        return found

    def edit(self, **spec: Any) -> None:
        """As `kubectl patch` would, None for a field to go; the watch brings it at once."""
        body = copy.deepcopy(self.cluster.objects[BATCHED_APIS, KEY])
        edited = {**body["spec"], **spec}
        body["spec"] = {name: value for name, value in edited.items() if value is not None}
        body["metadata"]["generation"] += 1
        self.cluster.put(BATCHED_APIS, body)
        self.refresh()

    def reason(self, kind: str) -> str:
        """The reason of a condition."""
        return str(next(c["reason"] for c in self.status["conditions"] if c["type"] == kind))


async def test_load_above_capacity_adds_replicas_and_says_why() -> None:
    """Through /scale, with the sentence in the status and in an event."""
    busy = Situation(autoscaling={"maxReplicas": 5})
    busy.rate = 900.0  # one replica with two lanes and batches of 10 in 20 ms serves 1000 rows/s

    await busy.run(60)

    assert busy.replicas > 1
    assert ("scale", str(busy.replicas)) in busy.cluster.writes
    assert "replicas" in busy.status["autoscaling"]["lastDecision"]["text"]
    assert busy.cluster.events[0]["reason"] == "ScaledUp"
    assert busy.reason("AutoscalingActive") == "Active"
    assert {"batchedapi-autoscaler"} == {manager for manager, _ in busy.cluster.statuses}


async def test_a_scale_and_advice_in_one_look_are_both_told() -> None:
    """Each has a place of its own: neither is sent instead of the other."""
    predictor = {"path": "model:Model", "processesPerReplica": 16}
    busy = Situation(autoscaling={"maxReplicas": 5}, predictor=predictor)
    busy.rate = 9000.0

    await busy.run(60)

    told = {event["reason"] for event in busy.cluster.events}
    assert {"ScaledUp", "TooManyProcesses"} <= told


async def test_replicas_that_cannot_be_set_are_in_the_status_until_they_are() -> None:
    """The decision alone reads as if it were carried out, and the log is not the user's."""
    situation = Situation()
    situation.rate = 3000.0
    down = ApplyError('500 failed calling webhook "x"', 500)
    situation.cluster.fail = lambda verb, _what: down if verb == "scale" else None

    async def active() -> tuple[str, str, str]:
        await situation.run(60.0)
        status = situation.cluster.objects[BATCHED_APIS, KEY]["status"]
        (found,) = [one for one in status["conditions"] if one["type"] == "AutoscalingActive"]
        return found["status"], found["reason"], found["message"]

    status, reason, message = await active()
    assert ("False", "WriteFailed") == (status, reason)
    assert message.startswith(f"{down.message}; it is tried again")
    situation.cluster.fail = lambda _verb, _what: None
    assert ("True", "Active") == (await active())[:2]


async def test_an_idle_api_is_not_written_to() -> None:
    """After the first report there is nothing to say for as long as nothing happens (2 minutes)."""
    idle = Situation()
    await idle.run(60)
    idle.cluster.writes.clear()

    await idle.run(120)

    assert [] == idle.cluster.writes


async def test_a_report_that_scales_nothing_comes_at_most_every_ten_seconds() -> None:
    """Load that changes all the time must not become a stream of writes."""
    wild = Situation(autoscaling={"maxReplicas": 1})
    for number in range(24):
        wild.rate = 100.0 if number % 2 else 400.0
        await wild.run(5)

    assert len(wild.cluster.statuses) <= 12


async def test_pods_that_do_not_answer_move_nothing() -> None:
    """No metrics are not no load."""
    silent = Situation(replicas=4)
    silent.answering = False

    await silent.run(600)

    assert silent.replicas == 4
    assert silent.reason("MetricsAvailable") == "None"
    assert silent.reason("AutoscalingActive") == "MetricsMissing"


async def test_a_restart_moves_nothing_and_keeps_what_was_learned() -> None:
    """The service model took minutes to learn; replicas do not wait for it again (F10)."""
    busy = Situation(replicas=3, autoscaling={"maxReplicas": 5})
    busy.rate = 1500.0
    await busy.run(120)
    before = busy.replicas
    learned = busy.status["autoscaling"]["learned"]
    busy.restarted()

    await busy.run(60)

    assert learned["sums"][0] > 0
    assert before == busy.replicas
    assert busy.status["autoscaling"]["learned"]["sums"][0] > 0
    assert busy.reason("AutoscalingActive") == "Active"


@pytest.mark.parametrize(
    ("live", "scaled"),
    [
        ({"replicas": 5, "resourceVersion": "8"}, []),  # by whoever: the watch is behind
        ({"replicas": 1, "resourceVersion": "8", "uid": "another"}, []),
        ({"replicas": 1, "resourceVersion": "8"}, ["4"]),  # its status alone
        ({"replicas": 1}, ["4"]),
    ],
)
async def test_a_decision_is_carried_out_on_what_it_was_taken_for_alone(
    live: dict[str, Any], scaled: list[str]
) -> None:
    """The watch may be behind: never shrink on cached data alone (O8)."""
    busy = Situation(autoscaling={"maxReplicas": 4})
    busy.rate = 900.0
    busy.cluster.objects[DEPLOYMENTS, KEY] = deployment_body(**live)
    while busy.now < 60 and not busy.cluster.writes:  # without the watch's refresh
        busy.now += 5
        busy.rows += 5 * busy.rate
        await busy.autoscaler.round()
        await deliver_all(busy.outbox)
        busy.cluster.writes = [one for one in busy.cluster.writes if one[0] == "scale"]

    assert scaled == [what for _, what in busy.cluster.writes]


async def test_what_an_api_was_told_is_not_told_its_successor() -> None:
    """It has the name, and the watch may tell of it late."""
    busy = Situation(autoscaling={"maxReplicas": 5})
    await busy.run(30)
    busy.rate, before = 900.0, len(busy.cluster.statuses)
    for _ in range(12):
        busy.now += 5.0
        busy.rows += 5.0 * busy.rate
        await busy.autoscaler.round()
    successor = api_body(autoscaling={"maxReplicas": 5})
    successor["metadata"]["uid"] = "another"
    busy.cluster.objects[BATCHED_APIS, KEY] = successor

    await deliver_all(busy.outbox)

    assert before == len(busy.cluster.statuses)


async def test_pods_of_others_with_our_label_are_not_scraped() -> None:
    """Anybody may put a label on a pod; its numbers must not count."""
    alone = Situation()
    alone.store.put_pod(KEY, pod_body("stranger", owner="somebody"))

    assert ["iris-0"] == [pod.name for pod in alone.store.owned_pods(KEY)]


@pytest.mark.parametrize("mode", ["External", "Off"])
async def test_in_other_modes_it_stands_aside_and_says_so_once(mode: str) -> None:
    """Nothing of ours ever writes replicas there."""
    aside = Situation(autoscaling={"mode": mode}, spec_replicas=1)
    aside.rate = 5000.0

    await aside.run(60)

    assert aside.reason("AutoscalingActive") == mode
    assert len(aside.cluster.writes) == 1


async def test_one_bad_api_does_not_stop_the_others() -> None:
    """The loop is one for all (O31)."""
    good = Situation(autoscaling={"maxReplicas": 5})
    good.rate = 900.0
    bad = api_body()
    bad["metadata"] |= {"name": "bad", "uid": "bad"}
    good.store.put_api(bad | {"spec": 3})

    await good.run(60)

    assert good.replicas > 1


@pytest.mark.parametrize(("target", "replicas"), [(100, 2), (80, 3), (40, 5)])
async def test_the_target_of_the_manifest_decides_how_many_replicas(
    target: int, replicas: int
) -> None:
    """1000 rows/s where one replica serves 500: the share of it to use is the user's."""
    api = Situation(replicas=6, autoscaling={"targetUtilizationPercent": target})
    api.rate = 1000.0
    api.max_batch_size = 10

    await api.run(900)

    assert replicas == api.replicas


@pytest.mark.parametrize(("unit", "rows", "fill"), [("Requests", 80, 100), ("Rows", 8, 1000)])
async def test_a_limit_in_requests_is_planned_with_as_the_rows_they_have(
    unit: str, rows: int, fill: int
) -> None:
    """8 requests of 10 rows: taken for 8 rows, one replica would seem to serve far less."""
    api = Situation(serverSideBatching={"sizeUnit": unit}, autoscaling={"maxReplicas": 9})
    api.batch, api.max_batch_size = (80, 8, 0.026), 8
    api.rate = 2000.0

    await api.run(120)

    terms = api.status["autoscaling"]["lastDecision"]["record"]["terms"]
    assert rows == terms["capacity_batch"]
    assert (rows, fill) == tuple(
        api.status["batching"][figure] for figure in ("maxBatchSize", "fillPercent")
    )


@pytest.mark.parametrize("largest", [32, 128], ids=["8 rows", "32 rows"])
async def test_a_service_whose_rows_cost_4_has_the_capacity_of_one_limited_in_rows(
    largest: int,
) -> None:
    """t(n) = 10 ms + 0.2 ms n on one lane: taken for rows, 32 would promise batches of 16."""
    costly = Situation(autoscaling={"maxReplicas": 9})
    rows = largest // 4
    full = 0.010 + 0.0002 * rows
    costly.batch, costly.max_batch_size, costly.cost_each = (rows, 1, full), largest, 4.0
    costly.rate = 3000.0

    await costly.run(120)

    record = costly.status["autoscaling"]["lastDecision"]["record"]
    assert rows / full == pytest.approx(record["terms"]["capacity"], rel=0.1)
    assert (rows, 100) == tuple(
        costly.status["batching"][figure] for figure in ("maxBatchSize", "fillPercent")
    )
    assert largest == costly.status["effective"]["maxBatchSize"]


async def test_an_event_that_cannot_be_written_leaves_the_report() -> None:
    """A quota on events must not hide in the status that and why replicas changed."""
    busy = Situation(autoscaling={"maxReplicas": 5})
    busy.rate = 900.0
    busy.cluster.fail = lambda verb, _what: ApplyError("quota", 403) if verb == "event" else None

    await busy.run(60)

    assert busy.replicas > 1
    assert not busy.cluster.events
    assert "lastScaleTime" in busy.status["autoscaling"]
    assert busy.replicas == busy.status["autoscaling"]["lastDecision"]["desired"]


async def test_every_scale_is_reported_in_its_own_look() -> None:
    """Ten seconds between two reports are for figures; of a change users are told at once."""
    busy = Situation(autoscaling={"maxReplicas": 50})
    scales = []
    for rate in (400.0, 400.0, 900.0, 3000.0, 9000.0, 20000.0):
        busy.rate, before = rate, busy.replicas
        await busy.run(5)
        if busy.replicas != before:
            scales.append(busy.now)
            told = busy.status["autoscaling"]["lastScaleTime"]
            assert rfc3339(WALL + timedelta(seconds=busy.now)) == told

    assert any(later - earlier < 10 for earlier, later in pairwise(scales))


async def test_the_time_of_a_scale_outlives_a_report_that_failed() -> None:
    """It is the time of the scale, and not that of the report which is written at last."""
    busy = Situation(autoscaling={"maxReplicas": 5})
    busy.rate = 900.0
    busy.cluster.fail = lambda verb, _what: ApplyError("down", 503) if verb == "status" else None
    while busy.replicas == 1:
        await busy.run(5)
    scaled = rfc3339(WALL + timedelta(seconds=busy.now))
    busy.rate = 0.0
    await busy.run(20)
    busy.cluster.fail = lambda _verb, _what: None

    await busy.run(5)

    assert scaled == busy.status["autoscaling"]["lastScaleTime"]
    assert scaled < busy.status["autoscaling"]["lastDecision"]["time"]


async def test_the_time_of_a_scale_is_reported_though_all_else_is_as_it_was() -> None:
    """It is no figure: nothing but the scale itself makes it news."""
    busy = Situation(replicas=2, autoscaling={"maxReplicas": 5})
    busy.rate = 900.0
    await busy.run(120)
    before = busy.status
    watched = busy.autoscaler._watched[KEY]
    watched.scaled("2026-01-02T03:04:06Z")

    await busy.run(5)

    assert "lastScaleTime" not in before["autoscaling"]
    assert "2026-01-02T03:04:06Z" == busy.status["autoscaling"]["lastScaleTime"]
    assert not watched.scale_untold


@pytest.mark.parametrize("failing", [False, True], ids=["answering", "failing"])
async def test_an_api_deleted_while_its_pods_are_asked_leaves_no_series(*, failing: bool) -> None:
    """Gauges of an API that is gone would stand on dashboards for ever."""
    going = Situation()
    going.rate = 100.0
    await going.run(20)
    before = generate_latest(going.metrics.registry).decode()

    def delete() -> None:
        going.store.remove_api(KEY)
        going.autoscaler.forget(KEY)
        if failing:
            raise RuntimeError("in the middle of it")

    going.meanwhile = delete
    going.now += 5.0
    await going.autoscaler.round()

    assert 'name="iris"' in before
    assert 'name="iris"' not in generate_latest(going.metrics.registry).decode()


async def test_the_time_of_a_change_is_told_although_its_event_never_gets_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replicas are changed by then, and nobody will do it a second time."""
    busy = Situation(autoscaling={"mode": "Native", "maxReplicas": 5})

    async def breaks(_body: JsonObject) -> None:
        raise OSError("connection reset")

    monkeypatch.setattr(busy.cluster, "create_event", breaks)
    busy.rate = 900.0
    await busy.run(120)

    assert 1 < busy.replicas
    assert "lastScaleTime" in busy.status["autoscaling"]


class Looked(Store):
    """Notes when which API was looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[tuple[float, str]] = []

    def api(self, key: ObjectKey) -> JsonObject | None:
        """Asked for when a look begins."""
        self.looks.append((asyncio.get_running_loop().time(), key.name))
        return super().api(key)


@pytest.mark.looptime
async def test_looks_of_a_round_begin_evenly_each_every_two_seconds() -> None:
    """All at once would take the memory of all pages at once."""
    store, clock = Looked(), asyncio.get_running_loop().time
    for name in ("a", "b", "c", "d"):
        body = api_body()
        store.put_api({**body, "metadata": {**body["metadata"], "name": name}})
    situation = Situation()
    autoscaler = Autoscaler(
        situation.cluster,
        store,
        situation,
        OperatorMetrics(),
        Outbox(monotonic=clock),
        monotonic=clock,
    )

    running = asyncio.create_task(autoscaler.run())
    await asyncio.sleep(3.9)
    running.cancel()

    times = [time for time, _ in store.looks]
    assert ["a", "b", "c", "d"] * 2 == [name for _, name in store.looks]
    assert [0.5] * 7 == pytest.approx([later - earlier for earlier, later in pairwise(times)])


@pytest.mark.looptime
async def test_a_process_without_apis_looks_again_two_seconds_later() -> None:
    """And not at once, for ever."""
    beats, clock = list[float](), asyncio.get_running_loop().time
    situation = Situation()
    outbox = Outbox(monotonic=clock)
    autoscaler = Autoscaler(
        situation.cluster, Store(), situation, OperatorMetrics(), outbox,
        beat=lambda: beats.append(clock()), monotonic=clock,
    )  # fmt: skip

    running = asyncio.create_task(autoscaler.run())
    await asyncio.sleep(5.0)
    running.cancel()

    assert [0.0, 2.0, 4.0] == pytest.approx(beats)
