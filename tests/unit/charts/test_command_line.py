"""The reference of the command line against the program itself."""

from pathlib import Path

import pytest

from batchedapi_core import contract
from batchedapi_serving.cli.main import main

PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/command-line.md").read_text("utf-8")


@pytest.mark.parametrize("command", main.commands)
def test_every_option_of_every_command_has_its_line(command: str) -> None:
    """An option that is nowhere described is one that nobody uses."""
    options = [name for parameter in main.commands[command].params for name in parameter.opts]

    assert f"## `batchedapi {command}`" in PAGE
    assert [] == [name for name in options if name.startswith("--") and name not in PAGE]


def test_every_variable_of_the_contract_has_its_line() -> None:
    """The same for what is read from the environment."""
    variables = [value for name, value in vars(contract).items() if name.startswith("ENV_")]

    assert len(variables) >= 3
    assert [] == [name for name in variables if f"| `{name}` |" not in PAGE]
