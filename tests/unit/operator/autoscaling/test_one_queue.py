"""The autoscaler's loop and an API with one queue: web pods tell, workers come and go."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import KEY, deployment_body, pod_body, replica_set_body

from batchedapi_core import contract
from batchedapi_operator.autoscaling.metrics_page import parse_page, parse_web_page
from batchedapi_operator.autoscaling.scrape import Outcome, WebOutcome
from batchedapi_operator.cluster import DEPLOYMENTS, JsonObject, ObjectKey
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.views import PodView

WEB: Final = ObjectKey(KEY.namespace, "iris-web")
QUEUE: Final[dict[str, Any]] = {"serverSideBatching": {"queue": {"redis": {}}}}


def web_page(
    received: float = 0.0, *, rows: float = 0.0, oldest: float = 0.0, cpu: float = 0.0
) -> str:
    """As a web pod writes it, of one method."""
    return f"""process_start_time_seconds 1000
process_cpu_seconds_total {cpu}
batchedapi_rows_received_total{{method="predict"}} {received}
batchedapi_requests_total{{method="predict",code="200"}} {received}
batchedapi_queue_rows{{method="predict"}} {rows}
batchedapi_queue_oldest_seconds{{method="predict"}} {oldest}
batchedapi_in_flight_requests{{method="predict"}} {rows}
"""


def test_a_web_page_says_what_arrives_what_waits_and_how_much_cpu_is_used() -> None:
    """Rows in the queue are everybody's: they are no demand of this pod."""
    text = web_page(70, rows=30, oldest=1.5, cpu=12.0)
    found = parse_web_page(text, "uid", time=5.0, unix_time=1600.0)

    assert (30.0, 1.5, 12.0) == (found.rows, found.oldest, found.cpu)
    assert (70.0, 30.0) == (found.sample.rows_arrived, found.sample.in_flight)
    with pytest.raises(MetricsUnavailableError, match="batchedapi_queue_rows"):
        parse_web_page(text.replace("queue_rows", "x"), "uid", time=5.0, unix_time=1600.0)


class Queued(Situation):
    """An API with web pods in front of its replicas."""

    def __init__(self, *, replicas: int = 1, webs: int = 2, **spec: Any) -> None:
        self.webs = webs
        self.waiting = self.oldest = self.cpu = self.used = 0.0
        self.own_rate = self.own = 0.0
        """Rows per second, and rows so far, of an app that is no web pod."""
        self.before = 0
        """Of the replicas, those of before the queue: they count what arrives, as web pods do."""
        self.held = 0.0
        """Requests that each worker has taken and not answered."""
        self.come, self.asked = asyncio.Event(), asyncio.Event()
        super().__init__(replicas=replicas, **QUEUE, **spec)

    def web_body(self) -> JsonObject:
        """The Deployment of as many web pods as there are."""
        body = deployment_body(replicas=self.webs, ready=self.webs)
        body["metadata"] |= {"name": WEB.name, "uid": "web-uid"}
        return body

    def refresh(self) -> None:
        """Bring the store up to date, as the watches would, web pods included."""
        if (DEPLOYMENTS, WEB) not in self.cluster.objects:
            self.cluster.put(DEPLOYMENTS, self.web_body())
        workers = self.cluster.objects[DEPLOYMENTS, KEY]
        workers["status"]["readyReplicas"] = self.pods = workers["spec"]["replicas"]
        super().refresh()
        self.store.put_deployment(KEY, self.cluster.objects[DEPLOYMENTS, WEB])
        owner = {"kind": "Deployment", "uid": "web-uid", "controller": True}
        sets = replica_set_body()
        sets["metadata"] |= {"name": "iris-web-1", "uid": "web-rs", "ownerReferences": [owner]}
        self.store.put_replica_set(KEY, sets)
        pods = [pod_body(f"iris-{number}") for number in range(self.pods)]
        for body in pods[self.before :]:
            body["metadata"]["labels"][contract.LABEL_ROLE] = contract.ROLE_WORKER
        pods += [pod_body(f"iris-web-{number}", owner="web-rs") for number in range(self.webs)]
        self.store.replace_pods(KEY, map(PodView.of, pods))

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """Workers, which ran what came."""
        if not pods:
            return []
        self.own += 5.0 * self.own_rate
        rows = (self.rows + self.own) / len(pods)
        each = {"rows": rows, "batches": rows / 10, "seconds": rows / 500, "size": rows, "full": 0}
        texts = [
            page(received=0 if one.role else rows, in_flight=int(self.held), **each) for one in pods
        ]
        return [
            parse_page(
                text.replace('queue_rows{method="predict"} 3', 'queue_rows{method="predict"} 0'),
                one.uid, time=self.now, unix_time=self.now + 4600,
            )
            for one, text in zip(pods, texts, strict=True)
        ]  # fmt: skip

    async def scrape_web(self, pods: Sequence[PodView]) -> list[WebOutcome]:
        """Web pods, among which the load is even."""
        if not self.answering:
            return [MetricsUnavailableError("unreachable", "down") for _ in pods]
        self.used += 5.0 * self.cpu
        received = 0 if self.before else self.rows / len(pods)
        text = web_page(received, rows=self.waiting, oldest=self.oldest, cpu=self.used)
        return [
            parse_web_page(text, one.uid, time=self.now, unix_time=self.now + 4600) for one in pods
        ]

    async def rows_come(self, pod: PodView) -> bool:
        """As soon as the test says so."""
        assert pod.name.startswith("iris-web-")
        self.asked.set()
        await self.come.wait()
        self.come.clear()
        return True

    @property
    def web_replicas(self) -> int:
        """The replicas of NAME-web."""
        count: int = self.cluster.objects[DEPLOYMENTS, WEB]["spec"]["replicas"]
        return count

    @property
    def text(self) -> str:
        """Why there are as many replicas."""
        return str(self.status["autoscaling"]["lastDecision"]["text"])


