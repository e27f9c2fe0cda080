"""`batchedapi tune`: its options and exit codes; what it does is in tuning/."""

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchedapi_core.manifest import CPU_COUNT, BatchedAPI, UnitError
from batchedapi_core.manifest import parse_duration as seconds_of
from batchedapi_serving.cli.check import load_items
from batchedapi_serving.cli.documents import (
    MANIFEST_PATH,
    PREDICTOR_METAVAR,
    TRUSTED,
    DocumentError,
    given_documents,
    refused,
)
from batchedapi_serving.cli.serve import usable_cpu_count
from batchedapi_serving.overrides import Flags, in_effect
from batchedapi_serving.signals import signals_raise

if TYPE_CHECKING:  # numpy comes with it
    from batchedapi_serving.laptop.tuning.run import Known

BETTER = 1
"""Exit code: another setting serves more, or none meets the target."""
NOT_TUNED = 2
"""Exit code: the command line, the manifest or the items are wrong, a replica does not start, or
the machine was too busy for the load."""
INTERRUPTED = 130
"""Exit code: Ctrl-C; what was known is printed."""
_SHORTEST_STEP = 1.0  # second
_TARGETS_A_STEP = 20.0
"""Least length of a load: 5 % more than a replica holds must make it late within it."""
_EVERY = 10.0  # seconds between two lines of progress where no terminal is


class Progress:
    """On a terminal one line in the place of the one before; else a line now and then."""

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._told = -_EVERY

    def tell(self, text: str, left: float) -> None:
        """Show the present step, and the seconds that the rest is expected to take."""
        now = time.monotonic()
        rest = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"  # noqa: PLR2004 - as one says
        line = f"{text}, about {rest} left"
        if self._terminal:
            click.echo(f"\r\x1b[K{line}", err=True, nl=False)
        elif now - self._told >= _EVERY:
            self._told = now
            click.echo(line, err=True)

    def close(self) -> None:
        """Clear the line: there is something to read now."""
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


