"""Six APIs on one cluster, and what is told of them."""

import pytest

from autoscaling.shared import Shared, need, run, table


def test_the_places_do_not_suffice_for_all_peaks_and_do_on_average() -> None:
    """Else nobody would wait, or everybody always."""
    needs = [need(float(t)) for t in range(1200)]

    assert min(needs) < sum(needs) / len(needs) < 34 < max(needs)


@pytest.mark.parametrize("rule", ["selfish", "giving"])
def test_a_run_has_no_more_replicas_than_places(rule: str) -> None:
    """However many are asked for; and the same seed gives the same figures."""
    once, again = (run(12, rule, 0, seconds=12) for _ in range(2))

    assert 12 * 12 >= once.cost > 6 * 12
    assert 0.0 < once.late <= once.worst <= 1.0
    assert once == again


def test_means_and_the_worst_of_each_rule_are_told() -> None:
    """One seed proves little."""
    runs = [
        Shared(rule, seed, late=0.1 * (seed + 1), worst=0.3 + 0.1 * seed, start_up=39.0, cost=100.0)
        for rule in ("selfish", "giving")
        for seed in (0, 1)
    ]

    rows = table(runs).rows

    assert ["giving", "1", "20.0 %", "40 %", "39 s", "100"] == rows[3]
    assert ["selfish", "all", "15.0 %", "40 %", "39 s", "100"] == rows[4]
