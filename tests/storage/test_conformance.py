"""Every store of the house keeps the same rules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from tests.storage.store_makers import FilesMaker, MemoryMaker, RedisMaker, SharedMemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage.testing import StoreConformance, StoreMaker


class TestMemory(StoreConformance):
    @pytest.fixture
    def maker(self) -> StoreMaker:
        return MemoryMaker()


class TestSharedMemory(StoreConformance):
    @pytest.fixture
    def maker(self) -> StoreMaker:
        return SharedMemoryMaker()


class TestFiles(StoreConformance):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> StoreMaker:
        return FilesMaker(tmp_path)


class TestRedis(StoreConformance):
    @pytest.fixture
    def maker(self, redis_server: RedisServer) -> StoreMaker:
        return RedisMaker(redis_server)


def test_the_rules_need_no_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("nplt_storage.testing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytest", None)
    testing = importlib.import_module("nplt_storage.testing")
    assert testing.RULES
