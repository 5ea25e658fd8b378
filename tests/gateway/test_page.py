"""The files of the page in the browser, and the Markdown that it shows."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from tests.gateway.http_client import request
from tests.support.server_process import ServerProcess

import nplt_gateway

PAGE = Path(nplt_gateway.__file__).with_name("page")
FIRST_LOAD_BYTES_MAX = 150_000


def addresses_in(server: ServerProcess) -> list[str]:
    document = request(server.http_url).body.decode()
    return re.findall(r'(?:href|src)="/([^"]+)"', document)


def test_the_page_may_load_nothing_but_its_own_files(shared_server: ServerProcess) -> None:
    page = request(shared_server.http_url)
    assert page.status == 200
    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "nplt"
    assert policy["frame-ancestors"] == "'none'"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"


def test_no_file_has_inline_scripts_or_styles_or_foreign_addresses() -> None:
    document = (PAGE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", document) == []
    for path in PAGE.iterdir():
        if path.suffix in (".html", ".js", ".css", ".webmanifest"):
            foreign = re.findall(r"https?://(?!www\.w3\.org/2000/svg)\S+", path.read_text())
            assert foreign == [], path.name


def test_files_of_this_version_are_kept_by_browsers_and_the_page_itself_is_not(
    shared_server: ServerProcess,
) -> None:
    assert request(shared_server.http_url).headers["cache-control"] == "no-cache"
    for address in addresses_in(shared_server):
        file = request(f"{shared_server.http_url}{address}")
        assert file.status == 200, address
        assert "immutable" in file.headers["cache-control"]
    another_version = re.sub(r"page/\w+/", "page/0/", addresses_in(shared_server)[0])
    another = request(f"{shared_server.http_url}{another_version}")
    assert (another.status, another.headers["cache-control"]) == (200, "no-cache")


def test_the_first_load_is_small(shared_server: ServerProcess) -> None:
    total = 0
    for path in PAGE.iterdir():
        if path.suffix in (".html", ".js", ".css"):
            version = addresses_in(shared_server)[0].split("/")[1]
            url = f"{shared_server.http_url}page/{version}/{path.name}"
            file = request(url, headers={"accept-encoding": "gzip"})
            assert file.headers["content-encoding"] == "gzip"
            assert gzip.decompress(file.body)
            total += len(file.body)
    assert total <= FIRST_LOAD_BYTES_MAX


@pytest.mark.parametrize("name", ["nothing.js", "..%2fdoor.py", "__init__.py", ".hidden"])
def test_only_files_of_the_page_are_sent(shared_server: ServerProcess, name: str) -> None:
    assert request(f"{shared_server.http_url}page/0/{name}").status == 404


def test_markdown_is_rendered_block_by_block(shared_server: ServerProcess) -> None:
    url = f"{shared_server.http_url}markdown"
    done = request(url, "POST", body={"texts": ["# A\n\n- b\n- c\n\n<script>alert(1)</script>"]})
    blocks = done.json["texts"][0]
    assert [block["lines"] for block in blocks] == [2, 3, 1]
    assert blocks[0]["html"] == "<h1>A</h1>\n"
    assert "<script" not in blocks[2]["html"]


@pytest.mark.parametrize(
    ("texts", "status"), [(["x" * 65_537], 400), (["x" * 60_000] * 5, 413), (["x"] * 201, 400)]
)
def test_too_much_markdown_is_refused(
    shared_server: ServerProcess, texts: list[str], status: int
) -> None:
    refused = request(f"{shared_server.http_url}markdown", "POST", body={"texts": texts})
    assert refused.status == status