@click.command("tune")
@click.argument("predictor", required=False, metavar=PREDICTOR_METAVAR)
@click.option(
    "-f", "--file", "file", metavar="FILE",
    type=MANIFEST_PATH,
    help="A manifest: the file you would kubectl apply, ConfigMaps in it included.",
)  # fmt: skip
@click.option("--name", help="Which BatchedAPI of the file, if it holds several.")
@click.option(
    "--slo", metavar="DURATION",
    help="An answer within it is in time. [default: autoscaling.slo.latency, else"
    " serverSideBatching.maxLatency]",
)  # fmt: skip
@click.option(
    "--items", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Rows to ask with: a JSON array, or one JSON value a line. [default: random numbers, or"
    " the method's example]",
)  # fmt: skip
@click.option(
    "--processes", type=click.IntRange(1, 64), metavar="N",
    help="Model processes to try at most. [default: as many as the replica has CPUs, and the"
    " manifest's]",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
    help="Threads of a process to try at most; more than one says that the predictor may be called"
    " by several at once.",
)  # fmt: skip
@click.option(
    "--largest", type=click.IntRange(1, 4096), default=256, show_default=True, metavar="ROWS",
    help="Largest batch to try.",
)  # fmt: skip
@click.option(
    "--step",
    default="4s",
    show_default=True,
    metavar="DURATION",
    help="How long each load lasts; at least 20 times the target.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the patch of the manifest there; empty if there is nothing to change.",
)  # fmt: skip
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png",
    help="Draw t(n) and the ladders of loads.",
)  # fmt: skip
@TRUSTED
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def tune_command(
    *,
    predictor: str | None,
    file: Path | None,
    name: str | None,
    slo: str | None,
    items: Path | None,
    processes: int | None,
    threads: int,
    largest: int,
    step: str,
    out: Path | None,
    picture: Path | None,
    trusted: bool,
    as_json: bool,
) -> None:
    """Find size, interval and processes that serve most within a latency target.

    Runs one replica of the manifest FILE, the class MODULE:CLASS or the file MODEL: times its
    batches, sends it a ladder of loads, searches settings in simulation, and runs the best
    three for real. Ctrl-C keeps what is known. Exit code 0: the manifest is within 5 % of the
    best; 1: another setting serves more, or none meets the target; 2: nothing could be tuned,
    or the machine was too busy to say; 130: interrupted.

    \b
    Examples:
      batchedapi tune -f batchedapi.yaml --slo 100ms
      batchedapi tune iris.onnx --slo 100ms
      batchedapi tune -f batchedapi.yaml --slo 100ms --out patch.yaml --picture tuning.png
    """
    # Here: numpy comes with it, and a replica's supervisor, which runs this program too, has no
    # memory to give away.
    from batchedapi_serving.laptop.tuning import report  # noqa: PLC0415
    from batchedapi_serving.laptop.tuning.measuring import MeasuringError, NoRowsError  # noqa: PLC0415
    from batchedapi_serving.laptop.tuning.replica import TuneSubject, cpus_of  # noqa: PLC0415
    from batchedapi_serving.laptop.tuning.run import TuneOptions, Tuner  # noqa: PLC0415

    if picture is not None and importlib.util.find_spec("matplotlib") is None:
        click.echo(f"batchedapi: {report.REMEDY}", err=True)
        sys.exit(NOT_TUNED)
    signals_raise()
    progress = Progress(terminal=sys.stderr.isatty())
    with (
        refused(file or predictor, NOT_TUNED, MeasuringError, NoRowsError),
        contextlib.closing(progress),
    ):
        documents = given_documents(predictor, file, name, trusted=trusted)
        usable = usable_cpu_count(os.environ)
        api = in_effect(documents.api, Flags(), os.environ, usable)
        chosen = api.spec.predictor
        own_cpus = cpus_of(api.spec.compute, sorted(os.sched_getaffinity(0)), usable)
        cpus, written = len(own_cpus) or usable, chosen.processes_per_replica
        own = cpus if written == CPU_COUNT else int(written), chosen.threads_per_process
        target = _target(api, slo)
        wanted = TuneOptions(
            target=target,
            items=None if items is None else load_items(items),
            processes=cpus if processes is None else processes,
            threads=threads,
            largest=largest,
            step=max(_TARGETS_A_STEP * target, _SHORTEST_STEP, _duration("--step", step)),
        )
        subject = TuneSubject(api, documents.source, documents.folder, own_cpus)
        tuner = Tuner(subject, own, wanted, progress.tell)
        tuner.run()
        known = tuner.known
        if out is not None:
            out.write_text(report.patch(known))
        if picture:
            report.draw(known, picture)
    text = report.as_json(known) if as_json else report.render(known)
    if not as_json and (patch := report.patch(known)):
        text += f"\n{patch}"
    click.echo(text, nl=False)
    sys.exit(_exit_code(known, report.better(known)))


def _exit_code(known: "Known", change: Mapping[str, object]) -> int:
    if known.interrupted:
        return INTERRUPTED
    if known.undecided:
        return NOT_TUNED
    return BETTER if change or known.best_run is None else 0


def _target(api: BatchedAPI, slo: str | None) -> float:
    own = [
        f"methods[].name: {method.name}"
        for method in api.spec.predictor.methods
        if method.server_side_batching is not None
    ]
    if own:
        raise DocumentError(
            f"spec.predictor.{own[0]} has batching of its own, and tune changes"
            " spec.serverSideBatching alone; tune a copy of the manifest that has it there"
        )
    target = api.spec.autoscaling.slo.latency or api.spec.server_side_batching.max_latency
    if slo is not None:
        target = _duration("--slo", slo)
    if not target:
        raise DocumentError(
            "--slo: expected a duration > 0 such as 100ms, as the manifest has neither"
            " autoscaling.slo.latency nor serverSideBatching.maxLatency"
        )
    return target


def _duration(option: str, text: str) -> float:
    try:
        return seconds_of(text)
    except UnitError as error:
        raise DocumentError(f"{option}: {error}") from error
