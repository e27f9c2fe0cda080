"""`batchedapi tune`: what Ctrl-C leaves of a real replica, and what is refused."""

import contextlib
import signal
import subprocess
import time
from pathlib import Path

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
SHORT = ("--slo", "200ms", "--processes", "1", "--largest", "4", "--step", "1s")


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
