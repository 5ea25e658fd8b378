"""A conversation as one Markdown file."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from nplt_client.client import Client
from nplt_client.errors import ConfigurationError
from nplt_client.showing import when
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import HistoryPage

_MESSAGES_PER_PAGE = 200


async def all_pages(client: Client) -> AsyncIterator[HistoryPage]:
    """From the first message on; the first page gives the name."""
    after = 0
    while True:
        page = await client.history(_MESSAGES_PER_PAGE, after=after)
        yield page
        if not page.page.has_more_after or page.page.after <= after:
            return
        after = page.page.after


def markdown_of(message: JsonObject) -> Iterator[str]:
    said = [str(message.get("role")), when(str(message.get("timestamp")))]
    said += [str(message[name]) for name in ("model", "state") if message.get(name)]
    yield f"## {' · '.join(word for word in said if word != 'completed')}\n"
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            yield f"> `{call.get('tool_name')}` {call.get('status')}: {_one_line(call)}\n"
    if message.get("content"):
        yield f"{message['content']}\n"


def _one_line(call: JsonObject) -> str:
    return " ".join(str(call.get("result") or "").split())


def file_name(title: str) -> str:
    words = re.sub(r"[^\w]+", "-", title).strip("-_").lower()
    return f"{words[:60] or 'conversation'}.md"


def write_anew(name: str, text: str) -> Path:
    """Never over a file that is there."""
    path = Path(name).expanduser()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"can't write {path}: {error.strerror}") from None
    return path
