"""Opened, closed, deleted and picked up again, also on slow and full disks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import pytest
from msgspec.structs import replace
from tests.server.failing_store import FailingStore
from tests.server.services import Clock, EventRecorder, echo_or_wait, make_services

from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.errors import RequestError
from nplt_protocol.messages import (
    FileData,
    FileMetadata,
    FileStored,
    Prompt,
    Receipt,
    Reply,
    SessionEvent,
    TurnFinished,
    TurnStarted,
)
from nplt_server.connections.uploads import Uploads
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.operations import find_or_create, switch_model
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.dialects import PendingReply, Presenter
from nplt_server.providers.offline import ScriptedProvider
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.errors import StorageUnavailable, WrittenElsewhere
from nplt_storage.memory import MemoryStore
from nplt_storage.rows import ConversationRow, RowPage, RowQuery
from nplt_storage.store import ConversationStore


class OpenSessions:
    def __init__(self, session_manager: SessionManager, store: FailingStore) -> None:
        self.session_manager = session_manager
        self.store = store

    async def begin(self, *prompts: str) -> Conversation:
        conversation = self.session_manager.new("local")
        for prompt in prompts:
            await say(conversation, prompt)
        await conversation.activity.quiet()
        return conversation

    async def open_again(self, conversation: Conversation) -> Conversation:
        """As after a restart: nothing of it is left in memory."""
        await conversation.record.close()
        del self.session_manager._open[conversation.session_id]
        return await self.session_manager.get(conversation.session_id, "local")


@asynccontextmanager
async def opened_registry() -> AsyncIterator[OpenSessions]:
    async with anyio.create_task_group() as tasks:
        store = FailingStore(MemoryStore(Clock()))
        provider = ScriptedProvider(echo_or_wait, provider_id="test", models=("model", "other"))
        services = make_services(tasks, provider, store=cast(ConversationStore, store))
        yield OpenSessions(SessionManager(services), store)
        tasks.cancel_scope.cancel()


async def shut_down(conversation: Conversation) -> None:
    """What a server does with a conversation when it stops."""
    conversation.services.draining = True
    conversation.interrupt("shutting down")
    await conversation.activity.quiet()
    await conversation.queue.note_shutdown()
    conversation.services.draining = False


async def say(conversation: Conversation, text: str, message_id: str | None = None) -> Receipt:
    receipts: list[Receipt] = []
    prompt = Prompt(text=text, message_id=message_id)
    await conversation.accept(prompt, receipt=receipts.append)
    return receipts[0]


def listen(conversation: Conversation) -> EventRecorder:
    ear = EventRecorder()
    conversation.broadcast.join(ear)
    return ear


async def test_a_conversation_that_is_being_closed_can_be_attached_to() -> None:
    async with opened_registry() as here, anyio.create_task_group() as tasks:
        conversation = await here.begin("hello")
        conversation.record.used_at -= 100
        here.store.close_seconds = 0.05
        tasks.start_soon(here.session_manager.close_unused)
        await anyio.sleep(0.01)
        again = await here.session_manager.get(conversation.session_id, "local")
        assert again is not conversation
        await say(again, "still here")


async def test_too_many_unused_conversations_are_evicted_early() -> None:
    async with opened_registry() as here:
        for number in range(200):
            await here.begin(f"number {number}")
        await here.session_manager.make_room()
        assert len(list(here.session_manager)) <= 128


async def test_a_conversation_without_messages_is_not_stored() -> None:
    async with opened_registry() as here:
        conversation = here.session_manager.new("local")
        here.session_manager.left(conversation.session_id)
        assert list(here.session_manager) == []
        again = await here.session_manager.get(conversation.session_id, "local")
        await say(again, "but its id is still mine")


async def test_unknown_ids_leave_nothing_behind() -> None:
    async with opened_registry() as here:
        for number in range(10):
            with pytest.raises(RequestError):
                await here.session_manager.get(f"nobody{number}", "local")
        assert here.session_manager._locks == {}


async def test_recovery_interrupts_the_running_turn_and_runs_queued_prompts() -> None:
    async with opened_registry() as here:
        conversation = here.session_manager.new("local")
        first = await say(conversation, "wait")
        second = await say(conversation, "I waited")
        again = await here.open_again(conversation)
        await again.activity.quiet()
        assert again.history.turn_state(first.turn_id) == "interrupted"
        assert again.history.turn_state(second.turn_id) == "completed"


async def test_a_shutdown_note_lets_queued_prompts_run_after_a_restart() -> None:
    async with opened_registry() as here:
        conversation = here.session_manager.new("local")
        running = await say(conversation, "wait")
        waiting = await say(conversation, "I waited")
        await shut_down(conversation)
        again = await here.open_again(conversation)
        await again.activity.quiet()
        assert again.history.turn_state(running.turn_id) == "interrupted"
        assert again.history.turn_state(waiting.turn_id) == "completed"


async def test_a_prompt_during_recovery_is_queued_behind_the_older_ones() -> None:
    async with opened_registry() as here, anyio.create_task_group() as tasks:
        conversation = here.session_manager.new("local")
        await say(conversation, "wait")
        older = await say(conversation, "older")
        await conversation.record.close()
        del here.session_manager._open[conversation.session_id]
        here.store.append_seconds = 0.02
        ears: list[EventRecorder] = []

        async def come() -> None:
            opened = await here.session_manager.get(conversation.session_id, "local")
            ears.append(listen(opened))
            await say(opened, "newer")

        tasks.start_soon(come)
        await anyio.sleep(0.005)
        await come()
        (opened,) = here.session_manager
        await opened.activity.quiet()
        for ear in ears:
            started = [event.turn_id for event in ear.received if isinstance(event, TurnStarted)]
            assert older.turn_id not in started[1:]
        assert opened.history.turn_state(older.turn_id) == "completed"


async def test_a_full_disk_refuses_the_prompt_and_writing_resumes_with_room() -> None:
    async with opened_registry() as here:
        conversation = await here.begin("hello")
        here.store.full_for = ("model_input",)
        with pytest.raises(StorageUnavailable):
            await say(conversation, "no room")
        here.store.full_for = ()
        await say(conversation, "room again")
        await conversation.activity.quiet()
        assert conversation.history.message_count == 4


async def test_a_turn_sent_as_failed_is_never_run_again() -> None:
    async with opened_registry() as here:
        conversation = await here.begin("hello")
        ear = listen(conversation)
        here.store.full_for = ("model_output", "fault")
        receipt = await say(conversation, "no room for the answer", "m1")
        await conversation.activity.quiet()
        (finished,) = [e for e in ear.received if isinstance(e, TurnFinished)]
        assert (finished.turn_id, finished.state) == (receipt.turn_id, "failed")
        assert conversation.is_busy, "the record owes it its end, so it is not closed"
        here.store.full_for = ()
        await say(conversation, "room again")
        assert (await say(conversation, "no room for the answer", "m1")).state == "failed"
        again = await here.open_again(conversation)
        await again.activity.quiet()
        assert again.history.turn_state(receipt.turn_id) == "failed"


async def test_a_delete_cancels_a_prompt_that_is_being_written() -> None:
    async with opened_registry() as here, anyio.create_task_group() as tasks:
        conversation = await here.begin("hello")
        here.store.append_seconds = 0.02
        tasks.start_soon(say, conversation, "wait")
        await anyio.sleep(0.005)
        with anyio.fail_after(60):
            await here.session_manager.delete(conversation.session_id, "local")
        assert await here.store.count("local") == 0


async def test_a_delete_that_fails_leaves_everything_as_it_was() -> None:
    async with opened_registry() as here:
        conversation = await here.begin("hello")
        ear = listen(conversation)
        here.store.delete_fails = True
        with pytest.raises(StorageUnavailable):
            await here.session_manager.delete(conversation.session_id, "local")
        assert not any(isinstance(event, SessionEvent) for event in ear.received)
        await say(conversation, "still here")
        here.store.delete_fails = False
        await here.session_manager.delete(conversation.session_id, "local")
        assert any(isinstance(event, SessionEvent) for event in ear.received)


async def test_an_upload_outlives_the_closing_of_its_conversation(tmp_path: Path) -> None:
    class Deaf:
        """Stands where a connection's presenter would."""

        answer_bytes_max = None

        def __init__(self) -> None:
            self.answers: list[Reply | RequestError] = []

        def reply(self, message_type: MessageType, seq: int, reply: Reply) -> None:
            self.answers.append(reply)

        def refuse(self, message_type: int, seq: int, error: RequestError) -> None:
            self.answers.append(error)

    async with opened_registry() as here:
        conversation = await here.begin("hello")
        services = conversation.services
        services.files = AttachmentFiles(tmp_path)
        uploads = Uploads(services, here.session_manager)
        presenter = Deaf()

        def pending_reply() -> PendingReply:
            stand_in: Presenter = presenter  # type: ignore[assignment]
            return PendingReply(stand_in, MessageType.FILE_METADATA, 5, lambda: None)

        announced = FileMetadata(filename="f", size=2)
        await uploads.begin(
            announced, pending_reply(), session_id=conversation.session_id, user="local"
        )
        again = await here.open_again(conversation)
        await uploads.add(FileData(data=b"ab"), pending_reply())
        assert isinstance(presenter.answers[0], FileStored)
        await say(again, "and on it goes")
        kinds = [entry.kind for entry in again.history.entries]
        assert kinds.index("attachment") < kinds.index("model_input", 1)


