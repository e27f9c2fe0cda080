"""Options of `batchedapi simulate`; simulate_request.py carries it out."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from batchedapi_core import contract
from batchedapi_serving.cli.documents import MANIFEST_PATH, refused

FAILED = 1
"""Exit code: an assertion does not hold."""
NOT_SIMULATED = 2
"""Exit code: the command line, the manifest or the trace are wrong."""
_DURATION = "DURATION"


@click.command("simulate")
@click.option(
    "-f", "--file", "file", metavar="FILE",
    type=MANIFEST_PATH,
    help="A manifest: the file you would kubectl apply. [default: one with every default]",
)  # fmt: skip
@click.option("--name", help="Which BatchedAPI of the file, if it holds several.")
@click.option(
    "--trace", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The load: CSV lines t,rate (seconds; rows/s from then on), or recorded requests as JSON"
    ' lines {"t": seconds, "rows": n, "lengths": [...]}.',
)  # fmt: skip
@click.option(
    "--service", metavar="a=DURATION,b=DURATION",
    help="A batch of n rows takes a + b * n; `batchedapi check` measures both. With c=DURATION too,"
    " where rows have lengths: a + (b + c * L) * n, of which the longest is L long.",
)  # fmt: skip
@click.option(
    "--lengths", metavar="LEAST..MOST",
    help="Of rows, for c: as many from 4 to 8 as from 8 to 16. [default: as recorded]",
)  # fmt: skip
@click.option(
    "--max-batch-size", type=click.IntRange(1, contract.MAX_BATCH_SIZE_LIMIT),
    help="Override the manifest.",
)  # fmt: skip
@click.option("--batch-interval", metavar=_DURATION, help="Override the manifest.")
@click.option("--max-latency", metavar=_DURATION, help="Override the manifest.")
@click.option("--min-replicas", type=click.IntRange(1), help="Override the manifest.")
@click.option("--max-replicas", type=click.IntRange(1), help="Override the manifest.")
@click.option(
    "--replicas", type=click.IntRange(0),
    help="Ready at the beginning. [default: as many as the first 5 s need]",
)  # fmt: skip
@click.option(
    "--connections", type=click.IntRange(1, 100000),
    help="Also: the same load over so many connections that stay with one replica each, and by one"
    " queue for all replicas, on as many replicas as there were at most. [default: 64 with a"
    " queue in the manifest, else no such comparison]",
)  # fmt: skip
@click.option(
    "--startup", metavar="DURATION..DURATION",
    help="From the creation of a replica to its readiness. [default: 20s..40s]",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@click.option(
    "--assert", "assertions", multiple=True, metavar="'p99<80ms'",
    help="Exit with 1 unless it holds; of p50, p90, p99, miss_fraction, cost_ratio, mean_rows,"
    " replicas (the most), with < <= > >=. Can be given several times.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
def simulate_command(
    file: Path | None,
    name: str | None,
    trace: Path,
    assertions: tuple[str, ...],
    as_json: bool,  # noqa: FBT001 - click passes options by name
    **options: Any,
) -> None:
    """Predict batches, latencies and replicas of a load, without a model and without a cluster.

    The same batching and the same autoscaler as in a cluster, in virtual time; the same arguments
    give the same answer. Exit code 0: simulated, and every --assert holds; 1: one does not; 2:
    nothing could be simulated.

    \b
    Example:
      batchedapi simulate -f batchedapi.yaml --trace load.csv --service a=10ms,b=0.2ms
    """
    # Here: numpy comes with it, and a replica's supervisor, which runs this program too, has no
    # memory to give away.
    from batchedapi_serving.cli import simulate_request  # noqa: PLC0415
    from batchedapi_serving.laptop.simulating.settings import OptionError  # noqa: PLC0415

    with refused(file or "options", NOT_SIMULATED, OptionError):
        simulated, failures = simulate_request.perform(file, name, trace, assertions, **options)
    if as_json:
        click.echo(json.dumps(simulated.as_object(), indent=2))
    else:
        click.echo(simulate_request.text_of(simulated, sys.stdout.encoding or "ascii"), nl=False)
    for failure in failures:
        click.echo(f"batchedapi: --assert {failure}", err=True)
    sys.exit(FAILED if failures else 0)
