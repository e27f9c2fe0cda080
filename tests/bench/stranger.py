"""A stranger's clock: from an empty virtual environment to an answer of their own predictor.

    python tests/bench/stranger.py

Makes a clone and an empty virtual environment, and types what the README says of "a predictor of
your own": the commands are read there, with pip's cache off, so that every package is downloaded
and our wheel is built. Then it edits one line of the model, as a stranger would, and asks again.
The clock ends with the first answer of that line. A line written is a command or an edited line.
"""

import http
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from harness import servers
from harness.report import ROOT, Table, environment, help_of, out_option, report

import pages

LIMIT_SECONDS: Final = 120.0
LIMIT_LINES: Final = 10
_PATIENCE_SECONDS: Final = 400.0
"""Of one step."""
_POLL_SECONDS: Final = 0.05
_DOWNLOADED: Final = re.compile(r"Downloading \S+ \(([\d.]+) (kB|MB)\)")
_BYTES: Final = {"kB": 1e3, "MB": 1e6}
_ACTIVATE: Final = "python3 -m venv ../venv && . ../venv/bin/activate"
_BEFORE: Final = "return x @ self.weights"
_OWN: Final = "return x[:, :2] * 10"
"""The line of the stranger's own: of [1, 2, 3] it makes [10, 20]."""


@dataclass(slots=True)
class Stranger:
    """Who types, where, and what it took."""

    folder: Path
    port: int
    steps: dict[str, float] = field(default_factory=dict)
    """Seconds of each step, by what was written."""
    output: str = ""
    """What pip and the others printed."""

    def types(self, line: str) -> None:
        """Run a command in the shell's folder and environment, which the next one has too.

        Raises:
            RuntimeError: it failed.
        """
        state = self.folder / "state"
        told = state.read_text() if state.is_file() else f"cd {self.folder}/clone"
        began = time.perf_counter()
        done = subprocess.run(
            ["bash", "-c", f"{told}\n{line}\ncode=$?\n{_keeps(state)}\nexit $code"],
            env=_environment(), capture_output=True, text=True, timeout=_PATIENCE_SECONDS,
            check=False,
        )  # fmt: skip
        self.output += done.stdout + done.stderr
        if done.returncode:
            raise RuntimeError(f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        self.steps[line] = time.perf_counter() - began

    @contextmanager
    def serves(self, line: str) -> Iterator[None]:
        """Type a command that goes on, and wait until the replica is ready."""
        began = time.perf_counter()
        command = f"{line.partition('#')[0]} --port {self.port} --admin-port {self.port + 1}"
        with (self.folder / "serve.log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"{(self.folder / 'state').read_text()}\nexec {command}"],
                env=_environment(), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self._waits_for(lambda: servers.is_ready(self.port + 1))
            self.steps[line] = time.perf_counter() - began
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def asks(self, line: str, expected: Any) -> None:
        """Wait for the right answer to a curl of the README.

        Raises:
            RuntimeError: it does not come.
        """
        began = time.perf_counter()
        path, row = re.findall(r"localhost:8080(\S+)|-d '(.*)'", line)

        def is_right() -> bool:
            status, answer = servers.ask(self.port, path[0], row[1].encode())
            return status == http.HTTPStatus.OK and json.loads(answer) == expected

        self._waits_for(is_right)
        self.steps[f"{line} ({expected})"] = time.perf_counter() - began

    def _waits_for(self, condition: Callable[[], bool]) -> None:
        end = time.perf_counter() + _PATIENCE_SECONDS
        while True:
            with suppress(OSError):  # a replica that starts anew
                if condition():
                    return
            if time.perf_counter() > end:
                log = (self.folder / "serve.log").read_text(errors="replace")
                raise RuntimeError(f"no answer in {_PATIENCE_SECONDS:g} s\n{log[-3000:]}")
            time.sleep(_POLL_SECONDS)

    @property
    def downloaded(self) -> float:
        """Bytes, as pip said them."""
        return sum(float(size) * _BYTES[unit] for size, unit in _DOWNLOADED.findall(self.output))


def _bare(line: str) -> str:
    """Without what the README says beside it."""
    command, _, answer = line.partition(" (")
    return f"{command.partition(' #')[0].rstrip()}{f' ({answer}' if answer else ''}"


def _keeps(state: Path) -> str:
    """Commands that write the shell's folder and environment for the next one."""
    return f'echo "cd $PWD; PATH=$PATH" > {state}'


def _environment() -> Mapping[str, str]:
    """Ours, without the virtual environment that this runs in, and without pip's cache."""
    own = str(Path(sys.executable).parent)
    path = ":".join(part for part in os.environ["PATH"].split(":") if part != own)
    kept = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return kept | {"PATH": path, "PIP_NO_CACHE_DIR": "1"}


def commands_of_the_readme() -> list[tuple[str, str]]:
    """(command, what is shown below it) of the block that begins a predictor of one's own."""
    (found,) = (
        block
        for block in pages.blocks("README.md")
        if block.language == "console" and "batchedapi init" in block.text
    )
    return list(pages.commands(found.text))


@click.command(help=help_of(__doc__))
@click.option("--port", default=servers.PORT + 600, show_default=True, help="First of two.")
@out_option
def main(port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    *before, (serve, _), (ask, shown) = commands_of_the_readme()
    with tempfile.TemporaryDirectory(prefix="stranger-") as folder:
        clone = ["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", f"{folder}/clone"]
        subprocess.run(clone, check=True)
        stranger = Stranger(Path(folder), port)
        stranger.types(_ACTIVATE)
        for line, _ in before:
            stranger.types(line)
        with stranger.serves(serve):
            stranger.asks(ask, json.loads(shown))
            (model,) = Path(folder).rglob("clone/prices/model.py")
            text = model.read_text()
            if _BEFORE not in text:
                raise RuntimeError(f"expected {_BEFORE!r} to edit in {text}")
            model.write_text(text.replace(_BEFORE, _OWN))
            stranger.asks(ask, [10.0, 20.0])
    lines = len(stranger.steps) + 1  # the edited one
    seconds = sum(stranger.steps.values())
    rows = [[f"{took:.1f}", f"`{_bare(line)}`"] for line, took in stranger.steps.items()]
    rows.append([f"{seconds:.1f}", f"all; {lines} lines written, limit {LIMIT_LINES}"])
    size = stranger.downloaded / 1e6
    notes = [
        f"The edited line, between the two questions: `{_OWN}`.",
        f"{size:.0f} MB were downloaded, from an index that is near; our wheel was built.",
    ]
    found = {"steps": stranger.steps, "lines": lines, "bytes": stranger.downloaded}
    table = Table("seconds by what is written", ["seconds", "written"], rows)
    report("stranger", began, [table], notes=notes, measured=found, out=out)
    if seconds > LIMIT_SECONDS or lines > LIMIT_LINES:
        sys.exit(1)


if __name__ == "__main__":
    main()
