"""What `batchedapi tune` recommends for an example, beside the best of a grid, all of it for real.

    python tests/bench/tuned.py --example 02-sleepy
    python tests/bench/tuned.py --example 02-sleepy --processes 1

`tune` runs as one runs it, and what it recommends is read from its JSON. The grid has sizes in
doublings up to the largest that tune tries, four intervals, and one and two processes, which are
what tune is told to try; threads stay as the manifest says, as tune tries no others by itself. All
loads are tune's own: its generator, its ladder, its rule of what is held.

Short loads rank the grid. Each setting is asked for nine tenths of the most that was held before
it, first for half of that, and for more while it holds that. Intervals other than the manifest's
are tried where a size keeps up with such a load: where full batches do not, no interval helps. The
best few and the recommended setting then get whole ladders, in turns.

The targets: of 02 that of docs/guides/tuning.md, of 03 the maxLatency of its manifest, of 04, which
says nothing, about twenty times what a sentence alone takes. Each replica has the CPUs of its
`compute.cpu`, as with tune, and the generator the others. 03 and 04 need torch (`make examples`
installs it); 03 is trained first where it is not yet.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
from harness.ranking import BAR, Ranked, Short, grid_of, rank
from harness.report import ROOT, Table, environment, help_of, out_option, report
from harness.rounds import Spread, ratio
from harness.servers import PROGRAM, ending_on_sigterm, stop

from batchedapi_core.manifest import UnknownFields, format_duration
from batchedapi_core.simulation.tuning import Setting
from batchedapi_serving.cli.documents import load_documents
from batchedapi_serving.cli.serve import usable_cpu_count
from batchedapi_serving.overrides import Flags, in_effect
from batchedapi_serving.tuning.load import Answers, closed_loop, run_loop
from batchedapi_serving.tuning.measuring import Climb, Ladder, Rows, Step, rows_for
from batchedapi_serving.tuning.replica import Changes, Subject, apart_from, cpus_of, running
from batchedapi_serving.tuning.run import AS_WRITTEN

WITHIN: Final = 0.90
"""Of the goodput of the grid's best: what is recommended has to hold as much."""
LONGEST: Final = 600.0
"""Seconds that tune may take."""
TARGETS: Final[Mapping[str, float]] = {
    "02-sleepy": 0.1, "03-digits-torch": 0.2, "04-sentence-embeddings": 0.2,
}  # fmt: skip
STEP: Final = 4.0
"""Seconds of a load of the ladders, of tune's too: 20 times the longest of the targets."""
SHORT: Final = 2.0
"""Seconds of a load of the ranking."""
MORE: Final = 1.1
"""Times the load that a setting holds: what it is asked for next."""
KEEPS_UP: Final = 0.8
"""Rows that are run while a load is sent and its last answers are waited for, as a share of those
that come while it is sent."""
_WHOLE_SECONDS: Final = 720.0  # that all of it is to take
_LADDER_SECONDS: Final = 35.0  # of one, as far as one can say beforehand
_LEAST_RANKING: Final = 150.0  # seconds: with less a grid is not ranked, but for its first settings
_GIVING_UP: Final = 60.0  # seconds that tune has for telling what it knows

Tell = Callable[[str], None]


def changes_of(setting: Setting) -> Changes:
    """Over a manifest; maxBatchSize as it counts there."""
    return {
        "serverSideBatching": {
            "maxBatchSize": setting.max_batch_size,
            "batchInterval": format_duration(setting.batch_interval),
        },
        "predictor": {
            "processesPerReplica": setting.processes,
            "threadsPerProcess": setting.threads,
        },
    }


def setting_of(run: Mapping[str, Any]) -> Setting:
    """Of a run in tune's JSON, with maxBatchSize as the manifest counts."""
    return Setting(run["max_batch_size"], run["batch_interval"], run["processes"], run["threads"])


def recommended(told: Mapping[str, Any]) -> Setting:
    """What a manifest has once tune's patch is applied: its own setting if nothing is to change."""
    own = next(run for run in told["runs"] if run["label"] == AS_WRITTEN)
    return setting_of(told["best"] if told["change"] else own)


