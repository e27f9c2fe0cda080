"""From the event loop to lines, beside files that are slow, full or hang."""

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from batchedapi_core.simulation import RecordedTrace
from batchedapi_serving.dispatch.recording import ArrivalLog, RecordFile, UnwrittenError
from batchedapi_serving.laptop.simulating.run import parse_trace


class Disk(RecordFile):
    """A file in memory that blocks while `ready` is not set, and takes nothing while `full` is."""

    def __init__(self) -> None:  # opens nothing
        self.lines: list[bytes] = []
        self.ready = threading.Event()
        self.ready.set()
        self.asked = threading.Event()
        self.full = False
        self.closed = False

    def append(self, lines: list[bytes]) -> None:
        """See RecordFile."""
        self.asked.set()
        self.ready.wait()
        if self.full:
            raise UnwrittenError(len(lines), OSError("no space left"))
        self.lines.extend(lines)

    def close(self) -> None:
        """See RecordFile."""
        self.closed = True


def ended(caplog: pytest.LogCaptureFixture) -> tuple[str, int, int]:
    """Level of the last log line, the requests written and those dropped."""
    record: Any = caplog.records[-1]
    assert "recording ended" == record.message
    return record.levelname, record.requests, record.dropped


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    """All of it."""
    caplog.set_level(logging.INFO)


def test_a_request_is_a_line_of_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Exactly four facts; of what is in a request only how long its rows are."""
    path = tmp_path / "record.jsonl"
    arrivals = ArrivalLog(RecordFile(path), started=100.0)
    arrivals.start()

    arrivals.arrived(100.25, 3, (), "predict")
    arrivals.arrived(100.5, 2, [7, 12], "embed")
    arrivals.arrived(101.0, 2000, range(2000), "embed")
    arrivals.close()

    assert [
        {"t": 0.25, "rows": 3, "lengths": None, "method": "predict"},
        {"t": 0.5, "rows": 2, "lengths": [7, 12], "method": "embed"},
        {"t": 1.0, "rows": 2000, "lengths": [*range(1024)], "method": "embed"},
    ] == [json.loads(line) for line in path.read_text().splitlines()]
    assert ("INFO", 3, 0) == ended(caplog)


def test_a_recording_is_a_trace(tmp_path: Path) -> None:
    """F11: `batchedapi simulate` reads what `--record` writes."""
    path = tmp_path / "record.jsonl"
    arrivals = ArrivalLog(RecordFile(path), started=0.0)
    arrivals.start()
    for n in range(40):
        arrivals.arrived(0.1 * n, 1 + n % 2, [n] * (1 + n % 2), "predict")
    arrivals.close()

    trace = parse_trace(path.read_text())

    assert isinstance(trace, RecordedTrace)
    assert (4.0, 15.0) == (trace.seconds, trace.rate(1.0))
    assert sorted([*range(40), *range(1, 40, 2)]) == sorted(trace.lengths)


def test_lines_are_written_while_it_runs() -> None:
    """Somebody follows the file, and a killed process loses little."""
    disk = Disk()
    arrivals = ArrivalLog(disk, 0.0)
    arrivals.start()

    arrivals.arrived(1.0, 1, (), "predict")

    assert disk.asked.wait(10.0)
    arrivals.close()
    assert 1 == len(disk.lines)
    assert disk.closed


def test_a_slow_disk_costs_requests_of_the_recording_and_no_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Memory is bounded: what comes while it is full is counted."""
    disk = Disk()
    disk.ready.clear()
    arrivals = ArrivalLog(disk, 0.0, most_held=1000)
    arrivals.start()
    arrivals.arrived(0.0, 1, (), "predict")
    assert disk.asked.wait(10.0)  # the disk has one, and does not come back

    for n in range(5000):
        arrivals.arrived(float(n), 1, (), "predict")  # who waited for the disk never came back
    disk.ready.set()
    arrivals.close(10.0)

    assert 1001 == len(disk.lines)
    assert ("WARNING", 1001, 4000) == ended(caplog)


def test_a_disk_that_hangs_does_not_keep_the_replica(caplog: pytest.LogCaptureFixture) -> None:
    """Arrivals that were not written are counted as dropped."""
    disk = Disk()
    disk.ready.clear()
    arrivals = ArrivalLog(disk, 0.0)
    arrivals.start()
    for n in range(700):
        arrivals.arrived(float(n), 1, (), "predict")

    arrivals.close(0.3)  # who waited for the disk never came back
    disk.ready.set()

    assert ("WARNING", 0, 700) == ended(caplog)


def test_a_full_disk_is_said_once_and_its_requests_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A line of log for each request would fill the next disk."""
    disk = Disk()
    disk.full = True
    arrivals = ArrivalLog(disk, 0.0)
    for n in range(1000):
        arrivals.arrived(float(n), 1, (), "predict")

    arrivals.start()
    arrivals.close(10.0)

    assert 1 == [record.message for record in caplog.records].count(
        "recording: requests are dropped"
    )
    assert ("WARNING", 0, 1000) == ended(caplog)


def test_lines_are_in_the_order_of_their_times() -> None:
    """Also over many small writes."""
    disk = Disk()
    arrivals = ArrivalLog(disk, 0.0)
    arrivals.start()

    for n in range(3000):
        arrivals.arrived(n / 100, n + 1, (), "predict")
    arrivals.close(10.0)

    lines = [json.loads(line) for line in disk.lines]
    assert [n / 100 for n in range(3000)] == [line["t"] for line in lines]
    assert list(range(1, 3001)) == [line["rows"] for line in lines]
