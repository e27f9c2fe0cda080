"""Each call of the kernel that the supervisor makes, failing once and for a minute: what follows.

    python tests/bench/faults.py --jobs 8

A first replica does everything that a supervisor does, and says which calls it made, and from
where (harness/faulty.py): it starts, answers probes and scrapes, replaces a model process and web
processes, and stops. Then each of these calls fails in a replica of its own, with EMFILE, EAGAIN
and ENOMEM, once and for a minute. The replica must answer again within ten seconds after that, or
have ended with exit code 70 and the reason (one that could not even read its manifest or arguments:
1 or 2, and the reason); it must never say that it is ready and not answer.
"""

import contextlib
import dataclasses
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click
from harness import servers
from harness.faulty import ARMED_BYTES, errno_of
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract

ERRORS: Final = ("EMFILE", "EAGAIN", "ENOMEM")
BACK_SECONDS: Final = 10.0
"""After the fault, until the replica must answer; on top of what the same takes without one, which
on a busy machine may be longer by itself."""
UNABLE_SECONDS: Final = 8.0
"""Ready without an answer for longer is a lie: 3 s until it says so, and a busy machine."""
_START_SECONDS: Final = 180.0
_EXIT: Final = 70
ACTIONS: Final = ("start", "probe", "model", "web", "stop")


@dataclasses.dataclass(frozen=True)
class Case:
    """One run."""

    action: str
    """The replica's task while the call fails."""
    site: str
    error: str
    seconds: float
    """0: once."""


