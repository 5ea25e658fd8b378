"""Sending a file: its description first, then its bytes in pieces under the same seq.

The file is read whole, in a worker thread, so that the size announced is the
size sent whatever happens to the file meanwhile. Pieces stop as soon as the
server has answered: it may refuse after the description.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import stat
from pathlib import Path
from typing import Literal

from nplt_client.errors import ConfigurationError
from nplt_client.line import Line
from nplt_protocol.json_values import JsonObject
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from nplt_protocol.replies import Reply
from nplt_protocol.requests import FileMetadata


async def upload(
    line: Line,
    source: str | Path | bytes,
    *,
    filename: str | None,
    content_type: str | None,
    purpose: Literal["attachment", "import"] = "attachment",
) -> Reply | JsonObject:
    if isinstance(source, bytes):
        content = source
        name = filename or "upload"
    else:
        path = Path(source)
        name = filename or path.name
        content = await asyncio.to_thread(read_file, path)
    description = FileMetadata(
        filename=name,
        size=len(content),
        content_type=content_type or mimetypes.guess_type(name)[0],
        purpose=purpose,
    )
    waiting = line.begin(description)
    try:
        for start in range(0, len(content), FRAME_PAYLOAD_BYTES_MAX):
            if waiting.reply.done():
                break
            piece = content[start : start + FRAME_PAYLOAD_BYTES_MAX]
            await line.send_piece(piece, of=waiting)
    except BaseException:
        line.forget(waiting)
        raise
    return await line.reply_to(waiting, timeout=None)


def read_file(path: Path) -> bytes:
    try:
        # Without waiting: a pipe might never be written to, a device never end.
        descriptor = os.open(path.expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigurationError(f"can't send {path}: it is no regular file")
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"can't read {path}: {error.strerror or error}") from None
