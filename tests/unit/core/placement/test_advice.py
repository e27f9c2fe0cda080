"""Advice about manifests that are valid and may still be mistakes."""

from dataclasses import replace
from typing import Any

import pytest

from batchedapi_core.placement import AdviceReason, Situation, advise

FINE = Situation(
    processes=4,
    cpus=2.0,
    memory=2.0**30,
    process_memory=2.0**28,
    max_batch_size=32,
    full_batch_seconds=0.05,
    latency_target=0.1,
)


def test_nothing_is_said_of_what_is_fine() -> None:
    """Four copies of 256 Mi fill 1 Gi exactly; C04: two CPUs carry two to six processes."""
    assert () == advise(FINE)
    assert () == advise(replace(FINE, processes=6, process_memory=None))


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        pytest.param(
            {"processes": 7, "process_memory": 0.0},
            AdviceReason.PROCESSES,
            "is 7 on 2 CPUs",
            id="C04",
        ),
        pytest.param(
            {"process_memory": 2.0**28 + 1}, AdviceReason.MEMORY, "4 processes of 256Mi", id="W07"
        ),
        pytest.param(
            {"full_batch_seconds": 0.2},
            AdviceReason.INTERVAL,
            "a batch of 32 rows takes 200ms",
            id="C30",
        ),
        pytest.param({"one_by_one": True}, AdviceReason.ONE_BY_ONE, "nothing is gained", id="C16"),
    ],
)
def test_each_mistake_is_named_with_its_figures_and_the_remedy(
    change: dict[str, Any], reason: AdviceReason, words: str
) -> None:
    """It blocks nothing: the user may know better."""
    (advice,) = advise(replace(FINE, **change))

    assert reason is advice.reason
    assert words in advice.text
    assert "raise" in advice.text or "leave maxBatchSize out" in advice.text


def test_one_process_is_never_too_many() -> None:
    """The default CPU request is 200m."""
    assert () == advise(replace(FINE, processes=1, cpus=0.2))


@pytest.mark.parametrize(
    "unknown",
    [
        {"memory": None, "process_memory": 1e12},
        {"process_memory": None, "memory": 1.0},
        {"latency_target": None, "full_batch_seconds": 1e6},
        {"full_batch_seconds": None, "latency_target": 0.001},
    ],
    ids=str,
)
def test_what_is_not_known_is_not_advised_about(unknown: dict[str, Any]) -> None:
    """A guess would be noise in everybody's events."""
    assert () == advise(replace(FINE, **unknown))


def test_the_most_urgent_comes_first() -> None:
    """It is the reason of the condition; removed fields, which the operator adds, come last."""
    all_wrong = replace(FINE, processes=9, full_batch_seconds=1.0, one_by_one=True)

    assert [*AdviceReason][:-1] == [one.reason for one in advise(all_wrong)]


@pytest.mark.parametrize(
    ("figure", "near", "reason"),
    [
        ("process_memory", 0.95 * 2**28, AdviceReason.MEMORY),
        ("full_batch_seconds", 0.095, AdviceReason.INTERVAL),
    ],
)
def test_what_was_said_stands_until_it_is_well_below_the_limit(
    figure: str, near: float, reason: AdviceReason
) -> None:
    """A learned figure wanders; an event each time would be a stream of them."""
    wandering: dict[str, Any] = {figure: near}
    calm: dict[str, Any] = {figure: 0.8 * near}

    assert () == advise(replace(FINE, **wandering))
    assert [reason] == [one.reason for one in advise(replace(FINE, **wandering), {reason})]
    assert () == advise(replace(FINE, **calm), {reason})
