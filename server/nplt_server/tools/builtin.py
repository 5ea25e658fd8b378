"""The built-in tools: now, sys_monitor, read_result, search_history, read_file, list_files.

`builtin_tools` lists them; the file tools only where directories are allowed. The notebook
and the todo list are widgets and bring their own tools.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import islice
from os.path import realpath
from pathlib import Path, PurePath
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import structs
from pydantic import Field

from nplt_server.digest.text import one_line
from nplt_server.tools import Tool, ToolFailed, ToolHost
from nplt_server.tools.typed import typed_tool
from nplt_storage.search import SearchHit

__all__ = ["builtin_tools", "now_tool"]


# ------------------------------------------------------------------------------
# Allowed directories
#
# `AllowedRoots` is the only way to open a path. A path is resolved first and refused
# outside the roots; then it is opened from the root downward without following links. Only
# plain files and directories are opened.


_NEVER: Final = tuple(map(PurePath, ("/proc", "/sys", "/dev")))
"""Never read, whatever the roots are: the process and its secrets could be read here."""

_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_PATH_CHARACTERS_SHOWN: Final = 200
_IN_WORDS: Final = {
    errno.ENOENT: "there is no such file or directory",
    errno.ENOTDIR: "there is no such file or directory",
    errno.ELOOP: "links lead in a circle, or changed just now",
    errno.EACCES: "the server may not read it",
    errno.EPERM: "the server may not read it",
    errno.ENXIO: "neither a file nor a directory",
    errno.ENAMETOOLONG: "the name is too long",
}


FILE_BYTES_MAX: Final = 16 * 1024 * 1024
SHOWN_BYTES_MAX: Final = 24_000
"""This is less than a result shows at once."""

_LINES_MAX: Final = 2_000
_READ_BYTES: Final = 1024 * 1024
_LOOKED_AT_BYTES: Final = 8_192
"""The bytes that are searched for a NUL, which no text has."""
ENTRIES_MAX: Final = 100_000
"""The entries of one directory that are looked at."""

_LIMIT_MAX: Final = 1_000


class AllowedRoots:
    def __init__(self, roots: Sequence[Path], *, never: Sequence[Path] = ()) -> None:
        """`never`: what is in there is refused, whichever way one gets there."""
        self.roots = tuple(roots)
        self._never = tuple(never)

    def tools(self) -> Iterator[Tool]:
        """Their descriptions say where they may look."""
        places = ", ".join(map(str, self.roots))
        for tool in (typed_tool(self.read_file), typed_tool(self.list_files)):
            words = f"{tool.description.description} Open to you: {places}"
            description = structs.replace(tool.description, description=words)
            yield structs.replace(tool, description=description)

    def read_file(
        self,
        path: Annotated[str, Field(description="absolute, or relative to an allowed directory")],
        offset: Annotated[int, Field(ge=1, description="first line; 1 is the file's first")] = 1,
        limit: Annotated[int, Field(ge=1, le=_LINES_MAX, description="how many lines")] = 500,
    ) -> str:
        """Lines of a text file on the server."""
        with self._open(path) as (place, descriptor, status):
            if stat.S_ISDIR(status.st_mode):
                raise ToolFailed(f"{place} is a directory: list_files shows it")
            data = bytearray()
            while piece := os.read(descriptor, _READ_BYTES):
                data += piece
                if b"\0" in data[:_LOOKED_AT_BYTES]:
                    raise ToolFailed(f"{place} is a binary file of {status.st_size:,} bytes")
                if len(data) > FILE_BYTES_MAX:
                    most = f"files of up to {FILE_BYTES_MAX:,} bytes are read"
                    raise ToolFailed(f"{place} is too large: {most}")
        # Not splitlines, which knows line ends that no editor counts.
        lines = data.decode("utf-8-sig", errors="replace").split("\n")
        if lines[-1] == "":
            lines.pop()
        if not lines:
            return f"[{place} is empty]"
        if offset > len(lines):
            raise ToolFailed(f"{place} has only {len(lines)} lines")
        taken = _as_many_as_fit(lines[offset - 1 : offset - 1 + limit])
        last = offset + len(taken) - 1
        what_next = "the end" if last == len(lines) else f"next offset {last + 1}"
        where = f"[{place}, lines {offset} to {last} of {len(lines)}; {what_next}]"
        return "\n".join([where, *taken])

    def list_files(
        self,
        path: Annotated[
            str,
            Field(description="absolute, or relative to an allowed directory; empty: those"),
        ] = "",
        offset: Annotated[int, Field(ge=0, description="how many entries to pass over")] = 0,
        limit: Annotated[int, Field(ge=1, le=_LIMIT_MAX, description="how many to show")] = 200,
    ) -> str:
        """The files and directories in a directory on the server, with their sizes."""
        if not path and len(self.roots) > 1:
            return "\n".join(f"{root}/" for root in self.roots)
        with self._open(path) as (place, descriptor, status):
            if not stat.S_ISDIR(status.st_mode):
                return f"[{place} is a file of {status.st_size:,} bytes]"
            with os.scandir(descriptor) as found:
                entries = sorted(islice(found, ENTRIES_MAX + 1), key=lambda entry: entry.name)
            if len(entries) > ENTRIES_MAX:
                raise ToolFailed(f"{place} has more than {ENTRIES_MAX:,} entries")
            shown = [_file_line(entry) for entry in entries[offset : offset + limit]]
        if not entries:
            return f"[{place} is empty]"
        if not shown:
            raise ToolFailed(f"{place} has only {len(entries)} entries")
        last = offset + len(shown)
        what_next = "the end" if last == len(entries) else f"next offset {last}"
        where = f"[{place}, entries {offset + 1} to {last} of {len(entries)}; {what_next}]"
        return "\n".join([where, *shown])

    @contextmanager
    def _open(self, path: str) -> Iterator[tuple[PurePath, int, os.stat_result]]:
        """Absolute, or relative to a root: the first one where there is such a thing. Gives
        where it really is, and a descriptor."""
        failure: ToolFailed | None = None
        for candidate in dict.fromkeys(root / path for root in self.roots):
            try:
                real, descriptor = self._open_real(candidate, repr(path[:_PATH_CHARACTERS_SHOWN]))
            except ToolFailed as failed:
                failure = failure or failed
                continue
            try:
                yield real, descriptor, os.fstat(descriptor)
            finally:
                os.close(descriptor)
            return
        raise failure or ToolFailed("no directory is open to you")

    def _open_real(self, candidate: Path, shown: str) -> tuple[PurePath, int]:
        try:
            real = PurePath(realpath(candidate))
            root = self._root_of(real)
            if root is None:
                raise ToolFailed(f"{shown} is outside of the directories that are open to you")
            descriptor = _open_below(root, real.relative_to(root).parts)
            try:
                _must_be_plain(os.fstat(descriptor))
            except OSError:
                os.close(descriptor)
                raise
            return real, descriptor
        except ValueError:  # a NUL, half a character
            raise ToolFailed(f"{shown} is not a path") from None
        except OSError as error:
            words = _IN_WORDS.get(error.errno or 0, "it can't be read")
            raise ToolFailed(f"{shown}: {words}") from None

    def _root_of(self, real: PurePath) -> PurePath | None:
        # Asked anew each time: what leads where may change.
        never = (*_NEVER, *(PurePath(realpath(place)) for place in self._never))
        if any(real.is_relative_to(place) for place in never):
            return None
        roots = (PurePath(realpath(root)) for root in self.roots)
        return next((root for root in roots if real.is_relative_to(root)), None)


def _open_below(root: PurePath, parts: Sequence[str]) -> int:
    descriptor = os.open(root, _OPEN | os.O_DIRECTORY)
    for number, part in enumerate(parts):
        above = descriptor
        try:
            if number < len(parts) - 1:
                descriptor = os.open(part, _OPEN | os.O_DIRECTORY, dir_fd=above)
            else:
                _must_be_plain(os.stat(part, dir_fd=above, follow_symlinks=False))
                descriptor = os.open(part, _OPEN, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def _must_be_plain(status: os.stat_result) -> None:
    """Refuses links and devices: opening a device can have an effect."""
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a link")
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.ENXIO, "special")


def _as_many_as_fit(lines: Sequence[str]) -> list[str]:
    """Gives at least one, if need be only its beginning."""
    taken: list[str] = []
    room = SHOWN_BYTES_MAX
    for line in lines:
        line = line.removesuffix("\r")
        room -= len(line.encode()) + 1
        if room < 0 and not taken:
            beginning = line.encode()[:SHOWN_BYTES_MAX].decode(errors="ignore")
            return [f"{beginning} [the line goes on: {len(line):,} characters]"]
        if room < 0:
            break
        taken.append(line)
    return taken


def _file_line(entry: os.DirEntry[str]) -> str:
    name = entry.name if entry.name.isprintable() else repr(entry.name)
    if entry.is_symlink():
        return f"{name} (link)"
    if entry.is_dir(follow_symlinks=False):
        return f"{name}/"
    if not entry.is_file(follow_symlinks=False):
        return f"{name} (special)"
    try:
        return f"{name} ({entry.stat(follow_symlinks=False).st_size:,} bytes)"
    except OSError:
        return f"{name} (gone)"


def now_tool(clock: Callable[[], datetime]) -> Tool:
    async def now(
        timezone: Annotated[str, Field(description="IANA name, e.g. Asia/Tokyo")] = "UTC",
    ) -> str:
        """The present date and time, in ISO 8601."""
        try:
            return clock().astimezone(ZoneInfo(timezone)).isoformat(timespec="seconds")
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ToolFailed(f"there is no time zone {timezone[:60]!r}") from None

    return typed_tool(now)


_SAMPLE_SECONDS: Final = 0.1
"""The load of a processor is measured over this time."""

_DISKS_MAX: Final = 8
_GIB: Final = 2**30


def sys_monitor(
    metric: Annotated[
        Literal["cpu", "memory", "disk", "all"], Field(description="what to look at")
    ] = "all",
) -> str:
    """How much of the server's processors, memory and disks is in use."""
    import psutil

    lines: list[str] = []
    if metric in ("cpu", "all"):
        cores = psutil.cpu_count() or 1
        usage = psutil.cpu_percent(interval=_SAMPLE_SECONDS)
        lines.append(f"CPU usage: {usage:.1f} % of {cores} {'core' if cores == 1 else 'cores'}")
    if metric in ("memory", "all"):
        memory = psutil.virtual_memory()
        lines.append(_used("Memory", memory.total - memory.available, memory.total))
    if metric in ("disk", "all"):
        mounted = {part.device: part.mountpoint for part in reversed(psutil.disk_partitions())}
        for place in sorted({os.sep, *mounted.values()})[:_DISKS_MAX]:
            with suppress(OSError):  # a drive without a disk in it
                disk = psutil.disk_usage(place)
                lines.append(_used(f"Disk {place}", disk.total - disk.free, disk.total))
    return "\n".join(lines)


