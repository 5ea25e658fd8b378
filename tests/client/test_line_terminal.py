"""The line mode in a real pseudo-terminal: prompt_toolkit below, the scrollback above."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.client.hostile_bits import FORBIDDEN
from tests.client.nplt_process import SECONDS_MAX
from tests.client.screen_user import at_screen
from tests.client.scripted_peer import (
    MODEL,
    SESSION,
    Talk,
    delta,
    scripted_peer,
    started,
    whole_turn,
)
from tests.client.staged_server import Stage
from tests.client.test_chat_terminal import hostile_texts

import nplt_client
from nplt_protocol.codec import encode_event
from nplt_protocol.codes import MessageType
from nplt_protocol.events import ApprovalRequest, Event, SessionEvent
from nplt_protocol.replies import Attached, HistoryPage, PageEdges
from nplt_protocol.requests import Approval, Attach, HistoryRequest, Prompt

pytestmark = pytest.mark.slow

OURS = re.compile(
    r"\x1b\[(?:"
    r"[0-9;]*m"  # colours
    r"|[0-9]*[ABCDJK]"  # around the prompt, and cleaning up behind it
    r"|\?(?:1|7|12|25|2004)[hl]"  # modes
    r")|[\x08\r]"
)
"""What is sent to the terminal by the program itself."""


async def test_a_person_lives_in_the_scrollback(server: str, tmp_path: Path) -> None:
    prompts = tmp_path / ".local/state/nplt/prompts.jsonl"
    prompts.parent.mkdir(parents=True)
    prompts.write_text('"typed in the other chat"\n')
    with at_screen("--no-alt-screen", server, home=tmp_path) as person:
        person.sees("● online · offline/echo · new conversation\nyou ▸")
        person.types("你好")
        person.sees("you ▸ 你好")
        row, column = person.cursor
        assert person.screen.splitlines()[row].startswith("you ▸ ")
        assert column == len("you ▸ ") + 4
        person.presses_enter()
        person.sees("you ▸ 你好\n\n你好\n● online · off")

        person.pastes("# Title\r**bold**\n")
        person.types("\x1b\r- one\\\r- two\n- three")
        person.sees("      - one\n      - two\n      - three")
        person.presses_enter()
        person.sees("\nTitle\n\nbold\n\n • one\n • two\n • three\n● online · off")

        person.types("!slow 60\r")
        person.sees("word1 word2", "answering (Esc stops)")
        person.types("typed ahead\r")
        person.sees("word1 word2", "… typed ahead\n● online")
        person.types("a dra")
        person.presses_ctrl("c")
        person.sees(
            "■ interrupted; what came is kept\n\nyou ▸ typed ahead\n\ntyped ahead\n● online · off"
        )
        person.sees("\nyou ▸ a dra")
        person.presses_ctrl("c")
        person.types("/ren")
        person.sees("/rename NAME", "rename this conversation")
        person.types("\t京都\r")
        person.sees("· this conversation is now called '京都'", "· 京都 ·")

        async with nplt_client.connect(server, client_name="web") as other:
            await other.switch("京都")
            person.sees("with web")
            await other.ask_text("from elsewhere")
            person.sees("web ▸ from elsewhere\n\nfrom elsewhere\n● online · off")
        person.resizes(30, 60)
        for _ in range(12):
            person.types("\x1b[A")  # Up
        person.sees("you ▸ typed in the other chat")
        person.presses_ctrl("c")
        person.presses_ctrl("d")
        assert person.sees_it_end() == 0
        shown = person.raw.decode()
    assert re.search(r"come back with: nplt chat \S+ --resume [0-9a-f]{32}\s*$", shown)
    assert "\x1b[?1049h" not in shown
    assert json.loads(prompts.read_text().splitlines()[1]) == "你好"


def test_a_lost_server_is_told_in_two_lines_and_its_answer_once(tmp_path: Path) -> None:
    text = "A first paragraph.\n\nThe second one"
    lost = threading.Event()

    def empty_page(talk: Talk) -> None:
        edges = PageEdges(has_more_before=False, has_more_after=False, before=0, after=0)
        page = HistoryPage(
            session_id=SESSION, name="n", message_count=0, head_seq=0, messages=(), page=edges
        )
        talk.reply(MessageType.HISTORY_REQUEST, talk.expect(HistoryRequest)[0], page)

    def goes(talk: Talk) -> None:
        talk.welcome()
        empty_page(talk)
        talk.take_prompt(events=(started(), delta(text, 0)))
        assert lost.wait(SECONDS_MAX)

    def comes_back(talk: Talk) -> None:
        talk.welcome(session_id="b" * 32)
        seq, _ = talk.expect(Attach)
        here = Attached(
            session_id=SESSION, name="n", model=MODEL, head_seq=1, active_turn=None, queue=()
        )
        reply = talk.connection.send_reply(MessageType.ATTACH, seq, here)
        missed = whole_turn(text, " is whole now.")[1:]
        talk.send(reply + b"".join(map(encode_event, missed)))
        talk.wait_until_gone()

    with scripted_peer(goes, comes_back) as peer:
        with at_screen("--no-alt-screen", peer.url, home=tmp_path) as person:
            person.sees("you ▸")
            person.types("go\r")
            person.sees("A first paragraph.\n\nThe second one\n● online")
            person.types("half a sen")
            lost.set()
            person.sees("The second one is whole now.")
            person.types("tence")
            person.sees("you ▸ half a sentence")
            person.presses_ctrl("c")
            person.presses_ctrl("d")
            assert person.sees_it_end() == 0
        assert person.screen.count("A first paragraph.") == 1
        assert person.screen.count("; reconnecting …") == person.screen.count("online again") == 1


def test_hostile_words_bring_no_foreign_escape_byte_and_allow_nothing(tmp_path: Path) -> None:
    texts = hostile_texts(300)

    def answers(prompt: Prompt) -> Sequence[Event]:
        if prompt.text != "go":
            return ()
        wanted = ApprovalRequest(
            session_id=SESSION,
            turn_id="turn-1",
            approval_id="one",
            tool_name="write_file" + texts[0],
            arguments={"path": "/etc\x1b[2J" + texts[1]},
            expires_at="",
        )
        news = [
            SessionEvent(session_id=SESSION, event="renamed", details={"name": text})
            for text in texts[:20]
        ]
        return [*news, *whole_turn(*texts, "\n\nthe end"), wanted]

    stage = Stage(answers=answers, name="".join(texts[:20]))
    with scripted_peer(stage.script()) as peer:
        with at_screen("--no-alt-screen", peer.url, home=tmp_path, rows=60) as person:
            person.sees("you ▸")
            person.types("go\r")
            person.sees("the end", '"path": "/etc\\u001b[2J', "allow write_file")
            person.types("y\r")
            person.sees(": allowed")
            person.presses_ctrl("d")
            assert person.sees_it_end() == 0
        shown = person.raw.decode()
    (decided,) = [request for request in stage.asked if isinstance(request, Approval)]
    assert (decided.approval_id, decided.decision, decided.remember) == ("one", "allow", False)
    left = OURS.sub("", shown)
    assert not FORBIDDEN.search(left), FORBIDDEN.search(left)
