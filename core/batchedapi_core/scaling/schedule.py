"""Jumps of demand that the clock repeats: cron jobs, push messages, whatever begins by a calendar.

    looks -> Schedule.looked -> jumps of the last ten days, each with its second
    Schedule.expected -> what most days, or hours, brought at the seconds to come

All times are Unix seconds, so that they hold over restarts; days are those of UTC.
"""

import base64
import math
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import Final

from batchedapi_core.scaling.forecast import Points
from batchedapi_core.scaling.numbers import number, quantile
from batchedapi_core.scaling.policy import LEVEL_SECONDS

HOUR: Final = 3600.0
DAY: Final = 86400.0

LEAST_RATIO: Final = 1.6
"""Times the usual demand from which on it is a jump. Less is what trend and margin are for."""
USUAL_SECONDS: Final = 600.0
"""Demand is usual that was there within this, where USUAL_SHARE of it had less. So jumps of up to
7 min are above it, and a step for good becomes it after those."""
USUAL_SHARE: Final = 0.3
EARLY: Final = 20.0
"""Seconds by which a jump may come before the others did: jobs are queued and started in turn."""
LATE: Final = 60.0
"""Seconds by which it may come later; so long what it needs is kept."""
OCCASIONS: Final = 10
"""Hours, and days, that are asked: most of them must have brought a jump."""
FEWEST: Final = 3
"""Of them; of two, chance has one in common with the other too often."""
QUANTILE_OF_RATIOS: Final = 0.7
"""Of the ratios of all that were asked, where one without a jump has 1."""
MISSES: Final = 2
"""In a row, after which it is given up until it comes again. One may be a holiday."""
MOST_KEPT: Final = 512
"""Jumps: ten days of two in an hour. They take 4 kB in the status."""
HIGHEST: Final = 655.0
"""Ratio that is remembered at most, by the two bytes it is saved in."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What most hours or days brought at about this second."""

    ratio: float  # times the usual demand
    usual: float  # rows/s, of the last ten minutes
    after: float  # seconds from now until the jump; below 0 it is overdue
    came: int  # hours or days that brought one
    occasions: int  # that were asked
    period: float  # seconds, HOUR or DAY
    given_up: bool  # it was missed MISSES times in a row


@dataclass(frozen=True, slots=True)
class Rising:
    """Demand that is above the usual one at present."""

    begin: float
    usual: float  # rows/s, before
    peak: float  # rows/s


