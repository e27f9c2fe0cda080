"""A decision from its evidence: formula, holds, limits, sentence, record."""

import json
import math
import random
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.scaling.evidence import FULL, POLICY, evidence_of, worth

from batchedapi_core.scaling.decide import conclude
from batchedapi_core.scaling.decision import Cause, Clamp, ClampName, Evidence
from batchedapi_core.scaling.forecast import Recurrence
from batchedapi_core.scaling.policy import CAPACITY_DOWN, CAPACITY_UP, StepKind, StepPolicy
from batchedapi_core.scaling.record import explain, record, replay, taken_again
from batchedapi_core.service_model import ServiceTime
from thorough import examples


@pytest.mark.parametrize(
    ("evidence", "desired", "reason", "bound"),
    [
        (evidence_of(worth(3.0)), 3, Cause.DEMAND, ""),
        (evidence_of(worth(2.4), current=2, ready=2, held=3), 3, Cause.DEMAND, ""),
        (evidence_of(worth(2.9), ready=2, held=3), 9, Cause.OVERLOAD, ""),
        (evidence_of(worth(3.1)), 3, Cause.WITHIN_TOLERANCE, "WithinTolerance"),
        (evidence_of(worth(3.2)), 4, Cause.DEMAND, ""),
        (evidence_of(worth(11.0), ready=9, current=9), 10, Cause.MAX_REPLICAS, "MaxReplicas"),
        (evidence_of(worth(7.0), ready=1, current=0), 4, Cause.SURGE_LIMITED, "SurgeLimited"),
        (evidence_of(worth(1.0)), 2, Cause.SCALE_DOWN, "ScaleDownRate"),
        (evidence_of(worth(2.0)), 2, Cause.SCALE_DOWN, ""),
        (
            evidence_of(worth(1.0), held=3),
            3,
            Cause.SCALE_DOWN_STABILIZING,
            "ScaleDownStabilizing",
        ),
        (
            evidence_of(worth(1.0), current=5, held=4),
            4,
            Cause.SCALE_DOWN,
            "ScaleDownStabilizing",
        ),
        (
            evidence_of(worth(1.0), settled=False),
            3,
            Cause.SCALE_DOWN_STABILIZING,
            "ScaleDownStabilizing",
        ),
        (
            evidence_of(worth(1.0), largest_recent=6),
            3,
            Cause.SCALE_DOWN_STABILIZING,
            "ScaleDownRate",
        ),
        (evidence_of(worth(1.0), coverage=0.79), 3, Cause.PARTIAL_METRICS, "PartialMetrics"),
        (evidence_of(worth(9.0), coverage=0.49), 3, Cause.NO_METRICS, "NoMetrics"),
        (evidence_of(None), 3, Cause.NO_METRICS, "NoMetrics"),
        (evidence_of(worth(9.0), ready=0), 3, Cause.NO_READY_PODS, "NoReadyPods"),
        (evidence_of(1.0, service=None), 3, Cause.MODEL_UNKNOWN, "ModelUnknown"),
        (evidence_of(0.0, service=None, queue_rows=9.0), 3, Cause.MODEL_UNKNOWN, "ModelUnknown"),
        (evidence_of(0.0, service=None), 2, Cause.SCALE_DOWN, "ScaleDownRate"),
        (evidence_of(None, current=12), 10, Cause.NO_METRICS, "MaxReplicas"),
        (evidence_of(None, ready=0, current=0), 1, Cause.NO_READY_PODS, "MinReplicas"),
    ],
)
def test_each_situation_has_its_count_its_reason_and_its_clamp(
    evidence: Evidence, desired: int, reason: Cause, bound: str
) -> None:
    """The reasons are public: dashboards and `kubectl wait` depend on them."""
    decision = conclude(POLICY, evidence)

    assert (desired, reason, bound) == (decision.desired, decision.reason, decision.bound)


