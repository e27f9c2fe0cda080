"""Bytes of bodies are counted once, whichever way they come and end."""

from batchedapi_serving.web.body_budget import BODIES_BYTES, BodyBudget, HeldBodies

MIB = 1 << 20


def test_a_body_counts_from_its_first_piece_to_its_answer() -> None:
    """What was announced and has not come takes nothing from others."""
    budget = BodyBudget(MIB)
    held = HeldBodies(budget)

    sizes = []
    for step in (
        lambda: held.coming(1000),
        lambda: held.coming(3000),
        lambda: held.answering(3000),
        lambda: held.coming(500),
        held.released,
        lambda: held.coming(900),
        held.released,
    ):
        step()
        sizes.append(budget.held)

    assert [1000, 3000, 3000, 3500, 0, 900, 0] == sizes


def test_who_brings_too_much_is_refused_and_keeps_what_it_has() -> None:
    """Others go on with what it gives back."""
    budget = BodyBudget(MIB)
    first, second = HeldBodies(budget), HeldBodies(budget)

    assert first.coming(BODIES_BYTES - MIB)
    assert not second.coming(MIB + 1)
    assert not second.answering(MIB + 1)
    assert second.coming(MIB)
    assert not second.coming(MIB + 1)
    first.released()
    assert second.coming(MIB + 1)
    assert MIB + 1 == budget.held


def test_two_bodies_of_the_largest_size_always_fit() -> None:
    """Otherwise a large `maxBodySize` would be one that nobody can send."""
    budget = BodyBudget(BODIES_BYTES)

    assert [True, True, False] == [HeldBodies(budget).answering(BODIES_BYTES) for _ in range(3)]
    assert "at most 536870912" in str(budget.error())
