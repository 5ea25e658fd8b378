"""Hostile words in lists, histories and search results, on a real pseudo-terminal."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.client.hostile_bits import BITS, FORBIDDEN
from tests.client.scripted_peer import SESSION, Script, Talk, scripted_peer
from tests.client.terminal_user import at_terminal

from nplt_protocol.codes import MessageType
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    Attached,
    HistoryPage,
    HistoryRequest,
    PageEdges,
    Search,
    SearchHit,
    SearchHits,
    SessionList,
    SessionRow,
    SessionRows,
    SessionSwitch,
)

STRINGS = 3_400
"""For each of three commands; `nplt ask` has ten thousand of its own."""
SPEAKABLE = [bit for bit in BITS if bit.isascii() or bit[0] < "\ud800"]


def hostile() -> Callable[[], str]:
    chance = random.Random(17)
    return lambda: "".join(chance.choices(SPEAKABLE, k=chance.randint(1, 8)))


def lists(talk: Talk) -> None:
    say, number = hostile(), count()
    talk.welcome()
    for cursor in ("more", None):
        seq, _ = talk.expect(SessionList)
        rows = tuple(
            SessionRow(
                session_id=f"{next(number):032x}",
                name=say(),
                message_count=1,
                created_at=say(),
                updated_at=say(),
                last_accessed=say(),
                is_current=False,
                model=say(),
                state=say(),
                preview=say(),
            )
            for _ in range(STRINGS // 8)
        )
        talk.reply(MessageType.SESSION_LIST, seq, SessionRows(sessions=rows, next_cursor=cursor))
    talk.wait_until_gone()


def tells(talk: Talk) -> None:
    say = hostile()
    talk.welcome()
    seq, _ = talk.expect(SessionSwitch)
    found = Attached(
        session_id=SESSION, name=say(), model=say(), head_seq=1, active_turn=None, queue=()
    )
    talk.reply(MessageType.SESSION_SWITCH, seq, found)
    seq, _ = talk.expect(HistoryRequest)

    def message(number: int) -> JsonObject:
        call: JsonObject = {"tool_name": say(), "status": say()}
        return {
            "seq": number, "role": say(), "content": say(), "timestamp": say(), "model": say(),
            "state": say(), "tool_calls": [call], "truncated": True, "size": say(),
        }  # fmt: skip

    page = HistoryPage(
        session_id=SESSION,
        name=say(),
        message_count=1,
        head_seq=1,
        messages=tuple(message(number) for number in range(STRINGS // 8)),
        page=PageEdges(has_more_before=True, has_more_after=False, before=1, after=1),
    )
    talk.reply(MessageType.HISTORY_REQUEST, seq, page)
    talk.wait_until_gone()


def finds(talk: Talk) -> None:
    say, number = hostile(), count()
    talk.welcome()
    seq, _ = talk.expect(Search)
    hits = tuple(
        SearchHit(
            session_id=f"{next(number):032x}",
            name=say(),
            seq=1,
            role=say(),
            snippet=say(),
            timestamp=say(),
        )
        for _ in range(STRINGS // 4)
    )
    talk.reply(MessageType.SEARCH, seq, SearchHits(hits=hits, next_cursor=None))
    talk.wait_until_gone()


@pytest.mark.parametrize(
    ("arguments", "script"),
    [
        (("sessions",), lists),
        (("history", "x"), tells),
        (("search", "x", "--limit", str(STRINGS)), finds),
    ],
)
def test_thousands_of_hostile_strings_bring_no_escape_byte_to_a_terminal(
    tmp_path: Path, arguments: tuple[str, ...], script: Script
) -> None:
    with (
        scripted_peer(script) as peer,
        at_terminal(*arguments, home=tmp_path, NPLT_SERVER=peer.url) as person,
    ):
        shown = person.sees_all()
        assert person.sees_it_end() == 0
    assert shown.count("\n") > STRINGS // 8
    assert not FORBIDDEN.search(shown.replace("\r\n", "\n"))
