"""A real Chromium for tests: found or installed, without a window."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

_INSTALL: Final = ("apt-get", "install", "-y", "--no-install-recommends", "chromium")
_INSTALL_SECONDS: Final = 400
_POLL_MS: Final = 100
_REST_SECONDS: Final = 10.0
_FITS: Final = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
_REFUSED: Final = "ERR_CONNECTION_REFUSED"
"""Chromium's own line about a server that is not there, which no page can prevent."""


class BrowserUnavailableError(RuntimeError):
    """There is no Chromium here and none can be installed."""


def chromium() -> str:
    """Its program: from PATH, else out of Debian's package.

    Raises:
        BrowserUnavailableError: It is not installed, and apt cannot install it.
    """
    found = shutil.which("chromium")
    if found is None and shutil.which("apt-get") and not os.geteuid():
        for command in (("apt-get", "update"), _INSTALL):
            subprocess.run(command, check=False, capture_output=True, timeout=_INSTALL_SECONDS)
        found = shutil.which("chromium")
    if found is None:
        raise BrowserUnavailableError("chromium is not on PATH: install it to run this test")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium for as long as the block runs."""
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()


class Watched:
    """A page of a browser, and what it complained of or asked elsewhere."""

    def __init__(self, running: Browser, url: str, *, width: int, scheme: str) -> None:
        self.page: Page = running.new_page(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        self.complaints: list[str] = []
        origin = "/".join(url.split("/")[:3])
        self.page.on("console", lambda message: self._complain(message.text))
        self.page.on("pageerror", lambda error: self._complain(str(error)))
        self.page.on(
            "request",
            lambda request: (
                None if request.url.startswith((origin, "data:")) else self._complain(request.url)
            ),
        )
        self.page.goto(url)

    def _complain(self, what: str) -> None:
        if _REFUSED not in what:
            self.complaints.append(what)

    def wait_for(self, condition: str, seconds: float = 30.0) -> None:
        """Until an expression of JavaScript is true.

        Raises:
            AssertionError: It never was.
        """
        deadline = time.monotonic() + seconds
        # asked from outside: the page's own policy forbids to evaluate texts inside it
        while not self.page.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"{condition}: {self.complaints}"
            self.page.wait_for_timeout(_POLL_MS)

    def overflows(self) -> bool:
        """Whether it is to be scrolled sideways, once what moves has come to rest.

        The site's search, for one, grows over the page for 0.4 s before it holds it still.
        """
        try:
            self.wait_for(_FITS, _REST_SECONDS)
        except AssertionError:
            return True
        return False
