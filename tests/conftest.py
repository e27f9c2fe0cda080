"""For all tests."""

import sys
from pathlib import Path
from typing import Final

import hypothesis
import pytest

# By default an example that takes more than 200 ms is an error: on a busy machine each one may.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
CORE: Final = Path(__file__).parent / "unit" / "core"


def _ignore(_: object) -> None:
    """Errors of destructors: sockets of child processes that were killed are collected late.

    pytest's own hook formats each of them, for which Python parses the line. Where that happens
    while a module is parsed, CPython before 3.11.8 fails to import the latter: "AST constructor
    recursion depth mismatch" (gh-106905).
    """


sys.unraisablehook = _ignore


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop what pytest-cov 7.1 starts twice in a worker of pytest-xdist, and pauses once.

    The one that is left running traces every test, `no_cover` or not.
    """
    plugin = session.config.pluginmanager.getplugin("_cov")
    if hasattr(session.config, "workerinput") and plugin and plugin.cov_controller:
        plugin.cov_controller.cov.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coverage counts core's own examples alone: a test that is traced takes twice as long.

    Core is not tested because something else runs it, and what a property draws today it may not
    draw with another hypothesis.
    """
    for item in items:
        drawn = hypothesis.is_hypothesis_test(getattr(item, "obj", None))
        if drawn or not item.path.is_relative_to(CORE):
            item.add_marker(pytest.mark.no_cover)
