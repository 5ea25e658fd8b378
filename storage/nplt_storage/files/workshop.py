"""The data directory in use: its lock, the catalogue, the threads that work for it.

Opening takes the lock, sweeps up after a crash and brings the catalogue up to
date with the files; where that is much to read, while others are served already.
What is shared by the store and its records is here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from nplt_storage.catalogue.catalogue import Catalogue
from nplt_storage.catalogue.learned import Learned
from nplt_storage.data_directory import DataDirectory
from nplt_storage.errors import StorageError
from nplt_storage.files.commit_threads import CommitThreads
from nplt_storage.files.disk import Disk, SystemDisk
from nplt_storage.files.durability import Durability, SyncLater
from nplt_storage.files.free_space import FREE_BYTES_MIN, FreeSpace
from nplt_storage.files.indexing import DoesNotFollow
from nplt_storage.files.starting import Shelf
from nplt_storage.files.threads import DiskThreads
from nplt_storage.files.trash import Trash
from nplt_storage.ids import new_entry_id

log = logging.getLogger(__name__)

CATALOGUE_NAME: Final = "catalog.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    durability: Durability = field(default_factory=Durability)
    free_bytes_min: int = FREE_BYTES_MIN
    max_turns: int | None = None
    """Models are shown that many turns; everything is kept."""
    read_before_serving_bytes: int = 2 * 1024 * 1024
    """More than that, if the catalogue does not know it, is read meanwhile."""
    disk: Disk = field(default_factory=SystemDisk)
    new_id: Callable[[], str] = new_entry_id
    seconds: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    directory: DataDirectory
    settings: FileSettings
    threads: DiskThreads
    commits: CommitThreads
    sync_later: SyncLater | None
    space: FreeSpace
    catalogue: Catalogue
    shelf: Shelf
    trash: Trash
    names: dict[str, str] = field(default_factory=dict)
    """Of the files that are there, by id."""
    damage: dict[str, str]
    """What is wrong with those that can't be used, by id."""
    catching_up: list[asyncio.Task[None]] = field(default_factory=list)
    """The reading that goes on while others are served already, if any."""

    @property
    def disk(self) -> Disk:
        return self.settings.disk

    @property
    def syncs_at_once(self) -> bool:
        return self.sync_later is None

    async def learn(self, pieces: Iterator[Learned]) -> None:
        """Takes files into the catalogue, reading in a worker thread."""
        while (piece := await self.threads.read(lambda: next(pieces, None))) is not None:
            await self.catalogue.learn(piece)

    async def close(self) -> None:
        for task in self.catching_up:
            task.cancel()  # the next start goes on with it
        self.commits.close()
        await self.catalogue.close()
        await anyio.to_thread.run_sync(self.directory.give_back)


async def open_workshop(data_dir: Path, settings: FileSettings, *, now: datetime) -> Workshop:
    directory = DataDirectory(data_dir)
    await anyio.to_thread.run_sync(directory.take)
    try:
        return await _furnish(directory, settings, now=now)
    except BaseException:
        directory.give_back()
        raise


async def _furnish(directory: DataDirectory, settings: FileSettings, *, now: datetime) -> Workshop:
    disk, threads, commits = settings.disk, DiskThreads(), CommitThreads()
    damage: dict[str, str] = {}
    trash = Trash(disk, directory)
    shelf = Shelf(disk, directory.history, new_id=settings.new_id, damaged=damage.__setitem__)

    def tidy() -> Catalogue:
        trash.finish(shelf.sweep())
        trash.empty(now)
        return Catalogue.open(directory.path / CATALOGUE_NAME, survey=shelf.changes)

    catalogue = await threads.write(tidy)
    workshop = Workshop(
        directory=directory,
        settings=settings,
        threads=threads,
        commits=commits,
        sync_later=settings.durability.sync_later(commits),
        space=FreeSpace(
            disk,
            directory.path,
            bytes_min=settings.free_bytes_min,
            threads=commits,
            seconds=settings.seconds,
        ),
        catalogue=catalogue,
        shelf=shelf,
        trash=trash,
        damage=damage,
    )
    try:
        await _catch_up(workshop)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await catalogue.close()
        raise
    return workshop


async def _catch_up(workshop: Workshop) -> None:
    catalogue, shelf = workshop.catalogue, workshop.shelf
    known = await catalogue.stamps()
    to_do = await workshop.threads.read(lambda: shelf.to_do(known))
    workshop.names.update(to_do.names)
    followed = [await _read_on(workshop, session_id) for session_id in to_do.grown]
    if to_do.is_all and not to_do.unknown and all(followed):
        return
    if to_do.bytes_unknown <= workshop.settings.read_before_serving_bytes:
        await catalogue.catch_up()
    else:
        log.warning("lists are not complete until %d MB were read", to_do.bytes_unknown // 10**6)
        shelf.order.begin(to_do.unknown)
        workshop.catching_up.append(asyncio.create_task(_in_background(workshop)))


async def _read_on(workshop: Workshop, session_id: str) -> bool:
    """Whether what was written since simply follows what is known."""
    then = await workshop.catalogue.known(session_id)
    if then is None:
        return False
    row, stamp = then
    reading = workshop.shelf.reading(session_id, stamp.file.name, stamp)
    try:
        await workshop.learn(reading.onward(row))
    except DoesNotFollow:
        log.info("%s was changed by someone else: it is read anew", stamp.file.name)
        return False
    return True


async def _in_background(workshop: Workshop) -> None:
    try:
        await workshop.catalogue.catch_up()
        log.info("lists are complete")
    except StorageError:
        log.exception("lists are not complete: the files can't be read")
    finally:
        workshop.shelf.order.begin(())  # nobody waits for what nobody reads
