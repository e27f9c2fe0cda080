"""The files of the page: complete, from here, and with the charts of uPlot's own release."""

import hashlib
import re
from typing import Final

import pytest

from batchedapi_core import ui

RELEASE: Final = "2d27e8ad3d228164525ce213f9dc716f39b4e3aee0cc773fb3491c96cf4921a2"
"""SHA-256 of dist/uPlot.iife.min.js in uPlot 1.6.31 as its authors publish it."""


def text(path: str, mode: ui.Mode = ui.Mode.REPLICA) -> str:
    """A file of the page."""
    found = ui.read(path, mode)
    assert found is not None
    return found[1].decode()


def test_the_charts_are_those_of_their_authors() -> None:
    """They come in a package of somebody else."""
    assert RELEASE == hashlib.sha256(text("/ui/uplot.js").encode()).hexdigest()


@pytest.mark.parametrize("mode", ui.Mode)
def test_the_page_names_only_files_that_are_there(mode: ui.Mode) -> None:
    """A file that is missing is a blank page."""
    page = text("/", mode)
    named = {f"/{path}" for path in re.findall(r'(?:src|href)="([^":]+)"', page)}

    assert {"/", *named} == set(ui.PATHS)
    assert all(ui.read(path, mode) for path in named)
    assert f'data-mode="{mode}"' in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    "path", ["", "/ui/", "/ui/index.html", "/ui/../__init__.py", "/ui/page.js/"]
)
def test_nothing_else_is_read(path: str) -> None:
    """Paths are names in a table, never ones of the file system."""
    assert ui.read(path, ui.Mode.FLEET) is None


def test_a_missing_library_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may install without what an extra brings."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(FileNotFoundError, match="pip install youplot"):
        ui.read("/ui/uplot.js", ui.Mode.REPLICA)