def _used(what: str, used: int, total: int) -> str:
    share = 100 * used / total if total else 0.0
    return f"{what}: {used / _GIB:.1f} of {total / _GIB:.1f} GiB used ({share:.1f} %)"


# ------------------------------------------------------------------------------
# read_result
#
# Places are bytes of UTF-8, because a store can seek to them. A place inside a character
# means the beginning of that character: consecutive parts leave nothing out, and no part
# holds half a character.

LENGTH_DEFAULT: Final = 16_000
LENGTH_MAX: Final = 24_000
"""This is less than a result shows at once; otherwise it would have to be read again."""

_CHARACTER_BYTES_MAX: Final = 4
_LENGTH_MIN: Final = 16


async def read_result(
    host: ToolHost,
    tool_call_id: Annotated[str, Field(description="of the call whose result is to be read")],
    offset: Annotated[
        int | None,
        Field(
            ge=0,
            description="where to begin, in bytes of UTF-8 (not characters): the next offset "
            "that the last part named; left out: right after what was shown of the result",
        ),
    ] = None,
    length: Annotated[
        int,
        Field(ge=_LENGTH_MIN, le=LENGTH_MAX, description="how much at most, in bytes of UTF-8"),
    ] = LENGTH_DEFAULT,
) -> str:
    """Another part of an earlier tool result that was too long to be shown whole."""
    result = host.find_result(tool_call_id)
    if result is None:
        raise ToolFailed(f"this conversation has no result of a call {tool_call_id[:80]!r}")
    shown = result.result.encode()
    total = len(shown) if result.blob is None else result.blob.size
    if offset is None:
        offset = 0 if result.blob is None else len(shown)
    if offset >= total:
        raise ToolFailed(f"there is nothing at {offset}: the result has {total} bytes")
    begin = max(0, offset - (_CHARACTER_BYTES_MAX - 1))
    end = offset + length + 1
    if result.blob is None:
        data = shown[begin:end]
    else:
        data = await host.read_blob(result.blob.blob_id, begin, end - begin)
    first = begin + _character_start(data, offset - begin)
    last = min(total, begin + len(data))
    if last > offset + length:
        last = begin + _character_start(data, offset + length - begin)
    if last <= first:
        raise ToolFailed("the rest of this result is not there any more")
    text = data[first - begin : last - begin].decode(errors="replace")
    what_next = "the end" if last == total else f"next offset {last}"
    return f"[bytes {first} to {last} of {total}; {what_next}]\n{text}"


