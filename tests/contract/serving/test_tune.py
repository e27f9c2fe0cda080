"""`batchedapi tune` of a real replica: to its end, and to Ctrl-C; and what is refused."""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import yaml

from batchedapi_core.manifest import UnknownFields
from batchedapi_serving.cli.documents import load_documents
from batchedapi_serving.laptop.tuning.measuring import measure_curve, rows_for
from batchedapi_serving.laptop.tuning.replica import TuneSubject, apart_from, running
from ports import HOST
from serving import PROGRAM, is_alive, write_manifest

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


def test_a_killed_tune_leaves_no_helper_of_the_predictor(tmp_path: Path) -> None:
    """Helpers of user code are known to the replica alone, which must not die before them."""
    code = SLEEPY.replace(
        "@batched",
        """def __init__(self):
            import subprocess
            with open(PLACE, "w") as file:
                file.write(str(subprocess.Popen(["sleep", "600"]).pid))

        @batched""".replace("PLACE", repr(str(tmp_path / "helper"))),
    )
    manifest, helper = write_manifest(tmp_path, code, {}), tmp_path / "helper"
    with subprocess.Popen(
        [str(PROGRAM), "tune", "-f", str(manifest), *SHORT],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        end = time.monotonic() + 120
        while time.monotonic() < end and not (helper.exists() and helper.read_text()):
            time.sleep(0.05)
        pids = [*_replicas(process.pid), int(helper.read_text())]
        process.kill()

    end = time.monotonic() + 60
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    assert [] == left


def _replicas(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]
    return []


@pytest.mark.minutes
def test_the_patch_of_a_whole_tune_serves_many_times_more(tmp_path: Path) -> None:
    """Measured, searched and run for real: eight rows take 28 ms, and one takes 21."""
    manifest = write_manifest(tmp_path, SLEEPY, {"serverSideBatching": {"maxBatchSize": 1}})
    patch, picture = tmp_path / "patch.yaml", tmp_path / "tuning.png"

    done = subprocess.run(
        [str(PROGRAM), "tune", "-f", str(manifest), "--slo", "100ms", "--processes", "1",
         "--largest", "8", "--step", "2s", "--out", str(patch), "--picture", str(picture)],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    print(done.stdout, done.stderr)
    assert 1 == done.returncode
    found = yaml.safe_load(patch.read_text())["spec"]["serverSideBatching"]
    assert found["maxBatchSize"] in range(4, 9)
    assert "t(n), 1 process of 1 thread" in done.stdout
    told = re.search(r"(\d+) requests/s within 100ms instead of (\d+)", done.stdout)
    assert told is not None
    assert int(told[1]) > 2 * int(told[2])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in done.stderr


COUNTS = """
    import os
    from batchedapi_serving import batched

    class Model:
        @batched(example={"id": 1})
        def predict(self, items):
            return [sorted(os.sched_getaffinity(0)) for _ in items]
"""


def test_a_replica_runs_on_its_cpus_and_the_generator_on_the_others(tmp_path: Path) -> None:
    """Each process of it; where there is one CPU, on that."""
    manifest = write_manifest(tmp_path, COUNTS, {})
    documents = load_documents(manifest, None, UnknownFields.REFUSE)
    machine = os.sched_getaffinity(0)
    own = frozenset({max(machine)})
    subject = TuneSubject(documents.api, documents.source, documents.folder, own)

    with apart_from(own if len(machine) > 1 else frozenset()), running(subject, {}) as replica:
        answer = httpx.post(f"http://{HOST}:{replica.port}/api", json={"id": 1}, timeout=30)
        ours = os.sched_getaffinity(0)

    assert [max(machine)] == answer.json()
    assert ours == (machine - own or machine)
    assert machine == os.sched_getaffinity(0)


LENGTHS = """
    import time
    from batchedapi_serving import SizeOf, batched

    class Model:
        @batched(example="a", size_of=SizeOf.length())
        def predict(self, texts):
            time.sleep(0.002 + 0.00005 * len(texts) * max(map(len, texts)))
            return [len(text) for text in texts]
"""


def test_rows_of_different_lengths_are_timed_as_they_are_served(tmp_path: Path) -> None:
    """Half of 4 and half of 400, in order: each long row takes 20 ms, whoever shares its batch."""
    documents = load_documents(write_manifest(tmp_path, LENGTHS, {}), None, UnknownFields.REFUSE)
    subject = TuneSubject(documents.api, documents.source, documents.folder, frozenset())
    items = ["a" * 4] * 8 + ["a" * 400] * 8
    changes = {"serverSideBatching": {"maxBatchSize": 30000, "strategy": "Immediate"}}

    with running(subject, changes) as replica:
        rows = rows_for(replica.endpoint, replica.get("/openapi.json"), {}, items)
        found = measure_curve(replica, rows, (1, 1), largest=16, target=5.0, tell=lambda _: None)

    assert pytest.approx(202, rel=0.02) == found.size_of_row
    assert 16 == found.curve.sizes[-1]
    assert found.curve.seconds[-1] > 0.15


def test_a_row_takes_one_of_requests_however_many_a_request_has(tmp_path: Path) -> None:
    """The largest one measured has 8 rows, and counts as one too."""
    documents = load_documents(write_manifest(tmp_path, LENGTHS, {}), None, UnknownFields.REFUSE)
    subject = TuneSubject(documents.api, documents.source, documents.folder, frozenset())
    changes = {"serverSideBatching": {"maxBatchSize": 16, "sizeUnit": "Requests"}}

    with running(subject, changes) as replica:
        rows = rows_for(replica.endpoint, replica.get("/openapi.json"), {}, ["abcd"])
        found = measure_curve(replica, rows, (1, 1), largest=8, target=5.0, tell=lambda _: None)

    assert (1.0, 8) == (found.size_of_row, found.curve.sizes[-1])


def test_without_a_target_nothing_is_tuned(tmp_path: Path) -> None:
    """The message says which option to write."""
    manifest = write_manifest(tmp_path, SLEEPY, {})

    done = subprocess.run(
        [str(PROGRAM), "tune", "-f", str(manifest)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert 2 == done.returncode
    assert "--slo: expected a duration > 0 such as 100ms" in done.stderr
    assert "Traceback" not in done.stderr
