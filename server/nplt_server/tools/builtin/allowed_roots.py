"""Directories that file tools may look into, and the one way to open what is there.

A path is first followed to where it really leads; anywhere else than under a
root it is refused, and in the same words whether something is there or not.
Then it is opened from the root downward, a directory at a time, and no link is
followed any more: whoever puts one in the way meanwhile gets an error, not a
file from elsewhere. What is open must be a plain file or a directory; a FIFO
or a device is never waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os.path import realpath
from pathlib import Path, PurePath
from typing import Final

from nplt_server.tools.base import Tool, ToolFailed

_NEVER: Final = tuple(map(PurePath, ("/proc", "/sys", "/dev")))
"""Whatever the roots are: here the process itself could be read, its secrets too."""

_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_PATH_CHARACTERS_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPath:
    path: PurePath
    """Where it really is."""
    descriptor: int
    size: int
    is_directory: bool


class AllowedRoots:
    def __init__(self, roots: Sequence[Path], *, never: Sequence[Path] = ()) -> None:
        """`never`: what is in there is refused, whichever way one gets there."""
        self._roots = tuple(roots)
        self._never = tuple(never)

    @property
    def roots(self) -> tuple[Path, ...]:
        return self._roots

    @contextmanager
    def open(self, path: str) -> Iterator[OpenPath]:
        """Absolute, or relative to a root: the first one where there is such a thing."""
        candidates = [root / path for root in self._roots]
        failure: ToolFailed | None = None
        for candidate in dict.fromkeys(candidates):
            try:
                opened = self._open(candidate, path)
            except ToolFailed as failed:
                failure = failure or failed
                continue
            try:
                yield opened
            finally:
                os.close(opened.descriptor)
            return
        raise failure or ToolFailed("no directory is open to you")

    def _open(self, candidate: Path, asked: str) -> OpenPath:
        shown = repr(asked[:_PATH_CHARACTERS_SHOWN])
        try:
            real = PurePath(realpath(candidate))
            root = self._root_of(real)
            if root is None:
                raise ToolFailed(f"{shown} is outside of the directories that are open to you")
            descriptor = _open_below(root, real.relative_to(root).parts)
        except ValueError:  # a NUL, half a character
            raise ToolFailed(f"{shown} is not a path") from None
        except OSError as error:
            raise ToolFailed(f"{shown}: {_in_words(error)}") from None
        return _checked(descriptor, real, shown)

    def _root_of(self, real: PurePath) -> PurePath | None:
        # Asked anew each time: what leads where may change.
        never = (*_NEVER, *(PurePath(realpath(place)) for place in self._never))
        if any(real.is_relative_to(place) for place in never):
            return None
        roots = (PurePath(realpath(root)) for root in self._roots)
        return next((root for root in roots if real.is_relative_to(root)), None)


def naming_roots(tool: Tool, allowed: AllowedRoots) -> Tool:
    """The same, and its description says where it may look."""
    places = ", ".join(map(str, allowed.roots))
    words = f"{tool.description.description} Open to you: {places}"
    return replace(tool, description=replace(tool.description, description=words))


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
    """To open a device can do something already."""
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a link")
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.ENXIO, "special")


def _checked(descriptor: int, path: PurePath, shown: str) -> OpenPath:
    try:
        status = os.fstat(descriptor)
        _must_be_plain(status)
    except OSError as error:
        os.close(descriptor)
        raise ToolFailed(f"{shown}: {_in_words(error)}") from None
    return OpenPath(
        path=path,
        descriptor=descriptor,
        size=status.st_size,
        is_directory=stat.S_ISDIR(status.st_mode),
    )


def _in_words(error: OSError) -> str:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return "there is no such file or directory"
        case errno.ELOOP:
            return "links lead in a circle, or changed just now"
        case errno.EACCES | errno.EPERM:
            return "the server may not read it"
        case errno.ENXIO:
            return "neither a file nor a directory"
        case errno.ENAMETOOLONG:
            return "the name is too long"
        case _:
            return "it can't be read"
