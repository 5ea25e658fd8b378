"""Several histories side by side, and what a history gives its conversations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import pytest
from tests.server.failing_store import FailingStore
from tests.server.services import Clock, make_services, model_of
from tests.storage.conversations import chat, file_bytes

from nplt_protocol.errors import RequestError
from nplt_protocol.messages import Prompt
from nplt_server.context.messages import ContextMessage, SystemMessage
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.errors import CannotServe, ConfigurationError
from nplt_server.histories import Histories, HistoryProfile, check_histories, open_histories
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece
from nplt_server.settings import Settings
from nplt_storage.errors import StorageUnavailable
from nplt_storage.memory import MemoryStore
from nplt_storage.rows import RowQuery
from nplt_storage.store import ConversationStore


class OpenSessions:
    def __init__(self, session_manager: SessionManager, histories: Histories) -> None:
        self.session_manager = session_manager
        self.histories = histories
        self.contexts: list[tuple[ContextMessage, ...]] = []

    async def begin(self, history: str | None, *prompts: str) -> Conversation:
        conversation = self.session_manager.new("local", history)
        for prompt in prompts:
            await conversation.accept(Prompt(text=prompt), receipt=lambda _: None)
            await conversation.activity.quiet()
        return conversation


@asynccontextmanager
async def opened_registry() -> AsyncIterator[OpenSessions]:
    received: list[tuple[ContextMessage, ...]] = []

    async def listening(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        received.append(tuple(request.context))
        yield TextPiece(text="yes")
        yield Stopped(reason="end")

    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(listening))
        clock = Clock()
        services.histories = Histories(
            [
                HistoryProfile(id="main", store=MemoryStore(clock)),
                HistoryProfile(
                    id="short",
                    store=MemoryStore(clock),
                    system_message="Answer briefly.",
                    turns_max=2,
                ),
            ]
        )
        here = OpenSessions(SessionManager(services), services.histories)
        here.contexts = received
        yield here
        tasks.cancel_scope.cancel()


async def test_a_conversation_is_kept_where_it_was_begun() -> None:
    async with opened_registry() as here:
        first = await here.begin(None, "one")
        second = await here.begin("short", "two")
        main, short = here.histories
        assert [row.session_id for row in (await main.store.list("local", RowQuery())).rows] == [
            first.session_id
        ]
        assert [row.session_id for row in (await short.store.list("local", RowQuery())).rows] == [
            second.session_id
        ]


async def test_a_list_shows_them_all_in_one_order_page_by_page() -> None:
    async with opened_registry() as here:
        begun = [
            (await here.begin("short" if number % 3 else None, f"prompt {number}")).session_id
            for number in range(7)
        ]
        met: list[str] = []
        query = RowQuery(limit=2)
        while True:
            page = await here.histories.list("local", query)
            assert len(page.rows) <= 2
            met += [row.session_id for row in page.rows]
            if page.next_cursor is None:
                break
            query = RowQuery(limit=2, cursor=page.next_cursor)
        assert met == begun[::-1]


async def test_a_conversation_is_found_by_name_and_prefix_wherever_it_is() -> None:
    async with opened_registry() as here:
        conversation = await here.begin("short", "hello there")
        await conversation.record.close()
        assert await here.session_manager.resolve("hello there", "local") == conversation.session_id
        with pytest.raises(RequestError):
            await here.session_manager.resolve("hello there", "somebody else")


async def test_its_system_message_is_the_first_thing_a_new_conversation_says_to_a_model() -> None:
    async with opened_registry() as here:
        conversation = await here.begin("short", "hello")
        assert here.contexts[-1][0] == SystemMessage(instruction="Answer briefly.")
        kinds = [entry.kind for entry in conversation.history.entries]
        assert kinds == ["system_instruction", "model_input", "model_output"]


async def test_a_model_is_shown_no_more_turns_than_the_history_says() -> None:
    async with opened_registry() as here:
        conversation = await here.begin("short", *(f"prompt {number}" for number in range(5)))
        # The instruction, the line that says so, two turns that ended, and the prompt itself.
        assert len(here.contexts[-1]) == 1 + 1 + 2 * 2 + 1
        assert conversation.history.message_count == 10


async def test_a_history_that_is_not_there_is_refused_with_those_that_are() -> None:
    async with opened_registry() as here:
        with pytest.raises(RequestError, match="main, short"):
            here.session_manager.new("local", "long")


def test_graph_history_describes_the_only_history() -> None:
    settings = Settings.model_validate(
        {"graph": {"entry": "chat", "history": {"max_turns": 10, "system_message": "Be kind."}}}
    )
    (only,) = settings.histories
    assert (only.backend.type, only.backend.turns_max, only.system_message) == (
        "json",
        10,
        "Be kind.",
    )


def test_histories_override_graph_history() -> None:
    settings = Settings.model_validate(
        {
            "graph": {"history": {"max_turns": 10}},
            "histories": [{"id": "short", "backend": {"type": "memory", "max_turns": 3}}],
        }
    )
    assert [history.id for history in settings.histories] == ["short"]


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        ({"type": "jsom"}, "json"),
        ({"type": "redis", "url": "redis://localhost", "tll": 3}, "ttl"),
        ({"type": "memory", "max_turns": 0}, "max_turns"),
        ({"type": "nowhere.to:Find"}, "nowhere"),
    ],
)
def test_a_mistake_in_a_backend_is_reported_with_its_place(
    backend: dict[str, object], sentence: str
) -> None:
    settings = Settings.model_validate({"histories": [{"id": "main", "backend": backend}]})
    with pytest.raises(ConfigurationError) as caught:
        check_histories(settings)
    (mistake,) = caught.value.mistakes
    assert mistake.startswith("histories.0.backend: ")
    assert sentence in mistake


async def test_two_histories_in_files_have_a_directory_each(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"data_dir": str(tmp_path), "histories": [{"id": "main"}, {"id": "second"}]}
    )
    histories = await open_histories(settings, Clock())
    try:
        for profile in histories:
            record = await profile.store.create("a" * 32, user="local")
            await record.close()
    finally:
        await histories.close()
    assert len(list((tmp_path / "history").glob("session_*.json"))) == 1
    assert len(list((tmp_path / "histories" / "second" / "history").glob("session_*.json"))) == 1


async def test_a_history_whose_directory_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data" / "histories").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / "histories" / "second").symlink_to(tmp_path / "elsewhere")
    settings = Settings.model_validate(
        {"data_dir": str(tmp_path / "data"), "histories": [{"id": "main"}, {"id": "second"}]}
    )
    with pytest.raises(CannotServe, match=r"second is a symbolic link, and is not followed$"):
        await open_histories(settings, Clock())
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("has_users", [False, True])
async def test_a_conversation_without_its_first_line_is_the_local_users_only_without_users(
    tmp_path: Path, has_users: bool
) -> None:
    users = [{"name": "ada", "token_sha256": "0" * 64}] if has_users else []
    settings = Settings.model_validate({"data_dir": str(tmp_path), "users": users})
    (tmp_path / "history").mkdir()
    lines = file_bytes(chat(2)).partition(b"\n")[2]
    (tmp_path / "history" / "session_20260102_s1.json").write_bytes(lines)
    histories = await open_histories(settings, Clock())
    try:
        assert await histories.count("local") == (0 if has_users else 1)
        assert await histories.count("ada") == 0
        found = await histories.find("s1")
        assert found is not None
        assert found.row.damaged
    finally:
        await histories.close()


async def test_a_history_that_can_not_be_opened_closes_those_before_it(tmp_path: Path) -> None:
    (tmp_path / "histories").write_text("in the way")
    settings = Settings.model_validate(
        {"data_dir": str(tmp_path), "histories": [{"id": "main"}, {"id": "second"}]}
    )
    with pytest.raises(CannotServe, match="second"):
        await open_histories(settings, Clock())
    alone = Settings.model_validate({"data_dir": str(tmp_path)})
    await (await open_histories(alone, Clock())).close()  # the lock was given back


async def test_an_unavailable_history_hides_only_its_own_conversations() -> None:
    well, down = MemoryStore(Clock()), FailingStore(MemoryStore(Clock()))
    record = await well.create("a" * 32, user="local")
    await record.close()
    histories = Histories(
        [
            HistoryProfile(id="down", store=cast(ConversationStore, down)),
            HistoryProfile(id="well", store=well),
        ]
    )
    down.is_down = True
    page = await histories.list("local", RowQuery())
    assert [row.session_id for row in page.rows] == ["a" * 32]
    alone = Histories([HistoryProfile(id="down", store=cast(ConversationStore, down))])
    with pytest.raises(StorageUnavailable):
        await alone.list("local", RowQuery())


async def test_a_conversation_that_could_not_be_stored_yet_stays_where_it_was_to_be_kept() -> None:
    async with opened_registry() as here:
        conversation = here.session_manager.new("local", "short")
        here.session_manager.left(conversation.session_id)
        again = await here.session_manager.get(conversation.session_id, "local")
        assert again.record.profile.id == "short"