class Replica:
    """A replica whose supervisor's calls can be made to fail."""

    def __init__(self, folder: Path, file: Path, port: int, arm: dict[str, Any] | None) -> None:
        self.folder, self.port = folder, port
        (folder / "armed").write_bytes(b"\0" * ARMED_BYTES)
        self.arm(arm)
        self.log = folder / "log"
        program = str(servers.BENCH / "harness" / "faulty.py")
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, program, str(folder), *servers.serve_command(file, port)[1:]],
                cwd=servers.BENCH, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def arm(self, what: dict[str, Any] | None) -> None:
        """From now on that fails."""
        text = json.dumps(what or {}).encode()
        with (self.folder / "armed").open("r+b") as file:
            file.write(text.ljust(ARMED_BYTES, b"\0"))

    def lines(self, name: str) -> list[str]:
        """The lines of the injector's file."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def get(self, path: str) -> int:
        """Status of the admin port, 0 without an answer."""
        return _ask(self.port + 1, "GET", path)

    def answers(self) -> bool:
        """Whether a prediction is answered."""
        return _ask(self.port, "POST", contract.PATH_PREDICT, b"1") == http.HTTPStatus.OK

    def children(self, role: str) -> list[int]:
        """Pids of its processes of that role."""
        found = []
        for pid in _children(self.process.pid):
            with contextlib.suppress(OSError):
                if (
                    f"batchedapi_serving.{role}".encode()
                    in Path(f"/proc/{pid}/cmdline").read_bytes()
                ):
                    found.append(pid)
        return found

    def well(self, within: float) -> bool:
        """Whether it is ready and answers within so many seconds."""
        end = time.monotonic() + within
        while time.monotonic() < end and self.process.poll() is None:
            if self.get(contract.PATH_READY) == http.HTTPStatus.OK and self.answers():
                return True
            time.sleep(0.1)
        return False

    def do(self, action: str) -> None:
        """Have it do that."""
        match action:
            case "probe":
                for path in (contract.PATH_READY, contract.PATH_LIVE, contract.PATH_METRICS):
                    self.get(path)
            case "model" | "web":
                for pid in self.children(action)[:1]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            case "stop":
                self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Stop it at once."""
        children = _children(self.process.pid) if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection(servers.HOST, port, timeout=3)
    try:
        connection.request(method, path, body, {"content-type": contract.JSON} if body else {})
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        return 0
    else:
        return response.status
    finally:
        connection.close()


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextlib.contextmanager
def replica(port: int, arm: dict[str, Any] | None = None) -> Iterator[Replica]:
    """A started one, ended in the end."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-faults-") as folder,
        servers.manifest_file(servers.manifest("Echo")) as file,
    ):
        started = Replica(Path(folder), file, port, arm)
        try:
            yield started
        finally:
            started.end()


def calls(port: int) -> dict[str, list[str]]:
    """Calls that a supervisor makes, under what it did when it made them."""
    found: dict[str, list[str]] = {}
    with replica(port) as watched:
        if not watched.well(_START_SECONDS):
            raise RuntimeError(f"not ready:\n{watched.log.read_text()[-3000:]}")
        for action in ACTIONS:
            known = len(watched.lines("seen")) if action != "start" else 0
            if action != "start":
                watched.arm({"phase": action})
            watched.do(action)
            if action == "stop":
                watched.process.wait(60)
            else:
                time.sleep(1)
                watched.well(_START_SECONDS)
            found[action] = list(dict.fromkeys(watched.lines("seen")[known:]))
    return found


def verdict(case: Case, port: int) -> str:
    """The outcome: back, ended with the reason, stopped; or what is wrong."""
    until = time.monotonic() + case.seconds if case.seconds else 0.0
    armed = {"site": case.site, "error": errno_of(case.error), "until": until}
    with replica(port, armed if case.action == "start" else None) as tried:
        usual = _START_SECONDS  # what the machine takes for it without a fault
        if case.action != "start":
            if not tried.well(_START_SECONDS):
                return "WRONG: it did not start"
            began = time.monotonic()
            if case.action != "stop":
                tried.do(case.action)
                tried.well(_START_SECONDS)
            usual = time.monotonic() - began
            if case.seconds:
                armed["until"] = time.monotonic() + case.seconds
            tried.arm(armed)
            tried.do(case.action)
        if case.action == "stop":
            return _stopped(tried, case)
        unable = _watch(tried, case)
        if unable:
            return unable
        if tried.process.poll() is None and tried.well(BACK_SECONDS + usual):
            return "answers again" if tried.lines("fired") else "not met"
        return _ended(tried, case)


def _watch(tried: Replica, case: Case) -> str:
    """Wait until the fault is over; whether it was ready and did not answer meanwhile."""
    end = time.monotonic() + case.seconds
    lying = None
    while time.monotonic() < end and tried.process.poll() is None:
        ready = tried.get(contract.PATH_READY) == http.HTTPStatus.OK
        lying = (lying or time.monotonic()) if ready and not tried.answers() else None
        if lying is not None and time.monotonic() > lying + UNABLE_SECONDS:
            return "WRONG: ready and unable"
        time.sleep(0.5)
    return ""


def _stopped(tried: Replica, case: Case) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = tried.process.wait(case.seconds + BACK_SECONDS + 20)
        return "stopped" if code == 0 else _ended(tried, case)
    return "WRONG: it does not stop"


def _ended(tried: Replica, case: Case) -> str:
    code = tried.process.poll()
    if code is None:
        return "WRONG: neither answers nor ended"
    lines = tried.log.read_text(errors="replace").splitlines()
    reason = next((line for line in lines if line.startswith("batchedapi: ")), "")
    if code == _EXIT and reason.startswith("batchedapi: CrashLooping: "):
        return "ended with the reason"
    if code in {1, 2} and reason and case.action == "start":
        return "did not start, with the reason"
    return f"WRONG: exit code {code}: {reason or lines[-1:]}"


def run_cases(cases: Sequence[Case], port: int, jobs: int) -> list[tuple[Case, str]]:
    """All of them, so many side by side."""
    ports = [port + 2 * i for i in range(jobs)]
    lock = threading.Lock()

    def run(case: Case) -> tuple[Case, str]:
        with lock:
            mine = ports.pop()
        try:
            found = verdict(case, mine)
            click.echo(f"{found}: {case}")
            return case, found
        finally:
            with lock:
                ports.append(mine)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(run, cases))


@click.command(help=help_of(__doc__))
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="Of a fault that lasts.")
@click.option("--share", default=1.0, show_default=True, help="Of the cases, drawn at random.")
@click.option("--seed", default=1, show_default=True, help="Of the draw.")
@click.option("--errors", default=",".join(ERRORS), show_default=True)
@click.option("--which", type=click.Choice(["both", "once", "lasting"]), default="both")
@click.option("--port", default=servers.PORT + 1400, show_default=True, help="First of 2 x jobs.")
@out_option
def main(
    *, jobs: int, seconds: float, share: float, seed: int, errors: str, which: str, port: int,
    out: Path | None,
) -> None:  # fmt: skip
    """See the module's docstring."""
    began = environment()
    sites = calls(port)
    lasting = {"both": (0.0, seconds), "once": (0.0,), "lasting": (seconds,)}[which]
    cases = [
        Case(action, site, error, time_)
        for time_ in lasting
        for error in errors.split(",")
        for action, found in sites.items()
        for site in found
    ]
    drawn = random.Random(seed).sample(cases, max(1, round(share * len(cases))))
    click.echo(f"{ {action: len(found) for action, found in sites.items()} }, {len(drawn)} runs")
    results = run_cases(drawn, port, jobs)
    counts = Counter((case.action, bool(case.seconds), found) for case, found in results)
    rows = [
        [action, f"{seconds:g} s" if long else "once", found, str(count)]
        for (action, long, found), count in sorted(counts.items())
    ]
    number = sum(len(found) for found in sites.values())
    title = f"{number} calls of the supervisor that fail, {len(drawn)} of {len(cases)} runs"
    table = Table(title, ["while it does", "fails for", "then it", "runs"], rows)
    measured = {
        "calls": sites,
        "runs": [[*dataclasses.astuple(case), found] for case, found in results],
    }
    report("faults", began, [table], notes=[f"Errors: {errors}."], measured=measured, out=out)
    wrong = [f"{found}: {case}" for case, found in results if found.startswith("WRONG")]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