def _character_start(data: bytes, place: int) -> int:
    """The first byte of the character that the byte at this place belongs to."""
    while 0 < place < len(data) and data[place] & 0b1100_0000 == 0b1000_0000:
        place -= 1
    return place


async def search_history(
    host: ToolHost,
    query: Annotated[
        str,
        Field(max_length=500, description="words to look for; the last may be a beginning"),
    ] = "",
    limit: Annotated[int, Field(ge=1, le=50, description="how many messages at most")] = 10,
    offset: Annotated[int, Field(ge=0, le=200, description="how many hits to pass over")] = 0,
    around: Annotated[
        str,
        Field(max_length=200, description="a hit, as ID#NUMBER: read the messages around it"),
    ] = "",
) -> str:
    """Messages of this user's conversations, the best first: those with all of the words before
    those with some, this conversation's before others'. Or, with around, the messages around a
    hit."""
    if around.strip():
        return await _around(host, around.strip(), limit)
    if not query.strip():
        raise ToolFailed("say what to look for (query), or around which hit to read (around)")
    hits = await host.search(query, offset + limit + 1)
    shown = hits[offset : offset + limit]
    lines = [_hit_line(host, hit) for hit in shown]
    if not hits:
        return "nothing was found; try other words, fewer, or only the beginning of one"
    if not shown:
        return f"there are only {len(hits)} hits"
    what_next = "around reads more of one"
    if len(hits) > offset + limit:
        what_next = f"next offset {offset + limit}; {what_next}"
    return "\n".join([*lines, f"[{what_next}]"])


