"""The loads, as multiples of what one well-used replica serves, so that they fit every service."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from types import MappingProxyType
from typing import Final

import numpy as np

from autoscaling.unlike import (
    StickyClients,
    bent,
    half_as_slow_again_in_half_an_hour,
    one_in_five_is_slow,
)
from batchedapi_core.simulation import Balancer, Pace, PoissonTrace, at_random


class Family(StrEnum):
    """The purpose of a trace."""

    KNOWN = "the six on which the defaults were chosen"
    HELD_OUT = "held out: random bursts, no default was chosen on them"
    FURTHER = "other shapes and other start-up times"
    UNLIKE = "a day's curve with replicas that are not alike"


@dataclass(frozen=True, slots=True)
class Load:
    """A rate over time for `seconds`, 1.0 being 80 % of what one replica holds."""

    name: str
    family: Family
    seconds: int
    level: Callable[[float], float]
    startup: tuple[float, float] = (20.0, 40.0)  # seconds a replica needs, drawn uniformly
    pace: Pace | None = None  # of its batches; None: as the service says
    balancer: Callable[[], Balancer] = lambda: at_random

    def trace(self, unit: float) -> PoissonTrace:
        """In rows/s, `unit` of them at 1.0."""
        return PoissonTrace(lambda t: self.level(t) * unit, float(self.seconds))


def _step(t: float) -> float:
    return 6.0 if 300 <= t < 750 else 0.6


def _diurnal(t: float) -> float:
    return 4.25 - 3.75 * math.cos(2 * math.pi * t / 900)


def _flash(t: float) -> float:
    if t < 300:
        return 0.8
    return 0.8 + 8.0 * (min(1.0, (t - 300) / 20) if t < 360 else math.exp(-(t - 360) / 120))


def _two_peaks(t: float) -> float:
    morning, evening = math.exp(-(((t - 500) / 160) ** 2)), math.exp(-(((t - 1250) / 220) ** 2))
    return 0.3 + 4.0 * morning + 6.5 * evening


def switching(
    seed: int, levels: tuple[float, float], means: tuple[float, float], seconds: int
) -> Callable[[float], float]:
    """Two levels in turn, each for exponential times with these means in seconds."""
    random = np.random.default_rng(seed)
    starts: list[float] = []
    values: list[float] = []
    t = 0.0
    while t < seconds:
        turn = len(starts) % 2
        starts.append(t)
        values.append(levels[turn])
        t += random.exponential(means[turn])
    return lambda t: values[int(np.searchsorted(starts, t, side="right")) - 1]


def bursty(seed: int, seconds: int) -> Callable[[float], float]:
    """A wandering level with spikes: Ornstein-Uhlenbeck in its logarithm, around 2.5.

    Its deviation is 0.6 and it returns to the mean in 120 s; every 240 s on average it is
    1.5 to 3.5 times as high for 20 to 60 s.
    """
    random = np.random.default_rng(seed)
    sigma, back, mean, most = 0.6, 1 / 120, 2.5, 12.0
    pushes = random.normal(0.0, sigma * math.sqrt(2 * back), seconds).tolist()
    logs = accumulate(pushes, lambda x, push: x - back * x + push, initial=sigma * random.normal())
    levels = mean * np.exp(np.fromiter(logs, float)[:seconds] - sigma * sigma / 2)
    t = random.exponential(240)
    while t < seconds:
        length = random.uniform(20, 60)
        levels[int(t) : int(t + length)] *= random.uniform(1.5, 3.5)
        t += length + random.exponential(240)
    return _by_second(np.minimum(levels, most).tolist())


def wandering(seed: int, seconds: int) -> Callable[[float], float]:
    """A random walk of the logarithm, 0.15 every 10 s, reflected at 0.3 and 8."""
    random = np.random.default_rng(seed)
    low, high = math.log(0.3), math.log(8.0)
    levels, x = [], math.log(2.0)
    for _ in range(seconds // 10 + 1):
        levels += [math.exp(x)] * 10
        x += random.normal(0.0, 0.15)
        x = 2 * low - x if x < low else 2 * high - x if x > high else x
    return _by_second(levels)


def _by_second(levels: list[float]) -> Callable[[float], float]:
    return lambda t: levels[min(int(t), len(levels) - 1)]


def _around(seconds: float) -> tuple[float, float]:
    """As wide for its mean as the 20 to 40 s of the other traces."""
    return seconds * 2 / 3, seconds * 4 / 3


HELD_OUT_SEEDS: Final = (101, 102, 103)

_KNOWN: Final = (
    Load("constant", Family.KNOWN, 900, lambda _: 4.5),
    Load("ramp", Family.KNOWN, 1500, lambda t: 0.5 + 7.5 * min(1.0, t / 1200)),
    Load("diurnal", Family.KNOWN, 1800, _diurnal),
    Load("step", Family.KNOWN, 1200, _step),
    Load("flash", Family.KNOWN, 1200, _flash),
    Load("mmpp", Family.KNOWN, 1500, switching(5, (1.5, 5.0), (60, 25), 3600)),
)
_HELD_OUT: Final = tuple(
    Load(f"bursty-{number}", Family.HELD_OUT, 1200, bursty(seed, 1200), (20.0, 60.0))
    for number, seed in enumerate(HELD_OUT_SEEDS, 1)
)
_FURTHER: Final = (
    Load("low", Family.FURTHER, 900, lambda _: 0.05),
    Load("sawtooth", Family.FURTHER, 1500, lambda t: 0.5 + 5.5 * (t % 300) / 300),
    Load("two-peaks", Family.FURTHER, 1800, _two_peaks),
    Load("random-walk", Family.FURTHER, 1500, wandering(201, 1500)),
    Load("on-off", Family.FURTHER, 1500, switching(202, (0.2, 5.0), (90, 120), 1500)),
    Load("slow-decay", Family.FURTHER, 1500, lambda t: 8.0 * math.exp(-t / 600)),
    *(
        Load(f"{name}-start-{start}s", Family.FURTHER, seconds, level, _around(start))
        for name, seconds, level in (("diurnal", 1800, _diurnal), ("step", 1200, _step))
        for start in (10, 60, 120)
    ),
)
_UNLIKE: Final = (
    # 200 clients keep their replica for two minutes: a new one gets load late and from few of them.
    # For what knows of uneven load.
    Load("sticky", Family.UNLIKE, 1800, _diurnal, balancer=lambda: StickyClients(200, 120.0)),
    # The slow replica is late at a load that the others hold. For the same, and for service times
    # that are pooled.
    Load("slow-pods", Family.UNLIKE, 1800, _diurnal, pace=one_in_five_is_slow),
    # What was measured in the morning is wrong in the evening. For what forgets, and what compares
    # the model with the batches.
    Load("drift", Family.UNLIKE, 1800, _diurnal, pace=half_as_slow_again_in_half_an_hour),
    # What small batches teach is wrong for large ones. For limits on extrapolation, and for doubt.
    Load("bent", Family.UNLIKE, 1800, _diurnal, pace=bent),
)
LOADS: Final[Mapping[str, Load]] = MappingProxyType(
    {load.name: load for load in (*_KNOWN, *_HELD_OUT, *_FURTHER, *_UNLIKE)}
)
