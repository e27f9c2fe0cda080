"""/docs without a CDN: a browser in a closed network gets the whole page from the replica."""

import functools
import importlib.resources
from typing import Final

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html

_PATH: Final = "/docs"
_FILES: Final = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
}
_CACHED: Final = {"cache-control": "public, max-age=86400"}


def serve_docs(app: FastAPI) -> None:
    """Add the page and its files.

    Their links are relative, so that they hold behind a proxy that adds a prefix to paths.
    """

    async def page() -> Response:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{app.title} - Swagger UI",
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="data:,",
        )

    app.add_api_route(_PATH, page, methods=["GET"], include_in_schema=False)
    for name in _FILES:
        app.add_api_route(
            f"{_PATH}/{name}",
            functools.partial(_file, name),
            methods=["GET"],
            include_in_schema=False,
        )


async def _file(name: str) -> Response:
    return Response(_content(name), media_type=_FILES[name], headers=_CACHED)


@functools.cache
def _content(name: str) -> bytes:
    return (importlib.resources.files("fastapi_offline") / "static" / name).read_bytes()
