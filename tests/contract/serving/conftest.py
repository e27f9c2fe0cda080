"""One replica for the tests of a module: starting one is what costs time here."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import ECHO, Replica, running_replica, write_manifest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with a test of minutes are begun first: the other workers would wait for the last one.

    Of the rest those with many tests, as pytest-xdist has it by itself.
    """
    counts = Counter(item.path for item in items)
    long = {item.path for item in items if item.get_closest_marker("minutes")}
    items.sort(key=lambda item: (item.path not in long, -counts[item.path]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder for the manifests and logs of one test module."""
    return tmp_path_factory.mktemp("replica")


@pytest.fixture(scope="module")
def replica(request: pytest.FixtureRequest, folder: Path) -> Iterator[Replica]:
    """Runs the module's CODE with what its SPEC says, if it has them."""
    own = vars(request.module)
    manifest = write_manifest(folder, own.get("CODE", ECHO), own.get("SPEC", {}))
    with running_replica(folder, ["-f", str(manifest)]) as started:
        yield started
