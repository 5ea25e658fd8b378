"""The asynchronous client against a scripted server: prompts, turns, events."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.scripted_peer import (
    SESSION,
    Talk,
    delta,
    entry,
    finished,
    scripted_peer,
    started,
    whole_turn,
)

import nplt_client
from nplt_client.errors import (
    ConnectionLost,
    MovedElsewhere,
    ProviderFailed,
    TurnInterrupted,
)
from nplt_protocol.codes import MessageType
from nplt_protocol.frames import encode_frame
from nplt_protocol.messages import (
    Attach,
    Attached,
    Cancel,
    Cancelled,
    EntryAdded,
    SessionList,
    SessionRows,
    TextDelta,
    ToolFinished,
    ToolStarted,
)


def attached(session_id: str) -> Attached:
    return Attached(
        session_id=session_id, name="n", model="m", head_seq=0, active_turn=None, queue=()
    )


async def read_to_the_end(turn: nplt_client.Turn) -> None:
    async for _ in turn:
        pass


async def test_an_answer_is_joined_from_its_text_deltas() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.answer("good ", "morning")
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            assert await client.ask_text("hello") == "good morning"
            assert client.session_id == SESSION
            assert client.welcome.server == "nplt/0.1.0"


async def test_an_answer_that_arrives_byte_by_byte_reads_the_same() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.answer("guten ", "Morgen, 日本 🎉")
        talk.wait_until_gone()

    with scripted_peer(script, piece_bytes=1) as peer:
        async with nplt_client.connect(peer.url) as client:
            assert await client.ask_text("hello") == "guten Morgen, 日本 🎉"


async def test_every_prompt_has_its_own_message_id() -> None:
    ids: list[str | None] = []

    def script(talk: Talk) -> None:
        talk.welcome()
        ids.append(talk.answer("a", turn_id="turn-1").message_id)
        ids.append(talk.answer("b", turn_id="turn-2").message_id)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            await client.ask_text("one")
            await client.ask_text("one")
    assert all(isinstance(id_, str) and len(id_) == 32 for id_ in ids)
    assert ids[0] != ids[1]


async def test_a_turn_gives_its_events_in_order_and_ends_after_the_last() -> None:
    tool = ToolStarted(
        session_id=SESSION,
        turn_id="turn-1",
        call=0,
        tool_call_id="t1",
        tool_name="clock",
        arguments={"zone": "UTC"},
    )
    done = ToolFinished(
        session_id=SESSION,
        turn_id="turn-1",
        call=0,
        tool_call_id="t1",
        tool_name="clock",
        status="success",
        duration=0.5,
        result="noon",
    )
    events = (started(), delta("x", 0), tool, done, delta("y", 0, call=1), finished())

    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=events)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client, client.ask("go") as turn:
            assert turn.receipt.turn_id == "turn-1"
            assert [event async for event in turn] == list(events)
            assert turn.text == "x\n\ny"
            assert turn.finished == finished()
            assert turn.tool_calls[0]["result"] == "noon"


async def test_events_of_other_turns_and_unknown_events_do_not_reach_a_turn() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt("mine", events=(delta("theirs", 0, turn_id="theirs"),))
        talk.send(encode_frame(0x2F, 0, b'{"session_id":"x","turn_id":"mine"}'))
        talk.say(*whole_turn("ours", turn_id="mine"))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client, client.ask("go") as turn:
            assert {getattr(event, "turn_id", None) async for event in turn} == {"mine"}
            assert turn.text == "ours"


async def test_replies_may_arrive_in_any_order() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        first, _ = talk.expect(Cancel)
        second, _ = talk.expect(SessionList)
        rows = SessionRows(sessions=(), next_cursor=None)
        talk.reply(MessageType.SESSION_LIST, second, rows)
        talk.reply(MessageType.CANCEL, first, Cancelled(cancelled=True))
        talk.wait_until_gone()

    async def rows(client: nplt_client.Client) -> list[nplt_client.SessionRow]:
        return [row async for row in client.sessions()]

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            cancelled, found = await asyncio.gather(client.cancel(), rows(client))
            assert cancelled
            assert found == []


async def test_a_stored_answer_replaces_its_deltas_unless_it_was_truncated() -> None:
    cut = EntryAdded(
        session_id=SESSION,
        turn_id="turn-1",
        call=1,
        entry={"role": "assistant", "content": "who", "truncated": True, "size": 5},
    )
    events = (delta("helo", 0), entry("hello"), delta("whole", 0, call=1), cut, finished())

    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=events)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            assert await client.ask_text("go") == "hello\n\nwhole"


async def test_leaving_a_turn_early_cancels_nothing() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(), delta("a", 0)))
        talk.answer("and on", turn_id="turn-2")  # the next request is a prompt, not a CANCEL
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            async with client.ask("go") as turn:
                async for event in turn:
                    if isinstance(event, TextDelta):
                        break
            assert await client.ask_text("next") == "and on"


async def test_cancel_names_the_turn() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(), delta("par", 0)))
        seq, request = talk.expect(Cancel)
        assert request.turn_id == "turn-1"
        talk.reply(MessageType.CANCEL, seq, Cancelled(cancelled=True))
        talk.say(finished(state="interrupted"))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client, client.ask("go") as turn:
            async for event in turn:
                if isinstance(event, TextDelta):
                    assert await turn.cancel()
            assert turn.finished is not None
            assert turn.finished.state == "interrupted"
            assert turn.text == "par"


async def test_an_interrupted_answer_raises_turn_interrupted() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(delta("half", 0), finished(state="interrupted")))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            with pytest.raises(TurnInterrupted) as caught:
                await client.ask_text("go")
            assert caught.value.text == "half"


async def test_a_failed_turn_raises_provider_failed() -> None:
    error = {"code": "provider_unavailable", "message": "the provider is down"}

    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(finished(state="failed", error=error),))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            with pytest.raises(ProviderFailed, match="the provider is down"):
                await client.ask_text("go")


async def test_asking_in_another_conversation_attaches_to_it_first() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, request = talk.expect(Attach)
        assert request.session_id == "other"
        talk.reply(MessageType.ATTACH, seq, attached("other"))
        assert talk.answer("there").session_id == "other"
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            assert await client.ask_text("go", session_id="other") == "there"
            assert client.session_id == "other"


async def test_switching_away_from_a_running_turn_raises_moved_elsewhere() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(),))
        seq, _ = talk.expect(Attach)
        talk.reply(MessageType.ATTACH, seq, attached("other"))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client, client.ask("go") as turn:
            await client.attach("other")
            with pytest.raises(MovedElsewhere):
                await read_to_the_end(turn)


async def test_a_reader_of_a_turn_gets_connection_lost() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(), delta("half an ans", 0)))

    with scripted_peer(script) as peer:
        async with (
            nplt_client.connect(peer.url, reconnect=False) as client,
            client.ask("go") as turn,
        ):
            with pytest.raises(ConnectionLost):
                await read_to_the_end(turn)
            assert turn.text == "half an ans"
            assert turn.finished is None
