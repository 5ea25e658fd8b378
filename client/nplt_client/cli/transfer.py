"""`nplt import` and `nplt export`: conversations from files, and to files.

Exports are written page by page, so that a long conversation is never held in memory. A
progress bar is shown on a terminal only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from nplt_client.errors import ConfigurationError, NpltError
from nplt_client.render.export import ConversationWalk, Form, exported, form_of, with_content
from nplt_client.render.terminal import exact_stream, is_terminal, print_error, print_remark
from nplt_client.render.text import number_in, sanitize_line, shorten, word_in
from nplt_client.wire.blocking import BlockingConnection, open_for_command, read_file
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    Attached,
    FileMetadata,
    FileStored,
    HistoryPage,
    HistoryRequest,
    Import,
    Imported,
    MessageRange,
    SessionSwitch,
)

if TYPE_CHECKING:
    from rich.progress import Progress

BEGIN_AFTER_SECONDS = 0.5
_NAME_WIDTH_MAX = 40


class ProgressBar:
    """A progress bar on stderr, if that is a terminal. It appears after a moment and is removed at
    the end. Only then is rich imported, which takes 0.1 s."""

    def __init__(
        self,
        name: str,
        total: int,
        *,
        hidden: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name = shorten(sanitize_line(name), _NAME_WIDTH_MAX)
        self._total = max(1, total)
        self._stream = exact_stream(stream or sys.stderr)
        self._clock = clock
        self._due = clock() + BEGIN_AFTER_SECONDS
        self._is_wanted = not hidden and is_terminal(self._stream)
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int) -> None:
        if self._is_wanted and (self._bar is not None or self._clock() >= self._due):
            self._update(self._name, done, self._total)

    def note(self, text: str) -> None:
        """Shows a text and a bar without a share, while the server works."""
        if self._is_wanted:
            self._update(f"{self._name}  {text}", 0, None)

    def _update(self, name: str, done: int, total: int | None) -> None:
        if self._bar is None:
            self._bar = _bar_on(self._stream)
            self._bar.add_task(name, completed=done, total=total)
            self._bar.start()
        else:
            (task,) = self._bar.task_ids
            self._bar.update(task, description=name, completed=done)
            self._bar.tasks[0].total = total


def _bar_on(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    name = TextColumn("{task.description}", markup=False)
    console = Console(file=stream)
    return Progress(
        name,
        BarColumn(24),
        TaskProgressColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


_PAGE_MESSAGES = 200
_PAGE_BYTES = 512 * 1024
_LONG_BYTES = 1024 * 1024
"""From this size on, the server needs noticeable time to import a file."""


def import_files(files: Sequence[Path], *, server: str | None) -> int:
    """Imports the files in order; one that fails does not stop the others."""
    code = 0
    with open_for_command(server) as connection:
        for path in files:
            try:
                data = read_file(path)
                description = FileMetadata(filename=path.name, size=len(data), purpose="import")
                with ProgressBar(path.name, len(data)) as progress:
                    stored = connection.send_file(description, data, sent=progress.show)
                    assert isinstance(stored, FileStored)
                    if len(data) >= _LONG_BYTES:
                        progress.note("the server imports it …")
                    done = connection.request(Import(file_id=stored.file_id), Imported)
            except NpltError as error:
                print_remark(f"{path}:")
                print_error(error)
                code = code or error.exit_code
            else:
                print(sanitize_line(done.session_id), flush=True)
                print_remark(f"{path}: {done.messages} messages")
    return code


def export(wanted: str, *, server: str | None, form: Form | None, output: Path | None) -> None:
    """Exports a conversation. Without a `form`, the file's extension decides."""
    chosen = form or (form_of(output) if output else None) or "md"
    with open_for_command(server) as connection:
        found = connection.request(SessionSwitch(session_id=wanted, create=False), Attached)
        with _opened(output) as stream:
            on_screen = is_terminal(stream)
            with ProgressBar(found.name, found.head_seq, hidden=on_screen) as progress:
                messages = _counted(_all_messages(connection, found.session_id), progress)
                writer = stream if on_screen else exact_stream(stream)
                for piece in exported(chosen, found.name, found.session_id, messages):
                    writer.write(piece)


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """Opens the output. A file gets its name only when it is complete."""
    if output is None:
        yield sys.stdout
        return
    new_file = output.with_name(f".{output.name}.new")
    try:
        with new_file.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        new_file.replace(output)
    except OSError as error:
        raise ConfigurationError(f"can't write {output}: {error.strerror or error}") from None
    finally:
        new_file.unlink(missing_ok=True)


def _counted(messages: Iterable[JsonObject], progress: ProgressBar) -> Iterator[JsonObject]:
    for message in messages:
        yield message
        if isinstance(seq := message.get("seq"), int):
            progress.show(seq)


def _all_messages(connection: BlockingConnection, session_id: str) -> Iterator[JsonObject]:
    walk = ConversationWalk()
    while not walk.is_over:
        asked = HistoryRequest(
            session_id=session_id,
            after=walk.after,
            limit=_PAGE_MESSAGES,
            max_bytes=_PAGE_BYTES,
            roles=("user", "assistant", "system"),
        )
        for message in walk.take(connection.request(asked, HistoryPage)):
            yield _whole(connection, session_id, message)


def _whole(connection: BlockingConnection, session_id: str, message: JsonObject) -> JsonObject:
    """Reads the rest of a truncated message."""
    if not message.get("truncated"):
        return message
    seq, content = number_in(message, "seq"), word_in(message, "content")
    while len(content) < number_in(message, "size"):
        asked = HistoryRequest(session_id=session_id, seq=seq, offset=len(content))
        part = connection.request(asked, MessageRange)
        if not part.content:
            break
        content += part.content
    return with_content(message, content)
