"""`kubectl batchedapi why`."""

from pathlib import Path

import pytest

from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.scaling.record import explain, record
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.plugin.why import (
    CONCURRENCY_TERMS,
    TERMS,
    NoDecisionError,
    explain_decision,
    newest,
    padding,
)


def test_it_prints_the_sentence_the_terms_and_the_clamps() -> None:
    """All that is needed to check the number by hand, from a record as core writes it."""
    policy = ScalingPolicy(min_replicas=3, max_replicas=5, max_batch_size=8, batch_interval=0.01)
    nothing = Observation(samples=(), ready=0, current=1, revision="r")
    decision, _ = step(policy, ScalingState.empty(), nothing, 0.0)
    recorded = record(policy, decision)
    last = {"time": "2026-01-02T03:04:05Z", "text": recorded["text"], "record": recorded}

    told = explain_decision(newest("iris", {"autoscaling": {"lastDecision": last}}))

    assert explain(policy, decision) == told.split("\n")[0]
    assert "MinReplicas" in told
    assert "1 -> 3" in told
    assert all(label in told for label, _ in TERMS)


def test_padding_is_told_where_rows_have_lengths() -> None:
    """Of none there is nothing to tell; 0 % is a figure."""
    assert "padding: 0 % of what batches compute" == padding({"batching": {"paddingPercent": 0}})
    assert "" == padding({}) == padding({"batching": {}})


def test_every_term_it_names_is_one_of_core() -> None:
    """A renamed term would vanish from the table without a word."""
    policy = ScalingPolicy(min_replicas=1, max_replicas=5, max_batch_size=8, batch_interval=0.01)
    nothing = Observation(samples=(), ready=0, current=1, revision="r")
    decision, _ = step(policy, ScalingState.empty(), nothing, 0.0)

    named = {label for label, _ in (*TERMS, *CONCURRENCY_TERMS)}
    assert named <= set(record(policy, decision)["terms"])


def test_the_guide_shows_every_term_as_it_is_printed() -> None:
    """Whoever checks a decision by hand reads the guide beside it; figures are of their day."""
    page = (Path(__file__).resolve().parents[4] / "docs/guides/autoscaling.md").read_text("utf-8")
    _, _, rest = page.partition("TERM            VALUE\n")
    shown = rest.partition("\n\n")[0].splitlines()

    assert [label for label, _ in TERMS] == [line.split()[0] for line in shown]
    assert all(line.endswith(unit) for line, (_, unit) in zip(shown, TERMS, strict=True))


def test_by_requests_in_flight_no_capacity_is_shown() -> None:
    """Policy Concurrency knows none: the target is one of requests."""
    policy = ScalingPolicy(
        min_replicas=1,
        max_replicas=5,
        max_batch_size=8,
        batch_interval=0.01,
        kind=PolicyKind.CONCURRENCY,
        target_concurrency=32.0,
    )
    nothing = Observation(samples=(), ready=0, current=1, revision="r")
    decision, _ = step(policy, ScalingState.empty(), nothing, 0.0)
    recorded = record(policy, decision)

    told = explain_decision({"time": "now", "text": recorded["text"], "record": recorded})

    assert "requests in flight of one replica" in told
    assert "capacity_batch" not in told


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, "once a replica is ready"),
        (
            {
                "conditions": [
                    {
                        "type": "AutoscalingActive",
                        "status": "False",
                        "reason": "External",
                        "message": "spec.replicas decides",
                    }
                ]
            },
            "External, spec.replicas decides",
        ),
    ],
)
def test_without_a_decision_it_says_why_there_is_none(
    status: dict[str, object], words: str
) -> None:
    """Nothing to explain is an answer, too."""
    with pytest.raises(NoDecisionError) as refused:
        newest("iris", status)
    assert words in refused.value.message
