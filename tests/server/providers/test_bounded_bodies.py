"""Responses without an end: each is read up to a limit, and costs bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.endless_http_server import MIB, endless_server

from nplt_server.providers.local_servers import probe

CHILD = Path(__file__).parents[2] / "support" / "calling_endless_server.py"
ERRORS = ("error-body", "error-gzip", "error-gzips")
LISTS = ("list-body", "list-gzip", "list-gzips")
HEADS = ("call-headers", "call-interim", "list-headers", "list-interim")
FRAMING = tuple(
    f"{what}-{way}"
    for what in ("error", "list", "call")
    for way in ("trailers", "extension", "extensions")
)
ANSWERS = ("call-body", "call-gzip", "call-gzips", "call-events")
ALL = (*ERRORS, *LISTS, *HEADS, *FRAMING, *ANSWERS)

_GROWTH_BYTES_MAX = 96 * MIB
_SENT_BYTES_MAX = 64 * MIB
"""With what the sockets of both ends hold."""


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
def test_no_endless_response_of_a_vendor_takes_more_than_bounded_memory(vendor: str) -> None:
    with endless_server() as server:
        command = [sys.executable, str(CHILD), vendor, str(server.port), *ALL]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        seen: dict[str, Any] = json.loads(done.stdout)
    assert {way: how["peak"] for way, how in seen.items() if how["peak"] > _GROWTH_BYTES_MAX} == {}
    assert {way: how["kept"] for way, how in seen.items() if how["kept"] > 32 * MIB} == {}
    assert {way: sent for way, sent in server.sent.items() if sent > _SENT_BYTES_MAX} == {}
    # An error is told by its status, however long its body is.
    assert "(500)" in seen["error-body"]["outcome"]
    assert "(500)" in seen["error-gzip"]["outcome"]
    assert "too large" in seen["call-body"]["outcome"]
    assert "too large" in seen["call-gzip"]["outcome"]
    # A body that is compressed twice is not decompressed at all.
    assert "too large" in seen["error-gzips"]["outcome"]


@pytest.mark.parametrize("way", ["headers", "body", "extension", "extensions", "gzip"])
async def test_a_probe_of_a_local_server_reads_no_endless_response(way: str) -> None:
    with endless_server(f"list-{way}") as server:
        assert await probe(server.port) is None
    assert server.sent[f"list-{way}"] < 16 * MIB