@dataclass(frozen=True, slots=True)
class Schedule:
    """A record of jumps, and what of the last ten minutes it takes to see the next."""

    since: float | None = None  # first look; None: none yet
    jumps: Points = field(default_factory=Points)  # ratios, 1 where one was missed
    levels: Points = field(default_factory=Points)  # rows/s, one each LEVEL_SECONDS
    rising: Rising | None = None
    due: float | None = None  # when the jump is expected that is waited for

    @property
    def usual(self) -> float | None:
        """Rows/s; None: too little was seen."""
        times = self.levels.times
        known = len(times) > 1 and times[-1] - times[0] >= USUAL_SECONDS / 10
        return quantile(self.levels.values, USUAL_SHARE) if known else None

    def expected(self, now: float, *, lead: float) -> Expected | None:
        """What the clock brings until a replica that is started now would be ready; None: nothing.

        Args:
            now: Unix seconds.
            lead: Seconds that a replica takes to start.
        """
        usual = self.usual
        if self.since is None or usual is None or not self.jumps:
            return None
        begin, end = now - LATE, now + lead + EARLY
        best: Expected | None = None
        # with a long lead, chance alone brings a jump of such a window to most hours
        real = sum(ratio > 1.0 for ratio in self.jumps.values)
        chance = 1.0 - math.exp(-real * (end - begin) / max(now - self.since, DAY))
        for period in (DAY, HOUR):
            found = self._brought(begin, end, period)
            came = [jump for jump in found if jump is not None and jump[1] > 1.0]
            if len(found) < FEWEST or len(came) <= len(found) * max(0.5, 2.0 * chance):
                continue
            ratio = quantile([1.0 if jump is None else jump[1] for jump in found],
                             QUANTILE_OF_RATIOS)  # fmt: skip
            if best is None or ratio > best.ratio:
                after = median(time for time, _ in came) - now
                best = Expected(ratio, usual, after, len(came), len(found), period, given_up=False)
        if best is None:
            return None
        return replace(best, given_up=self._ended(begin, end))

    def _brought(self, begin: float, end: float, period: float) -> list[tuple[float, float] | None]:
        """The largest jump of each occasion: its time, as if it were of this one, and its ratio."""
        times, ratios = self.jumps.times, self.jumps.values
        found: list[tuple[float, float] | None] = []
        for back in range(1, OCCASIONS + 1):
            shift = back * period
            if self.since is None or begin - shift < self.since:
                break
            first, last = bisect_left(times, begin - shift), bisect_right(times, end - shift)
            jumps = ((ratios[n], times[n] + shift) for n in range(first, last))
            largest = max(jumps, default=None)
            found.append(None if largest is None else (largest[1], largest[0]))
        return found

    def _ended(self, begin: float, end: float) -> bool:
        """Whether the latest at this second of the hour, or of the day, did not come."""
        newest = range(len(self.jumps) - 1, -1, -1)
        times, ratios = self.jumps.times, self.jumps.values
        for period in (HOUR, DAY):
            there = (ratios[n] for n in newest if (times[n] - begin) % period <= end - begin)
            latest = list(islice(there, MISSES))
            if len(latest) == MISSES and max(latest) <= 1.0:
                return True
        return False

    def looked(
        self, now: float, *, level: float, least: float, expected: Expected | None
    ) -> "Schedule":
        """With a look taken in.

        Args:
            now: Unix seconds; if clocks were set back, what is later is forgotten.
            level: Rows/s.
            least: Rows/s; demand below counts as this, and its jumps are chance. 0: not known.
            expected: By `expected`, for this look.
        """
        since = now if self.since is None else min(self.since, now)
        levels = self.levels.until(now).after(now - USUAL_SECONDS)
        usual, rising, jumps = self.usual, self.rising, self.jumps
        if usual is not None and least > 0.0:
            rising = _rising(self.rising, now, level, max(usual, least))
            jumps = _with_jump(jumps, rising, now)
        due = None if expected is None or expected.given_up else now + expected.after
        waited = self.due if due is None and rising is None else None
        if waited is not None and _missed(jumps, waited, now):
            jumps = _in_order(jumps, waited, 1.0)
        if not levels or now - levels.times[-1] >= LEVEL_SECONDS:
            levels = levels.plus(now, level)
        if jumps is not self.jumps:
            jumps = jumps.until(now).after(now - OCCASIONS * DAY - HOUR)
            if len(jumps) > MOST_KEPT:
                jumps = Points(jumps.times[-MOST_KEPT:], jumps.values[-MOST_KEPT:])
                since = max(since, jumps.times[0])
        return Schedule(since, jumps, levels, rising, due)

    def to_saved(self) -> dict[str, object]:
        """As JSON: 6 bytes for a jump, as base64; nothing before the first look."""
        if self.since is None:
            return {}
        pairs = zip(self.jumps.times, self.jumps.values, strict=True)
        packed = b"".join(_SAVED.pack(int(time), round(100.0 * ratio)) for time, ratio in pairs)
        return {"jumpsSince": int(self.since), "jumps": base64.b64encode(packed).decode()}

    @classmethod
    def restored(cls, saved: Mapping[object, object]) -> "Schedule":
        """The record that `to_saved` described; an empty one if `saved` is not that."""
        since, text = number(saved.get("jumpsSince"), 0.0, _LATEST), saved.get("jumps")
        if since is None or not isinstance(text, str) or len(text) > 8 * MOST_KEPT:
            return cls()
        try:
            pairs = sorted(_SAVED.iter_unpack(base64.b64decode(text, validate=True)))
        except (ValueError, struct.error):
            return cls()
        times, ratios = zip(*pairs, strict=True) if pairs else ((), ())
        values = [max(1.0, ratio / 100.0) for ratio in ratios]
        return cls(since, Points(array("d", times), array("d", values)))


_SAVED: Final = struct.Struct("<IH")
_LATEST: Final = 2.0**32 - 1.0


def _rising(before: Rising | None, now: float, level: float, usual: float) -> Rising | None:
    """It ends halfway down, so that noise does not make two of one."""
    if before is None:
        return Rising(now, usual, level) if level > LEAST_RATIO * usual else None
    lasts = 0.0 <= now - before.begin < USUAL_SECONDS
    if not lasts or level < before.usual * (1.0 + LEAST_RATIO) / 2:
        return None
    if now - before.begin > LATE:
        return before
    return replace(before, peak=max(before.peak, level))


def _with_jump(jumps: Points, rising: Rising | None, now: float) -> Points:
    """Demand that was above the usual for less than LEVEL_SECONDS may be chance."""
    if rising is None or not LEVEL_SECONDS <= now - rising.begin <= LATE + LEVEL_SECONDS:
        return jumps
    known = jumps.times and jumps.times[-1] == rising.begin
    before = Points(jumps.times[:-1], jumps.values[:-1]) if known else jumps
    return _in_order(before, rising.begin, min(HIGHEST, rising.peak / rising.usual))


def _in_order(jumps: Points, time: float, ratio: float) -> Points:
    at = bisect_right(jumps.times, time)
    times, ratios = array("d", jumps.times), array("d", jumps.values)
    times.insert(at, time)
    ratios.insert(at, ratio)
    return Points(times, ratios)


def _missed(jumps: Points, due: float, now: float) -> bool:
    """Whether none came about when one was due; after a time without looks nobody knows."""
    first = bisect_left(jumps.times, due - LATE)
    return now < due + 2.0 * LATE and all(ratio <= 1.0 for ratio in jumps.values[first:])
