"""Folders that live as long as a module: starting a replica is what costs time here."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder for the manifests and logs of one test module."""
    return tmp_path_factory.mktemp("replica")