# ---------------------------------------------------------------- for real


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tune said, and the seconds that it took."""

    told: Mapping[str, Any]
    seconds: float


def tune(file: Path, target: float, processes: int) -> Tuned:
    """Run it to its end; when its time is over it is asked for what it knows.

    Args:
        file: The manifest.
        target: Seconds.
        processes: To try at most.

    Raises:
        RuntimeError: it says nothing.
    """
    command = [
        PROGRAM, "tune", "-f", str(file), "--slo", format_duration(target),
        "--step", format_duration(STEP), "--processes", str(processes), "--json",
    ]  # fmt: skip
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        try:
            out, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=_GIVING_UP)
    finally:
        stop(process)  # its replica ends with it
    seconds = time.monotonic() - began
    if not out:
        raise RuntimeError(f"tune: expected JSON, got nothing and exit code {process.returncode}")
    return Tuned(json.loads(out), seconds)


class Bench:
    """One example's replicas and loads."""

    def __init__(self, name: str) -> None:
        """Starts one replica, which says what it takes."""
        self.file = ROOT / "examples" / name / "batchedapi.yaml"
        self.target = TARGETS[name]
        documents = load_documents(self.file, None, UnknownFields.REFUSE)
        usable = usable_cpu_count(os.environ)
        api = in_effect(documents.api, Flags(), os.environ, usable)
        cpus = cpus_of(api.spec.compute, sorted(os.sched_getaffinity(0)), usable)
        self.subject = Subject(api, documents.source, documents.folder, cpus)
        self.quantile = api.spec.autoscaling.slo.percentile / 100
        with running(self.subject, {}) as replica:
            metadata = replica.get(f"/v2/models/{api.metadata.name}")
            openapi = replica.get("/openapi.json")
            self.rows: Rows = rows_for(replica.endpoint, openapi, metadata, None)
            run_loop(closed_loop(replica.port, self.rows.request(1), 1, runs=1, seconds=0.0))
            counted = replica.counters()
        self.size_of_row = counted.size / counted.rows

    def grid(self, own: Setting, processes: int) -> list[Setting]:
        """Of this example, with so many processes at most."""
        most = self.subject.api.spec.overload.max_replica_concurrency
        return grid_of(own, self.target, self.size_of_row, most, processes)

    def ask(self, setting: Setting, rate: float) -> Short:
        """Short loads: of half of `rate` requests/s, of `rate`, and of more while it holds them."""
        with running(self.subject, changes_of(setting)) as replica:
            climb = self._climb(replica, SHORT)
            tell = _telling(setting)
            held, asked = 0.0, rate / 2  # which warms it, too
            while climb.holds(asked, tell):
                held, asked = asked, MORE * asked if held else rate
            if held == rate / 2 and _keeps_up(climb.ladder.steps[-1]) and climb.holds(asked, tell):
                held = asked  # before, it was another program's turn
        last = climb.ladder.steps[-1]
        return Short(setting, held, last.answers.share_in_time, _keeps_up(last))

    def ladder(self, setting: Setting, expected: float) -> Ladder:
        """As tune runs one."""
        with running(self.subject, changes_of(setting)) as replica:
            climb = self._climb(replica, STEP)
            climb.climb(expected, _telling(setting))
        return climb.ladder

    def _climb(self, replica: Any, seconds: float) -> Climb:
        return Climb(
            replica, self.rows, target=self.target, quantile=self.quantile, seconds=seconds
        )


def _keeps_up(step: Step) -> bool:
    return step.counted.rows >= KEEPS_UP * step.answers.rate * step.answers.seconds


def _telling(setting: Setting) -> Tell:
    return lambda text: click.echo(f"{told_of(setting)}: {text}", err=True)


def told_of(setting: Setting) -> str:
    """In the order of the table's columns."""
    return f"{setting.max_batch_size}, {1e3 * setting.batch_interval:g} ms, {setting.processes}"


