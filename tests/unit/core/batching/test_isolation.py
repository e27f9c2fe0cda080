"""The cost of a failed batch: halves within a budget, then one by one; laws for any culprits."""

import math

from hypothesis import given
from hypothesis import strategies as st

from batchedapi_core.batching import Isolation, Search


class Failing:
    """Runs batches in the order in which a queue of reruns would, and notes what happened."""

    def __init__(self, culprits: set[int], isolation: Isolation | None = None) -> None:
        self.culprits = culprits
        self.isolation = isolation or Isolation()
        self.runs = 0
        self.blamed: list[int] = []
        self.answered: list[int] = []

    def run(self, units: int) -> None:
        """A batch of so many, until nothing of it is left to run."""
        search, parts = Search(units), [list(range(units))]
        while parts:
            part = parts.pop(0)
            self.runs += 1
            if not self.culprits & set(part):
                self.isolation.succeeded(None if len(part) == units else search)
                self.answered += part
                continue
            spans = self.isolation.apart(search, len(part))
            if not spans:
                self.blamed += part
            parts += [part[start:stop] for start, stop in spans]


def budget(units: int) -> int:
    """Further runs by halves."""
    return 2 * math.ceil(math.log2(units)) + 2 if units > 1 else 0


@given(data=st.data(), units=st.integers(1, 300))
def test_everybody_innocent_is_answered_and_every_culprit_ran_alone(
    data: st.DataObject, units: int
) -> None:
    """Whatever the culprits are, and whether everything failed before or not."""
    culprits = data.draw(st.sets(st.integers(0, units - 1)))
    isolation = Isolation()
    isolation.systemic = data.draw(st.booleans())
    failing = Failing(culprits, isolation)

    failing.run(units)

    assert culprits == set(failing.blamed)
    assert sorted([*failing.blamed, *failing.answered]) == list(range(units))
    assert failing.runs - 1 <= budget(units) + units


@given(data=st.data(), units=st.integers(2, 300))
def test_one_culprit_is_found_by_halves(data: st.DataObject, units: int) -> None:
    """At most 2 ceil(log2 n) further runs."""
    failing = Failing({data.draw(st.integers(0, units - 1))})

    failing.run(units)

    assert failing.runs - 1 <= 2 * math.ceil(math.log2(units))
    assert not failing.isolation.systemic


def test_when_everything_fails_halves_are_given_up_until_a_run_succeeds() -> None:
    """A batch of 64 takes 14 runs in halves, then each alone; the next one each alone at once."""
    isolation = Isolation()
    first = Failing(set(range(64)), isolation)
    first.run(64)
    second = Failing(set(range(64)), isolation)
    second.run(64)

    assert (1 + 14 + 64, 1 + 64) == (first.runs, second.runs)
    assert isolation.systemic

    isolation.succeeded(None)
    third = Failing({5}, isolation)
    third.run(64)
    assert third.runs - 1 <= 12


def test_several_culprits_beside_others_are_nothing_systemic() -> None:
    """A run succeeded: the rows differ."""
    failing = Failing(set(range(40)))

    failing.run(64)

    assert not failing.isolation.systemic
