"""The measured predictors and the bodies they get."""

import json

import pytest
from workloads import W1, WORKLOADS, answers_to, bare_bound, batch_of, bodies_of, rows_of


@pytest.mark.parametrize(("clients", "expected"), [(1, 98), (16, 1212), (64, 2807), (256, 2807)])
def test_the_bare_bound_is_that_of_full_batches(clients: int, expected: int) -> None:
    """More clients than a batch holds do not make the device faster."""
    assert expected == round(bare_bound(clients))


def test_every_client_has_an_answer_of_its_own() -> None:
    """If two clients had the same answer, swapping theirs would go unseen."""
    answers = answers_to(WORKLOADS["W1"], rows_of(64, 64))

    assert 64 == len(set(answers))


def test_answers_survive_json_and_do_not_depend_on_the_batch() -> None:
    """Values are multiples of 1/64: sums are exact in float32 whatever the order."""
    rows = rows_of(64, 64)
    decoded = [json.loads(body) for body in bodies_of(rows)]

    together = W1({}, None).predict(batch_of(decoded)).tolist()

    assert [sum(row) for row in decoded] == together