async def test_a_conversation_that_was_closed_meanwhile_is_deleted_all_the_same() -> None:
    async with opened_registry() as here:
        conversation = await here.begin("hello")
        await conversation.record.close()
        del here.session_manager._open[conversation.session_id]
        await here.session_manager.delete(conversation.session_id, "local")
        assert await here.store.count("local") == 0


async def test_a_shutdown_note_holds_for_one_start_only() -> None:
    async with opened_registry() as here:
        conversation = here.session_manager.new("local")
        await say(conversation, "wait")
        waiting = await say(conversation, "wait")
        await shut_down(conversation)
        again = await here.open_again(conversation)
        assert again.history.turn_state(waiting.turn_id) == "waiting"
        once_more = await here.open_again(again)  # as after a crash: it had begun
        assert once_more.history.turn_state(waiting.turn_id) == "interrupted"


async def test_a_conversation_opens_on_a_full_disk_and_writes_turn_ends_later() -> None:
    async with opened_registry() as here:
        conversation = here.session_manager.new("local")
        begun = await say(conversation, "wait")
        here.store.full_for = ("fault", "model_input", "model_output")
        again = await here.open_again(conversation)
        assert again.history.turn_state(begun.turn_id) == "waiting"
        with pytest.raises(StorageUnavailable):
            await say(again, "no room")
        here.store.full_for = ()
        await say(again, "hello")
        assert again.history.turn_state(begun.turn_id) == "interrupted"


