"""Web pods of an API with one queue are scaled on the CPU that their pages report."""

import pytest

from batchedapi_core.scaling.web import CpuSample, WebDecision, WebPolicy, WebState, decide_web

POLICY = WebPolicy(min_replicas=2, max_replicas=8, cpu=0.5)


class Pods:
    """Web pods that use as much CPU as the test says, looked at every two seconds."""

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.now = 0.0
        self.used = dict.fromkeys(range(20), 0.0)
        self.state = WebState()

    def looks(self, seconds: float, each: float, *, answering: int | None = None) -> WebDecision:
        """For so long, in which each uses so many cores; the last decision."""
        end = self.now + seconds
        while self.now < end:
            self.now += 2.0
            for number in range(self.count):
                self.used[number] += 2.0 * each
            shown = self.count if answering is None else answering
            looked = [CpuSample(f"p{n}", self.now, self.used[n]) for n in range(shown)]
            decision, self.state = decide_web(
                POLICY, self.state, looked, ready=self.count, current=self.count, now=self.now
            )
        return decision


@pytest.mark.parametrize(
    ("each", "expected"), [(0.0, 2), (0.38, 2), (0.42, 2), (0.6, 3), (1.2, 6), (9.0, 6)]
)
def test_as_many_as_use_four_fifths_of_what_they_ask_for(each: float, expected: int) -> None:
    """Within the bounds, a tolerance, and as many at once as there are, or four."""
    assert expected == Pods().looks(40.0, each).desired


def test_no_more_than_the_bound() -> None:
    """And the sentence says so."""
    decision = Pods(count=8).looks(40.0, 9.0)

    assert 8 == decision.desired
    assert "maxReplicas 8" in decision.text


def test_the_cpu_of_a_start_is_no_load() -> None:
    """Nor is what cannot be seen: half of the pods at least have to tell."""
    started = Pods().looks(8.0, 9.0)
    hidden = Pods(count=4).looks(40.0, 9.0, answering=1)

    assert (2, 4) == (started.desired, hidden.desired)
    assert "so their number stays" in started.text
    assert "1 of 4" in hidden.text


def test_down_goes_to_the_highest_need_of_five_minutes() -> None:
    """As a HorizontalPodAutoscaler does by default."""
    pods = Pods(count=5)
    pods.looks(40.0, 0.4)
    soon = pods.looks(200.0, 0.1)
    assert 5 == soon.desired
    assert "were needed within the last 300 s" in soon.text

    assert 2 == pods.looks(200.0, 0.1).desired


def test_a_pod_that_starts_anew_uses_no_less_than_nothing() -> None:
    """Its counter begins at 0 again."""
    pods = Pods()
    pods.looks(20.0, 0.6)
    pods.used[0] = 0.0

    assert 3 == pods.looks(14.0, 0.6).desired
