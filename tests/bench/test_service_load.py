"""Outcomes of the requests of a load on a Service."""

from harness.service_load import Counts


def test_reasons_keep_their_counts() -> None:
    """Losses are added up by them."""
    counts = Counts(sent=5, answered=2)
    counts.lost["new: no answer"] += 3

    assert {"new: no answer": 3} == counts.told()["lost"]