async def test_a_conversation_written_elsewhere_sends_lagged_to_its_clients() -> None:
    async with opened_registry() as here:
        conversation = await here.begin("hello")
        ear = listen(conversation)
        here.store.written_elsewhere = True
        with pytest.raises(WrittenElsewhere):
            await say(conversation, "I know nothing of that")
        here.store.written_elsewhere = False
        assert [event.event for event in ear.received if isinstance(event, SessionEvent)] == [
            "lagged"
        ]
        again = await here.session_manager.get(conversation.session_id, "local")
        assert again is not conversation
        await say(again, "now I do")


async def test_a_model_chosen_in_an_empty_conversation_survives_a_restart() -> None:
    async with opened_registry() as here:
        conversation = here.session_manager.new("local")
        await switch_model(conversation, "test/other")
        await say(conversation, "hello")
        await conversation.activity.quiet()
        again = await here.open_again(conversation)
        assert again.model == "test/other"


async def test_a_turn_is_found_by_its_id_whether_it_runs_or_waits_and_only_by_its_user() -> None:
    async with opened_registry() as here:
        other = await here.begin("hello")
        conversation = here.session_manager.new("local")
        runs, waits = await say(conversation, "wait"), await say(conversation, "hello")
        for turn_id in (runs.turn_id, waits.turn_id):
            assert here.session_manager.turn_holder(turn_id, "local") is conversation
            assert here.session_manager.turn_holder(turn_id, "ada") is None
        assert here.session_manager.turn_holder("nothing", "local") is None
        assert (
            here.session_manager.turn_holder(other.history.entries[0].turn_id or "", "local")
            is None
        )


async def test_a_request_that_found_a_conversation_before_it_was_dropped_does_not_store_it() -> (
    None
):
    async with opened_registry() as here:
        found = here.session_manager.new("local")
        here.session_manager.left(found.session_id)
        with pytest.raises(RequestError) as refused:
            await say(found, "too late")
        assert refused.value.code == ErrorCode.UNAVAILABLE
        again = await here.session_manager.get(found.session_id, "local")
        await say(again, "in time")
        assert again.history.head_seq


class CountingStore(FailingStore):
    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.rows_looked_up = 0
        self.is_incomplete = False

    async def row(self, session_id: str) -> ConversationRow | None:
        self.rows_looked_up += 1
        return await self.store.row(session_id)

    async def list(self, user: str, query: RowQuery) -> RowPage:
        return replace(await self.store.list(user, query), incomplete=self.is_incomplete)


async def test_looking_for_another_users_file_is_as_much_work_as_looking_for_none(
    tmp_path: Path,
) -> None:
    async with anyio.create_task_group() as tasks:
        store = CountingStore(MemoryStore(Clock()))
        provider = ScriptedProvider(echo_or_wait, provider_id="test")
        services = make_services(tasks, provider, store=cast(ConversationStore, store))
        services.files = AttachmentFiles(tmp_path)
        session_manager = SessionManager(services)
        adas = session_manager.new("ada")
        await say(adas, "hello")
        await adas.activity.quiet()
        async with services.files.receive(adas.session_id, size=0) as upload:
            file_id = (await upload.finish()).file_id
        looked_up = []
        for wanted in (file_id, "0" * 32):
            store.rows_looked_up = 0
            assert await session_manager.with_file(wanted, "bob") is None
            looked_up.append(store.rows_looked_up)
        assert looked_up[0] == looked_up[1] == 1
        assert await session_manager.with_file(file_id, "ada") == adas.session_id
        tasks.cancel_scope.cancel()


async def test_a_chosen_id_is_not_created_again_while_the_index_is_incomplete() -> None:
    async with anyio.create_task_group() as tasks:
        store = CountingStore(MemoryStore(Clock()))
        provider = ScriptedProvider(echo_or_wait, provider_id="test")
        services = make_services(tasks, provider, store=cast(ConversationStore, store))
        session_manager = SessionManager(services)
        store.is_incomplete = True
        with pytest.raises(RequestError) as refused:
            await find_or_create(session_manager, "diary", "ada")
        assert (refused.value.code, refused.value.retry_after) == ("unavailable", 1.0)
        store.is_incomplete = False
        assert (await find_or_create(session_manager, "diary", "ada")).session_id.startswith(
            "diary-"
        )
        tasks.cancel_scope.cancel()
