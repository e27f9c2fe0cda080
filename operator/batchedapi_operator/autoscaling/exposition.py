"""The lines of a Prometheus page that the autoscaler reads, and no others. Pure, and suspicious.

A page is read every two seconds and changes in nothing but its numbers, so what a line is about
is found once and remembered: the text before the number is looked up, and parsed only when new.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from batchedapi_core import contract
from batchedapi_core.scaling.samples import LARGEST_COUNT
from batchedapi_operator.errors import MetricsUnavailableError

MAX_BYTES: Final = 2**19
"""A whole page of 32 methods, from a replica that knows no narrower one, has 330 KiB."""
MAX_LINES: Final = 8192
MAX_SERIES: Final = 2500
"""Of the metrics that are read; a replica with one method has 60, with 32 about 2000."""
MAX_LINE: Final = 1000
MAX_NUMBER: Final = 64
"""Characters: making a number of very many digits takes long."""
REMEMBERED: Final = 65536
"""Characters of lines that one layout may add, of those that are read and of others: those of 15
methods. Further ones are looked at anew every time."""
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="([^"\\]*(?:\\.[^"\\]*)*)"(?:,|$)')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPED: Final = re.compile(r"\\.")

Labels = tuple[tuple[str, str], ...]


class Series:
    """One series; within a layout there is one object for each, so identity is equality."""

    __slots__ = ("labels", "method", "name")

    def __init__(self, name: str, labels: Labels) -> None:
        self.name = name
        self.labels = dict(labels)
        self.method = self.labels.get("method", "")


Points = list[tuple[Series, float]]


class Table:
    """Lines and series that are remembered, of all pages: most APIs name their method alike."""

    __slots__ = ("characters", "lines", "series")

    def __init__(self) -> None:
        self.lines: dict[str, Series | None] = {}
        """By the text before the number; None: of no metric that is read."""
        self.series: dict[tuple[str, Labels], Series] = {}
        self.characters = 0
        """Of the lines; whoever owns the table begins a new one when they are too many."""

    def remember(self, before: str, series: Series | None) -> None:
        """A line that is not there yet."""
        self.lines[before] = series
        self.characters += len(before)


class Layout:
    """Which text before a number is which series, and how much of it one revision may add."""

    __slots__ = ("_room", "_room_for_others", "_table", "lines")

    def __init__(self, table: Table | None = None) -> None:
        self._table = table or Table()
        self.lines = self._table.lines
        self._room = REMEMBERED
        self._room_for_others = REMEMBERED

    def is_read(self, line: str, before: str) -> bool:
        """Whether a line that is not in `lines` is of a metric that is read."""
        if line.partition("{")[0].partition(" ")[0] in contract.SCALING_SERIES:
            return True
        if 0 < len(before) <= self._room_for_others:
            self._room_for_others -= len(before)
            self._table.remember(before, None)
        return False

    def find(self, line: str, before: str, fresh: dict[tuple[str, Labels], Series]) -> Series:
        """The series of a line that is not in `lines`; remembered there while there is room.

        Args:
            line: The whole line, which begins with the name of a metric that is read.
            before: What stands before its number.
            fresh: Series that this page has and the layout does not.

        Raises:
            MetricsUnavailableError: It is not a line of an exposition.
        """
        identity = _identity(line, before)
        known = self._table.series
        series = known.get(identity) or fresh.get(identity) or Series(*identity)
        if len(before) <= self._room:
            self._room -= len(before)
            known[identity] = series
            self._table.remember(before, series)
        else:
            fresh[identity] = series
        return series


def read(text: str, layout: Layout) -> Mapping[str, Points]:
    """Values by metric name, one for each series.

    Raises:
        MetricsUnavailableError: Too large, cut off, no exposition, or with an impossible value.
    """
    if len(text) > MAX_BYTES:
        raise MetricsUnavailableError("too_large", f"more than {MAX_BYTES} bytes")
    if text.count("\n") > MAX_LINES:
        raise MetricsUnavailableError("too_large", f"more than {MAX_LINES} lines")
    if text and not text.endswith("\n"):
        raise MetricsUnavailableError("malformed", "the last line is cut off")
    values: defaultdict[str, Points] = defaultdict(list)
    known, unknown = layout.lines, Series("", ())
    fresh, seen = dict[tuple[str, Labels], Series](), set[Series]()
    for line in text.split("\n"):
        before, _, number = line.rpartition(" ")
        series = known.get(before, unknown)
        if series is unknown:
            series = layout.find(line, before, fresh) if layout.is_read(line, before) else None
        if series is None:
            continue
        if series in seen:
            raise MetricsUnavailableError("invalid", f"{before:.200}: the same series twice")
        seen.add(series)
        if len(seen) > MAX_SERIES:
            raise MetricsUnavailableError("too_large", f"more than {MAX_SERIES} series")
        values[series.name].append((series, _value(before, number)))
    return values


def _value(before: str, number: str) -> float:
    try:
        value = float(number) if len(number) <= MAX_NUMBER and "_" not in number else None
    except ValueError:
        value = None
    if value is None:
        message = f"{before:.200}: not a number: {number:.50}"
        raise MetricsUnavailableError("malformed", message)
    if not 0.0 <= value <= LARGEST_COUNT:
        raise MetricsUnavailableError("invalid", f"{before:.200}: {value}")
    return value


def _identity(line: str, before: str) -> tuple[str, Labels]:
    """Name and labels, in an order that does not depend on the page's."""
    if len(line) > MAX_LINE:
        raise MetricsUnavailableError("too_large", f"{line:.60}: a line over {MAX_LINE} long")
    name, brace, rest = before.partition("{")
    name = name.rstrip()
    if name not in contract.SCALING_SERIES:
        raise MetricsUnavailableError("malformed", f"{line:.200}: expected name, labels and number")
    if not brace:
        return name, ()
    text, closing, after = rest.rpartition("}")
    if not closing or after.strip():
        raise MetricsUnavailableError("malformed", f"{line:.200}: labels without an end")
    labels: dict[str, str] = {}
    place = 0
    while place < len(text):
        found = _LABEL.match(text, place)
        if found is None or found[1] in labels:
            raise MetricsUnavailableError("malformed", f"{line:.200}: not a list of labels")
        labels[found[1]] = _ESCAPED.sub(lambda it: _ESCAPES.get(it[0], it[0]), found[2])
        place = found.end()
    return name, tuple(sorted(labels.items()))
