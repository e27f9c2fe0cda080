"""Runs a page as its reader does: one shell, one folder, one server at a time.

The folder has what a clone of the repository has. `batchedapi serve` and `make serve` go on beside
the shell until the next of them, on ports of this page's own: 8080, 8081 and 9000 of localhost are
those, in commands, code and what is shown. `pip install` is not done again: what it names is there.
"""

import contextlib
import importlib.metadata
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from pages import (
    ROOT,
    Block,
    Fate,
    File,
    Hidden,
    Step,
    commands,
    prints_as_shown,
    read_as_manifest,
    shown_by_prints,
    steps,
)
from ports import HOST, free_ports, own_ports

SECONDS: Final = 240.0
"""For one command, on a machine with nothing to spare."""
PUBLISHED: Final = (8080, 8081, 9000)
"""Of predictions, metrics and gRPC, as pages name them."""
_ADDRESS: Final = re.compile(r"\b(localhost|127\.0\.0\.1):(8080|8081|9000)\b")
_SERVE: Final = re.compile(r"\bbatchedapi serve\b|\bmake serve\b")
_END: Final = "-- end of a command:"
_CLONE: Final = (
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "core",
    "serving",
    "crds",
    "charts",
)


class StepError(AssertionError):
    """A step of a page does not do what the page says; has the place, and both texts."""


def run_page(page: str) -> int:
    """Run every block of a page that is to be run; the number of blocks.

    Raises:
        StepError: one failed, or printed something else than is shown.
    """
    done = 0
    with _session() as session:
        for step in steps(page, (ROOT / page).read_text("utf-8")):
            if not isinstance(step, Block):
                session.prepare(step)
            elif step.fate is Fate.RUN:
                session.run_block(step)
                done += 1
    return done


def missing(requirement: str) -> list[str]:
    """Distributions that a requirement of `pip install` names and that are not installed.

    Args:
        requirement: One of another project, or `.[EXTRA]` for this one.
    """
    if not requirement.startswith("."):
        wanted = [Requirement(requirement)]
    else:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        names = re.findall(r"[\w-]+", requirement)
        wanted = [
            Requirement(one) for name in names for one in extras["optional-dependencies"][name]
        ]
    absent = []
    for one in wanted:
        if one.name == "batchedapi":
            absent += [name for extra in one.extras for name in missing(f".[{extra}]")]
        elif one.marker is None or one.marker.evaluate():
            try:
                importlib.metadata.version(one.name)
            except importlib.metadata.PackageNotFoundError:
                absent.append(one.name)
    return absent


