"""The installed packages, beside the Python that pyproject.toml asks for."""

import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]


def test_every_pinned_version_is_for_the_oldest_python_of_ours() -> None:
    """A pin that wants a later patch release ends `make install` where Python is Debian's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"

    wanted = {one.name: one.metadata["Requires-Python"] or "" for one in distributions()}

    assert {} == {
        name: versions for name, versions in wanted.items() if oldest not in SpecifierSet(versions)
    }
