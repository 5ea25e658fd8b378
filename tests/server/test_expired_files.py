"""A server's files of conversations that have expired are removed."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.redis_server import RedisServer

from nplt_server.histories import Histories, HistoryFiles, HistoryProfile
from nplt_server.settings import Settings
from nplt_storage import RedisStore, StorageUnavailable
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.testing.rules import ticking_clock

TTL_SECONDS = 1000
OLD = time.time() - 2 * TTL_SECONDS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open_url(server.url, clock=ticking_clock(), ttl_seconds=TTL_SECONDS)
    yield store
    await store.close()


@pytest.fixture
def kept(store: RedisStore, server: RedisServer) -> HistoryFiles:
    backend = {"type": "redis", "url": server.url, "ttl": TTL_SECONDS}
    settings = Settings.model_validate({"histories": [{"id": "team", "backend": backend}]})
    return HistoryFiles(Histories([HistoryProfile(id="team", store=store)]), settings)


@pytest.fixture
def files(tmp_path: Path) -> AttachmentFiles:
    return AttachmentFiles(tmp_path / "files")


async def upload(files: AttachmentFiles, session_id: str, *, at: float = OLD) -> Path:
    async with files.receive(session_id, size=4) as upload:
        await upload.write(b"data")
        await upload.finish()
    folder = files.directory / session_id
    os.utime(folder, (at, at))
    return folder


async def test_files_of_an_expired_conversation_are_removed_and_no_others(
    store: RedisStore, server: RedisServer, kept: HistoryFiles, files: AttachmentFiles
) -> None:
    for session_id in ("expired", "used", "deleted"):
        await store.create(session_id, user="ada")
    await store.delete("deleted")
    expired, used, deleted = [
        await upload(files, session_id) for session_id in ("expired", "used", "deleted")
    ]
    recent = await upload(files, "recent", at=time.time())  # its conversation is about to appear
    await kept.remove_expired(files)
    assert expired.exists()
    server.pass_time(TTL_SECONDS, prefix="nplt:{expired}")
    await kept.remove_expired(files)
    assert [each.exists() for each in (expired, used, deleted, recent)] == [False, True, True, True]


async def test_no_file_is_removed_while_redis_is_away(
    server: RedisServer, kept: HistoryFiles, files: AttachmentFiles
) -> None:
    folder = await upload(files, "s1")
    server.kill()
    with pytest.raises(StorageUnavailable):
        await kept.remove_expired(files)
    assert folder.exists()
