"""The rule for rows of different lengths, on a sample of what `lengths.py` measures."""

import pytest
from lengths import DRAWN, MODELS, REAL, Cell, Model, line, measured, regrets

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


@pytest.mark.parametrize("seed", range(6))
def test_a_learned_surface_serves_what_the_true_one_does(seed: int) -> None:
    """200 batches with 5 % noise, formed by the rule itself."""
    learned, _ = regrets(seed)

    assert learned < 0.02
