"""Reads the text of a PDF, for models that are not sent PDFs: `read_pdf`.

A PDF is a program of its author, so a child process reads it (`pdf_child`), with limits of time
and memory. The library, pypdf, is an extra (`nplt[pdf]`) and only imported there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress
from typing import Final

import anyio
import orjson
from msgspec import Struct

from nplt_server.context.messages import AttachmentReason
from nplt_server.conversations.pdf_child import NO_READER, TOO_COSTLY

log = logging.getLogger(__name__)

PDF_BYTES_MAX: Final = 32 * 1024 * 1024
"""A larger PDF is not read."""
_SECONDS_MAX: Final = 10
_WAIT_SECONDS_MAX: Final = 30.0
"""The time by the clock: on a busy machine ten seconds of work take longer."""
_MEMORY_BYTES_MAX: Final = 768 * 1024 * 1024
_OUTPUT_FACTOR: Final = 8
"""JSON writes a character of one byte as up to six."""
_ENVIRONMENT: Final = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR")
_at_once: Final = anyio.CapacityLimiter(2)


class PdfText(Struct, frozen=True, kw_only=True):
    text: str = ""
    pages: int = 0
    is_cut: bool = False
    """Whether there is more text."""
    reason: AttachmentReason | None = None
    """Why there is no text."""


async def read_pdf(data: bytes, *, text_bytes_max: int) -> PdfText:
    async with _at_once:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", f"{__package__}.pdf_child"),
            *map(str, (text_bytes_max, _SECONDS_MAX, _MEMORY_BYTES_MAX)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            limit=text_bytes_max * _OUTPUT_FACTOR,
            start_new_session=True,
        )
        output = b""
        try:
            with anyio.move_on_after(_WAIT_SECONDS_MAX):
                output, _ = await process.communicate(data)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                with anyio.CancelScope(shield=True):
                    await process.wait()
    return _outcome(process.returncode, output)


def _outcome(code: int | None, output: bytes) -> PdfText:
    if code == 0:
        found = orjson.loads(output)
        if found.get("encrypted"):
            return PdfText(reason="attachment_encrypted")
        text, pages = found["text"], found["pages"]
        reason: AttachmentReason | None = None if text else "attachment_no_text"
        return PdfText(text=text, pages=pages, is_cut=found["is_cut"], reason=reason)
    if code == NO_READER:
        log.warning("a PDF is not read: the extra nplt[pdf] is not installed")
        return PdfText(reason="attachment_no_reader")
    if code == TOO_COSTLY or (code is not None and code < 0):
        return PdfText(reason="attachment_too_costly")
    return PdfText(reason="attachment_unreadable")
