"""Replicas that are not alike are so in the way that their names say."""

import numpy as np
import pytest

from autoscaling import unlike
from autoscaling.unlike import StickyClients


def test_a_client_keeps_its_replica_until_it_goes() -> None:
    """One that is added gets nobody at once; one that goes leaves its clients to the others."""
    rng = np.random.default_rng(0)
    clients = StickyClients(50, stay=1e12)

    alone, added, gone = (clients(ready, 2000, rng) for ready in ([3], [3, 4], [4, 7]))

    assert {0} == set(alone.tolist()) == set(added.tolist())
    assert pytest.approx(1000, rel=0.4) == (gone == 1).sum()


def test_clients_connect_anew_once_in_a_while() -> None:
    """After one such time about two in three have, half of them to the replica that was added."""
    rng = np.random.default_rng(0)
    clients = StickyClients(1000, stay=10.0)
    clients([0], 1, rng)

    for _ in range(10):
        chosen = clients([0, 1], 5000, rng)

    assert pytest.approx(0.5 * (1 - 0.9**10), abs=0.05) == chosen.mean()


def test_of_five_replicas_one_is_slow_and_all_are_slower_in_the_evening() -> None:
    """Number 0, which a load test sees, is an ordinary one."""
    assert [1, 1, 1, 1, 2] * 2 == [unlike.one_in_five_is_slow(n, 9.0, 0.5) for n in range(10)]
    assert [1.0, 1.25, 1.5] == [
        unlike.half_as_slow_again_in_half_an_hour(3, at, 0.5) for at in (0.0, 900.0, 1800.0)
    ]


def test_a_bent_line_is_one_up_to_half_of_the_largest_batch() -> None:
    """A line learned from small batches is right for them."""
    assert [1.0, 1.0, 1.25, 1.5] == [unlike.bent(0, 0.0, size) for size in (0.1, 0.5, 0.75, 1.0)]
