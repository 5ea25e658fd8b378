"""Undo, redo, edit and retry in a conversation where prompts were queued."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.server.conversations import Stage
from tests.server.services import Clock, make_services, model_of

from nplt_protocol.errors import RequestError
from nplt_protocol.messages import Prompt
from nplt_server.context.messages import ModelInputMessage
from nplt_server.conversations import operations
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece
from nplt_storage import PageQuery
from nplt_storage.entries import EpochEntry, SystemInstructionEntry
from nplt_storage.opening import StoreConfig, open_store
from nplt_storage.store import ConversationStore


class QueuedPrompts:
    """A conversation whose second prompt came while the first was answered."""

    def __init__(
        self, stage: Stage, store: ConversationStore, session_manager: SessionManager
    ) -> None:
        self.stage = stage
        self.conversation = stage.conversation
        self.store = store
        self.session_manager = session_manager
        self.requests: list[LlmRequest] = []

    async def shown(self) -> list[str]:
        page = await self.store.page(self.conversation.session_id, PageQuery(order="turns"))
        return [str(message["content"]) for message in page.messages]

    async def take_back(self, *turns: str) -> None:
        await operations.roll_back(self.conversation, turns=turns)

    async def redo(self) -> None:
        await operations.roll_back(self.conversation, redo=True)

    async def ask(self, text: str, *, replace_from: int | None = None) -> None:
        prompt = Prompt(text=text, replace_from=replace_from)
        await self.conversation.accept(prompt, receipt=lambda receipt: None)
        await self.conversation.activity.quiet()

    async def open_again(self) -> None:
        await self.session_manager.close_all()
        self.conversation = await self.session_manager.get(self.conversation.session_id, "local")


@asynccontextmanager
async def queued(folder: Path) -> AsyncIterator[QueuedPrompts]:
    gate = anyio.Event()
    requests: list[LlmRequest] = []

    async def answer(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        requests.append(request)
        await gate.wait()
        asked = [m.content for m in request.context if isinstance(m, ModelInputMessage)]
        yield TextPiece(text=f"{asked[-1]}!")
        yield Stopped(reason="end")

    store = await open_store(StoreConfig(), data_dir=folder, clock=Clock())
    async with anyio.create_task_group() as tasks:
        session_manager = SessionManager(make_services(tasks, model_of(answer), store=store))
        stage = Stage(session_manager.new("local"))
        play = QueuedPrompts(stage, store, session_manager)
        play.requests = requests
        await stage.prompt("one")
        await stage.prompt("two")
        with pytest.raises(RequestError, match="An answer is still running"):
            await play.redo()
        gate.set()
        await stage.conversation.activity.quiet()
        yield play
        await play.session_manager.close_all()
        tasks.cancel_scope.cancel()
    await store.close()


def turn_of(play: QueuedPrompts, text: str) -> str:
    entries = play.conversation.history.entries
    (turn_id,) = [e.turn_id for e in entries if getattr(e, "content", None) == text]
    return turn_id or ""


async def test_undo_keeps_the_answer_of_the_running_turn(tmp_path: Path) -> None:
    async with queued(tmp_path) as play:
        assert await play.shown() == ["one", "one!", "two", "two!"]
        await play.take_back(turn_of(play, "two"))
        assert await play.shown() == ["one", "one!"]
        await play.ask("three")
        asked = [m.content for m in play.requests[-1].context if isinstance(m, ModelInputMessage)]
        assert asked == ["one", "three"]
        epochs = [e for e in play.conversation.history.active if isinstance(e, EpochEntry)]
        assert [epoch.reason for epoch in epochs] == ["rollback"]


async def test_redo_brings_it_back_also_after_the_conversation_was_closed(tmp_path: Path) -> None:
    async with queued(tmp_path) as play:
        await play.take_back(turn_of(play, "two"))
        await play.take_back(turn_of(play, "one"))
        assert await play.shown() == []
        await play.open_again()
        await play.redo()
        assert await play.shown() == ["one", "one!"]
        await play.open_again()
        await play.redo()
        assert await play.shown() == ["one", "one!", "two", "two!"]
        with pytest.raises(RequestError, match="nothing to bring back") as refusal:
            await play.redo()
        assert refusal.value.code == "not_found"
        await play.ask("three")
        asked = [m.content for m in play.requests[-1].context if isinstance(m, ModelInputMessage)]
        assert asked == ["one", "two", "three"]


async def test_the_first_of_two_turns_can_be_rolled_back_alone(tmp_path: Path) -> None:
    async with queued(tmp_path) as play:
        await play.take_back(turn_of(play, "one"))
        assert await play.shown() == ["two", "two!"]
        await play.redo()
        assert await play.shown() == ["one", "one!", "two", "two!"]


@pytest.mark.parametrize("closed", [False, True])
async def test_an_edit_takes_its_turn_and_those_after_it_and_no_earlier_answer(
    tmp_path: Path, closed: bool
) -> None:
    async with queued(tmp_path) as play:
        await play.ask("three")
        if closed:
            await play.open_again()
        await play.ask("zwei", replace_from=2)
        assert await play.shown() == ["one", "one!", "zwei", "zwei!"]
        asked = [m.content for m in play.requests[-1].context if isinstance(m, ModelInputMessage)]
        assert asked == ["one", "zwei"]


async def test_settings_changed_meanwhile_are_not_rolled_back_with_a_turn(tmp_path: Path) -> None:
    async with queued(tmp_path) as play:
        instruction = SystemInstructionEntry(content="be brief")
        await play.conversation.append_entry(instruction)
        await play.take_back(turn_of(play, "two"))
        assert play.conversation.history.system_instruction == "be brief"


async def test_a_rollback_of_an_unknown_turn_is_refused(tmp_path: Path) -> None:
    async with queued(tmp_path) as play:
        with pytest.raises(RequestError, match="no turn t9") as refusal:
            await play.take_back("t9")
        assert (refusal.value.code, refusal.value.field) == ("not_found", "turns")
