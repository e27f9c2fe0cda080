"""README, docs and examples: their blocks are run, and print what stands below them.

A page whose `pip install` names torch or locust is run by `tests/contract/examples`.
"""

from typing import Final

import pytest

from page_session import run_page
from pages import LARGE_EXTRAS, installs, pages, runs_programs

PAGES: Final = [
    page for page in pages() if runs_programs(page) and not LARGE_EXTRAS & installs(page)
]


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_do_what_they_show(page: str) -> None:
    """Commands and code copied from a page work in the order of the page."""
    assert run_page(page) > 0
