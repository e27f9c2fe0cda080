"""What a replica's own counters say of its batches, and what `batchedapi simulate` makes of it."""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchedapi_core import contract
from batchedapi_core.service_model import BatchSums, ServiceTime, fit
from harness import metrics, servers
from harness.metrics import Samples


def learned(before: Samples, after: Samples) -> tuple[BatchSums, ServiceTime]:
    """What the replica's counters say of its batches between two readings.

    Raises:
        RuntimeError: there were too few.
    """
    sums = BatchSums(
        *(
            metrics.change(before, after, name)
            for name in (
                f"{contract.METRIC_BATCH_ROWS}_count",
                f"{contract.METRIC_BATCH_ROWS}_sum",
                contract.METRIC_BATCH_ROWS_SQUARED,
                f"{contract.METRIC_BATCH_SECONDS}_sum",
                contract.METRIC_BATCH_ROW_SECONDS,
            )
        )
    )
    time_of_batch = fit(sums)
    if time_of_batch is None:
        raise RuntimeError(f"expected batches to learn from, got {sums}")
    return sums, time_of_batch


def simulated(manifest: Path, arrivals: Sequence[str], batch: ServiceTime) -> Mapping[str, Any]:
    """What `batchedapi simulate --json` prints of one replica."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
        trace.write("\n".join(arrivals))
        trace.flush()
        command = [
            servers.PROGRAM, "simulate", "-f", str(manifest), "--trace", trace.name,
            "--service", f"a={1e6 * batch.fixed:.1f}us,b={1e6 * batch.per_row:.2f}us",
            "--min-replicas", "1", "--max-replicas", "1", "--replicas", "1", "--json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}")
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found
