"""What clients of one method notice of another method of which every row fails.

    python tests/bench/beside.py

64 clients of one method and 4 of another share one lane; a batch takes 10 ms and 0.2 ms a row. The
64 are well-behaved, or each of their rows is refused (an `ItemError` is raised), raises a
`ValueError`, or runs out of memory. Each case is a replica of its own; rounds are interleaved.
"""

import asyncio
import statistics
import sys
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from harness import servers
from harness.connections import run_client
from harness.load import IdLoad, finish
from harness.report import Table, environment, help_of, out_option, report

_MANY: Final = 64
_FEW: Final = 4
_WARM_SECONDS: Final = 1.0
_MOST: Final = 2.0
"""Times the p50 beside well-behaved clients."""
_LEAST: Final = 0.6
"""Share of the answers beside well-behaved clients."""
CASES: Final = {
    "well-behaved": None, "refused": "refuses", "raised": "raises", "no memory": "memory",
}  # fmt: skip


class TimedLoad(IdLoad):
    """Keeps how long each right answer took."""

    def __init__(self, path: str) -> None:
        super().__init__(path=path)
        self.seconds: list[float] = []

    def took(self, seconds: float) -> None:
        """See IdLoad."""
        super().took(seconds)
        self.seconds.append(seconds)


async def run_case(server: servers.Server, seconds: float) -> dict[str, Any]:
    """Both methods under load; figures of the few."""
    many, few = TimedLoad("/pair/first"), TimedLoad("/pair/second")
    clients = [asyncio.create_task(run_client(server.port, many)) for _ in range(_MANY)]
    clients += [asyncio.create_task(run_client(server.port, few)) for _ in range(_FEW)]
    await asyncio.sleep(_WARM_SECONDS)
    few.seconds.clear()
    await asyncio.sleep(seconds)
    found = {
        "answers": len(few.seconds),
        "p50": statistics.median(few.seconds) if few.seconds else seconds,
        "slowest": max(few.seconds, default=seconds),
        "others": {200: many.right, **many.statuses},
        "failed": few.failed + few.wrong,
    }
    many.stop()
    few.stop()
    await finish(clients, 30.0)
    return found


def median_of(rounds: list[dict[str, Any]], what: str) -> float:
    """Over the rounds of one case."""
    return statistics.median(float(one[what]) for one in rounds)


@click.command(help=help_of(__doc__))
@click.option("--seconds", type=click.FloatRange(1, 600), default=8, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--port", default=servers.PORT + 700, show_default=True, help="First of two.")
@out_option
def main(*, seconds: float, rounds: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, fails in CASES.items():
            with servers.serving_workload("Pair", port, {"fails": fails}) as server:
                found[name].append(uvloop.run(run_case(server, seconds)))
            click.echo(f"{name}: {found[name][-1]}")
    base = found["well-behaved"]
    p50, answers = median_of(base, "p50"), median_of(base, "answers")
    rows = []
    bad = False
    for name, each in found.items():
        slower = median_of(each, "p50") / p50
        share = median_of(each, "answers") / answers
        failed = sum(one["failed"] for one in each)
        bad = bad or slower > _MOST or share < _LEAST or failed > 0
        rows.append([
            name, f"{median_of(each, 'answers'):.0f}", f"{share:.2f}",
            f"{1000 * median_of(each, 'p50'):.1f}", f"{slower:.2f}",
            f"{1000 * median_of(each, 'slowest'):.0f}", str(failed), str(each[-1]["others"]),
        ])  # fmt: skip
    table = Table(
        f"{_FEW} clients of one method beside {_MANY} of another",
        ["the many are", f"answers in {seconds:g} s", "share", "p50 ms", "times", "slowest ms",
         "failed", "the many got"],
        rows,
    )  # fmt: skip
    note = (
        f"Medians of {rounds} rounds; at most {_MOST:g} times the p50, at least {_LEAST:g} of the"
        " answers."
    )
    report("beside", began, [table], notes=[note], measured=found, out=out)
    if bad:
        sys.exit("the few pay for the many: see the table")


if __name__ == "__main__":
    main()
