"""The reference of the command line against the program itself."""

from pathlib import Path

import pytest
from crds.command_line import commands_of

from batchedapi_core import contract
from batchedapi_operator.plugin.__main__ import main as plugin
from batchedapi_serving.cli.main import main

PROGRAMS = {"batchedapi": main, "kubectl batchedapi": plugin}
PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/command-line.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("program", "name"),
    [(program, name) for program in PROGRAMS for name in commands_of(PROGRAMS[program])],
)
def test_every_option_of_every_command_has_its_line(program: str, name: str) -> None:
    """An option that is nowhere described is one that nobody uses."""
    command = commands_of(PROGRAMS[program])[name]
    options = [option for parameter in command.params for option in parameter.opts]

    _, found, rest = PAGE.partition(f"## `{program} {name}`\n")
    section = rest.partition("\n## ")[0]
    assert found
    assert [] == [option for option in options if option.startswith("--") and option not in section]


def test_every_variable_of_the_contract_has_its_line() -> None:
    """The same for what is read from the environment."""
    variables = [value for name, value in vars(contract).items() if name.startswith("ENV_")]

    assert len(variables) >= 3
    assert [] == [name for name in variables if f"| `{name}` |" not in PAGE]
