"""For contract tests of every part."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser import BrowserUnavailableError, browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for all tests of a file."""
    try:
        with browser() as running:
            yield running
    except BrowserUnavailableError as error:
        pytest.skip(str(error))
