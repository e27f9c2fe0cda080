"""`batchedapi tune`: a real replica, its exit codes, and what Ctrl-C leaves."""

import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from serving import PROGRAM, write_manifest

SLEEPY = """
    import time
    from batchedapi_serving import batched

    class Model:
        @batched(example={"id": 1})
        def predict(self, items):
            time.sleep(0.02 + 0.001 * len(items))
            return items
"""
SHORT = ("--slo", "2s", "--processes", "1", "--largest", "4", "--step", "1s")


@pytest.mark.alone
def test_a_size_that_is_too_small_is_found_and_the_patch_says_so(tmp_path: Path) -> None:
    """C21, C22, C23: 21 ms for one row and 24 ms for four: batches of one are a bad choice."""
    manifest = write_manifest(tmp_path, SLEEPY, {"serverSideBatching": {"maxBatchSize": 1}})
    patch = tmp_path / "patch.yaml"

    done = subprocess.run(
        [str(PROGRAM), "tune", "-f", str(manifest), *SHORT, "--out", str(patch), "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    assert 1 == done.returncode, done.stderr
    value = json.loads(done.stdout)
    assert value["change"]["serverSideBatching"]["maxBatchSize"] > 1
    assert "maxBatchSize: " in patch.read_text()
    assert {"as the manifest says", "found"} <= {run["label"] for run in value["runs"]}
    assert value["rule_of_thumb"] is not None
    assert "left" in done.stderr


def test_ctrl_c_keeps_what_is_known_and_leaves_no_process(tmp_path: Path) -> None:
    """Ten minutes are not to be lost by the last one."""
    manifest = write_manifest(tmp_path, SLEEPY, {})
    with subprocess.Popen(
        [str(PROGRAM), "tune", "-f", str(manifest), *SHORT],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        end = time.monotonic() + 120
        while time.monotonic() < end and not (children := _replicas(process.pid)):
            time.sleep(0.05)
        time.sleep(6)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert children
    assert 130 == process.returncode, err
    assert "interrupted: this is what was known by then" in out
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def _replicas(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]
    return []


def test_without_a_target_nothing_is_tuned(tmp_path: Path) -> None:
    """What to write is said."""
    manifest = write_manifest(tmp_path, SLEEPY, {})

    done = subprocess.run(
        [str(PROGRAM), "tune", "-f", str(manifest)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert 2 == done.returncode
    assert "--slo: expected a duration > 0 such as 100ms" in done.stderr
    assert "Traceback" not in done.stderr
