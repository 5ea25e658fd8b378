"""The store of JSON files keeps the rules every store keeps."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from nplt_storage.files.store import JsonFileStore
from nplt_storage.store import ConversationStore
from nplt_storage.testing import Ability, StoreConformance, StoreMaker


class JsonMaker(StoreMaker):
    """What a process leaves that dies is what is in its files at that moment."""

    can: ClassVar[frozenset[Ability]] = frozenset({"last", "crash"})

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._lives = (directory / f"life-{number}" for number in count(1))
        self._data_dir = next(self._lives)

    async def open_store(
        self, *, max_turns: int | None = None, ttl_seconds: int | None = None
    ) -> ConversationStore:
        return await JsonFileStore.open_directory(self._data_dir, clock=self.clock)

    async def end(self, store: ConversationStore) -> None:
        left, self._data_dir = self._data_dir, next(self._lives)
        shutil.copytree(left, self._data_dir)
        await store.close()


class TestJsonFiles(StoreConformance):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> StoreMaker:
        return JsonMaker(tmp_path)
