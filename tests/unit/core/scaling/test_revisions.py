"""A rollout: two revisions serve side by side, and one may never come."""

from dataclasses import replace

import pytest

from batchedapi_core.scaling.load import Share
from batchedapi_core.scaling.observe import LoadWindow, observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ServiceTime

POLICY = ScalingPolicy(min_replicas=1, max_replicas=9, max_batch_size=8, batch_interval=0.010)
OLD, NEW = ServiceTime(0.010, 0.0005), ServiceTime(0.040, 0.002)
LOOK = 2.0


class Rollout:
    """Pods by name, each of a revision; every look brings each of them forty batches."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state = ScalingState.empty()
        self.pods: dict[str, PodSample] = {}
        self.quiet: set[str] = set()

    def start(self, name: str, revision: str) -> None:
        """A pod that has not counted anything yet."""
        self.pods[name] = PodSample(
            name, self.now, self.now - 60.0, 60.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
            revision=revision,
        )  # fmt: skip

    def look(
        self, revision: str, silent: frozenset[str] = frozenset(), size: int = 8
    ) -> LoadWindow:
        """Two seconds later, with a maxBatchSize of `size`."""
        self.now += LOOK
        for name, pod in self.pods.items():
            service = OLD if pod.revision == "a" else NEW
            sizes = (1, 1) if name in self.quiet else (min(3, size), min(5, size))
            self.pods[name] = _after(pod, self.now, service, sizes)
        seen = tuple(pod for name, pod in self.pods.items() if name not in silent)
        count = len(self.pods)
        load, self.state = observe(
            replace(POLICY, max_batch_size=size),
            self.state,
            Observation(seen, count, count, revision),
            self.now,
        )
        return load


def _after(pod: PodSample, now: float, service: ServiceTime, sizes: tuple[int, int]) -> PodSample:
    """Twenty batches of each size."""
    seconds = [20 * service.seconds(rows) for rows in sizes]
    rows = 20 * sum(sizes)
    return replace(
        pod,
        time=now,
        uptime=now - pod.process_start,
        rows_received=pod.rows_received + rows,
        batches=pod.batches + 40,
        rows=pod.rows + rows,
        batch_seconds=pod.batch_seconds + sum(seconds),
        rows_squared=pod.rows_squared + 20 * sum(size**2 for size in sizes),
        row_seconds=pod.row_seconds + sum(n * t for n, t in zip(sizes, seconds, strict=True)),
    )


@pytest.fixture
def rollout() -> Rollout:
    """Two pods of revision a that have served for a minute."""
    world = Rollout()
    world.start("old-1", "a")
    world.start("old-2", "a")
    for _ in range(30):
        world.look("a")
    return world


def fixed(load: LoadWindow) -> float:
    """Milliseconds that a batch takes whatever its size, as far as that is known."""
    assert load.service is not None
    return round(1e3 * load.service.fixed)


def test_while_a_new_revision_starts_replicas_are_planned_with_the_old(rollout: Rollout) -> None:
    """Its pods serve on, for ever if the image of the new one cannot be pulled."""
    assert [10.0] * 50 == [fixed(rollout.look("b")) for _ in range(50)]


def test_a_new_revision_is_learned_from_its_own_pods_alone(rollout: Rollout) -> None:
    """Though as many of the old serve beside them; and it counts as soon as it is known."""
    rollout.start("new-1", "b")
    loads = [rollout.look("b") for _ in range(20)]

    assert 10.0 == fixed(loads[0])
    assert 40.0 == pytest.approx(fixed(loads[-1]), rel=0.1)
    assert rollout.state.model.sums.batches < 20 * 40


def test_pods_of_the_old_revision_do_not_look_like_a_model_gone_slow(rollout: Rollout) -> None:
    """Nor those of the new one, the slower of the two, while the old one is planned with."""
    rollout.start("new-1", "b")

    assert {1.0} == {round(rollout.look("b").slowdown, 2) for _ in range(30)}


def test_a_rollback_is_planned_with_what_was_known(rollout: Rollout) -> None:
    """The rollout was stuck, and the pods have served all the time."""
    for _ in range(5):
        rollout.look("b")
    learned = rollout.state.in_use.sums.batches

    assert 10.0 == fixed(rollout.look("a"))
    assert rollout.state.model.sums.batches > 0.9 * learned


def test_an_operator_that_restarts_in_a_rollout_knows_the_old_revision(rollout: Rollout) -> None:
    """It may be stuck for days; what is known is what must be saved."""
    rollout.look("b")
    rollout.state = ScalingState.restored(rollout.state.to_saved())

    rollout.look("b")
    assert 10.0 == fixed(rollout.look("b"))


def test_an_operator_that_starts_in_a_rollout_learns_from_the_pods_that_serve(
    rollout: Rollout,
) -> None:
    """They are of another revision than the one that is awaited; that one has no pods."""
    rollout.state = ScalingState.empty()
    for _ in range(5):
        load = rollout.look("b")

    assert 10.0 == pytest.approx(fixed(load), rel=0.2)


def test_once_the_last_old_pod_is_gone_nothing_is_planned_with_it(rollout: Rollout) -> None:
    """Better to hold for the seconds that it takes to learn than to size by another model."""
    rollout.pods.clear()
    rollout.start("new-1", "b")

    assert rollout.look("b").service is None


def test_an_old_pod_that_is_not_seen_may_still_be_there(rollout: Rollout) -> None:
    """A scrape that fails is no end of a rollout."""
    rollout.start("new-1", "b")

    assert 10.0 == fixed(rollout.look("b", silent=frozenset({"old-1", "old-2"})))


def test_a_third_revision_does_not_teach_for_the_first(rollout: Rollout) -> None:
    """The second was given up before it was known, and its pods serve for a while."""
    rollout.start("new-1", "b")
    rollout.look("b")
    for _ in range(10):
        load = rollout.look("c")

    assert 10.0 == fixed(load)


def test_a_new_pod_that_gets_little_load_does_not_say_what_batches_cost(rollout: Rollout) -> None:
    """Connections stay with the old pods; its batches of one row say nothing of larger ones."""
    rollout.start("new-1", "b")
    rollout.quiet.add("new-1")
    waiting = [rollout.look("b") for _ in range(30)]
    rollout.state = ScalingState.restored(rollout.state.to_saved())
    rollout.look("b")
    waiting.append(rollout.look("b"))
    rollout.quiet.clear()
    for _ in range(20):
        load = rollout.look("b")

    assert {10.0} == set(map(fixed, waiting))
    assert 40.0 == pytest.approx(fixed(load), rel=0.1)


def test_trust_and_shares_are_those_of_the_service_time_that_is_planned_with(
    rollout: Rollout,
) -> None:
    """A rollout that is stuck changes no load; the new revision, once known, begins anew."""
    hot = Share("old-1", 1.3, 1e6)
    rollout.state = replace(rollout.state, trust=0.7, shares=(hot,))
    rollout.look("b")
    stuck = rollout.state
    rollout.start("new-1", "b")
    for _ in range(20):
        rollout.look("b")

    assert 0.7 == stuck.trust
    assert 1.2 < max(share.load for share in stuck.shares)
    assert 1.0 == rollout.state.trust


def test_batches_of_a_third_revision_are_not_compared_with_the_first(rollout: Rollout) -> None:
    """Its pods are four times slower, which says nothing of those that are planned with."""
    rollout.start("new-1", "b")
    rollout.look("b")

    assert {1.0} == {round(rollout.look("c").slowdown, 2) for _ in range(30)}


def test_smaller_batches_are_planned_with_once_they_are_known(rollout: Rollout) -> None:
    """As large as the old ones they never become: `maxBatchSize` went from 8 to 2."""
    rollout.start("new-1", "b")
    rollout.quiet.update(("old-1", "old-2"))
    for _ in range(20):
        load = rollout.look("b", size=2)

    assert load.service is not None
    assert NEW.seconds(2) == pytest.approx(load.service.seconds(2), rel=0.01)


def test_a_new_revision_is_taken_up_once(rollout: Rollout) -> None:
    """Also where its batches stay at the limit of what can be compared with the old one's."""
    rollout.start("new-1", "b")
    used = []
    for look in range(60):
        rollout.quiet ^= {"new-1"} if look % 3 == 0 else set()
        rollout.look("b")
        used.append(rollout.state.in_use.revision)

    assert {"a", "b"} == set(used)
    assert sorted(used) == used
