"""The command line: what is asked wrongly is said in one line, with exit code 2."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from batchedapi_serving.cli.main import main


def run(*arguments: str) -> Result:
    """`batchedapi ARGUMENTS`."""
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("arguments", [(), ("model:Model", "-f", __file__)])
def test_exactly_one_of_file_and_class_is_served(arguments: tuple[str, ...]) -> None:
    """Both would leave open which one wins."""
    result = run("serve", *arguments)

    assert result.exit_code == 2
    assert "give either -f FILE or MODULE:CLASS" in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "expected YAML"),
        ("kind: Pod", "expected a BatchedAPI document, got Pod"),
        ("{kind: BatchedAPI, apiVersion: v2}", "expected kind BatchedAPI of batchedapi.dev/"),
    ],
)
def test_a_file_that_cannot_be_served_is_named_with_the_problem(
    tmp_path: Path, text: str, message: str
) -> None:
    """One line a problem, and no traceback."""
    file = tmp_path / "api.yaml"
    file.write_text(text)

    result = run("serve", "-f", str(file))

    assert result.exit_code == 2
    assert f"batchedapi: {file}: " in result.output
    assert message in result.output


def test_a_duration_has_a_unit() -> None:
    """As in the manifest."""
    result = run("serve", "a:B", "--drain-delay", "5")

    assert result.exit_code == 2
    assert "expected a duration such as 5ms" in result.output


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "-h")])
def test_help_is_there(arguments: tuple[str, ...]) -> None:
    """With the ports that are used when nothing is said."""
    assert run(*arguments).exit_code == 0
    assert "8080" in run("serve", "--help").output


def test_the_version_is_the_distributions() -> None:
    """What a bug report needs first."""
    assert "version" in run("--version").output
