"""Pages whose commands need torch or locust, run like the others: `make examples` installs both."""

from typing import Final

import pytest

from page_session import missing, run_page
from pages import LARGE_EXTRAS, installs, pages

PAGES: Final = [page for page in pages() if LARGE_EXTRAS & installs(page)]


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_do_what_they_show(page: str) -> None:
    """Commands and code copied from a page work in the order of the page."""
    if absent := [name for extra in LARGE_EXTRAS & installs(page) for name in missing(extra)]:
        pytest.skip(f"not installed: {', '.join(absent)}: make examples")

    assert run_page(page) > 0
