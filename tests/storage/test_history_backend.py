"""A history backend of three methods, as the memos describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from nplt_storage.entries import ClearEntry, ModelInputEntry, ModelOutputEntry
from nplt_storage.errors import ConversationNotFound, StorageError
from nplt_storage.opening import BadStoreConfig, StoreConfig, check_config, open_store
from nplt_storage.pages import PageQuery
from nplt_storage.store import ConversationStore

NOW = datetime(2026, 11, 17, tzinfo=UTC)
KEPT: dict[str, list[dict[str, str]]] = {}


class ListBackend:
    settings: Mapping[str, object] = {}

    def __init__(self, settings: Mapping[str, object]) -> None:
        type(self).settings = settings

    async def get_history(self, session_id: str) -> Sequence[Mapping[str, str]]:
        return KEPT.get(session_id, [])

    async def append_message(self, session_id: str, role: str, content: str) -> None:
        if content == "refuse this":
            raise OSError("the disk is full")
        KEPT.setdefault(session_id, []).append({"role": role, "content": content})

    async def clear_history(self, session_id: str) -> None:
        KEPT.pop(session_id, None)


class RefusesToClear(ListBackend):
    async def clear_history(self, session_id: str) -> None:
        raise OSError("the disk is full")


class Bare(ListBackend):
    def __init__(self) -> None:
        pass


class Forgetful:
    async def get_history(self, session_id: str) -> Sequence[Mapping[str, str]]:
        return []


class Blocking(ListBackend):
    def clear_history(self, session_id: str) -> None:  # type: ignore[override]
        pass


class WithoutId(ListBackend):
    async def get_history(self) -> Sequence[Mapping[str, str]]:  # type: ignore[override]
        return []


@pytest.fixture(autouse=True)
def _empty() -> None:
    KEPT.clear()


async def opened(name: str = "ListBackend", system_message: str | None = None) -> ConversationStore:
    config = StoreConfig(type=f"{__name__}:{name}", options={"table": "talks"})
    return await open_store(
        config, data_dir=Path("unused"), clock=lambda: NOW, system_message=system_message
    )


def prompt(seq: int, text: str) -> ModelInputEntry:
    return ModelInputEntry(seq=seq, id=f"e{seq}", timestamp=NOW, turn_id=f"t{seq}", content=text)


def answer(seq: int, text: str, *, to: int | None = None) -> ModelOutputEntry:
    turn_id = f"t{to or seq - 1}"
    return ModelOutputEntry(seq=seq, id=f"e{seq}", timestamp=NOW, turn_id=turn_id, content=text)


async def test_it_is_made_with_its_settings_as_one_mapping() -> None:
    await opened()
    assert ListBackend.settings == {"type": f"{__name__}:ListBackend", "table": "talks"}
    await opened("Bare")


async def test_messages_reach_the_backend_before_they_count_as_stored() -> None:
    store = await opened()
    record = await store.create("user_123", user="local")
    await record.append(prompt(1, "hello"))
    assert KEPT["user_123"] == [{"role": "user", "content": "hello"}]
    await record.append(answer(2, "good day"))
    assert KEPT["user_123"][1] == {"role": "assistant", "content": "good day"}


async def test_what_the_backend_refuses_is_not_stored() -> None:
    store = await opened()
    record = await store.create("user_123", user="local")
    with pytest.raises(StorageError, match="append_message failed: OSError: the disk is full"):
        await record.append(prompt(1, "refuse this"))
    assert (await record.append(prompt(1, "this one"))).head_seq == 1


async def test_a_conversation_that_only_the_backend_knows_is_opened_by_its_id() -> None:
    KEPT["user_123"] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "good day"},
    ]
    store = await opened()
    row = await store.row("user_123")
    assert row is not None
    assert (row.message_count, row.user) == (2, "local")
    found = await store.open("user_123")
    assert found.history.head_seq == 2
    page = await store.page("user_123", PageQuery(limit=10))
    assert [message["content"] for message in page.messages] == ["hello", "good day"]
    assert await store.row("user_124") is None
    with pytest.raises(ConversationNotFound):
        await store.open("user_124")


async def test_what_the_backend_can_not_hold_is_there_again_when_it_is_read() -> None:
    KEPT["user_123"] = [{"role": "user", "content": "hello"}]
    store = await opened(system_message="Be brief.")
    found = await store.open("user_123")
    assert found.history.system_instruction == "Be brief."
    assert {entry.timestamp for entry in found.history.entries} == {NOW}
    assert KEPT["user_123"] == [{"role": "user", "content": "hello"}]


async def test_a_clear_clears_the_backend() -> None:
    store = await opened()
    record = await store.create("user_123", user="local")
    await record.append(prompt(1, "hello"))
    await record.append(answer(2, "good day"))
    await record.append(ClearEntry(seq=3, id="e3", timestamp=NOW))
    assert KEPT.get("user_123", []) == []
    await record.append(prompt(4, "again"))
    assert KEPT["user_123"] == [{"role": "user", "content": "again"}]


async def test_a_rollback_leaves_the_messages_that_count() -> None:
    store = await opened()
    record = await store.create("user_123", user="local")
    for entry in (prompt(1, "one"), answer(2, "two"), prompt(3, "three"), answer(4, "four")):
        await record.append(entry)
    await record.close()
    found = await store.open("user_123")
    back = replace(found.history.rollback_to(2), seq=5, id="e5", timestamp=NOW)
    await found.record.append(back)
    assert [message["content"] for message in KEPT["user_123"]] == ["one", "two"]


async def test_after_a_rollback_each_prompt_stands_before_its_answer() -> None:
    store = await opened()
    record = await store.create("user_123", user="local")
    queued = (prompt(1, "one"), prompt(2, "two"), answer(3, "1", to=1), answer(4, "2", to=2))
    for entry in (*queued, prompt(5, "three"), answer(6, "3")):
        await record.append(entry)
    await record.close()
    found = await store.open("user_123")
    back = replace(found.history.rollback_to(4), seq=7, id="e7", timestamp=NOW)
    await found.record.append(back)
    assert [message["content"] for message in KEPT["user_123"]] == ["one", "1", "two", "2"]


async def test_deleting_clears_and_undeleting_brings_back() -> None:
    store = await opened()
    record = await store.create("user_123", user="local")
    await record.append(prompt(1, "hello"))
    await record.close()
    await store.delete("user_123")
    assert "user_123" not in KEPT
    assert await store.row("user_123") is None
    await store.undelete("user_123")
    assert KEPT["user_123"] == [{"role": "user", "content": "hello"}]


async def test_a_failing_clear_history_leaves_the_conversation_out_of_the_trash() -> None:
    store = await opened("RefusesToClear")
    record = await store.create("user_123", user="local")
    await record.append(prompt(1, "hello"))
    await record.close()
    with pytest.raises(StorageError, match="clear_history failed: OSError: the disk is full"):
        await store.delete("user_123")
    assert await store.trash("local") == []
    assert (await store.open("user_123")).history.head_seq == 1
    assert KEPT["user_123"] == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("Forgetful", "lacks append_message and clear_history"),
        ("Blocking", "must have `async def` before clear_history"),
        ("WithoutId", r"must have get_history\(self, session_id\)"),
    ],
)
def test_a_backend_class_without_a_required_method_is_refused_at_the_start(
    name: str, wrong: str
) -> None:
    with pytest.raises(BadStoreConfig, match=wrong):
        check_config(StoreConfig(type=f"{__name__}:{name}"))
