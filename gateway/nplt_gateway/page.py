"""The page in the browser: its files, and the Markdown that it shows.

The files are read once and sent with a content security policy that lets the page load nothing
else. Their addresses contain a hash of all files: browsers cache them, and a new version replaces
them all at once. The page asks the server to render Markdown as HTML, block by block, because no
renderer in the browser may process the text of models.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import anyio.to_thread
from msgspec import Struct
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from nplt_gateway.access import Access
from nplt_gateway.bodies import JsonResponse, read_json
from nplt_gateway.errors import ApiError
from nplt_markdown import blocks
from nplt_protocol import JsonValue

_FOLDER: Final = Path(__file__).with_name("page")
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
_MARKDOWN_CHARACTERS_MAX: Final = 64 * 1024
"""The page shows a longer block as plain text."""
_TEXTS_MAX: Final = 200
_CHARACTERS_AT_ONCE_MAX: Final = 256 * 1024
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types nplt",
    )
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "vary": "accept-encoding",
}


class _File(Struct, frozen=True):
    content_type: str
    body: bytes
    compressed: bytes


class _PageFiles(Struct, frozen=True):
    version: str
    files: dict[str, _File]


class _Markdown(BaseModel):
    texts: list[Annotated[str, Field(max_length=_MARKDOWN_CHARACTERS_MAX)]] = Field(
        max_length=_TEXTS_MAX
    )


async def start_page(request: Request) -> Response:
    files = await anyio.to_thread.run_sync(_files)
    return _send(request, files.files["index.html"], "no-cache")


async def page_file(request: Request) -> Response:
    """The version in the address is not checked: a page that was loaded before an upgrade may still
    ask for the old one."""
    files = await anyio.to_thread.run_sync(_files)
    file = files.files.get(request.path_params["name"])
    if file is None:
        raise ApiError(404, "the page has no such file", code="not_found")
    is_current = request.path_params["version"] == files.version
    return _send(request, file, "max-age=31536000, immutable" if is_current else "no-cache")


async def render(request: Request) -> Response:
    """Renders texts in a thread. The reply has, for each block of each text, its `html` and the
    number of `lines` of Markdown that it came from."""
    app = request.scope["app"]
    access: Access = app.access
    user = await access.find_user(request)
    body = await read_json(request, app.server, user, _Markdown)
    if sum(map(len, body.texts)) > _CHARACTERS_AT_ONCE_MAX:
        raise ApiError(413, "too much text for one request", code="too_large", param="texts")
    rendered = await anyio.to_thread.run_sync(_render_all, body.texts)
    return JsonResponse({"texts": rendered}, headers={"cache-control": "no-store"})


def _render_all(texts: list[str]) -> list[JsonValue]:
    return [
        [{"lines": block.lines, "html": block.html} for block in blocks(text)] for text in texts
    ]


def _send(request: Request, file: _File, caching: str) -> Response:
    headers = {**_HEADERS, "cache-control": caching, "content-type": file.content_type}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.compressed, headers={**headers, "content-encoding": "gzip"})
    return Response(file.body, headers=headers)


@cache
def _files() -> _PageFiles:
    contents = {
        path.name: path.read_bytes() for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES
    }
    version = sha256(b"\0".join(contents.values())).hexdigest()[:12]
    files: dict[str, _File] = {}
    for name, body in contents.items():
        if name.endswith((".html", ".webmanifest")):
            body = body.replace(b"{version}", version.encode())
        content_type = _TYPES[Path(name).suffix]
        files[name] = _File(content_type, body, gzip.compress(body, 9, mtime=0))
    return _PageFiles(version, files)


ROUTES: Final[tuple[BaseRoute, ...]] = (
    Route("/", start_page, methods=["GET"]),
    Route("/page/{version}/{name}", page_file, methods=["GET"]),
    Route("/markdown", render, methods=["POST"]),
)
