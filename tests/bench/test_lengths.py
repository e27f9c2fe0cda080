"""The rule for rows of different lengths, on a sample of what `lengths.py` measures."""

import pytest
from lengths import DRAWN, MODELS, REAL, Cell, Model, admitted, line, measured, regrets

ROWS = 2500


@pytest.mark.parametrize("kind", ["two peaks", "sentences"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_measured_rule_serves_more_than_any_other(kind: str, model: Model) -> None:
    """A closed loop of 128 clients, beside the rules that measure nothing."""
    cell = Cell(kind, {**DRAWN, **REAL}[kind], model, 128)

    served = measured(cell, ROWS, seed=1)

    ours = served.pop("Measured")
    assert max(other.rows_per_second for other in served.values()) < ours.rows_per_second
    assert ours.p99 < 1.15 * served["Classes"].p99
    assert kind in line(cell, {**served, "Measured": ours})


def test_an_open_loop_is_answered_sooner() -> None:
    """What Pad cannot serve, and what Classes serve with twice the wait."""
    cell = Cell("sentences", REAL["sentences"], MODELS[1], None, 1400.0)

    served = measured(cell, ROWS, seed=1)

    assert served["Measured"].p99 < served["Classes"].p99


@pytest.mark.parametrize("target", [0.1, 0.3])
@pytest.mark.parametrize("kind", DRAWN)
def test_who_is_admitted_at_twice_the_capacity_is_in_time(kind: str, target: float) -> None:
    """And the server is busy: about half is refused."""
    cell = Cell(kind, DRAWN[kind], MODELS[0], None, 1200.0, target)

    refused, late, _, _ = admitted(cell, ROWS, seed=1)

    assert late < 0.005
    assert refused < 0.7


@pytest.mark.parametrize("seed", range(6))
def test_a_learned_surface_serves_what_the_true_one_does(seed: int) -> None:
    """200 batches with 5 % noise, formed by the rule itself."""
    learned, _ = regrets(seed)

    assert learned < 0.02


@pytest.mark.parametrize("seed", [36, 40])
def test_a_change_is_believed_of_batches_that_do_not_come(seed: int) -> None:
    """Long batches seemed cheap since the model became slower: 6 and 10 % of the time was lost."""
    _, changed = regrets(seed)

    assert changed < 0.03
