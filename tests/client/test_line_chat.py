"""The line mode in a real pseudo-terminal: prompt_toolkit below, the scrollback above."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.client.hostile_bits import FORBIDDEN
from tests.client.nplt_process import SECONDS_MAX, run_nplt
from tests.client.screen_user import at_screen
from tests.client.scripted_peer import (
    MODEL,
    SESSION,
    Talk,
    approval_request,
    delta,
    scripted_peer,
    started,
    whole_turn,
)
from tests.client.staged_server import Stage, give_empty_history
from tests.client.test_plain_chat import hostile_texts

import nplt_client
from nplt_protocol.codec import encode_event
from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.messages import (
    Approval,
    ApprovalRequest,
    Attach,
    Attached,
    Event,
    Prompt,
    SessionEvent,
)

pytestmark = pytest.mark.slow

OURS = re.compile(
    r"\x1b\[(?:"
    r"[0-9;]*m"  # colours
    r"|[0-9]*[ABCDJK]"  # around the prompt, and cleaning up behind it
    r"|\?(?:1|7|12|25|1004|2004)[hl]"  # modes
    r")|[\x08\r]"
)
"""What is sent to the terminal by the program itself."""


async def test_a_whole_session_of_the_line_chat_in_the_scrollback(
    server: str, tmp_path: Path
) -> None:
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
        person.sees("you ▸ 你好\n\n你好\n\noffline/echo\n● online · off")

        person.pastes("# Title\r**bold**\n")
        person.types("\x1b\r- one\\\r- two\n- three")
        person.sees("      - one\n      - two\n      - three")
        person.presses_enter()
        person.sees("\nTitle\n\nbold\n\n • one\n • two\n • three\n\noffline/echo\n● online · off")

        person.types("!slow 60\r")
        person.sees("word1 word2", " answering ", "(Esc stops)")
        person.types("typed ahead\r")
        person.sees("word1 word2", "… typed ahead\n● online")
        person.types("a dra")
        person.presses_ctrl("c")
        person.sees(
            "■ interrupted; what came is kept\n\nyou ▸ typed ahead\n\ntyped ahead\n\noffline/echo\n"
            "● online · off"
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
            person.sees("web ▸ from elsewhere\n\nfrom elsewhere\n\noffline/echo\n● online · off")
        person.resizes(30, 60)
        for _ in range(12):
            person.types("\x1b[A")  # Up
        person.sees("you ▸ typed in the other chat")
        person.presses_ctrl("c")
        person.presses_ctrl("d")
        assert person.sees_it_end() == 0
        shown = person.raw.decode()
    assert re.search(r"come back to '京都' with: nplt chat \S+ --resume [0-9a-f]{8}\s*$", shown)
    assert "\x1b[?1049h" not in shown
    assert json.loads(prompts.read_text().splitlines()[1])["text"] == "你好"


def test_a_reconnect_prints_two_lines_and_the_resumed_answer_once(tmp_path: Path) -> None:
    text = "A first paragraph.\n\nThe second one"
    lost = threading.Event()

    def goes(talk: Talk) -> None:
        talk.welcome()
        give_empty_history(talk)
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


@pytest.mark.parametrize("display", [(), ("--no-alt-screen",)])
def test_typed_ahead_lines_are_sent_one_by_one(
    server: str, tmp_path: Path, display: tuple[str, ...]
) -> None:
    with at_screen("chat", *display, server, home=tmp_path) as person:
        person.types("first line\rsecond line\rhalf a")
        person.sees("first line", "second line", "half a", "● online · offline/echo · first line")
        person.types(" third\r")
        person.sees("half a third")
        person.presses_ctrl("d")
        assert person.sees_it_end() == 0
    asked = run_nplt("history", "first line", "--json", server=server, home=tmp_path).stdout
    prompts = [one["content"] for one in json.loads(asked)["messages"] if one["role"] == "user"]
    assert prompts == ["first line", "second line", "half a third"]
    run_nplt("delete", "first line", server=server, home=tmp_path)


def test_typing_replaces_a_prompt_that_was_refused(tmp_path: Path) -> None:
    def refuses(talk: Talk) -> None:
        talk.welcome()
        give_empty_history(talk)
        seq, _ = talk.expect(Prompt)
        talk.refuse(seq, ErrorCode.CONFLICT, "too much of it")
        talk.wait_until_gone()

    with (
        scripted_peer(refuses) as peer,
        at_screen("--no-alt-screen", peer.url, home=tmp_path) as person,
    ):
        person.sees("you ▸")
        person.types("go there\r")
        person.sees("too much of it", "you ▸ go there")
        person.types("stay")
        person.sees("you ▸ stay")
        person.sees_no("go there")


def test_up_takes_back_a_queued_prompt_and_esc_twice_empties_the_queue(
    server: str, tmp_path: Path
) -> None:
    with at_screen("--no-alt-screen", server, home=tmp_path) as person:
        person.sees("you ▸")
        person.types("!slow 60\r")
        person.sees("word1 word2")
        person.types("one\r")
        person.sees("… one")
        person.types("two\r")
        person.sees("… one\n… two")
        person.types("\x1b[A")  # Up
        person.sees("you ▸ two", "1 waiting")
        person.presses_ctrl("u")
        person.types("\x1b\x1b")
        person.sees("■ interrupted", "1 prompt taken back")
        person.sees_no("waiting")
        person.presses_ctrl("d")
        assert person.sees_it_end() == 0


def test_an_approval_is_decided_with_arrows_above_the_input(tmp_path: Path) -> None:
    def answers(prompt: Prompt) -> Sequence[Event]:
        return [*whole_turn("a text")[:-1], approval_request()]

    stage = Stage(answers=answers)
    with (
        scripted_peer(stage.script()) as peer,
        at_screen("--no-alt-screen", peer.url, home=tmp_path, rows=12, columns=40) as person,
    ):
        person.sees("you ▸")
        person.types("go\r")
        person.sees(
            "may the tool write_file run with this?", '"path": "/etc/passwd"', "waiting for you"
        )
        person.sees("letter or arrows, then Enter")
        person.types("\x1b[C\x1b[C")  # Right
        person.sees("[n no]")
        person.presses_enter()
        person.sees("write_file: denied")
        person.presses_ctrl("d")
        assert person.sees_it_end() == 0
    (decided,) = [request for request in stage.asked if isinstance(request, Approval)]
    assert (decided.approval_id, decided.decision) == ("one", "deny")


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
            person.sees("the end", '"path": "/etc\\u001b[2J', "may the tool write_file")
            person.types("y\r")
            person.sees(": allowed")
            person.presses_ctrl("d")
            assert person.sees_it_end() == 0
        shown = person.raw.decode()
    (decided,) = [request for request in stage.asked if isinstance(request, Approval)]
    assert (decided.approval_id, decided.decision, decided.remember) == ("one", "allow", False)
    left = OURS.sub("", shown)
    assert not FORBIDDEN.search(left), FORBIDDEN.search(left)
