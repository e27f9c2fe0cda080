"""What each minute of the last ten days brought: for people's questions, as no decision reads it.

    looks -> Filling.looked -> a Minute, once it is over
    Minutes.plus -> the record with it -> to_saved, a text of at most MOST_CHARACTERS

All times are Unix time, as of a LoadWindow.
"""

import base64
import itertools
import math
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, NamedTuple

from batchedapi_core.scaling.observe import LoadWindow

MINUTE: Final = 60.0
MINUTES_A_DAY: Final = 1440
MOST_MINUTES: Final = 10 * MINUTES_A_DAY
MOST_CHARACTERS: Final = 60 * 1024
LONGEST_LOOK: Final = 60.0
"""Seconds since the last look; of more of them nobody knows what they brought."""
COARSE: Final = 5
"""Minutes that are made one where the text would be too long."""
COARSE_DAYS: Final = (3, 6, 9)
"""Of the oldest days so many, until it is short enough."""


class Minute(NamedTuple):
    """Means of a minute, as far as it was looked at; of a record within 1.1 %, see `_codes`."""

    time: int  # Unix minutes
    demand: float | None  # rows/s that arrived; None: too few replicas told
    peak: float  # rows/s, the highest level of its looks
    rows: float  # rows/s in batches
    replicas: float  # that have a node, until they are gone
    busy: float  # of them, by the share of their lanes' time in which batches ran

    @property
    def most(self) -> int:
        """Replicas that there were at least once."""
        return math.ceil(0.99 * self.replicas)  # a record may say 5.02 of five


