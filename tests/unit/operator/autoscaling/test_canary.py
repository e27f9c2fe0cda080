"""A canary in the loop: which pods are counted, from when on, and what becomes of the verdict."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import KEY, deployment_body, pod_body, replica_set_body

from batchedapi_core import contract
from batchedapi_core.canary import GiveUp, Judged, Promote, Wait
from batchedapi_operator.autoscaling.canary import Trials
from batchedapi_operator.autoscaling.metrics_page import MetricsPage, parse_page
from batchedapi_operator.autoscaling.scrape import Outcome
from batchedapi_operator.cluster import DEPLOYMENTS, JsonObject, ObjectKey
from batchedapi_operator.resources.revised import GivenUp
from batchedapi_operator.views import PodView

UPDATE: Final[JsonObject] = {"canary": {"for": "60s"}}


def counted(
    pod: str,
    revision: str,
    requests: float,
    failed: float = 0,
    seconds: float = 0.02,
    *,
    at: float = 0.0,
    **more: Any,
) -> MetricsPage:
    """The page of a pod that has answered so many requests of one row, ten a batch."""
    codes = {"200": requests - failed, "500": failed / 2, "504": failed / 2, "503": 0}
    lines = (
        f'batchedapi_requests_total{{method="predict",code="{code}"}} {count}\n'
        for code, count in codes.items()
    )
    text = page(
        received=requests, rows=requests, batches=requests / 10, full=0,
        seconds=requests / 10 * seconds, extra="".join(lines), **more,
    )  # fmt: skip
    return parse_page(text, pod, time=at, unix_time=9000.0 + at, revision=revision)


class Tried(Situation):
    """An API of two replicas, with a canary of one pod beside them."""

    def __init__(self, *, share: float = 0.0, seconds: float = 0.02, **spec: Any) -> None:
        self.share, self.seconds = share, seconds
        """Of the requests of the canary that fail, and of its batches."""
        self.decided: list[ObjectKey] = []
        self.asked: list[str] = []
        self.canaries = 1
        self.ready = True
        """The pod of the canary."""
        super().__init__(replicas=2, updateStrategy=UPDATE, **spec)
        body = deployment_body(replicas=2, ready=2, revision="old")
        self.cluster.put(DEPLOYMENTS, body)
        self.refresh()
        self.autoscaler.trials = Trials(self.decided.append)
        self.rate = 60.0

    def refresh(self) -> None:
        """With the canary."""
        super().refresh()
        body = deployment_body(replicas=self.canaries, ready=1, revision="new")
        body["metadata"] |= {"name": "iris-canary", "uid": "canary-uid"}
        self.store.put_deployment(KEY, body)
        sets = replica_set_body(uid="canary-rs", owner="canary-uid")
        sets["metadata"]["name"] = "iris-canary-rs"
        self.store.put_replica_set(KEY, sets)
        for number in range(self.pods):
            self.store.put_pod(KEY, pod_body(f"iris-{number}", revision="old"))
        pod = pod_body("iris-canary-1", revision="new", owner="canary-rs", ready=self.ready)
        pod["metadata"]["labels"][contract.LABEL_ROLE] = contract.ROLE_CANARY
        self.store.put_pod(KEY, pod)

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """Each pod has the same share."""
        self.asked = [pod.name for pod in pods]
        each = self.rows / 3
        return [
            counted(pod.uid, pod.revision, each, each * self.share, self.seconds, at=self.now)
            if pod.revision == "new"
            else counted(pod.uid, pod.revision, each, at=self.now)
            for pod in pods
        ]

    @property
    def verdict(self) -> Judged | None:
        """So far."""
        return self.autoscaler.trials.judged(KEY)


@pytest.mark.parametrize("mode", ["Native", "External"])
async def test_one_that_is_no_worse_is_promoted_whoever_scales(mode: str) -> None:
    """From the first look at which it is ready it is measured for as long as the manifest says."""
    more: JsonObject = {} if mode == "Native" else {"spec_replicas": 2}
    tried = Tried(autoscaling={"mode": mode}, **more)

    await tried.run(60)
    before = tried.verdict
    await tried.run(10)

    assert Judged("new", Wait()) == before
    assert tried.verdict is not None
    assert isinstance(tried.verdict.verdict, Promote)
    assert [KEY] == tried.decided
    assert ["iris-0", "iris-1", "iris-canary-1"] == tried.asked


async def test_two_percent_of_errors_give_it_up_before_its_time() -> None:
    """500 and 504; what its users did wrong is none of it."""
    tried = Tried(share=0.02)

    await tried.run(45)

    assert tried.verdict is not None
    assert isinstance(tried.verdict.verdict, GiveUp)
    assert "requests failed (2.0 %), and 0 of" in tried.verdict.verdict.why
    assert [KEY] == tried.decided


async def test_slower_batches_give_it_up() -> None:
    """At the end, by the share that `compare.slower` allows."""
    tried = Tried(seconds=0.032)

    await tried.run(70)

    assert tried.verdict is not None
    assert isinstance(tried.verdict.verdict, GiveUp)
    assert "takes 32 ms, and 20 ms with the revision before (+60 %)" in tried.verdict.verdict.why


async def test_the_verdict_goes_with_the_canary() -> None:
    """So the same revision is judged anew when it is tried again."""
    tried = Tried(share=0.02)
    await tried.run(45)
    tried.canaries = 0
    tried.refresh()

    await tried.run(5)

    assert tried.verdict is None


@pytest.mark.parametrize("mode", ["Native", "External"])
@pytest.mark.parametrize("before", [10, 0])
async def test_a_canary_that_nobody_hears_of_is_given_up_and_never_promoted(
    mode: str, before: float
) -> None:
    """It was drained, or starts for longer than its Deployment would let it, had that a deadline.

    It may start anew in the meantime: 120 s and a minute are allowed for that, and 3 times `for`.
    """
    more: JsonObject = {} if mode == "Native" else {"spec_replicas": 2}
    tried = Tried(
        autoscaling={"mode": mode}, predictor={"path": "m:C", "startupTimeout": "120s"}, **more
    )
    tried.ready = before > 0
    tried.refresh()
    await tried.run(before)
    tried.ready = False
    tried.refresh()

    await tried.run(355)
    waiting = tried.verdict
    await tried.run(10)

    assert Judged("new", Wait()) == waiting
    assert tried.verdict is not None
    assert isinstance(tried.verdict.verdict, GiveUp)
    assert "no pod of it has answered for 36" in tried.verdict.verdict.why
    assert [KEY] == tried.decided


async def test_what_is_measured_begins_when_a_pod_of_the_canary_answers() -> None:
    """Not when its Deployment is there: a model may load for minutes."""
    tried = Tried()
    tried.ready = False
    tried.refresh()
    await tried.run(100)
    tried.ready = True
    tried.refresh()

    await tried.run(60)
    before = tried.verdict
    await tried.run(10)

    assert Judged("new", Wait()) == before
    assert tried.verdict is not None
    assert isinstance(tried.verdict.verdict, Promote)


@pytest.mark.parametrize("way", ["deleted", "no replicas", "nobody looked"])
async def test_a_revision_that_is_tried_again_is_judged_anew(way: str) -> None:
    """The field was removed meanwhile, and the canary went with its rollout."""
    tried = Tried()
    await tried.run(70)
    tried.edit(updateStrategy={})
    if way == "deleted":
        tried.store.remove_deployment(KEY, "iris-canary")
        await tried.autoscaler.round()
    elif way == "no replicas":
        tried.canaries = 0
        tried.refresh()
        await tried.run(5)
    else:
        tried.now += 3600
    tried.canaries = 1
    tried.edit(updateStrategy=UPDATE)

    await tried.run(5)

    assert Judged("new", Wait()) == tried.verdict


async def test_its_pods_count_until_they_go() -> None:
    """They answer while the rollout goes on, also where the field was removed."""
    tried = Tried()
    tried.edit(updateStrategy={})

    await tried.run(5)

    assert ["iris-0", "iris-1", "iris-canary-1"] == tried.asked


async def test_the_load_of_the_canary_counts_for_the_replicas() -> None:
    """When it is promoted they get that load: two replicas serve 1000 rows/s each at most."""
    tried = Tried(autoscaling={"maxReplicas": 9})
    tried.rate = 3000.0

    await tried.run(60)

    assert tried.replicas >= 3


@pytest.mark.parametrize("way", ["canary", "given up", "neither"])
async def test_replicas_of_another_revision_are_planned_by_their_own_lanes(way: str) -> None:
    """Four processes are asked for, and the replicas have two."""
    tried = Tried(predictor={"path": "m:C", "processesPerReplica": 4})
    if way != "canary":
        tried.canaries = 0
    if way == "given up":
        note = GivenUp("iris-new", "iris-rs", "it fails", "asked").noted()
        body = deployment_body(replicas=2, ready=2, revision="old", annotations=note)
        tried.cluster.put(DEPLOYMENTS, body)
    tried.refresh()

    await tried.run(10)

    last = tried.autoscaler.decisions._known[KEY][-1]
    assert (4 if way == "neither" else 2) == last.policy.lanes


@pytest.mark.parametrize("way", ["restarted", "unknown revision", "no codes"])
def test_what_cannot_be_known_is_not_counted(way: str) -> None:
    """A process that starts anew counts from zero; a third revision is neither."""
    trials, tried = Trials(lambda _: None), Tried()
    view = tried.store.api(KEY)
    assert view is not None
    api = tried.autoscaler._manifests.of(KEY, view)
    for number in range(1, 60):
        at = 2.0 * number
        new = counted("b", "new", 100.0 * number, 10.0 * number, at=at)
        match way:
            case "restarted":
                new = counted(
                    "b", "new", 100.0 * number, 10.0 * number, at=at, start=1000.0 + number
                )
            case "unknown revision":
                new = counted("b", "third", 100.0 * number, 10.0 * number, at=at)
            case "no codes":
                new = replace(new, failed=None)
        first = counted("b", "new", 0.0, at=at) if number == 1 else new
        pages = [counted("a", "old", 100.0 * number, at=at), first]
        trials.look(KEY, api, ("old", "new"), pages, at)

    assert Judged("new", Wait()) == trials.judged(KEY)
