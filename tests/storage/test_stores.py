"""Both stores keep the same contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.storage.conversations import ticking_clock
from tests.storage.store_contract import CONTRACT, Check

from nplt_storage.json_files import JsonFileStore
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore


@pytest.fixture(params=["memory", "json"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ConversationStore]:
    made: ConversationStore
    if request.param == "memory":
        made = MemoryStore(ticking_clock())
    else:
        made = await JsonFileStore.open_directory(tmp_path / "data", clock=ticking_clock())
    yield made
    await made.close()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_of_every_store(store: ConversationStore, check: Check) -> None:
    await check(store)