@dataclass(slots=True)
class _Session:
    folder: Path
    shell: "subprocess.Popen[bytes]"
    environment: dict[str, str]
    first_port: int
    server: "subprocess.Popen[bytes] | None" = None

    def prepare(self, step: Step) -> None:
        """Do what readers of the page do not see."""
        if isinstance(step, File):
            self._write(step)
        elif isinstance(step, Hidden):
            printed, code = self._run(step.command)
            if code:
                raise StepError(f"{step.command}: exit code {code}\n{printed}\n{self._served()}")

    def run_block(self, block: Block) -> None:
        """Run it, and compare.

        Raises:
            StepError: it failed, or printed something else than is shown.
        """
        if block.saved is not None:
            self._write(block.saved)
        elif block.language == "yaml":
            read_as_manifest(block)
        elif block.language == "python":
            script = File(f"block_{block.line}.py", self._on_own_ports(block.text))
            self._write(script)
            self._compare(block, f"python {script.name}", shown_by_prints(block.text))
        else:
            for command, shown in commands(block.text):
                self._compare(block, command, shown)

    def _served(self) -> str:
        """The end of what the server has logged."""
        log = self.folder / "serve.log"
        return log.read_text()[-2000:] if log.is_file() else ""

    def close(self) -> None:
        """End the shell and the server."""
        self._end_server()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGKILL)  # and a command that has not ended
        self.shell.communicate()

    def _write(self, file: File) -> None:
        place, _ = self._in_shell("pwd")
        (Path(place.strip()) / file.name).write_text(file.text)

    def _compare(self, block: Block, command: str, shown: str) -> None:
        printed, code = self._run(command)
        # a program may print the published address too, as the advice of `batchedapi init`
        shown, printed = self._on_own_ports(shown), self._on_own_ports(printed)
        if shown and not prints_as_shown(shown, printed, figures_vary=block.figures_vary):
            raise StepError(
                f"{block.place}: $ {command}\nexpected, as is shown:\n{shown}\ngot:\n{printed}"
            )
        if code and not shown:
            raise StepError(f"{block.place}: $ {command}\nexit code {code}:\n{printed}")

    def _run(self, command: str) -> tuple[str, int]:
        """The output of a command, and its exit code; a server that is ready goes on, and has 0."""
        if command.startswith("pip install "):
            words = shlex.split(command, comments=True)[2:]
            named = [
                word for word in words if not word.startswith("-") and word != "constraints.txt"
            ]
            absent = [name for requirement in named for name in missing(requirement)]
            return (f"not installed here: {absent}", 1) if absent else ("", 0)
        if _SERVE.search(command):
            return self._serve(command)
        return self._in_shell(self._on_own_ports(command))

    def _on_own_ports(self, text: str) -> str:
        def own(match: re.Match[str]) -> str:
            return f"{match[1]}:{self.first_port + PUBLISHED.index(int(match[2]))}"

        return _ADDRESS.sub(own, text)

    def _serve(self, command: str) -> tuple[str, int]:
        self._end_server()
        port = self.first_port
        command = command.replace("--grpc-port 9000", f"--grpc-port {port + 2}")
        command = re.sub(
            r"\bbatchedapi serve\b",
            f"batchedapi serve --port {port} --admin-port {port + 1}",
            command,
        )
        command = re.sub(r"\bmake serve\b", f"make serve PORT={port}", command)
        place, _ = self._in_shell("pwd")
        log = self.folder / "serve.log"
        with log.open("wb") as output:
            self.server = subprocess.Popen(
                ["bash", "-c", command], cwd=place.strip(), env=self.environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + SECONDS
        while not self._is_ready():
            if (code := self.server.poll()) is not None:
                self._in_shell(f"(exit {code})")
                return log.read_text(), code
            if time.monotonic() > end:
                raise StepError(f"{command}: not ready in {SECONDS:g} s\n{log.read_text()}")
            time.sleep(0.05)
        return log.read_text(), 0

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.first_port + 1}/readyz", timeout=5):
                return True
        except OSError:
            return False

    def _end_server(self) -> None:
        if self.server is not None and self.server.poll() is None:
            os.killpg(self.server.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()
        self.server = None

    def _in_shell(self, command: str) -> tuple[str, int]:
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        tail = f"code=$?; printf '\\n%s %s\\n' '{_END}' $code; (exit $code)"
        self.shell.stdin.write(f"{command}\n{tail}\n".encode())
        self.shell.stdin.flush()
        text, end = b"", time.monotonic() + SECONDS
        while not (found := re.search(rf"\n{_END} (\d+)\n".encode(), text)):
            ready, _, _ = select.select([self.shell.stdout], [], [], max(0, end - time.monotonic()))
            piece = os.read(self.shell.stdout.fileno(), 65536) if ready else b""
            text += piece
            if not piece:
                raise StepError(f"{command}: no end in {SECONDS:g} s\n{text.decode()}")
        return text[: found.start()].decode(), int(found[1])


@contextlib.contextmanager
def _session() -> Iterator[_Session]:
    folder = Path(tempfile.mkdtemp(prefix="page-"))  # a short path, as sockets want it
    programs = Path(sys.executable).parent
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("BATCHEDAPI_")
    } | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TMPDIR": str(folder),
        "CURL_HOME": str(folder),
    }
    (folder / ".curlrc").write_text("silent\nshow-error\n")  # as on a terminal: no progress meter
    clone = folder / "clone"
    _make_clone(clone, programs)
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile"],
        cwd=clone, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    session = _Session(folder, shell, environment, _three_ports())
    try:
        yield session
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)


def _make_clone(clone: Path, programs: Path) -> None:
    """A folder with the examples, which commands may write into, and links to the rest.

    Its .venv is the environment of the tests, which `make serve` finds installed.
    """
    made = shutil.ignore_patterns("__pycache__", "*.safetensors", "picture.npy")
    shutil.copytree(ROOT / "examples", clone / "examples", ignore=made)
    for name in _CLONE:
        (clone / name).symlink_to(ROOT / name)
    (clone / ".venv").mkdir()
    (clone / ".venv" / "bin").symlink_to(programs)
    (clone / ".venv" / ".installed").touch()


def _three_ports() -> int:
    """The first of three free ports in a row."""
    tries = 50
    for _ in range(tries):
        first, second, third = free_ports(len(PUBLISHED))
        if (second, third) == (first + 1, first + 2):
            return first
    raise StepError(f"no three ports in a row are free after {tries} tries in {own_ports()}")
