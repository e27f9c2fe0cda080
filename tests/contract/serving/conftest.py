"""One replica for the tests of a module: starting one is what costs time here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import Replica, running_replica, write_manifest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder for the manifests and logs of one test module."""
    return tmp_path_factory.mktemp("replica")


@pytest.fixture(scope="module")
def replica(request: pytest.FixtureRequest, folder: Path) -> Iterator[Replica]:
    """Runs the module's CODE, with what its SPEC says, if it has one."""
    manifest = write_manifest(folder, request.module.CODE, vars(request.module).get("SPEC", {}))
    with running_replica(folder, ["-f", str(manifest)]) as started:
        yield started
