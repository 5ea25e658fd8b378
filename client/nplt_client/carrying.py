"""`nplt import` and `nplt export`: conversations in from files, and out to them.

Both go over the wire; the server's own files are never touched. An export is what
people read, the messages: as Markdown, as one web page, as a document that
`nplt import` takes in again, or one message per line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

from nplt_client.ask_json import json_text
from nplt_client.errors import ConfigurationError, NpltError
from nplt_client.link import Link
from nplt_client.opening import open_for_command
from nplt_client.progress import ProgressBar
from nplt_client.sanitize import sanitize
from nplt_client.showing import when
from nplt_client.terminal import complain, is_terminal, say
from nplt_client.uploads import read_file
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Attached, FileStored, HistoryPage, Imported, MessageRange
from nplt_protocol.requests import FileMetadata, HistoryRequest, Import, SessionSwitch

Form = Literal["md", "json", "jsonl", "html"]

_PAGE_MESSAGES = 200
_PAGE_BYTES = 512 * 1024
_LONG_BYTES = 1024 * 1024
"""Files that a server is busy with for a moment."""


def import_files(files: Sequence[Path], *, server: str | None) -> int:
    """One after the other; one that can't be taken in does not hinder the others."""
    code = 0
    with open_for_command(server) as link:
        for path in files:
            try:
                done = _import(link, path)
            except NpltError as error:
                say(f"{path}:")
                complain(error)
                code = code or error.exit_code
            else:
                print(done.session_id, flush=True)
                say(f"{path}: {done.messages} messages")
    return code


def _import(link: Link, path: Path) -> Imported:
    data = read_file(path)
    description = FileMetadata(filename=path.name, size=len(data), purpose="import")
    with ProgressBar(path.name, len(data)) as progress:
        stored = link.send_file(description, data, sent=progress.show)
        assert isinstance(stored, FileStored)
        if len(data) >= _LONG_BYTES:
            progress.note("the server takes it in …")
        return link.request(Import(file_id=stored.file_id), Imported)


def export(wanted: str, *, server: str | None, form: Form, output: Path | None) -> None:
    with open_for_command(server) as link:
        found = link.request(SessionSwitch(session_id=wanted), Attached)
        with _opened(output) as stream, ProgressBar(found.name, found.head_seq) as progress:
            safe = is_terminal(stream)
            told = (lambda seq: None) if safe else progress.show
            messages = _told_of(_all_messages(link, found.session_id), told)
            for piece in _PIECES[form](found, messages):
                stream.write(sanitize(piece) if safe else piece)


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """A file is there when all of it is."""
    if output is None:
        yield sys.stdout
        return
    beside = output.with_name(f".{output.name}.new")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        beside.replace(output)
    except OSError as error:
        raise ConfigurationError(f"can't write {output}: {error.strerror or error}") from None
    finally:
        beside.unlink(missing_ok=True)


def _told_of(messages: Iterable[JsonObject], told: Callable[[int], None]) -> Iterator[JsonObject]:
    for message in messages:
        yield message
        if isinstance(seq := message.get("seq"), int):
            told(seq)


def _all_messages(link: Link, session_id: str) -> Iterator[JsonObject]:
    after = 0
    while True:
        asked = HistoryRequest(
            session_id=session_id,
            after=after,
            limit=_PAGE_MESSAGES,
            max_bytes=_PAGE_BYTES,
            roles=("user", "assistant", "system"),
        )
        page = link.request(asked, HistoryPage)
        for message in page.messages:
            yield _whole(link, session_id, message)
        if not page.page.has_more_after or page.page.after <= after:
            return
        after = page.page.after


def _whole(link: Link, session_id: str, message: JsonObject) -> JsonObject:
    """What was too large for a page is read on."""
    seq, content = message.get("seq"), message.get("content")
    if not message.get("truncated") or not isinstance(seq, int) or not isinstance(content, str):
        return message
    parts: list[str] = []
    read, size = 0, 1
    while read < size:
        asked = HistoryRequest(session_id=session_id, seq=seq, offset=read)
        part = link.request(asked, MessageRange)
        if not part.content:
            break
        parts.append(part.content)
        read, size = read + len(part.content), part.size
    rest = {name: value for name, value in message.items() if name not in ("truncated", "size")}
    return {**rest, "content": "".join(parts)}


def _markdown(found: Attached, messages: Iterable[JsonObject]) -> Iterator[str]:
    yield f"# {' '.join(found.name.split())}\n"
    for message in messages:
        head = f"{message.get('role')} · {when(str(message.get('timestamp')))}"
        model = f" · {message['model']}" if message.get("model") else ""
        yield f"\n## {head}{model}\n\n{message.get('content')}\n"
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                yield f"\n*{call.get('tool_name')}* ({call.get('status')})\n"


def _json(found: Attached, messages: Iterable[JsonObject]) -> Iterator[str]:
    """In the shape `nplt import` and older programs read."""
    head = json_text({"session_id": found.session_id, "name": found.name})
    yield f'{head[:-1]},"messages":['
    for number, message in enumerate(messages):
        yield ("," if number else "") + "\n" + json_text(message)
    yield "\n]}\n"


def _json_lines(found: Attached, messages: Iterable[JsonObject]) -> Iterator[str]:
    for message in messages:
        yield json_text(message) + "\n"


def _web_page(found: Attached, messages: Iterable[JsonObject]) -> Iterator[str]:
    from nplt_client.web_page.transcript import page

    return page(found.name, found.session_id, messages)


_PIECES = {"md": _markdown, "json": _json, "jsonl": _json_lines, "html": _web_page}
