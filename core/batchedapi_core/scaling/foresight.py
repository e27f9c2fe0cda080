"""How wrong the autoscaler's own forecasts were, and the margin that follows from it.

At every look demand is compared with what was forecast for it one start-up ago. Demand that is
noisy, or that rises in a way that no trend shows, makes for errors, and the errors for a margin:
as much is planned on top as would have covered all but the worst of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from batchedapi_core.scaling.numbers import grouped, number, quantile, short, table

MEMORY = 600.0
"""Seconds for which errors and levels are remembered."""
QUANTILE = 0.85
"""Of the errors, to be covered. The rest are bursts, or would cost more than they are worth."""
MOST = 1.0
"""Share of the demand that a margin adds at most."""
LEAST_MEMORY = 60.0
"""Seconds of errors before they say anything."""
MOST_EXPECTED = 60
"""Forecasts that are waited for at once; where starts take very long, not each look's is."""
HIGHEST_RATE = 1e24
"""Rows/s; above, a status was not written by this program."""


@dataclass(frozen=True, slots=True)
class Point:
    """A number at a time."""

    time: float  # seconds
    value: float


@dataclass(frozen=True, slots=True)
class Foresight:
    """Forecasts that are not due yet, errors of those that were, and the highest levels."""

    expected: tuple[Point, ...] = ()  # rows/s, forecast at that time for one start-up later
    errors: tuple[Point, ...] = ()  # demand / its forecast - 1
    highs: tuple[Point, ...] = ()  # rows/s, falling: none has a higher one after it
    inherited: float = 0.0  # the margin of a process before this one

    @property
    def margin(self) -> float:
        """Share to add to the demand."""
        errors = self.errors
        if not errors or errors[-1].time - errors[0].time < LEAST_MEMORY:
            return self.inherited
        return min(MOST, max(0.0, quantile([one.value for one in errors], QUANTILE)))

    @property
    def highest(self) -> float:
        """Rows/s: nothing above what was there lately is planned for by a margin."""
        return self.highs[0].value if self.highs else 0.0

    def highest_within(self, seconds: float, now: float) -> float:
        """Rows/s, of the last `seconds`."""
        return next((one.value for one in self.highs if now - one.time < seconds), 0.0)

    def looked(
        self, now: float, *, lead: float, base: float, forecast: float
    ) -> tuple["Foresight", float | None]:
        """With a look taken in.

        Args:
            now: Seconds.
            lead: Seconds that a replica takes to start.
            base: Rows/s now.
            forecast: Rows/s more that are expected in `lead` seconds.

        Returns:
            The memory, and the error of the forecast for now; None: there was none.
        """
        due = [one for one in self.expected if one.time <= now - lead]
        waiting = self.expected[len(due) :]
        if not waiting or now - waiting[-1].time >= lead / MOST_EXPECTED:
            waiting = (*waiting, Point(now, base + forecast))
        lower = [one for one in self._recent(self.highs, now) if one.value > base]
        memory = replace(self, expected=waiting, highs=(*lower, Point(now, base)))
        if not due or now - due[-1].time > 2.0 * lead:  # nothing was looked at meanwhile
            return memory, None
        error = base / max(due[-1].value, 1e-9) - 1.0
        errors = (*self._recent(self.errors, now), Point(now, error))
        return replace(memory, errors=errors), error

    @staticmethod
    def _recent(points: Sequence[Point], now: float) -> list[Point]:
        return [one for one in points if now - one.time < MEMORY]

    def later(self, now: float) -> "Foresight":
        """On a clock that shows `now` where this one shows 0."""
        return replace(self, highs=tuple(Point(one.time + now, one.value) for one in self.highs))

    def to_saved(self, now: float) -> dict[str, object]:
        """Margin and highs; of many highs neighbours become one that is as high and as late."""
        groups = grouped(self._recent(self.highs, now))
        return {
            "margin": short(self.margin),
            "highs": [[short(group[0].value), round(group[-1].time - now, 3)] for group in groups],
        }

    @classmethod
    def restored(cls, saved: Mapping[object, object]) -> "Foresight | None":
        """What `to_saved` returned, times from 0 backwards; None if it is not that."""
        margin = number(saved.get("margin"), 0.0, MOST)
        highs = table(saved.get("highs"), (0.0, HIGHEST_RATE), (-MEMORY, 0.0))
        if margin is None or highs is None:
            return None
        return cls(highs=tuple(Point(time, value) for value, time in highs), inherited=margin)
