"""The page to look at: a replica serves it for itself, the operator for all of them.

It is files that a browser reads; figures come from /metrics and the status. The chart library
(uPlot) is a file of the package youplot, which is never imported.
"""

import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_JAVASCRIPT: Final = "text/javascript; charset=utf-8"
_CSS: Final = "text/css; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"
_LIBRARY: Final = "youplot"
_FILES: Final = {
    "/ui/page.css": (_CSS, "page.css"),
    "/ui/page.js": (_JAVASCRIPT, "page.js"),
}
_LIBRARY_FILES: Final = {
    "/ui/uplot.css": (_CSS, "vendor/uplot.min.css"),
    "/ui/uplot.js": (_JAVASCRIPT, "vendor/uplot.iife.min.js"),
}
PATHS: Final = ("/", *_FILES, *_LIBRARY_FILES)
"""All that `read` answers."""


class Mode(StrEnum):
    """The server that shows the page."""

    REPLICA = "replica"
    """Its figures are at /metrics."""
    FLEET = "fleet"
    """Its figures are at /fleet."""


def read(path: str, mode: Mode) -> tuple[str, bytes] | None:
    """Content type and bytes of a file of the page; None: there is no such path."""
    if path == "/":
        page = (_HERE / "index.html").read_text(encoding="utf-8")
        return _HTML, page.replace('data-mode="MODE"', f'data-mode="{mode}"').encode()
    if path in _FILES:
        content_type, name = _FILES[path]
        return content_type, (_HERE / name).read_bytes()
    if path in _LIBRARY_FILES:
        content_type, name = _LIBRARY_FILES[path]
        return content_type, (_library() / name).read_bytes()
    return None


def _library() -> Path:
    """Folder of the package, found without importing it."""
    found = importlib.util.find_spec(_LIBRARY)
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"{_LIBRARY} has the charts of the page: pip install {_LIBRARY}")
    return Path(found.submodule_search_locations[0])
