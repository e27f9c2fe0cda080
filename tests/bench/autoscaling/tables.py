"""The results as tables: misses in percent and cost over the clairvoyant's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from harness.report import Table

from autoscaling.cases import Result
from autoscaling.roster import BOUND, OURS, ROSTER, UNHEDGED
from autoscaling.services import SERVICES
from autoscaling.traces import LOADS, Family

Key = Callable[[Result], str]


def tables(results: Sequence[Result]) -> list[Table]:
    """One per family of loads that was run; the held-out one by service, as it has one shape."""
    made = []
    for family in Family:
        found = [result for result in results if LOADS[result.case.load].family is family]
        if not found:
            continue
        if family is Family.HELD_OUT:
            made.append(_table(family, found, list(SERVICES), lambda r: r.case.service))
        else:
            made.append(_table(family, found, list(LOADS), lambda r: r.case.load))
    return made


def wins(results: Sequence[Result]) -> str:
    """In how many cases no autoscaler of others dominates ours.

    A case is a service and a load, its figures the mean over the seeds. The bound is not counted:
    it is told the rate and the capacity.
    """
    by_case = _grouped(results, lambda r: f"{r.case.service} {r.case.load}")
    beaten: list[str] = []
    seen = 0
    for name, found in by_case.items():
        figures = {
            controller: (fmean(r.misses for r in runs), fmean(r.cost for r in runs))
            for controller, runs in _grouped(found, lambda r: r.case.controller).items()
        }
        ours = figures.pop(OURS, None)
        for not_of_others in (BOUND, UNHEDGED):
            figures.pop(not_of_others, None)
        if ours is None or not figures:
            continue
        seen += 1
        better = [name for name, theirs in figures.items() if dominates(theirs, ours)]
        if better:
            beaten.append(f"{name} ({', '.join(better)})")
    if not seen:
        return "No case was run with both ours and an autoscaler of others."
    text = (
        f"In {seen - len(beaten)} of {seen} cases (service x load) no autoscaler of others is "
        "better than ours in misses or cost without being worse in the other."
    )
    return f"{text} One is in: {'; '.join(beaten)}." if beaten else text


def dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether its (misses, cost) are no worse in both and better in one."""
    return one[0] <= other[0] and one[1] <= other[1] and one != other


def _table(title: str, results: Sequence[Result], columns: Iterable[str], key: Key) -> Table:
    present = {key(result) for result in results}
    names = [name for name in columns if name in present]
    runs = _grouped(results, lambda r: r.case.controller)
    rows = [
        [entry.label, *_cells(_grouped(runs[name], key), names), *_summary(runs[name])]
        for name, entry in ROSTER.items()
        if name in runs
    ]
    return Table(
        f"{title}: misses / cost",
        ["autoscaler", *names, "mean miss", "mean cost", "worst miss", "scale events"],
        rows,
    )


def _cells(by_column: Mapping[str, Sequence[Result]], names: Iterable[str]) -> list[str]:
    return [
        f"{100 * fmean(r.misses for r in by_column[name]):.1f} / "
        f"{fmean(r.cost for r in by_column[name]):.2f}"
        if name in by_column
        else "-"
        for name in names
    ]


def _summary(results: Sequence[Result]) -> list[str]:
    """Means over all cases; the worst miss is of a case, its seeds averaged."""
    by_case = _grouped(results, lambda r: f"{r.case.service} {r.case.load}")
    worst = max(fmean(r.misses for r in runs) for runs in by_case.values())
    return [
        f"{100 * fmean(r.misses for r in results):.1f} %",
        f"{fmean(r.cost for r in results):.2f}",
        f"{100 * worst:.0f} %",
        f"{fmean(r.scale_events for r in results):.0f}",
    ]


def _grouped(results: Iterable[Result], key: Key) -> dict[str, list[Result]]:
    return {name: list(found) for name, found in groupby(sorted(results, key=key), key)}
