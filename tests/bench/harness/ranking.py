"""A grid of settings of a replica, ranked by short loads, most of which it does not hold.

Each setting is asked for a share of the most that was held before it, so that one that cannot be
best costs one load. Which loads these are, and what is held, is the caller's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from batchedapi_core.simulation.tuning import Setting, powers_of_two, round_interval

LARGEST: Final = 256
"""Rows of a batch that tune tries at most when it is told nothing."""
BAR: Final = 0.9
"""Of the most that was held before: what a setting is asked for first. Short loads are that far
from the truth now and then."""


@dataclass(frozen=True, slots=True)
class Short:
    """What short loads say of a setting; rates in requests/s."""

    setting: Setting
    held: float
    """The highest load that is; 0: not even the first."""
    share_in_time: float  # of the last load
    keeps_up: bool
    """Whether as many rows are run as come, in time or not, at the last load."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """What short loads say of a grid."""

    asked: Sequence[Short]
    passed_by: int
    """Settings of a size that did not keep up with another interval."""
    left_out: int
    """Settings for which there was no time."""

    def best(self, count: int) -> list[Short]:
        """That hold most, and among those that hold nothing answer most in time."""
        order = sorted(self.asked, key=lambda one: (-one.held, -one.share_in_time))
        return order[:count]


def rank(
    grid: Sequence[Setting],
    interval: float,
    held: float,
    ask: Callable[[Setting, float], Short],
    in_time: Callable[[], bool],
) -> Ranked:
    """Ask each setting for more than a share of what the best before it held.

    Args:
        grid: The settings.
        interval: With which each size is asked first, in seconds.
        held: Requests/s that something has held already.
        ask: What short loads say of a setting, of so many requests/s and of more if it holds that.
        in_time: Whether there is time for another setting.
    """
    asked: list[Short] = []
    left_out = 0

    def go_through(settings: Sequence[Setting]) -> None:
        nonlocal left_out, held
        for setting in settings:
            if not in_time():
                left_out += 1
                continue
            asked.append(ask(setting, BAR * held))
            held = max(held, asked[-1].held)

    go_through([one for one in grid if one.batch_interval == interval])
    promising = {
        one.setting: one.held for one in asked if one.keeps_up or one.held >= BAR * held
    }  # fmt: skip
    others = [
        one for one in grid
        if one.batch_interval != interval and one._replace(batch_interval=interval) in promising
    ]  # fmt: skip
    go_through(
        sorted(others, key=lambda one: -promising[one._replace(batch_interval=interval)])
    )  # what holds most first: time may run out
    return Ranked(tuple(asked), len(grid) - len(asked) - left_out, left_out)


def grid_of(
    own: Setting, target: float, size_of_row: float, largest: int, processes: int
) -> list[Setting]:
    """Sizes, as a manifest counts them, intervals and processes; large ones first, which hold most.

    Args:
        own: The manifest's setting.
        target: Seconds.
        size_of_row: What a row counts of maxBatchSize.
        largest: maxBatchSize at most.
        processes: At most.
    """
    sizes = {min(largest, max(1, round(n * size_of_row))) for n in powers_of_two(LARGEST)}
    intervals = {
        0.0,
        own.batch_interval,
        *(round_interval(share * target) for share in (0.25, 0.5)),
    }
    every = product(range(processes, 0, -1), sorted(sizes, reverse=True), sorted(intervals))
    return [Setting(size, interval, n, own.threads) for n, size, interval in every]
