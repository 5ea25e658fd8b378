"""How the tests get at stores of each kind."""

from __future__ import annotations

import shutil
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import ClassVar

from tests.support.redis_server import RedisClusterServers, RedisServer

from nplt_storage import ConversationStore, JsonFileStore, MemoryStore, RedisStore
from nplt_storage.memory import StoredConversation
from nplt_storage.testing import Ability, StoreMaker

prefixes = count()


class MemoryMaker(StoreMaker):
    async def open_store(
        self, *, max_turns: int | None = None, ttl_seconds: int | None = None
    ) -> ConversationStore:
        return MemoryStore(self.clock)


class SharedMemoryMaker(StoreMaker):
    """Memory that outlives its stores: to try out the rules about several of them."""

    can: ClassVar[frozenset[Ability]] = frozenset({"last", "crash", "share"})

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, StoredConversation] = {}
        self.trash: dict[str, tuple[datetime, StoredConversation]] = {}

    async def open_store(
        self, *, max_turns: int | None = None, ttl_seconds: int | None = None
    ) -> ConversationStore:
        store = MemoryStore(self.clock)
        store._conversations, store._trash = self.kept, self.trash
        return store

    async def end(self, store: ConversationStore) -> None:
        for kept in self.kept.values():
            kept.writer = None


class FilesMaker(StoreMaker):
    """What a dead process leaves is what is in its files at that moment."""

    can: ClassVar[frozenset[Ability]] = frozenset({"last", "crash"})

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directories = (directory / f"data{number}" for number in count())
        self._data_dir = next(self._directories)

    async def open_store(
        self, *, max_turns: int | None = None, ttl_seconds: int | None = None
    ) -> ConversationStore:
        return await JsonFileStore.open_directory(self._data_dir, clock=self.clock)

    async def end(self, store: ConversationStore) -> None:
        left_behind = next(self._directories)
        shutil.copytree(self._data_dir, left_behind)
        await store.close()
        self._data_dir = left_behind


class RedisMaker(StoreMaker):
    """The process that dies is Redis; `test_redis_processes` kills the one that writes."""

    can: ClassVar[frozenset[Ability]] = frozenset({"last", "crash", "share", "trim", "expire"})

    def __init__(self, server: RedisServer | RedisClusterServers) -> None:
        super().__init__()
        self._server = server
        self._prefix = f"test{next(prefixes)}:"

    async def open_store(
        self, *, max_turns: int | None = None, ttl_seconds: int | None = None
    ) -> ConversationStore:
        return await RedisStore.open_url(
            self._server.url,
            clock=self.clock,
            key_prefix=self._prefix,
            max_turns=max_turns,
            ttl_seconds=ttl_seconds,
        )

    async def end(self, store: ConversationStore) -> None:
        self._server.restart()
        await store.close()

    async def pass_time(self, seconds: int) -> None:
        self._server.pass_time(seconds, prefix=self._prefix)