async def test_demand_that_web_pods_count_orders_workers() -> None:
    """Workers count no arrivals: what they may say of it is not asked."""
    busy = Queued(autoscaling={"maxReplicas": 5})
    busy.rate = 900.0

    await busy.run(60)

    assert busy.replicas > 1
    assert "891 rows/s arrive" in busy.text  # 900, less one standard error
    assert "AllPods" == busy.reason("MetricsAvailable")


async def test_an_idle_api_goes_to_zero_and_says_so() -> None:
    """After its own idleTimeout; the status tells the queue and why."""
    idle = Queued(autoscaling={"minReplicas": 0, "idleTimeout": "1m"})

    await idle.run(120)

    assert 0 == idle.replicas
    assert "0 replicas" in idle.text
    assert 0 == idle.status["queue"]["rows"]
    assert idle.status["queue"]["webReason"].startswith("2 web pods: ")
    assert "Active" == idle.reason("AutoscalingActive")
    assert "AllPods" == idle.reason("MetricsAvailable")


@pytest.mark.parametrize("held", [0, 1], ids=["run between two looks", "run for longer"])
async def test_rows_of_an_app_of_ones_own_keep_the_last_replica(held: int) -> None:
    """No web pod counts them: they are seen where they run."""
    served = Queued(autoscaling={"minReplicas": 0, "idleTimeout": "10s"})
    served.own_rate, served.held = 0.0 if held else 2.0, held

    await served.run(120)
    assert 1 == served.replicas

    served.own_rate = served.held = 0.0
    await served.run(120)
    assert 0 == served.replicas


async def test_what_replicas_of_before_the_queue_are_asked_is_demand_too() -> None:
    """They answer until web pods do, and only who is asked counts what arrives."""
    moving = Queued(replicas=2, autoscaling={"maxReplicas": 5})
    moving.before, moving.rate = 2, 1800.0

    await moving.run(60)

    assert moving.replicas > 2
    assert "rows/s arrive" in moving.text
    assert "AllPods" == moving.reason("MetricsAvailable")


