"""A client sends the whole conversation with each prompt; the server stores what is new."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.server_in_process import running
from tests.gateway.test_session_pipe import until_finished

from nplt_gateway.session_pipe import SessionPipe
from nplt_protocol import ErrorCode, RequestError, messages
from nplt_protocol.messages import GivenCall, GivenMessage, OfferedTool
from nplt_server.app import Server

READ = OfferedTool(name="read_file")


def user(text: str) -> GivenMessage:
    return GivenMessage(role="user", content=text)


def answer(text: str) -> GivenMessage:
    return GivenMessage(role="assistant", content=text)


def echoed(*texts: str) -> tuple[GivenMessage, ...]:
    """The conversation of these prompts with offline/echo, without the last answer."""
    listed = [each for text in texts for each in (user(text), answer(text))]
    return tuple(listed[:-1])


class Client:
    """A client of HTTP in the conversation `chat`."""

    def __init__(self, server: Server, name: str = "test") -> None:
        self._server = server
        self._name = name

    async def send(self, *given: GivenMessage, **more: Any) -> messages.Receipt:
        """Sends the list and waits until it is answered, wherever that is."""
        server, name = self._server, self._name
        async with SessionPipe(server, "local", client=name, address="127.0.0.1") as pipe:
            await pipe.ask(messages.Attach(session_id="chat", create=True), messages.Attached)
            prompt = messages.Prompt(text="", messages=given, **more)
            receipt = await pipe.ask(prompt, messages.Receipt)
            attach = messages.Attach(session_id=receipt.session_id, after_seq=receipt.seq)
            attached = await pipe.ask(attach, messages.Attached)
            if attached.active_turn is not None or attached.queue:
                await until_finished(pipe)
            return receipt

    async def record(self, session_id: str | None = None) -> list[tuple[str, str]]:
        """The messages of the conversation, as role and content."""
        async with SessionPipe(self._server, "local", client="r", address="127.0.0.1") as pipe:
            request = messages.HistoryRequest(session_id=session_id or "chat", limit=100)
            page = await pipe.ask(request, messages.HistoryPage)
        return [(str(one["role"]), str(one["content"])) for one in page.messages]

    async def upload(self, name: str) -> str:
        async with SessionPipe(self._server, "local", client="r", address="127.0.0.1") as pipe:
            await pipe.ask(messages.Attach(session_id="chat", create=True), messages.Attached)
            announced = messages.FileMetadata(filename=name, size=5)
            return (await pipe.upload(announced, b"hello")).file_id

    async def download(self, session_id: str, file_id: str) -> bytes:
        async with SessionPipe(self._server, "local", client="r", address="127.0.0.1") as pipe:
            wanted = messages.FileGet(file_id=file_id, session_id=session_id)
            return (await pipe.ask(wanted, messages.FilePiece)).data

    async def type_in_terminal(self, text: str) -> None:
        """A prompt that does not come by HTTP."""
        pipe = SessionPipe(self._server, "local", client="chat", address="127.0.0.1")
        pipe._session.door = "nplt"
        async with pipe:
            await pipe.ask(messages.Attach(session_id="chat"), messages.Attached)
            await pipe.ask(messages.Prompt(text=text), messages.Receipt)
            await until_finished(pipe)


def turns(*texts: str) -> list[tuple[str, str]]:
    return [each for text in texts for each in (("user", text), ("assistant", text))]


async def test_a_growing_list_is_recorded_once(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        for count in (1, 2, 3):
            receipt = await client.send(*echoed(*("one", "two", "three")[:count]))
            assert receipt.session_id == "chat"
        assert await client.record() == turns("one", "two", "three")


async def test_a_list_without_an_answer_is_appended(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("one"))
        await client.send(user("one"))
        await client.send(user("two"), user("three"))
        both = "two\n\nthree"
        assert await client.record() == turns("one", "one", both)
        await client.send(
            *echoed("one", "one"),
            answer("one"),
            user("two"),
            user("three"),
            answer(both),
            user("four"),
        )
        assert await client.record() == turns("one", "one", both, "four")


async def test_an_edited_prompt_rolls_back_the_clients_own_turns(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("one"))
        await client.send(*echoed("one", "two"))
        receipt = await client.send(*echoed("one", "zwei"))
        assert receipt.session_id == "chat"
        assert await client.record() == turns("one", "zwei")


async def test_a_list_that_ends_with_an_answered_prompt_asks_for_another_answer(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("one"))
        first = await client.send(*echoed("one", "two"))
        again = await client.send(*echoed("one", "two"))
        assert first.turn_id != again.turn_id
        assert await client.record() == turns("one", "two")


async def test_a_turn_from_a_terminal_may_be_missing_in_the_list(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("one"))
        await client.type_in_terminal("aside")
        await client.send(*echoed("one", "two"))
        assert await client.record() == turns("one", "aside", "two")
        await client.send(*echoed("one", "aside", "two", "three"))
        assert await client.record() == turns("one", "aside", "two", "three")


@pytest.mark.parametrize("other", ["terminal", "another client"])
async def test_an_edit_before_turns_of_others_goes_to_a_fork(tmp_path: Path, other: str) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("one"))
        await client.send(*echoed("one", "two"))
        if other == "terminal":
            await client.type_in_terminal("aside")
        else:
            await Client(server, "other").send(*echoed("one", "two", "aside"))
        receipt = await client.send(*echoed("one", "zwei"))
        assert receipt.session_id != "chat"
        assert await client.record() == turns("one", "two", "aside")
        assert await client.record(receipt.session_id) == turns("one", "zwei")


async def test_a_fork_has_the_files_of_the_messages_that_are_new(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        first = await client.upload("a.txt")
        await client.send(GivenMessage(role="user", content="one", attachments=(first,)))
        await client.send(*echoed("one", "two"))
        await client.type_in_terminal("aside")
        new = await client.upload("b.txt")
        files = (first, new)
        edited = GivenMessage(role="user", content="zwei", attachments=files)
        receipt = await client.send(*echoed("one", "two")[:2], edited)
        assert receipt.session_id != "chat"
        for file_id in files:
            assert await client.download(receipt.session_id, file_id) == b"hello"


async def test_a_changed_answer_goes_to_a_fork(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("one"))
        await client.send(*echoed("one", "two"))
        receipt = await client.send(user("one"), answer("uno"), user("due"))
        assert await client.record() == turns("one", "two")
        assert await client.record(receipt.session_id) == [
            ("user", "one"),
            ("assistant", "uno"),
            *turns("due"),
        ]


async def test_turns_that_the_client_had_elsewhere_are_recorded(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("a"), answer("b"), answer("c"), user("d"))
        recorded = [("user", "a"), ("assistant", "b\n\nc"), *turns("d")]
        assert await client.record() == recorded
        await client.send(user("a"), answer("b"), answer("c"), user("d"), answer("d"), user("e"))
        assert await client.record() == [*recorded, *turns("e")]


async def test_results_in_the_list_answer_the_calls_that_wait(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("!tool read_file {}"), tools=(READ,))
        call_id = await _waiting_call(server)
        called = GivenMessage(
            role="assistant", tool_calls=(GivenCall(id=call_id, name="read_file"),)
        )
        result = GivenMessage(role="tool", content="hello", tool_call_id=call_id)
        so_far = (user("!tool read_file {}"), called, result)
        await client.send(*so_far, tools=(READ,))
        assert (await client.record())[-1] == ("assistant", "hello")
        await client.send(*so_far, answer("hello"), user("thanks"))
        assert (await client.record())[-2:] == turns("thanks")
        # The same results again ask for another answer to them.
        await client.send(*so_far)
        assert (await client.record())[-1] == ("assistant", "hello")
        assert ("user", "thanks") not in await client.record()


async def test_a_result_that_comes_too_late_goes_to_a_fork(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("!tool read_file {}"), tools=(READ,))
        call_id = await _waiting_call(server)
        await client.type_in_terminal("never mind")
        called = GivenMessage(
            role="assistant", tool_calls=(GivenCall(id=call_id, name="read_file"),)
        )
        result = GivenMessage(role="tool", content="hello", tool_call_id=call_id)
        receipt = await client.send(user("!tool read_file {}"), called, result)
        assert receipt.session_id != "chat"
        assert (await client.record(receipt.session_id))[-1] == ("assistant", "hello")
        assert (await client.record())[-2:] == turns("never mind")


async def _waiting_call(server: Server) -> str:
    async with SessionPipe(server, "local", client="r", address="127.0.0.1") as pipe:
        page = await pipe.ask(messages.HistoryRequest(session_id="chat"), messages.HistoryPage)
    calls: Any = page.messages[-1]["tool_calls"]
    return str(calls[0]["tool_call_id"])


async def test_a_list_with_nothing_new_is_a_conflict(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("one"))
        with pytest.raises(RequestError) as refused:
            await client.send(user("one"), answer("one"))
        assert (refused.value.code, refused.value.field) == (ErrorCode.CONFLICT, "messages")
        assert await client.record() == turns("one")


async def test_two_lists_sent_at_once_are_both_recorded_in_one_order(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(user("one"))
        lists = [echoed("one", text) for text in ("two", "three")]
        results = await asyncio.gather(
            *(client.send(*each) for each in lists), return_exceptions=True
        )
        refused = [each for each in results if isinstance(each, RequestError)]
        assert all(each.code == ErrorCode.BUSY for each in refused)
        kept = await client.record()
        assert kept[:2] == turns("one")
        assert kept in (turns("one", "two"), turns("one", "three"))


async def test_a_long_conversation_is_compared_as_a_whole_after_a_restart(tmp_path: Path) -> None:
    texts = [f"{number} {'x' * 40_000}" for number in range(30)]
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(*echoed(*texts[:-1]))
    async with running(tmp_path) as server:
        client = Client(server)
        await client.send(*echoed(*texts))
        async with SessionPipe(server, "local", client="r", address="127.0.0.1") as pipe:
            request = messages.HistoryRequest(session_id="chat")
            page = await pipe.ask(request, messages.HistoryPage)
        assert page.message_count == 60
