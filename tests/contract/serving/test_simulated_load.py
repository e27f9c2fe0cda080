"""`batchedapi simulate` against the replica that recorded the load: the same batches form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from batchedapi_core.service_model import BatchSums, fit
from serving import PROGRAM, Replica, running_replica

EXAMPLES = Path(__file__).parents[3] / "examples"
SLEEPY = EXAMPLES / "02-sleepy/batchedapi.yaml"
LOAD = ("--rate", "450", "--seconds", "6", "--seed", "7")


def load(replica: Replica) -> int:
    """Poisson arrivals at two thirds of what it can do; how many were answered."""
    url = f"http://127.0.0.1:{replica.port}/predict"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "load.py"), url, *LOAD],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return int(json.loads(done.stdout)["ok"])


def sums_of(replica: Replica) -> BatchSums:
    """All batches so far, from its page: what an autoscaler learns from."""
    figures = replica.metrics()
    return BatchSums(
        figures["batchedapi_batch_rows_count"],
        figures["batchedapi_batch_rows_sum"],
        figures["batchedapi_batch_rows_squared_total"],
        figures["batchedapi_batch_seconds_sum"],
        figures["batchedapi_batch_row_seconds_total"],
    )


@pytest.mark.alone
def test_the_mean_batch_of_a_recorded_load_is_the_one_that_ran(tmp_path: Path) -> None:
    """F11: within a quarter on a machine that has other work; tests/bench/results/simulated.md."""
    record = tmp_path / "record.jsonl"
    with running_replica(tmp_path, ["-f", str(SLEEPY), "--record", str(record)]) as replica:
        answered = load(replica)
        sums = sums_of(replica)
        replica.stop()
    batch = fit(sums)
    assert batch is not None

    done = subprocess.run(
        [
            str(PROGRAM), "simulate", "-f", str(SLEEPY), "--trace", str(record), "--json",
            "--service", f"a={1e6 * batch.fixed:.1f}us,b={1e6 * batch.per_row:.2f}us",
            "--min-replicas", "1", "--max-replicas", "1", "--replicas", "1",
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    outcome = json.loads(done.stdout)
    assert answered == outcome["requests"] > 2000
    assert 2.0 < sums.rows / sums.batches == pytest.approx(outcome["mean_rows"], rel=0.25)
