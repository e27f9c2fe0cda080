"""Results: a table on the terminal and, with `--out`, Markdown and JSON beside each other."""

import datetime as dt
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from batchedapi_core import COMPILED

ROOT = Path(__file__).resolve().parents[3]

out_option = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for NAME.md and NAME.json; absent: print only.",
)


@dataclass(frozen=True, slots=True)
class Environment:
    """Where and when; a figure without it means nothing."""

    date: str
    commit: str
    command: str
    cores: int
    cpu: str
    python: str
    system: str
    compiled: bool
    """The path of a request was, as in wheels and images (`make compiled`)."""
    load: float
    """Load average of the last minute as the program began; above about 0.5 the machine is busy."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of text cells."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Cells padded, so that it reads as a table on a terminal too."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        padded = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        ]
        rule = "|" + "|".join("-" * (width + 2) for width in widths)
        return "\n".join(f"{line} |" for line in (padded[0], *padded[1:])).replace(
            "\n", f"\n{rule}|\n", 1
        )


def help_of(docstring: str | None) -> str:
    """A program's docstring as click's help, in which indented command lines are not rewrapped."""
    return (docstring or "").replace("\n\n    ", "\n\n\b\n    ")


def environment() -> Environment:
    """Facts of this machine and this run."""
    return Environment(
        date=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
        command=shlex.join(["python", *_relative(sys.argv)]),
        cores=len(os.sched_getaffinity(0)),
        cpu=_cpu(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.release()}",
        compiled=COMPILED,
        load=os.getloadavg()[0],
    )


def report(
    name: str,
    began: Environment,
    tables: Sequence[Table],
    *,
    notes: Sequence[str],
    measured: Mapping[str, Any],
    out: Path | None,
) -> None:
    """Print the tables and write the files.

    Args:
        name: Stem of the files.
        began: Taken before the load began.
        tables: For people.
        notes: Sentences that the tables need.
        measured: Every round's figures, for programs.
        out: Folder, created if needed; None: print only.
    """
    text = "\n\n".join(
        [
            f"# {name}",
            *(f"**{table.title}**\n\n{table.markdown()}" for table in tables),
            *notes,
            _facts(began),
        ]
    )
    click.echo(f"\n{text}\n")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text(text + "\n")
        value = {"environment": asdict(began), "measured": measured}
        (out / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")


def _facts(began: Environment) -> str:
    return (
        f"{began.date}, commit {began.commit}, {began.cores} cores ({began.cpu}), {began.python}"
        f"{', compiled' if began.compiled else ''},"
        f" {began.system}, load average at the start {began.load:.2f}.\n\n    {began.command}"
    )


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "core", "serving")
    return f"{commit} with changes" if changed else commit


def _relative(arguments: Sequence[str]) -> list[str]:
    return [argument.removeprefix(f"{ROOT}/") for argument in arguments]


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
