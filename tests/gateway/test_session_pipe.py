"""Sessions in the server's own process, which requests of HTTP use."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gateway.server_in_process import running

from nplt_gateway.session_pipe import PipeClosed, SessionPipe
from nplt_protocol import ErrorCode, RequestError, messages
from nplt_server.app import Server


def pipe_to(server: Server) -> SessionPipe:
    return SessionPipe(server, "local", client="test", address="127.0.0.1")


async def until_finished(pipe: SessionPipe) -> tuple[str, messages.TurnFinished]:
    text = ""
    while True:
        match await pipe.next_event():
            case messages.TextDelta(text=piece):
                text += piece
            case messages.TurnFinished() as finished:
                return text, finished
            case _:
                pass


async def test_a_prompt_through_a_pipe_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as server, pipe_to(server) as pipe:
        await pipe.ask(messages.SessionNew(name="piped"), messages.SessionCreated)
        receipt = await pipe.ask(messages.Prompt(text="hello there"), messages.Receipt)
        text, finished = await until_finished(pipe)
    assert text == "hello there"
    assert (finished.turn_id, finished.state) == (receipt.turn_id, "completed")


async def test_a_refused_request_raises_the_servers_error(tmp_path: Path) -> None:
    async with running(tmp_path) as server, pipe_to(server) as pipe:
        with pytest.raises(RequestError) as refused:
            await pipe.ask(messages.Attach(session_id="nowhere"), messages.Attached)
        assert refused.value.code == ErrorCode.NOT_FOUND
        with pytest.raises(RequestError) as malformed:
            await pipe.ask(messages.Attach(session_id="x" * 201), messages.Attached)
        assert malformed.value.field == "session_id"


async def test_a_replay_follows_the_reply_to_attach(tmp_path: Path) -> None:
    async with running(tmp_path) as server, pipe_to(server) as first, pipe_to(server) as second:
        made = await first.ask(messages.SessionNew(), messages.SessionCreated)
        await first.ask(messages.Prompt(text="said before"), messages.Receipt)
        await until_finished(first)
        attach = messages.Attach(session_id=made.session_id, after_seq=0)
        await second.ask(attach, messages.Attached)
        entry = await second.next_event()
        assert isinstance(entry, messages.EntryAdded)


async def test_a_stopping_server_closes_its_pipes(tmp_path: Path) -> None:
    async with running(tmp_path) as server, pipe_to(server) as pipe:
        await pipe.ask(messages.SessionNew(), messages.SessionCreated)
        server.stop()
        with pytest.raises(PipeClosed) as closed:
            await until_finished(pipe)
        assert closed.value.code == ErrorCode.SHUTTING_DOWN


async def test_other_clients_do_not_see_a_pipe_come_and_go(tmp_path: Path) -> None:
    async with running(tmp_path) as server, pipe_to(server) as watching:
        made = await watching.ask(messages.SessionNew(), messages.SessionCreated)
        attach = messages.Attach(session_id=made.session_id)
        async with pipe_to(server) as other:
            await other.ask(attach, messages.Attached)
            await other.ask(messages.Prompt(text="hello"), messages.Receipt)
        kinds = set()
        while not isinstance(event := await watching.next_event(), messages.TurnFinished):
            kinds.add(getattr(event, "event", ""))
        assert "presence" not in kinds
