"""docs/promises.md names tests that exist, and every promise once."""

import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs/promises.md").read_text()
ID: Final = re.compile(r"[CBNDW][0-9]{2}|F[1-9][0-9]?")
TEST: Final = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
FUNCTION: Final = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
HEADS: Final = {"id", "---"}


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """Names of the test functions of a file; none if there is no such file."""
    path = ROOT / file
    return frozenset(FUNCTION.findall(path.read_text()) if path.is_file() else ())


def rows_of(section: str) -> list[list[str]]:
    """Cells of every row of its tables, without their heads."""
    lines = (line.strip() for line in section.splitlines() if line.startswith("|"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] not in HEADS]


def wrong_tests(cell: str) -> list[str]:
    """What is no `file::name` of an existing test function, in a cell of a shown promise."""
    names = cell.split("<br>")
    found = [(name, TEST.fullmatch(name)) for name in names]
    return [name for name, match in found if not match or match[2] not in names_in(match[1])]


def problems(page: str) -> list[str]:
    """Everything that is wrong with the page."""
    shown, _, not_yet = page.partition("\n## Not yet\n")
    rows = [(row, 3) for row in rows_of(shown)] + [(row, 2) for row in rows_of(not_yet)]
    found = []
    numbers: dict[str, list[int]] = defaultdict(list)
    for row, cells in rows:
        if len(row) != cells or not all(row) or not ID.fullmatch(row[0]):
            found.append(f"malformed: {row}")
            continue
        numbers[row[0][0]].append(int(row[0][1:]))
        found += [
            f"{row[0]}: no such test: {name}" for cell in row[2:] for name in wrong_tests(cell)
        ]
    for letter, counted in sorted(numbers.items()):
        if sorted(counted) != list(range(1, len(counted) + 1)):
            found.append(f"{letter}: twice, or left out: {sorted(counted)}")
    return found


def test_every_promise_is_there_once_and_its_tests_exist() -> None:
    """A test that was renamed would leave a promise that nothing shows."""
    assert [] == problems(PAGE)
    assert set("CBNDWF") == {row[0][0] for row in rows_of(PAGE)}


GOOD: Final = (
    "| F1 | a | `tests/unit/test_promises.py::test_what_is_wrong_is_found` |\n\n"
    "## Not yet\n\n| F2 | b |\n"
)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("test_promises.py", "test_gone.py", "F1: no such test"),
        ("test_what_is_wrong_is_found", "test_gone", "F1: no such test"),
        ("`tests", "tests", "F1: no such test"),
        ("F2", "F1", "twice"),
        ("F2", "F3", "left out"),
        ("F2", "X2", "malformed"),
        ("| b |", "|  |", "malformed"),
        ("| b |", "| b | `tests` |", "malformed"),
    ],
)
def test_what_is_wrong_is_found(old: str, new: str, problem: str) -> None:
    """The check above would otherwise prove nothing."""
    assert [] == problems(GOOD)

    (found,) = problems(GOOD.replace(old, new))

    assert problem in found