def test_a_minimum_above_the_need_is_said_to_be_what_binds() -> None:
    """Else an idle API with three replicas looks like a fault."""
    policy = replace(POLICY, min_replicas=3)

    decision = conclude(policy, evidence_of(worth(1.0)))

    assert (3, Cause.MIN_REPLICAS) == (decision.desired, decision.reason)
    assert (Clamp(ClampName.MIN_REPLICAS, 1, 3, "minReplicas is 3"),) == decision.clamps


def test_a_minimum_beats_the_surge_limit() -> None:
    """It is the user's own word, not a guess from measurements."""
    policy = replace(POLICY, min_replicas=9)

    decision = conclude(policy, evidence_of(worth(1.0), ready=1, current=1))
    at_once = replace(CAPACITY_UP, policies=(StepPolicy(StepKind.PODS, 1, 5.0),))
    slow = replace(evidence_of(0.0, ready=1, current=1), grown_from=(1,))
    jump = conclude(replace(policy, up=at_once), slow)

    assert 9 == decision.desired
    assert (9, "MinReplicas") == (jump.desired, jump.bound)
    assert [ClampName.MIN_REPLICAS, ClampName.SURGE_LIMITED, ClampName.MIN_REPLICAS] == [
        clamp.name for clamp in jump.clamps
    ]


def test_a_latency_target_that_cannot_be_met_is_named_and_planned_for_at_half() -> None:
    """More replicas do not make a batch faster; the user has to change something."""
    policy = replace(POLICY, latency_target=0.015)

    decision = conclude(policy, evidence_of(worth(1.5)))

    assert (3, Cause.LATENCY_TARGET_INFEASIBLE) == (decision.desired, decision.reason)
    assert FULL / 2 == pytest.approx(decision.terms.capacity)
    assert "at best effort, as no batch size meets p99 <= 15 ms" in explain(policy, decision)


def test_overload_is_told_apart_from_what_the_demand_needs_for_good() -> None:
    """Stabilization holds the one for less long than the other."""
    terms = conclude(POLICY, evidence_of(worth(2.9), ready=2)).terms

    assert (3, 9) == (terms.steady, terms.recommended)


def test_however_small_the_share_one_replica_may_go() -> None:
    """A tenth of five rounds to none, and five would stay for ever."""
    decision = conclude(
        replace(
            POLICY, down=replace(CAPACITY_DOWN, policies=(StepPolicy(StepKind.PERCENT, 10, 60.0),))
        ),
        evidence_of(worth(1.0), current=5),
    )

    assert (4, "ScaleDownRate") == (decision.desired, decision.bound)


def test_every_lane_of_a_replica_counts() -> None:
    """Capacity is per replica, the model per lane."""
    decision = conclude(replace(POLICY, lanes=4), evidence_of(worth(3.0)))

    assert 4 * FULL == pytest.approx(decision.terms.capacity)
    assert 0.75 == pytest.approx(decision.terms.need)


