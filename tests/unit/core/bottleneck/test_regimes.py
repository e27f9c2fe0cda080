"""Verdicts about simulated loads, over many windows."""

import itertools
from dataclasses import replace

import pytest
from tests.unit.core.bottleneck.regimes import REGIMES, TICK, Fleet, Regime

from batchedapi_core.bottleneck import Kind, Verdict, diagnose
from batchedapi_core.bottleneck.diagnose import find
from thorough import examples

SETTLED = 180.0  # seconds: three windows
REST = 300.0
FIRST = 2  # ticks until there is a window to judge by


def kinds(fleet: Fleet, loads: list[tuple[Regime, float]]) -> list[list[Kind]]:
    """The kind of verdict at each tick of each load, one load after the other."""
    verdict: Verdict | None = None
    said: list[list[Kind]] = []
    now = 0.0
    for regime, seconds in loads:
        said.append([])
        for evidence in fleet.looks(regime, seconds):
            now += TICK
            verdict = diagnose(evidence, verdict, now)
            said[-1].append(verdict.kind)
    return said


def test_there_is_a_regime_of_every_kind() -> None:
    """Unknown is what is said of none of them."""
    assert set(Kind) - {Kind.UNKNOWN} == {regime.kind for regime in REGIMES}


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(min(3, examples(1))))
@pytest.mark.parametrize("regime", REGIMES, ids=lambda regime: regime.name)
def test_a_steady_load_is_told_right_after_three_windows(regime: Regime, seed: int) -> None:
    """F6: at least 95 % of the ticks."""
    (said,) = kinds(Fleet(seed), [(regime, 600.0)])

    later = said[round(SETTLED / TICK) :]

    assert 0.95 * len(later) <= later.count(regime.kind)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(min(3, examples(1))))
def test_a_load_that_becomes_another_is_told_after_three_windows(seed: int) -> None:
    """The window first holds both, and what stands is held on to: not for longer than this."""
    order = [*REGIMES[seed:], *REGIMES[:seed], *reversed(REGIMES)]

    said = kinds(Fleet(seed), [(regime, 600.0) for regime in order])

    for regime, ticks in zip(order, said, strict=True):
        later = ticks[round(SETTLED / TICK) :]
        assert 0.95 * len(later) <= later.count(regime.kind), regime.name


BOUNDARIES = (
    pytest.param("interval", {"rates": (73.2,) * 3}, id="interval or full batches"),
    pytest.param("small batches", {"rates": (57.0,) * 3}, id="busy or not"),
    pytest.param(
        "slow model", {"fixed": 0.143, "max_batch_size": 64}, id="twice the size gives a tenth"
    ),
    pytest.param("decoding", {"web_cpu": 0.85}, id="a core or not"),
    pytest.param("few connections", {"rates": (94.0, 62.5, 62.5)}, id="skewed or not"),
    pytest.param("bursts", {"concurrency": 90}, id="one row in a hundred rejected"),
)


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "change"), BOUNDARIES)
def test_a_load_on_a_boundary_changes_the_verdict_once_in_five_minutes(
    name: str, change: dict[str, object]
) -> None:
    """F6: who reads the column must not see it flicker, nor an Event each time."""
    regime = replace(next(one for one in REGIMES if one.name == name), **change)  # type: ignore[arg-type]  # fields of Regime by name

    verdict: Verdict | None = None
    found: list[Kind] = []
    said: list[Kind] = []
    for tick, evidence in enumerate(Fleet(7).looks(regime, 1800.0)):
        found.append(find(evidence, None).kind)
        verdict = diagnose(evidence, verdict, tick * TICK)
        said.append(verdict.kind)

    assert 10 < len(changes(found))  # it is on the boundary
    assert all(
        REST <= later - sooner for sooner, later in itertools.pairwise(changes(said[FIRST:]))
    )


def changes(kinds: list[Kind]) -> list[float]:
    """Seconds at which another kind comes."""
    return [i * TICK for i in range(1, len(kinds)) if kinds[i] is not kinds[i - 1]]


def test_the_advice_of_what_stands_keeps_its_numbers_while_something_else_is_found() -> None:
    """Advice about the interval with the numbers of full batches would contradict itself."""
    before = Verdict(Kind.BATCH_INTERVAL, "mean 21.4 < max 32", changed=0.0)
    (evidence,) = Fleet(1).looks(REGIMES[0], TICK)

    after = diagnose(replace(evidence, seconds=60.0), before, 400.0)

    assert (Kind.BATCH_INTERVAL, "mean 21.4 < max 32") == (after.kind, after.advice)
    assert Kind.IDLE is after.rival
