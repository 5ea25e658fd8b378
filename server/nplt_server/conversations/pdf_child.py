"""Reads the text of a PDF, in a process of its own.

    python -m nplt_server.conversations.pdf_child TEXT_BYTES SECONDS MEMORY_BYTES

The PDF is its input, one JSON object its output: the number of `pages`, the `text`, whether that
`is_cut`, and `encrypted` if a password is needed. It ends with `TOO_COSTLY`, or by a signal, if
a limit is reached, and with `NO_READER` if pypdf is not installed.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from contextlib import suppress
from typing import Any, Final

TOO_COSTLY: Final = 3
NO_READER: Final = 4


def main() -> None:
    text_bytes, seconds, memory_bytes = map(int, sys.argv[1:])
    _limit(seconds, memory_bytes)
    try:
        from pypdf import PdfReader
        from pypdf.errors import LimitReachedError
    except ImportError:
        sys.exit(NO_READER)
    logging.disable()  # it warns of every oddity of a file
    try:
        found = _read(PdfReader(io.BytesIO(sys.stdin.buffer.read())), text_bytes)
    except (MemoryError, RecursionError, LimitReachedError):
        sys.exit(TOO_COSTLY)
    sys.stdout.write(json.dumps(found))


def _limit(seconds: int, memory_bytes: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # not every system has them
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _read(reader: Any, text_bytes: int) -> dict[str, Any]:
    if reader.is_encrypted and not _opens(reader):
        return {"encrypted": True}
    pages = len(reader.pages)
    pieces: list[str] = []
    left = text_bytes
    for number, page in enumerate(reader.pages, 1):
        text = page.extract_text().encode(errors="replace").decode().strip()
        if not text:
            continue
        pieces.append(f"[page {number}]\n{text}" if pages > 1 else text)
        left -= len(pieces[-1].encode()) + 2
        if left < 0:
            break
    whole = "\n\n".join(pieces).encode()
    text = whole[:text_bytes].decode(errors="ignore")
    return {"pages": pages, "text": text, "is_cut": left < 0}


def _opens(reader: Any) -> bool:
    """Whether the empty password opens it: then it is protected only against changes."""
    try:
        return bool(reader.decrypt(""))
    except Exception:  # a cipher that is not installed, or not known
        return False


if __name__ == "__main__":
    main()
