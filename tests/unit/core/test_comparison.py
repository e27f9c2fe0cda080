"""Which revision is worse than the one before, by recent batches that both have run."""

from dataclasses import replace

import pytest

from batchedapi_core.comparison import (
    FEWEST,
    Allowed,
    ComparedBatch,
    ComparisonReason,
    judge,
)

ALLOWED = Allowed(slower=0.3, differ=0.0)


def batches(
    a: float = 0.002, b: float = 0.001, *, sizes: tuple[int, ...] = (1, 2, 4, 8, 16), runs: int = 2
) -> list[ComparedBatch]:
    """Eight batches of each size that took 2 ms + 1 ms a row, and take a + b * n now."""
    return [
        ComparedBatch(n, 0.002 + 0.001 * n, (a + b * n,) * runs) for n in sizes for _ in range(8)
    ]


def test_an_equal_revision_may_go_on_and_is_shown_beside_the_one_before() -> None:
    """t(n) of both, and how much was compared."""
    found = judge("predict", batches(), ALLOWED)

    assert ComparisonReason.COMPARED == found.reason
    assert found.sentence.startswith("predict: no worse in 40 recent batches; t(n)")
    line = found.sentence.partition("t(n) is ")[2]
    assert line.partition(", and was ")[0] == line.partition(", and was ")[2]


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (0.002, 0.0016, ComparisonReason.SLOWER),
        (0.006, 0.001, ComparisonReason.SLOWER),
        (0.002, 0.0011, ComparisonReason.COMPARED),
        (0.001, 0.0005, ComparisonReason.COMPARED),
    ],
)
def test_times_are_compared_at_equal_sizes(a: float, b: float, reason: ComparisonReason) -> None:
    """F12: b + 60 % is held, b + 10 % is not; a revision that is faster never is."""
    assert reason == judge("predict", batches(a, b), ALLOWED).reason


def test_what_else_runs_on_a_node_is_no_fault_of_either() -> None:
    """Half of the batches may have waited for a CPU, on both sides."""
    noisy = [
        replace(one, before=one.before * (3 if i % 2 else 1), after=(*one.after, one.after[0] * 5))
        for i, one in enumerate(batches(b=0.0016))
    ]
    equal = [replace(one, after=(*one.after, one.after[0] * 5)) for one in batches()]

    assert ComparisonReason.SLOWER == judge("predict", noisy, ALLOWED).reason
    assert ComparisonReason.COMPARED == judge("predict", equal, ALLOWED).reason


def test_the_first_run_of_a_batch_is_no_time() -> None:
    """A model may compile or tune for a shape that it has not seen, which it does once."""
    compiles = [replace(one, after=(one.before + 0.5, one.before)) for one in batches()]
    once = [replace(one, after=(one.before + 0.5,)) for one in batches()]

    assert {ComparisonReason.COMPARED} == {
        judge("predict", found, ALLOWED).reason for found in (compiles, once)
    }
    assert "t(n) is not known, and was not known" in judge("predict", once, ALLOWED).sentence


def test_a_few_batches_and_a_few_microseconds_say_nothing_about_times() -> None:
    """Of one size only, no line can be told from three points at the same place either."""
    few = batches(b=0.01)[: FEWEST - 1]
    tiny = [ComparedBatch(1, 0.00005, (0.0002,) * 2) for _ in range(8)]

    assert ComparisonReason.COMPARED == judge("predict", few, ALLOWED).reason
    assert ComparisonReason.COMPARED == judge("predict", tiny, ALLOWED).reason
    assert "t(n) is not known, and was not known" in judge("predict", few[:1], ALLOWED).sentence


def test_the_sentence_about_times_has_both_and_the_limit() -> None:
    """Whoever reads it needs no other page."""
    found = judge("predict", batches(b=0.002, sizes=(8,)), ALLOWED)

    assert found.sentence.startswith(
        "predict: a batch of 8 rows on average takes 18 ms, and took 10 ms (+80 %), and"
        " spec.updateStrategy.compare.slower allows 30 %; t(n) is "
    )


@pytest.mark.parametrize(
    ("before", "failed", "reason"),
    [
        (0, 1, ComparisonReason.MORE_ERRORS),
        (1, 2, ComparisonReason.COMPARED),
        (8, 20, ComparisonReason.COMPARED),
        (8, 25, ComparisonReason.MORE_ERRORS),
    ],
)
def test_more_errors_are_those_that_chance_does_not_explain(
    before: int, failed: int, reason: ComparisonReason
) -> None:
    """One that fails where none did is enough; of sixteen expected, some more are no news."""
    one = replace(batches(sizes=(16,))[0], failed_before=before, failed=failed)

    found = judge("predict", [one], ALLOWED)

    assert reason == found.reason
    if reason is ComparisonReason.MORE_ERRORS:
        expected = f"{failed} of 32 recent rows failed, and {2 * before} with the revision before"
        assert found.sentence.startswith(f"predict: {expected}")


@pytest.mark.parametrize(
    ("differ", "reason"),
    [
        (0.0, ComparisonReason.ANSWERS_DIFFER),
        (0.1, ComparisonReason.ANSWERS_DIFFER),
        (0.125, ComparisonReason.COMPARED),
        (1.0, ComparisonReason.COMPARED),
    ],
)
def test_answers_may_differ_by_the_share_that_is_allowed(
    differ: float, reason: ComparisonReason
) -> None:
    """A model that was trained anew answers otherwise; how often is for its user to say."""
    one = replace(batches(sizes=(16,))[0], moved=4)

    found = judge("predict", [one], Allowed(slower=0.3, differ=differ))

    assert reason == found.reason
    if reason is ComparisonReason.ANSWERS_DIFFER:
        assert "4 of 32 recent rows (12 %) are answered otherwise" in found.sentence
