"""What the bench of specs has to have seen before it says that all is well."""

import json
from pathlib import Path

from harness.report import environment
from operator_specs import Case, Found, write, wrong
from tests.contract.operator.corpus import document
from tests.contract.operator.generated import LEAVES, Place, tried, with_company, words
from tests.contract.operator.outcomes import ADMITTED, REFUSED, TOLD, Outcome

from batchedapi_core.manifest import ManifestError, parse_api

FIRST: Place = LEAVES[0]


def taken(place: Place) -> bool:
    """Whether our own language takes one of the values."""
    for value in tried(place):
        try:
            parse_api(document(with_company(place, value)))
        except ManifestError:
            continue
        return True
    return False


def test_each_leaf_is_tried_with_a_value_that_it_may_have() -> None:
    """A leaf of which every value is refused says nothing about the pods that it makes."""
    assert [] == [words(place) for place in LEAVES if not taken(place)]


def test_a_leaf_of_which_no_value_was_admitted_is_wrong() -> None:
    """All values refused, each with field and remedy, looked like a run without a fault."""
    told = Outcome(TOLD, "spec.a: must not")
    admitted = [(Case(place, 1), Outcome(ADMITTED, "")) for place in LEAVES[1:]]

    found = Found(cases=[(Case(FIRST, 1), told), (Case(FIRST, 2), told), *admitted])

    assert [[words(FIRST), "", "none was admitted"]] == wrong(found)


def test_states_of_which_few_can_work_are_wrong() -> None:
    """A walk from what cannot work to what cannot work goes nowhere."""
    assert [] == wrong(Found(states=150, broken=80))
    assert [["random states", "", "19 of 150 can work"]] == wrong(Found(states=150, broken=131))
    assert [["random states", "", "9 of 10 can work"]] == wrong(Found(states=10, broken=1))


def test_a_whole_result_is_small_enough_to_be_kept(tmp_path: Path) -> None:
    """Ten thousand refusals in their own words were most of a megabyte, and read by nobody."""
    outcomes = [Outcome(kind, "spec.a: must not " * 20) for kind in (ADMITTED, TOLD, REFUSED)]
    cases = [
        (Case(place, "x" * number), outcomes[number % 3])
        for place in LEAVES
        for number in range(65)
    ]

    write(Found(cases=cases, states=150, broken=70), environment(), 1.0, tmp_path)

    written = (tmp_path / "operator_specs.json").read_text()
    assert {"admitted": 22, "told": 22, "refused": 21} == json.loads(written)["measured"]["values"][
        words(FIRST)
    ]
    assert len(written) < 50_000
