"""F3: what each limit says, word for word, and that what it says is what was done."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.core.scaling.evidence import POLICY, evidence_of, worth

from batchedapi_core.scaling.decide import conclude
from batchedapi_core.scaling.decision import Cause, Evidence
from batchedapi_core.scaling.forecast import Recurrence
from batchedapi_core.scaling.policy import (
    Behavior,
    PolicyKind,
    ScalingPolicy,
    Select,
    StepKind,
    StepPolicy,
    default_behaviors,
)
from batchedapi_core.scaling.record import explain, record, replay
from batchedapi_core.scaling.schedule import DAY, Expected

GOLDEN = Path(__file__).with_name("sentences.json")
UP, DOWN = default_behaviors(PolicyKind.CAPACITY_SLO)
CORTEX_UP, CORTEX_DOWN = default_behaviors(PolicyKind.CONCURRENCY)
PATIENT = replace(POLICY, up=replace(UP, stabilization=60.0))
CORTEX = replace(
    POLICY,
    kind=PolicyKind.CONCURRENCY,
    target_concurrency=4.0,
    up=CORTEX_UP,
    down=CORTEX_DOWN,
)
DAILY = Expected(2.0, worth(0.93), 42.0, 8, 10, DAY, given_up=False)
FROZEN = Behavior(0.0, (), Select.DISABLED)
CAREFUL = Behavior(
    0.0,
    (StepPolicy(StepKind.PODS, 1, 30.0), StepPolicy(StepKind.PERCENT, 20, 60.0)),
    Select.MIN,
)


def of_cortex(in_flight: float, current: int, lowest: int | None = None) -> Evidence:
    """Evidence for the policy Concurrency."""
    evidence = evidence_of(
        100.0, ready=current, current=current, in_flight=in_flight, lowest=lowest
    )
    return replace(evidence, grown_from=(current,))


CASES: dict[str, tuple[ScalingPolicy, Evidence]] = {
    "tolerance": (POLICY, evidence_of(worth(3.1))),
    "tolerance going down": (
        replace(POLICY, max_replicas=40, down=replace(DOWN, tolerance=0.1)),
        evidence_of(worth(18.9), ready=20, current=20),
    ),
    "max factor": (
        replace(POLICY, max_replicas=100),
        evidence_of(worth(30.0), ready=2, current=2),
    ),
    "up disabled": (
        replace(POLICY, up=FROZEN),
        replace(evidence_of(worth(5.0)), grown_from=()),
    ),
    "down disabled": (
        replace(POLICY, down=FROZEN),
        replace(evidence_of(worth(1.0)), shrunk_from=()),
    ),
    "several policies": (
        replace(POLICY, up=CAREFUL),
        replace(evidence_of(worth(5.0), current=4), grown_from=(4, 3)),
    ),
    "stabilization up": (PATIENT, evidence_of(worth(5.0), lowest=4)),
    "stabilization up, unsettled": (PATIENT, evidence_of(worth(5.0), settled_up=False)),
    "stabilization down": (POLICY, evidence_of(worth(1.0), held=3)),
    "stabilization down, unsettled": (POLICY, evidence_of(worth(1.0), settled=False)),
    "rate down": (POLICY, evidence_of(worth(1.0))),
    "min": (replace(POLICY, min_replicas=3), evidence_of(worth(1.0))),
    "max": (POLICY, evidence_of(worth(11.0), ready=9, current=9)),
    "missing metrics": (POLICY, evidence_of(None, coverage=0.25, ready=4)),
    "some metrics missing": (POLICY, evidence_of(worth(1.0), coverage=0.75, ready=4)),
    "paused": (replace(POLICY, paused=True), evidence_of(worth(5.0))),
    "paused, outside of the bounds": (
        replace(POLICY, paused=True),
        evidence_of(None, ready=12, current=12),
    ),
    "trend": (POLICY, evidence_of(worth(2.9), trend=10.0)),
    "backlog": (POLICY, evidence_of(worth(2.9), queue_rows=5000.0, waiting_rows=4000.0)),
    "margin": (POLICY, evidence_of(worth(2.9), margin_share=0.2, highest=worth(9.0))),
    "margin, no more than there was": (
        POLICY,
        evidence_of(worth(2.9), margin_share=0.5, highest=worth(3.5)),
    ),
    "bursts": (
        POLICY,
        evidence_of(worth(1.0), recurring=(Recurrence(worth(2.6), 240.0, 40.0, 700.0),)),
    ),
    "bursts, too rare to pay for": (
        POLICY,
        evidence_of(worth(1.0), recurring=(Recurrence(worth(2.6), 900.0, 40.0, 700.0),)),
    ),
    "schedule": (
        POLICY,
        replace(evidence_of(worth(0.93), ready=1, current=1), expected=DAILY),
    ),
    "schedule, given up": (
        POLICY,
        replace(
            evidence_of(worth(0.93), ready=1, current=1), expected=replace(DAILY, given_up=True)
        ),
    ),
    "slowdown": (POLICY, evidence_of(worth(3.0), slowdown=1.3)),
    "trust": (POLICY, evidence_of(worth(3.0), trust=0.8)),
    "overload where nothing may go": (
        replace(POLICY, down=FROZEN),
        replace(evidence_of(worth(4.0), ready=2), shrunk_from=()),
    ),
    "next to nothing": (POLICY, replace(evidence_of(0.1, ready=1, current=1), level=0.0)),
    "hot replica": (POLICY, evidence_of(worth(2.9), imbalance=1.2)),
    "concurrency": (CORTEX, of_cortex(11.0, 3)),
    "concurrency, factor up": (CORTEX, of_cortex(40.0, 3, lowest=4)),
    "concurrency, factor down": (CORTEX, of_cortex(1.0, 8)),
}


def test_every_limit_says_what_it_said() -> None:
    """Users paste the sentences into handles; a change of one is a change of the product."""
    said = {name: explain(policy, conclude(policy, seen)) for name, (policy, seen) in CASES.items()}

    assert json.loads(GOLDEN.read_text(encoding="utf-8")) == said


@pytest.mark.parametrize("name", CASES)
def test_the_sentence_names_what_bound_and_the_record_repeats_it(name: str) -> None:
    """The last clamp is the one that a user would have to change."""
    policy, evidence = CASES[name]

    decision = conclude(policy, evidence)

    recorded = json.loads(json.dumps(record(policy, decision), allow_nan=False))
    assert decision.desired == replay(recorded) == recorded["desired"]
    for clamp in decision.clamps:
        assert clamp.detail in recorded["text"]
    assert decision.bound == (decision.clamps[-1].name.value if decision.clamps else "")


def test_a_pause_moves_nothing_and_keeps_what_would_be_done() -> None:
    """Not even the user's own bounds: who pauses wants to look, or repair by hand."""
    policy, evidence = CASES["paused, outside of the bounds"]

    decision = conclude(policy, evidence)

    assert 12 == decision.desired > policy.max_replicas
    assert ["NoMetrics", "MaxReplicas", "Paused"] == [clamp.name for clamp in decision.clamps]
    assert (10, 12) == (decision.clamps[-1].before, decision.clamps[-1].after)
    assert decision.is_hold
    assert not decision.reason.is_hold
    assert Cause.NO_METRICS.is_hold