LINE = (
    "one replica sustains 690/s in full batches (batch 8, 10.0 ms + 0.20 ms/row), "
    "93 % of it is used"
)
MIX = "mean batch 7.1 of 8, 62 % released full"


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        (
            evidence_of(worth(3.0)),
            f"3 replicas (Demand): 1924 rows/s arrive; {LINE} => 3.00; {MIX}",
        ),
        (
            evidence_of(worth(2.9), ready=2),
            (
                f"9 replicas (Overload): 1860 rows/s arrive; {LINE}, times 3 because 2 ready "
                "cannot keep up: what is not needed is cancelled once enough are ready "
                f"=> 8.70; {MIX}"
            ),
        ),
        (
            replace(evidence_of(5.0, ready=1, current=1), mean_batch=None, full_share=None),
            f"1 replica (Demand): 5.0 rows/s arrive; {LINE} => 0.01",
        ),
        (
            evidence_of(worth(3.1)),
            (
                f"3 replicas (WithinTolerance): 1988 rows/s arrive; {LINE} => 3.10; {MIX}; "
                "WithinTolerance 4 -> 3: a need of 3.10 is within 5 % of 3"
            ),
        ),
        (
            evidence_of(worth(11.0), ready=9, current=9),
            (
                f"10 replicas (MaxReplicas): 7055 rows/s arrive; {LINE} => 11.00; {MIX}; "
                "MaxReplicas 11 -> 10: maxReplicas is 10"
            ),
        ),
        (
            evidence_of(worth(7.0), ready=1, current=0),
            (
                f"4 replicas (SurgeLimited): 4490 rows/s arrive; {LINE}, times 3 because 1 ready "
                "cannot keep up: what is not needed is cancelled once enough are ready "
                f"=> 21.00; {MIX}; MaxReplicas 21 -> 10: maxReplicas is 10; "
                "SurgeLimited 10 -> 4: at most 900 % in 2 s or 4 pods in 2 s may be added to 0"
            ),
        ),
        (
            evidence_of(worth(1.0), held=3),
            (
                f"3 replicas (ScaleDownStabilizing): 641 rows/s arrive; {LINE} => 1.00; {MIX}; "
                "ScaleDownStabilizing 1 -> 3: 3 were recommended within the last 60 s"
            ),
        ),
        (
            evidence_of(worth(1.0), settled=False),
            (
                f"3 replicas (ScaleDownStabilizing): 641 rows/s arrive; {LINE} => 1.00; {MIX}; "
                "ScaleDownStabilizing 1 -> 3: the operator has watched for less than 60 s"
            ),
        ),
        (
            evidence_of(worth(1.0)),
            (
                f"2 replicas (ScaleDown): 641 rows/s arrive; {LINE} => 1.00; {MIX}; "
                "ScaleDownRate 1 -> 2: at most 50 % in 60 s may go of 3"
            ),
        ),
        (
            evidence_of(worth(1.0), coverage=0.75, ready=4),
            (
                f"3 replicas (PartialMetrics): 641 rows/s arrive; {LINE} => 1.00; {MIX}; "
                "PartialMetrics 1 -> 3: 75 % of 4 ready pods were seen, "
                "80 % are needed to remove any"
            ),
        ),
        (
            evidence_of(None, coverage=0.25, ready=4),
            (
                "3 replicas (NoMetrics): nothing moves; counters of 25 % of 4 ready pods could be "
                "compared, 50 % are needed"
            ),
        ),
        (
            evidence_of(1.0, ready=0),
            "3 replicas (NoReadyPods): nothing moves; no pod is ready",
        ),
        (
            evidence_of(1.0, service=None),
            (
                "3 replicas (ModelUnknown): nothing moves; too few batches were seen to know what "
                "one replica serves"
            ),
        ),
        (
            evidence_of(0.0, service=None, ready=1, current=1),
            "1 replica (Demand): no rows arrive and none wait",
        ),
    ],
    ids=[
        "demand",
        "overload",
        "one",
        "tolerance",
        "maximum",
        "surge",
        "stabilizing",
        "new-operator",
        "rate",
        "partial",
        "no-metrics",
        "not-ready",
        "unknown",
        "idle",
    ],
)
def test_the_sentence_has_the_numbers(evidence: Evidence, sentence: str) -> None:
    """Word for word: users paste it into their handles."""
    assert sentence == explain(POLICY, conclude(POLICY, evidence))


def test_a_record_is_plain_json_of_moderate_size() -> None:
    """It lives in a status, beside everything else there."""
    decision = conclude(POLICY, evidence_of(worth(1.0), held=3))

    recorded = record(POLICY, decision)

    text = json.dumps(recorded, allow_nan=False)
    assert recorded == json.loads(text)
    assert 5000 > len(text)
    assert ("ScaleDownStabilizing", 1, 3) == tuple(
        recorded["clamps"][0][key] for key in ("name", "before", "after")
    )


