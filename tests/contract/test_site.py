"""The documentation as a site: its links, each page in a real Chromium, and versions side by side.

Links to other hosts are not followed: the tests reach none. Whether they lead somewhere is for a
person to look at, when a release is made.
"""

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from playwright.sync_api import Browser

from browser import Watched

ROOT: Final = Path(__file__).resolve().parents[2]
CONFIG: Final = ROOT / "docs/site/mkdocs.yml"
LIMIT_SECONDS: Final = 300
LOADED: Final = {("script", "src"), ("img", "src"), ("link", "href"), ("source", "src")}
"""Attributes whose address a browser asks for by itself."""
NOT_LOADED: Final = {"canonical", "next", "prev", "alternate"}
SHOWN: Final = "document.querySelector('[data-md-component=outdated]:not([hidden]) a')"
"""The banner of an older release."""
SETTLED_MS: Final = 500
"""The search answers each letter: so long after the last one it has answered them all."""
SCREENSHOTS: Final = os.environ.get("SCREENSHOTS")
"""A folder where somebody wants to look at what was seen."""


def program(name: str, *arguments: str, cwd: Path = ROOT, **variables: str) -> str:
    """Run a program of this environment, which finds the others; what it printed."""
    programs = Path(sys.executable).parent
    path = f"{programs}:{os.environ['PATH']}"
    ran = subprocess.run(
        [str(programs / name), *arguments],
        cwd=cwd,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make site` does."""
    folder = tmp_path_factory.mktemp("site")
    program("mkdocs", "build", "--strict", "-f", str(CONFIG), BATCHEDAPI_SITE=str(folder))
    return folder


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two releases and the development, in a repository of their own, as files to serve."""
    repository = tmp_path_factory.mktemp("versions")
    built = str(tmp_path_factory.mktemp("built"))
    git = functools.partial(subprocess.run, cwd=repository, check=True, capture_output=True)
    git(["git", "init", "-q"])
    for name, value in (("user.name", "Site"), ("user.email", "site@example.org")):
        git(["git", "config", name, value])
    git(["git", "commit", "-q", "--allow-empty", "-m", "Empty"])
    for version in (["0.1", "latest"], ["0.2", "latest"], ["dev"]):
        deploy = ("deploy", "-F", str(CONFIG), "--update-aliases", *version)
        program("mike", *deploy, cwd=repository, BATCHEDAPI_SITE=built)
    git(["git", "checkout", "-q", "gh-pages"])
    return repository


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing: the tests look at the browser."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Page(HTMLParser):
    """Addresses and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        of = {name: value or "" for name, value in attrs}
        self.ids |= {of[name] for name in ("id", "name") if name in of}
        for name in ("href", "src"):
            if name not in of:
                continue
            self.links.append(of[name])
            if (tag, name) in LOADED and not NOT_LOADED & set(of.get("rel", "").split()):
                self.loads.append(of[name])


@functools.cache
def parsed(path: Path) -> _Page:
    """A page of the site."""
    return _Page(path.read_text("utf-8"))


def problem_of(site: Path, page: Path, link: str) -> str | None:
    """The fault of a link to this site; None if there is none, or it leads to another host."""
    here = f"http://site/{page.relative_to(site)}"
    address = urlsplit(urljoin(here, link))
    if address.scheme not in {"http", "https"} or address.netloc != "site":
        return None
    target = site / unquote(address.path).lstrip("/")
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return f"{page.relative_to(site)}: {link}: no such page"
    if address.fragment and target.suffix == ".html":
        wanted = unquote(address.fragment)
        if wanted not in parsed(target).ids and not wanted.startswith("__"):
            return f"{page.relative_to(site)}: {link}: no such place"
    return None


def test_every_link_leads_somewhere(site: Path) -> None:
    """As built: what the theme adds and raw HTML included, which mkdocs does not look at."""
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    found = [problem_of(site, page, link) for page in pages for link in parsed(page).links]

    assert len(pages) > 50
    assert [] == [problem for problem in found if problem]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """A closed network reads it, too; and nobody is told who reads what."""
    pages = list(site.rglob("*.html"))

    elsewhere = {load for page in pages for load in parsed(page).loads if urlsplit(load).netloc}

    assert set() == elsewhere


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    """The check above would otherwise prove nothing."""
    page = tmp_path / "index.html"
    page.write_text('<h1 id="here"><a href="gone/">a</a><a href="#here">b</a></h1>')

    assert "index.html: gone/: no such page" == problem_of(tmp_path, page, "gone/")
    assert "index.html: #gone: no such place" == problem_of(tmp_path, page, "#gone")
    assert problem_of(tmp_path, page, "#here") is None
    assert problem_of(tmp_path, page, "https://example.org/") is None


PAGES: Final = (
    "", "tutorials/laptop/", "tutorials/cluster/", "concepts/batching/", "concepts/decision/",
    "guides/autoscaling/", "reference/batchedapi/", "troubleshooting/", "why/", "glossary/",
)  # fmt: skip


@pytest.mark.parametrize("width", [400, 1280])
def test_pages_complain_of_nothing_and_fit_the_screen(
    site: Path, chromium: Browser, width: int
) -> None:
    """On a phone nobody scrolls sideways to read a sentence; wide tables scroll by themselves."""
    with served(site) as address:
        for name in PAGES:
            seen = Watched(chromium, f"{address}/{name}", width=width, scheme="light")
            seen.wait_for("document.querySelector('h1')")
            if SCREENSHOTS:
                file = f"{name.strip('/').replace('/', '-') or 'index'}-{width}.png"
                seen.page.screenshot(path=Path(SCREENSHOTS) / file)
            assert [] == seen.complaints, name
            assert not seen.overflows(), name
            seen.page.close()


@pytest.mark.parametrize("width", [400, 1280])
def test_the_search_finds_a_field(site: Path, chromium: Browser, width: int) -> None:
    """Its index and its worker are files of the site."""
    with served(site) as address:
        seen = Watched(chromium, f"{address}/", width=width, scheme="dark")
        seen.page.keyboard.press("/")
        seen.page.keyboard.type("maxBatchSize")
        seen.wait_for("document.querySelectorAll('.md-search-result__item').length")

        assert [] == seen.complaints
        assert not seen.overflows()


EXPLAINED: Final = {
    "streaming": "guides/protocols/", "api key authentication": "guides/protocols/",
    "hugging face": "guides/models/", "scikit-learn": "guides/models/",
    "gpu": "guides/processes-and-gpus/", "docker": "install/",
    "scale to zero": "guides/one-queue/", "429": "guides/failures-and-overload/",
    "batch size": "guides/batching/", "prometheus": "guides/looking/",
}  # fmt: skip
"""Words that people search for, and the page that explains them."""


def test_the_search_leads_first_to_the_page_that_explains(site: Path, chromium: Browser) -> None:
    """Results of benchmarks and decisions have the same words, and explain nothing to a user."""
    found = {}
    with served(site) as address:
        seen = Watched(chromium, f"{address}/", width=1280, scheme="light")
        seen.page.keyboard.press("/")
        for words in EXPLAINED:
            seen.page.keyboard.press("ControlOrMeta+a")
            seen.page.keyboard.press("Delete")
            seen.wait_for("!document.querySelectorAll('.md-search-result__item').length")
            seen.page.keyboard.type(words)
            seen.wait_for("document.querySelectorAll('.md-search-result__item').length")
            seen.page.wait_for_timeout(SETTLED_MS)
            first = seen.page.locator(".md-search-result__link").first.evaluate("e => e.pathname")
            found[words] = first.removeprefix("/")

    assert EXPLAINED == found


def test_each_page_says_of_which_release_it_is(versions: Path) -> None:
    """C01: at once, without a script, on pages of releases and of the development."""
    said = {
        version: (versions / version / "tutorials/laptop/index.html").read_text()
        for version in ("0.1", "0.2", "dev")
    }

    assert "These pages are of batchedapi <strong>0.1</strong>" in said["0.1"]
    assert "These pages are of batchedapi <strong>0.2</strong>" in said["0.2"]
    assert "These pages are of the development version" in said["dev"]


@pytest.mark.parametrize(
    ("version", "warns"), [("0.1", "newer"), ("0.2", ""), ("latest", ""), ("dev", "")]
)
def test_an_older_release_warns_that_there_is_a_newer(
    versions: Path, chromium: Browser, version: str, warns: str
) -> None:
    """C01: the banner leads to the newest; every version can be chosen at the top."""
    with served(versions) as address:
        seen = Watched(chromium, f"{address}/{version}/why/", width=1280, scheme="light")
        seen.wait_for("document.querySelectorAll('.md-version__item').length == 3")
        if warns:
            seen.wait_for(SHOWN)
            newest = seen.page.locator("[data-md-component=outdated] a").evaluate("e => e.href")
            assert f"{address}/latest/" == newest
            assert warns in seen.page.locator("[data-md-component=outdated]").inner_text()
        else:
            assert not seen.page.evaluate(f"Boolean({SHOWN})")
        assert [] == seen.complaints
