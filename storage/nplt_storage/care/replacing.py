"""Putting a repaired file in the place of the damaged one, the original kept aside.

The order is what makes it safe: the original gets a second name, on disk for
good, before anything else happens; then the repaired file is written beside it,
synced, and takes the first name in one step. Whenever it ends in between, every
byte that was there is there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

from nplt_storage.care.repairing import Repair
from nplt_storage.data_directory import sync_directory
from nplt_storage.errors import DataDirectoryInUse, StorageUnavailable
from nplt_storage.file_operations import PRIVATE_FILE

_COPY_BYTES: Final = 1024 * 1024
_NO_SECOND_NAME: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def nobody_else_uses(data_dir: Path) -> Iterator[None]:
    """Holds the directory's lock, if it has one, and touches nothing in it. Raises
    `StorageError`."""
    try:
        lock = os.open(data_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except NotADirectoryError as error:
        raise StorageUnavailable(f"{data_dir} is no data directory: it is a file") from error
    except OSError as error:
        raise StorageUnavailable(
            f"it can't be told whether {data_dir} is in use: {error.strerror} (lock)"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataDirectoryInUse(data_dir) from error
        yield
    finally:
        os.close(lock)


def apply_repair(path: Path, repair: Repair) -> Path:
    """Gives the name under which the original is kept."""
    with path.open("rb") as original:
        os.fsync(original.fileno())
        aside = _keep_aside(path, original)
        beside = path.with_name(f".{path.name}.new")
        beside.unlink(missing_ok=True)  # left by a crash
        try:
            with _new_file(beside) as made:
                made.write(repair.header)
                _copy(original, made, repair.first, repair.through)
                made.write(repair.added)
                made.flush()
                os.fsync(made.fileno())
            beside.rename(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)
    return aside


def _keep_aside(path: Path, original: BinaryIO) -> Path:
    for number in count(1):
        aside = path.with_name(f"{path.name}.before-repair-{number}")
        try:
            # The very same file under a second name: no byte of it is written again.
            aside.hardlink_to(path)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in _NO_SECOND_NAME:
                raise
            _copy_whole(original, aside)
        sync_directory(path.parent)
        return aside
    raise AssertionError


def _copy_whole(original: BinaryIO, target: Path) -> None:
    original.seek(0)
    with _new_file(target) as made:
        shutil.copyfileobj(original, made, _COPY_BYTES)
        made.flush()
        os.fsync(made.fileno())


def _copy(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    source.seek(start)
    while start < end:
        block = source.read(min(_COPY_BYTES, end - start))
        if not block:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        target.write(block)
        start += len(block)


def _new_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb")