@dataclass(frozen=True, slots=True)
class Found:
    """One example's outcome."""

    tuned: Tuned
    own: Setting
    recommended: Setting
    ranked: Ranked
    ladders: Mapping[Setting, Sequence[Ladder]]
    """Of those that were run in turns, as many of each."""

    def goodputs(self, setting: Setting) -> list[float]:
        """Requests/s, of each round."""
        return [ladder.goodput for ladder in self.ladders[setting]]

    @property
    def best(self) -> Setting:
        """Of the grid, by the median of the rounds."""
        of_grid = {one.setting for one in self.ranked.asked}
        return max(
            (one for one in self.ladders if one in of_grid),
            key=lambda one: median(self.goodputs(one)),
        )

    @property
    def ratio(self) -> Spread:
        """What the recommended setting holds of what the best holds."""
        return ratio(self.goodputs(self.recommended), self.goodputs(self.best))

    @property
    def wrong(self) -> list[str]:
        """What is not as it should be."""
        found = []
        if self.tuned.seconds > LONGEST:
            found.append(f"tune took {self.tuned.seconds:.0f} s")
        if self.tuned.told["undecided"]:
            found.append("tune did not decide: the machine was too busy")
        if not self.ratio.median >= WITHIN:
            found.append(f"{self.ratio.median:.2f} of the best of the grid")
        return found


def measure(name: str, processes: int, best: int, rounds: int) -> Found:
    """Tune, rank the grid, run the best few beside what is recommended."""
    bench = Bench(name)
    click.echo("tune", err=True)
    tuned = tune(bench.file, bench.target, processes)
    own = setting_of(next(run for run in tuned.told["runs"] if run["label"] == AS_WRITTEN))
    chosen = recommended(tuned.told)
    served = max(1.0, *(run["goodput"] for run in tuned.told["runs"]))
    left = _WHOLE_SECONDS - tuned.seconds - rounds * (best + 1) * _LADDER_SECONDS
    end = time.monotonic() + max(_LEAST_RANKING, left)
    with apart_from(bench.subject.cpus):
        ranked = rank(
            bench.grid(own, processes),
            own.batch_interval,
            served,
            bench.ask,
            lambda: time.monotonic() < end,
        )
        few = [one.setting for one in ranked.best(best)]
        turns = few if chosen in few else [*few, chosen]
        ladders: dict[Setting, list[Ladder]] = {setting: [] for setting in turns}
        expected = max(served, *(one.held for one in ranked.asked))
        for number in range(rounds):
            for setting in turns if number % 2 == 0 else reversed(turns):
                before = [ladder.goodput for ladder in ladders[setting] if ladder.goodput]
                # From the second round on around what it holds itself: a ladder's loads are 6 %
                # apart, and other loads even that out.
                ladders[setting].append(bench.ladder(setting, before[-1] if before else expected))
    return Found(tuned, own, chosen, ranked, ladders)


# ---------------------------------------------------------------- telling


def tables(name: str, found: Found) -> list[Table]:
    """The verdict, what ran on whole ladders, and the ranking."""
    verdict = Table(
        f"What tune recommends for {name}",
        (
            "seconds of tune",
            "recommended: maxBatchSize, batchInterval, processes: requests/s",
            "best of the grid",
            "ratio",
        ),
        [
            (
                f"{found.tuned.seconds:.0f}",
                _served(found, found.recommended),
                _served(found, found.best),
                found.ratio.text(2),
            )
        ],
    )
    ran = Table(
        "Whole ladders, in turns",
        ("maxBatchSize, batchInterval, processes", "requests/s held", "p99, ms", ""),
        [
            (told_of(setting), *_of_ladders(ladders), _role(found, setting))
            for setting, ladders in found.ladders.items()
        ],
    )
    ranking = Table(
        "Short loads",
        ("maxBatchSize, batchInterval, processes", "held", "in time of the last", "keeps up"),
        [
            (told_of(one.setting), f"{one.held:,.0f}" if one.held else "-",
             f"{one.share_in_time:.1%}", "yes" if one.keeps_up else "no")
            for one in found.ranked.best(len(found.ranked.asked))
        ],
    )  # fmt: skip
    return [verdict, ran, ranking]