@dataclass(frozen=True, slots=True)
class Filling:
    """The minute that is under way."""

    looked_at: float | None = None  # Unix seconds of the last look
    time: int = 0  # Unix minutes
    seconds: float = 0.0  # of its looks
    seen: float = 0.0  # of those at which enough replicas told
    peak: float = 0.0
    sums: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)  # of the means below, times seconds

    def looked(
        self, load: LoadWindow, replicas: float, lanes: int
    ) -> tuple["Filling", Minute | None]:
        """With a look taken in.

        Args:
            load: As it saw it.
            replicas: That have a node.
            lanes: Of one that does not say how many it has.

        Returns:
            The minute under way, and the one before it if that has just ended.
        """
        if load.wall is None:
            return self, None
        begin = load.wall if self.looked_at is None else self.looked_at
        time, seconds = int(begin // MINUTE), load.wall - begin
        ended = None if time == self.time or not self.seconds else self._mean()
        filling = replace(self if time == self.time else Filling(time=time), looked_at=load.wall)
        if not 0.0 < seconds <= LONGEST_LOOK:
            return filling, ended
        came = rows = busy = seen = 0.0
        if load.demand is not None:
            share, seen = min(1.0, len(load.changes) / max(1, load.ready)) or 1.0, seconds
            came = load.demand.arrival_now
            for one in load.changes:
                over = max(one.seconds, seconds) * share
                rows += one.sums.rows / over
                busy += one.sums.seconds / (over * (one.lanes or lanes))
        parts = zip(filling.sums, (came, rows, replicas, busy), strict=True)
        sums = tuple(total + seconds * value for total, value in parts)
        return replace(
            filling,
            seconds=filling.seconds + seconds,
            seen=filling.seen + seen,
            peak=max(filling.peak, 0.0 if load.demand is None else load.demand.level),
            sums=sums,
        ), ended

    def _mean(self) -> Minute:
        came, rows, replicas, busy = self.sums
        seen = self.seen or 1.0
        demand = came / seen if self.seen else None
        return Minute(
            self.time, demand, self.peak, rows / seen, replicas / self.seconds, busy / seen
        )


@dataclass(frozen=True, slots=True)
class Minutes:
    """Minutes in a row, by the whole numbers that they are kept as: `_codes`."""

    begin: int = 0  # Unix minutes, of the first
    columns: tuple["array[int]", ...] = tuple(array("H") for _ in range(5))

    def __iter__(self) -> Iterator[Minute]:
        """The oldest first; one that nobody looked at has neither demand nor replicas."""
        for time, codes in enumerate(zip(*self.columns, strict=True), self.begin):
            demand, peak, rows, replicas, busy = codes
            there = _value(replicas, _FINE)
            yield Minute(
                time,
                None if demand == _UNKNOWN else _value(demand, _PLAIN),
                _value(peak, _PLAIN),
                _value(rows, _FINE),
                there,
                there * busy / _SHARES,
            )

    def plus(self, minutes: Iterable[Minute]) -> "Minutes":
        """With later ones, of ten days; where clocks were set back, what is later is forgotten."""
        begin, columns = self.begin, [array("H", column) for column in self.columns]
        for one in minutes:
            known = len(columns[0])
            if not known or not 0 <= one.time - begin < known + MOST_MINUTES:
                begin = one.time
            at = one.time - begin
            for column, unseen, code in zip(columns, _UNSEEN, _codes(one), strict=True):
                del column[at:]
                column.extend([unseen] * (at - len(column)))
                column.append(code)
        cut = max(0, len(columns[0]) - MOST_MINUTES)
        return Minutes(begin + cut, tuple(column[cut:] for column in columns))

    def to_saved(self) -> str:
        """As a text; where noise makes it too long, the oldest days by five minutes."""
        text = _packed(self)
        for days in COARSE_DAYS:
            if len(text) > MOST_CHARACTERS:
                text = _packed(_coarse(self, days))
        return text

    @classmethod
    def restored(cls, saved: object) -> "Minutes | None":
        """What `to_saved` described; None if `saved` is not that: anybody may have edited it."""
        if not isinstance(saved, str) or len(saved) > MOST_CHARACTERS:
            return None
        inflating = zlib.decompressobj()
        try:
            packed = inflating.decompress(base64.b64decode(saved, validate=True), _LONGEST)
            version, begin = _HEAD.unpack_from(packed)
        except (ValueError, zlib.error, struct.error):
            return None
        count, rest = divmod(len(packed) - _HEAD.size, 2 * len(_UNSEEN))
        if version != _VERSION or rest or not count or not inflating.eof:  # it ends with a checksum
            return None
        columns = []
        for at in range(_HEAD.size, len(packed), 2 * count):
            low, high = packed[at : at + count], packed[at + count : at + 2 * count]
            columns.append(array("H", [a + 256 * b for a, b in zip(low, high, strict=True)]))
        return cls(begin, _differences(columns, 1))


_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BI")
_LONGEST: Final = _HEAD.size + 2 * 5 * MOST_MINUTES
_PLAIN, _FINE = 32, 64
"""Codes for twice as much: within 1.1 %, and 0.5 % of what costs are made of."""
_OCTAVES: Final = 32
"""From the least that is told from nothing up to one, and as many above."""
_SHARES: Final = 64
_UNKNOWN: Final = 0xFFFF
_UNSEEN: Final = (_UNKNOWN, 0, 0, 0, 0)


def _code(value: float, steps: int) -> int:
    """On a scale of ratios; 0 is nothing."""
    if value < 2.0**-_OCTAVES:
        return 0
    return max(1, min(2 * _OCTAVES * steps, round(steps * (math.log2(value) + _OCTAVES))))


def _value(code: int, steps: int) -> float:
    return 2.0 ** (min(code / steps, 2 * _OCTAVES) - _OCTAVES) if code else 0.0


def _codes(one: Minute) -> tuple[int, ...]:
    return (
        _UNKNOWN if one.demand is None else _code(one.demand, _PLAIN),
        _code(one.peak, _PLAIN),
        _code(one.rows, _FINE),
        _code(one.replicas, _FINE),
        min(_SHARES, round(_SHARES * one.busy / one.replicas)) if one.replicas else 0,
    )


def _differences(columns: Sequence["array[int]"], sign: int) -> tuple["array[int]", ...]:
    """Peak and rows with so many times the demand, which they are about as large as."""
    demand, peak, rows, *others = columns

    def moved(column: "array[int]", times: int) -> "array[int]":
        pairs = zip(column, demand, strict=True)
        return array("H", [(code + sign * times * by) % 65536 for code, by in pairs])

    return (demand, moved(peak, 1), moved(rows, _FINE // _PLAIN), *others)


def _alike(minutes: Sequence[Minute]) -> Iterator[Minute]:
    """The same minutes, each the mean of all; the highest peak is that of all."""
    known = [one.demand for one in minutes if one.demand is not None]
    demand, peak = fmean(known) if known else None, max(one.peak for one in minutes)
    rows, there, busy = (
        fmean(values) for values in zip(*(one[3:] for one in minutes), strict=True)
    )
    return (Minute(one.time, demand, peak, rows, there, busy) for one in minutes)


def _packed(record: Minutes) -> str:
    """Low and high bytes of a column apart, and peak and rows by what demand differs."""
    parts = [_HEAD.pack(_VERSION, record.begin)]
    for column in _differences(record.columns, -1):
        pairs = struct.pack(f"<{len(column)}H", *column)
        parts += [pairs[::2], pairs[1::2]]
    return base64.b64encode(zlib.compress(b"".join(parts))).decode()


def _coarse(record: Minutes, days: int) -> Minutes:
    """So many of the oldest days by the mean of each five minutes, which stay that."""
    fine = (record.begin + days * MINUTES_A_DAY) // COARSE
    groups = itertools.groupby(record, lambda one: one.time // COARSE)
    return Minutes().plus(
        minute
        for number, group in groups
        for minute in (_alike(tuple(group)) if number < fine else group)
    )