def _hit_line(host: ToolHost, hit: SearchHit) -> str:
    """`ID#7, Trip to Lyon (user, 2026-01-01): by train …`"""
    is_here = hit.session_id == host.session_id
    name = "this conversation" if is_here else one_line(hit.name)
    place = ", ".join(filter(None, (f"{hit.session_id}#{hit.seq}", name)))
    return f"{place} ({hit.role}, {hit.timestamp:%Y-%m-%d}): {one_line(hit.snippet)}"


async def _around(host: ToolHost, hit: str, limit: int) -> str:
    session_id, mark, number = hit.rpartition("#")
    if not mark or not re.fullmatch(r"\d{1,12}", number):
        raise ToolFailed("around is a hit, as ID#NUMBER")
    session_id = session_id or host.session_id
    messages = await host.messages_around(session_id, int(number), limit)
    if not messages:
        raise ToolFailed(f"there is no message {number} in {session_id[:80]}")
    room = SHOWN_BYTES_MAX // len(messages)
    lines: list[str] = []
    for message in messages:
        text = str(message.get("content") or "").strip()
        shown = text.encode()[:room].decode(errors="ignore")
        more = f" [… {len(text) - len(shown):,} more characters]" if len(shown) < len(text) else ""
        at = str(message.get("timestamp") or "")[:10]
        lines.append(f"#{message.get('seq')} ({message.get('role')}, {at}): {shown}{more}")
    return "\n".join(lines)


def builtin_tools(
    clock: Callable[[], datetime], roots: Sequence[Path], *, never: Sequence[Path] = ()
) -> tuple[Tool, ...]:
    """Always in this order: a provider's cache begins with the tools. Files are read
    under the roots, but not in the places that are never to be read."""
    others = typed_tool(sys_monitor), typed_tool(read_result), typed_tool(search_history)
    tools = (now_tool(clock), *others)
    if not roots:
        return tools
    return (*tools, *AllowedRoots(roots, never=never).tools())