def notes(name: str, found: Found, rounds: int, seconds: float) -> list[str]:
    """What the tables need to be understood; `seconds` of all of it."""
    ladders = (
        f"In time is an answer within {1e3 * TARGETS[name]:g} ms. Ladders have loads of {STEP:g} s,"
        f" {rounds} of each setting in turns; p99 is at about 80 % of what is held. `>`: the"
        " generator fell behind first, so that a setting may hold more."
    )
    passed_by, left_out = found.ranked.passed_by, found.ranked.left_out
    ranking = (
        f"Short loads have {SHORT:g} s. The second is {BAR:g} of the most that was held before, the"
        f" first half of that; `-`: not even the first was held. {passed_by} settings of the grid"
        " were passed by, as their size did not keep up with the manifest's interval;"
        f" {left_out} were left out for want of time."
    )
    return [ladders, ranking, f"All of it took {seconds / 60:.1f} min."]


def _served(found: Found, setting: Setting) -> str:
    least = "" if all(ladder.bounded for ladder in found.ladders[setting]) else ">"
    return f"{told_of(setting)}: {least}{Spread.of(found.goodputs(setting)).text()}"


def _role(found: Found, setting: Setting) -> str:
    roles = {
        "recommended": found.recommended,
        "best of the grid": found.best,
        "manifest": found.own,
    }
    return ", ".join(role for role, one in roles.items() if one == setting)


def _of_ladders(ladders: Sequence[Ladder]) -> tuple[str, str]:
    """Goodput, marked where the generator ended a ladder, and p99 at a comfortable load."""
    held = ", ".join(f"{'' if one.bounded else '>'}{one.goodput:,.0f}" for one in ladders)
    p99 = [one.comfortable.answers.p(0.99) if one.comfortable else math.nan for one in ladders]
    return held, ", ".join(f"{1e3 * seconds:.0f}" for seconds in p99)


def _figures(found: Found) -> dict[str, Any]:
    """For programs; settings that tune simulated are too many to keep, and its best is a run."""
    left_out = {"simulated", "best"}
    told = {key: value for key, value in found.tuned.told.items() if key not in left_out}
    return {
        "tune": {"seconds": found.tuned.seconds, "simulated": len(found.tuned.told["simulated"]),
                 **told},
        "recommended": found.recommended._asdict(),
        "best": found.best._asdict(),
        "ratio": found.ratio._asdict(),
        "ladders": [
            {**setting._asdict(), "goodput": found.goodputs(setting),
             "bounded": [one.bounded for one in ladders],
             "loads": [[_load(step.answers) for step in one.steps] for one in ladders]}
            for setting, ladders in found.ladders.items()
        ],
        "ranking": [
            {**asdict(one), "setting": one.setting._asdict()} for one in found.ranked.asked
        ],
        "passed_by": found.ranked.passed_by,
        "left_out": found.ranked.left_out,
    }  # fmt: skip


def _load(answers: Answers) -> list[float | bool]:
    """Requests/s, share in time, refused, not sent, whether the generator was late."""
    return [
        round(answers.rate, 1), round(answers.share_in_time, 4), answers.refused, answers.skipped,
        answers.late,
    ]  # fmt: skip


@click.command(help=help_of(__doc__))
@click.option(
    "--example", "name", type=click.Choice(list(TARGETS)), default="02-sleepy", show_default=True
)
@click.option(
    "--processes", type=click.IntRange(1, 2), default=2, show_default=True,
    help="Model processes at most. With one a replica may be less than what the generator sends.",
)  # fmt: skip
@click.option(
    "--best", type=click.IntRange(1, 20), default=3, show_default=True,
    help="Settings of the grid that get whole ladders.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 10), default=2, show_default=True)
@out_option
def main(name: str, processes: int, best: int, rounds: int, out: Path | None) -> None:
    """See the module's docstring."""
    around, began = environment(), time.monotonic()
    os.environ["HF_HUB_OFFLINE"] = "1"  # 04 has its weights from a package, and nothing is asked
    folder = ROOT / "examples" / name
    if (folder / "train.py").exists() and not list(folder.glob("*.safetensors")):
        subprocess.run([sys.executable, "train.py"], cwd=folder, check=True)
    with ending_on_sigterm():
        found = measure(name, processes, best, rounds)
    report(
        f"tuned-{name}{'-1-process' if processes == 1 else ''}", around, tables(name, found),
        notes=notes(name, found, rounds, time.monotonic() - began),
        measured=_figures(found), out=out,
    )  # fmt: skip
    if found.wrong:
        sys.exit("; ".join(found.wrong))


if __name__ == "__main__":
    main()
