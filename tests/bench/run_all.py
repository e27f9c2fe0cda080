"""Every benchmark one after the other, in about three hours; writes the results files.

python tests/bench/run_all.py                 # a quiet machine, please
python tests/bench/run_all.py --quick --out /tmp/bench
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from harness.report import help_of
from harness.servers import BENCH

FULL: Final = (
    "throughput.py --workload W1",
    "throughput.py --workload W3 --baseline bare",
    "throughput.py --workload W1 --peer litserve --connections 1,16,64,256",
    "throughput.py --workload W3 --peer litserve --connections 1,16,64,256",
    "throughput.py --workload W1 --peer bentoml --connections 1,16,64,256",
    "throughput.py --workload W3 --peer bentoml --connections 1,16,64,256",
    "identity.py",
    "start.py",
    "model_sources.py",
    "kills.py --mode term",
    "kills.py",
    "shared_queue_faults.py --spacing 1",
    "shared_queue_faults.py --mode redis",
    "shared_queue_faults.py --mode web --kills 5",
    "shared_queue_faults.py --mode ids --requests 1000000 --connections 128",
    "shared_queue_faults.py --mode lengths --requests 1000000 --connections 256",
    "shared_queue_faults.py --mode rows --requests 10000000",
    "isolation.py",
    "isolation.py --mode deadly",
    "overload.py",
    "keyless.py",
    "faults.py --jobs 8 --share 0.3",
    "autoscaling",
    "soak.py",
)
QUICK: Final = (
    "throughput.py --workload W1 --connections 1,64 --rounds 1 --seconds 1",
    "throughput.py --workload W3 --connections 1,64 --rounds 1 --seconds 1 --baseline bare",
    "throughput.py --workload W1 --peer litserve --connections 1,64 --rounds 1 --seconds 1",
    "throughput.py --workload W1 --peer bentoml --connections 1,64 --rounds 1 --seconds 1",
    "identity.py --ids 20000",
    "start.py --runs 2",
    "model_sources.py --mebibytes 24",
    "kills.py --mode term --rounds 2",
    "kills.py --kills 2",
    "shared_queue_faults.py --requests 5000 --spacing 1",
    "shared_queue_faults.py --mode redis --kills 1 --pause 2",
    "shared_queue_faults.py --mode web --kills 2",
    "shared_queue_faults.py --mode ids --requests 20000",
    "shared_queue_faults.py --mode lengths --requests 20000",
    "shared_queue_faults.py --mode rows --requests 100000 --seconds 1",
    "isolation.py --batches 100",
    "isolation.py --mode deadly --batches 50",
    "overload.py --seconds 2",
    "keyless.py --seconds 3",
    "faults.py --which once --share 0.02",
    "autoscaling --service cpu,emb --trace low,step --controller batchedapi,cortex",
    "soak.py --requests 100000",
)
"""The same programs, only to see that they work: their figures mean nothing, and may fail."""
_LIMIT_SECONDS: Final = 1800


def _run(command: Sequence[str]) -> int:
    """Exit code of a program, which is asked to end when it takes too long."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait(_LIMIT_SECONDS)
        except BaseException:
            process.terminate()  # it stops the servers it started
            raise


@click.command(help=help_of(__doc__))
@click.option("--quick", is_flag=True, help="A few minutes, to see that everything works.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=BENCH / "results",
    help="Folder for the results files.  [default: results, beside this program]",
)
def main(quick: bool, out: Path) -> None:  # noqa: FBT001 - click passes a flag
    """See the module's docstring."""
    failed = []
    for line in QUICK if quick else FULL:
        program, *arguments = line.split()
        began = time.monotonic()
        click.echo(f"\n=== {line}")
        command = [sys.executable, str(BENCH / program), *arguments, "--out", str(out)]
        code = _run(command)
        click.echo(f"=== {line}: exit {code} after {time.monotonic() - began:.0f} s")
        if code:
            failed.append(line)
    if failed:
        sys.exit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
