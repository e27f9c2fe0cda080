"""The children and descendants of a process."""

from batchedapi_serving.orphans import ProcessEntry, children_of, reap, with_descendants

TABLE = {
    10: ProcessEntry(parent=1, session=10),
    11: ProcessEntry(parent=10, session=11),
    12: ProcessEntry(parent=11, session=11),
    13: ProcessEntry(parent=12, session=13),
    20: ProcessEntry(parent=1, session=20),
}


def test_children_are_of_one_generation() -> None:
    """Only our own children are sent signals: their numbers are theirs until we reap them."""
    assert {11} == children_of(TABLE, 10)


def test_descendants_are_of_all_generations_whatever_their_session() -> None:
    """Their parents end first, and they become our children under no other name than theirs."""
    assert {11, 12, 13} == with_descendants(TABLE, {11})


def test_what_was_never_ours_counts_as_reaped() -> None:
    """Another part of the program may have reaped it before."""
    assert reap(1)
