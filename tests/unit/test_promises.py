"""docs/promises.md names tests and pages that exist, and every promise once."""

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
PAGE_PART: Final = re.compile(r"`(docs/[\w/-]+\.md)#([a-z0-9-]+)`")
HEADING: Final = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FUNCTION: Final = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
HEADS: Final = {"id", "---"}


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """Names of the test functions of a file; none if there is no such file."""
    path = ROOT / file
    return frozenset(FUNCTION.findall(path.read_text()) if path.is_file() else ())


@functools.cache
def headings_in(file: str) -> frozenset[str]:
    """Headings of a page as links name them; none if there is no such page."""
    path = ROOT / file
    page = FENCE.sub("", path.read_text()) if path.is_file() else ""
    return frozenset(
        re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(page)
    )


def exists(name: str) -> bool:
    """Whether what shows a promise, a test or a part of a page, is there."""
    if test := TEST.fullmatch(name):
        return test[2] in names_in(test[1])
    part = PAGE_PART.fullmatch(name)
    return part is not None and part[2] in headings_in(part[1])


def rows_of(section: str) -> list[list[str]]:
    """Cells of every row of its tables, without their heads."""
    lines = (line.strip() for line in section.splitlines() if line.startswith("|"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] not in HEADS]


def wrong_names(cell: str) -> list[str]:
    """Names in a cell of a shown promise that are neither `file::name` nor `page#heading`."""
    return [name for name in cell.split("<br>") if not exists(name)]


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
            f"{row[0]}: no such test or heading: {name}"
            for cell in row[2:]
            for name in wrong_names(cell)
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
    "| F1 | a | `tests/unit/test_promises.py::test_what_is_wrong_is_found`"
    "<br>`docs/promises.md#not-yet` |\n\n"
    "## Not yet\n\n| F2 | b |\n"
)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("test_promises.py", "test_gone.py", "F1: no such test or heading"),
        ("test_what_is_wrong_is_found", "test_gone", "F1: no such test or heading"),
        ("`tests", "tests", "F1: no such test or heading"),
        ("promises.md", "gone.md", "F1: no such test or heading"),
        ("not-yet", "gone", "F1: no such test or heading"),
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
