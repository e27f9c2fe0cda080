"""A full cluster: what is held for later is given to those who need it now."""

from dataclasses import replace

import pytest
from tests.unit.core.scaling.evidence import POLICY, evidence_of, worth

from batchedapi_core.scaling.decide import conclude, decide
from batchedapi_core.scaling.decision import Cause, Evidence
from batchedapi_core.scaling.forecast import Recurrence
from batchedapi_core.scaling.observe import observe
from batchedapi_core.scaling.record import explain, record, replay
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import ScalingState

HELD = evidence_of(worth(1.5), ready=6, current=6, held=6)
BURSTS = evidence_of(
    worth(1.5), ready=6, current=6, recurring=(Recurrence(6 * worth(1.0), 30.0, 10.0, 600.0),)
)


@pytest.mark.parametrize("evidence", [HELD, replace(HELD, held=2, hedged=6, ready=1), BURSTS])
def test_what_is_held_goes_while_pods_of_others_wait_for_a_place(evidence: Evidence) -> None:
    """As fast as the rate of scale-down allows."""
    kept, given = conclude(POLICY, evidence), conclude(POLICY, replace(evidence, wanted=2))

    assert 6 == kept.desired
    assert (3, Cause.SCALE_DOWN) == (given.desired, given.reason)


def test_a_window_of_the_users_own_stands() -> None:
    """Whoever wrote it has said for how long replicas are kept."""
    own = replace(POLICY, down=replace(POLICY.down, stabilization=3600.0))

    assert 6 == conclude(own, replace(HELD, wanted=2)).desired


def test_what_is_needed_stays_and_so_does_all_until_that_is_known() -> None:
    """An operator that has just started has not seen what was needed a minute ago."""
    needed = evidence_of(0.99 * worth(6.0) / POLICY.target_utilization, ready=6, current=6, held=6)

    assert 6 == conclude(POLICY, replace(needed, wanted=2)).desired
    assert 6 == conclude(POLICY, replace(HELD, settled=False, wanted=2)).desired


def test_all_of_a_replica_is_used_while_pods_of_others_wait_for_a_place() -> None:
    """What is left free serves rows that may come, and theirs have come."""
    evidence = evidence_of(worth(6.1), ready=7, current=7)

    assert 7 == conclude(POLICY, evidence).desired
    assert 6 == conclude(POLICY, replace(evidence, wanted=1)).desired
    own = replace(POLICY, target_utilization=0.9)
    assert 7 == conclude(own, replace(evidence, wanted=1)).desired


@pytest.mark.parametrize(
    ("wanted", "said"),
    [(1, "1 pod of another API waits for a place"), (3, "3 pods of other APIs wait for a place")],
)
def test_it_is_said_who_waits_and_nothing_is_hedged(wanted: int, said: str) -> None:
    """In the sentence of the decision, and as the rule of the hedge."""
    given = conclude(POLICY, replace(HELD, wanted=wanted))
    late = conclude(POLICY, replace(evidence_of(worth(2.9), ready=2), wanted=wanted))

    assert f"; nothing is held as {said}" in explain(POLICY, given)
    assert (1.0, said) == (late.terms.boost, late.terms.hedge_rule)
    assert "nothing is held" not in explain(POLICY, conclude(POLICY, HELD))
    assert given.desired == replay(record(POLICY, given))


def test_the_wait_for_a_node_is_part_of_what_a_forecast_looks_ahead() -> None:
    """Where nodes are bought a rise is ordered for that much earlier."""
    rising = evidence_of(worth(2.0), ready=3, current=3, trend=worth(0.01))
    near, far = (
        conclude(POLICY, replace(rising, placement=seconds)).terms.forecast
        for seconds in (0.0, 60.0)
    )

    assert far == pytest.approx(near + 60.0 * worth(0.01))


def test_places_that_others_want_reach_the_decision_and_waits_survive_a_restart() -> None:
    """From the look to the record, and through the status."""
    state = replace(ScalingState.empty(), placements=(90.0,))
    look = Observation((), 0, 1, "r", wanted=2)
    load, after = observe(POLICY, state, look, 5.0)

    decision, _ = decide(POLICY, load, after, 5.0)

    assert (2, 90.0) == (decision.terms.wanted, decision.terms.placement)
    assert (90.0,) == ScalingState.restored(after.to_saved()).placements
    assert () == ScalingState.restored({**after.to_saved(), "placements": "x"}).placements