@pytest.mark.parametrize("mode", ["External", "Off"])
async def test_the_status_tells_the_queue_whoever_scales(mode: str) -> None:
    """At the pace of figures: at once where there was nothing, and then every ten seconds."""
    busy = Queued(autoscaling={"mode": mode}, spec_replicas=1)
    busy.waiting, busy.oldest = 7.0, 1.5
    await busy.run(10)
    expected = {"rows": 7, "oldestSeconds": "1.5", "webReason": busy.status["queue"]["webReason"]}
    assert expected == busy.status["queue"]
    assert mode == busy.reason("AutoscalingActive")

    writes = len(busy.cluster.statuses)
    for _ in range(12):
        busy.waiting *= 2.0
        await busy.run(5)

    assert busy.status["queue"]["rows"] in {busy.waiting, busy.waiting / 2}
    assert len(busy.cluster.statuses) - writes in range(5, 8)
    assert mode == busy.reason("AutoscalingActive")

    busy.edit(serverSideBatching=None)
    await busy.run(10)
    assert "queue" not in busy.status


@pytest.mark.parametrize(
    "spec",
    [
        {"autoscaling": {"mode": "External"}, "spec_replicas": 1},
        {"autoscaling": {"mode": "Off"}, "spec_replicas": 1},
        {"paused": True},
        {},
    ],
    ids=str,
)
async def test_why_there_are_as_many_web_pods_is_told_anew_when_that_changes(
    spec: dict[str, Any],
) -> None:
    """Nothing else may: no row waits, and nobody scales the workers."""
    quiet = Queued(webs=5, **spec)
    quiet.cpu = 0.16
    await quiet.run(30)
    assert quiet.status["queue"]["webReason"].startswith("5 web pods: ")

    quiet.cpu = 0.0
    await quiet.run(400)
    quiet.webs = 2
    quiet.cluster.put(DEPLOYMENTS, quiet.web_body())
    await quiet.run(30)

    reason = quiet.status["queue"]["webReason"]
    assert reason.startswith("2 web pods: ")
    assert "5 web pods" not in reason
    assert "of 5" not in reason
    writes = len(quiet.cluster.statuses)
    await quiet.run(60)
    assert writes == len(quiet.cluster.statuses)


async def test_rows_that_wait_at_zero_order_a_replica_at_the_next_look() -> None:
    """Also of a method of which nothing was ever learned."""
    asleep = Queued(replicas=0, autoscaling={"minReplicas": 0})
    await asleep.run(10)
    assert 0 == asleep.replicas

    asleep.waiting = 3.0
    await asleep.run(5)

    assert asleep.replicas >= 1
    assert "rows wait" in asleep.text


async def test_the_first_row_is_not_waited_for_until_the_next_look() -> None:
    """One web pod is asked to answer as soon as there are any; meanwhile looks go on."""
    asleep, scaled = Queued(replicas=0, autoscaling={"minReplicas": 0}), asyncio.Event()
    scale = asleep.cluster.scale

    async def told(key: ObjectKey, replicas: int, **precisely: Any) -> None:
        await scale(key, replicas, **precisely)
        scaled.set()

    asleep.cluster.scale = told  # type: ignore[method-assign]
    running = [asyncio.create_task(one.run()) for one in (asleep.autoscaler, asleep.outbox)]
    await asleep.asked.wait()
    asleep.waiting, asleep.now = 3.0, 1.0
    asleep.come.set()
    await scaled.wait()
    for task in running:
        task.cancel()

    assert asleep.now < 2.0


async def test_web_pods_are_scaled_on_their_own_cpu_in_every_mode() -> None:
    """An HPA moves workers; it knows nothing of web pods."""
    busy = Queued(autoscaling={"mode": "External"}, spec_replicas=1)
    busy.cpu = 0.4

    await busy.run(60)

    assert 5 == busy.web_replicas
    assert "web pods use" in busy.cluster.events[-1]["note"]


async def test_a_paused_api_keeps_its_web_pods() -> None:
    """Nothing of it is changed."""
    busy = Queued(paused=True)
    busy.cpu = 0.4

    await busy.run(60)

    assert 2 == busy.web_replicas


async def test_without_web_pods_nothing_is_decided() -> None:
    """They are yet to be made: their Deployment is not there."""
    early = Queued()
    early.store.remove_deployment(KEY, WEB.name)

    await early.autoscaler.round()

    assert [] == early.cluster.writes


async def test_web_pods_that_do_not_answer_hold_everything() -> None:
    """Unknown is never idle."""
    blind = Queued(replicas=2, autoscaling={"minReplicas": 0, "idleTimeout": "10s"})
    blind.answering = False

    await blind.run(120)

    assert (2, 2) == (blind.replicas, blind.web_replicas)
