"""`--help` of every command of both programs, and `--version`."""

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner
from crds.command_line import commands_of

from batchedapi_core import COMPILED
from batchedapi_operator.plugin.__main__ import main as plugin
from batchedapi_serving.cli.main import main

PROGRAMS: Final = {"batchedapi": main, "kubectl batchedapi": plugin}
FILES: Final = (
    "batchedapi.yaml",
    "load.csv",
    "rows.jsonl",
    "prices/batchedapi.yaml",
    "cortex.yaml",
    "densenet/config.pbtxt",
)
"""What the examples name."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by what is written for it."""
    for program, group in PROGRAMS.items():
        yield program, group
        for name, command in commands_of(group).items():
            yield f"{program} {name}", command


def examples(command: click.Command) -> list[str]:
    """The lines that its help shows."""
    _, _, text = (command.help or "").partition("\b\n")
    return [line.strip() for line in text.splitlines()[1:] if line.strip()]


@pytest.mark.parametrize(
    ("written", "command"), list(commands()), ids=[written for written, _ in commands()]
)
def test_every_help_has_an_example_that_is_understood(
    written: str, command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options and arguments as they are; nothing is run."""
    monkeypatch.chdir(tmp_path)
    for file in FILES:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    lines = examples(command)

    assert lines, f"{written} --help has no example"
    for line in lines:
        inner = re.fullmatch(r"source <\((.+)\)|(.+?)( > \S+)?", line)
        assert inner is not None
        said = inner[1] or inner[2]
        assert said.startswith(written), line
        program = next(name for name in reversed(PROGRAMS) if said.startswith(name))
        name, *arguments = shlex.split(said.removeprefix(program))
        group = PROGRAMS[program]
        # click keeps the option that asks for help as it was first asked for, with its names
        parent = click.Context(group, info_name=program, **group.context_settings)
        commands_of(group)[name].make_context(name, arguments, parent=parent)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_says_which_release_it_is(program: str) -> None:
    """A bug report begins with it."""
    said = CliRunner().invoke(PROGRAMS[program], ["--version"], prog_name=program)

    compiled = " (compiled)" if COMPILED and program == "batchedapi" else ""
    assert f"{program}, version {version('batchedapi')}{compiled}" == said.output.strip()