@pytest.mark.no_cover
def test_random_decisions_replay_to_themselves() -> None:
    """F3: a record holds all that its decision was made from, also after a trip as JSON."""
    chance = random.Random(3)
    for number in range(examples(2000)):
        policy = replace(
            POLICY,
            min_replicas=chance.randint(1, 3),
            max_replicas=chance.randint(3, 40),
            latency_target=chance.choice((None, 0.015, 0.05, 0.5)),
            lanes=chance.randint(1, 3),
        )
        evidence = _random_evidence(chance)

        decision = conclude(policy, evidence)

        assert policy.min_replicas <= decision.desired <= policy.max_replicas
        recorded = record(policy, decision)
        if number % 10 == 0:
            recorded = json.loads(json.dumps(recorded))
            assert (policy, decision) == taken_again(recorded)
        assert decision.desired == replay(recorded)


def _random_evidence(chance: random.Random) -> Evidence:
    current = chance.randint(0, 30)
    evidence = evidence_of(
        chance.choice((None, 0.0, chance.expovariate(1 / 3000))),
        ready=chance.randint(0, 30),
        current=current,
        coverage=chance.random() ** 0.2,
        service=chance.choice((None, ServiceTime(chance.random() / 50, chance.random() / 1000))),
        held=chance.randint(0, 30),
        largest_recent=current + chance.choice((0, 0, 5)),
        settled=chance.random() < 0.8,
        queue_rows=chance.choice((0.0, 50.0)),
        waiting_rows=chance.choice((0.0, 0.0, 900.0)),
        trend=chance.choice((0.0, 50.0)),
        margin_share=chance.choice((0.0, 0.3)),
        highest=chance.expovariate(1 / 3000),
        recurring=chance.choice(
            ((), (Recurrence(chance.expovariate(1 / 3000), 200.0, 40.0, 700.0),))
        ),
        slowdown=chance.choice((1.0, 1.5)),
        trust=chance.choice((1.0, 0.7)),
    )
    return replace(
        evidence,
        hedged=chance.choice((0, 0, 20)),
        unschedulable=chance.choice((0, 0, 7)),
        waited_for_node=chance.random() < 0.2,
    )


@pytest.mark.parametrize(
    "broken",
    [{}, {"version": 6}, {"version": 7}, {"version": 7, "terms": {}, "policy": {}}],
    ids=["empty", "of another version", "without terms", "without evidence"],
)
def test_what_is_no_record_is_refused(broken: dict[str, object]) -> None:
    """A guess would look like an answer."""
    with pytest.raises(ValueError, match="decision record"):
        replay(broken)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), more=st.floats(1.0, 20.0))
def test_more_demand_never_means_fewer_replicas(seed: int, more: float) -> None:
    """All else equal; an autoscaler that is not monotone oscillates."""
    evidence = _random_evidence(random.Random(seed))
    if evidence.arrival_now is None:
        evidence = replace(evidence, arrival_now=1.0, arrival_window=1.0, level=1.0, interval=2.0)
    assert evidence.arrival_now is not None
    assert evidence.arrival_window is not None
    assert evidence.level is not None
    grown = replace(
        evidence,
        arrival_now=evidence.arrival_now * more,
        arrival_window=evidence.arrival_window * more,
        level=evidence.level * more,
    )

    assert conclude(POLICY, evidence).desired <= conclude(POLICY, grown).desired


@settings(derandomize=True, max_examples=200, deadline=None)
@given(rate=st.floats(0, 1e30), ready=st.integers(0, 1000), current=st.integers(0, 10**6))
def test_no_rate_moves_the_count_out_of_bounds(rate: float, ready: int, current: int) -> None:
    """And no number in the record is too large for the Kubernetes API."""
    decision = conclude(POLICY, evidence_of(rate, ready=ready, current=current))

    assert 1 <= decision.desired <= 10
    assert decision.terms.raw <= 2 * 10**9
    assert all(
        math.isfinite(value)
        for value in asdict(decision.terms).values()
        if isinstance(value, int | float)
    )


def test_an_impossible_policy_is_refused_with_what_was_expected() -> None:
    """Better at construction than as a strange count later."""
    with pytest.raises(ValueError, match="0 <= min_replicas <= max_replicas"):
        replace(POLICY, min_replicas=11)
    with pytest.raises(ValueError, match="finite batch_interval"):
        replace(POLICY, batch_interval=math.nan)
