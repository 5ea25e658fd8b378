"""`nplt chat` without a toolkit: in a pipe, and plain in a pseudo-terminal."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from tests.client.hostile_bits import BITS, FORBIDDEN
from tests.client.nplt_process import (
    NPLT,
    SECONDS_MAX,
    default_ctrl_c,
    private_environment,
    run_nplt,
    running_server,
)
from tests.client.scripted_peer import MODEL, SESSION, Talk, entry, scripted_peer, whole_turn
from tests.client.staged_server import give_empty_history
from tests.client.terminal_user import at_terminal

import nplt_client
from nplt_protocol.codes import MessageType
from nplt_protocol.messages import (
    AgentThought,
    Attach,
    Attached,
    Event,
    FileData,
    FileMetadata,
    FileStored,
    ToolStarted,
)

OURS = re.compile(r"\x1b\[(?:2m|0m|1m|K|\?2004[hl])")
"""What may be sent to the terminal: our dimming, and readline's own."""


def test_in_a_pipe_each_line_is_a_prompt_and_only_answers_go_to_stdout(
    server: str, tmp_path: Path
) -> None:
    lines = "one\n\n/rename a pipe\n!fail\n!think hm\n/nonsense\n//two\n"
    done = run_nplt("chat", stdin=lines, server=server, home=tmp_path)
    assert done.stdout == "one\nhm\n/two\n"
    assert done.stderr.splitlines() == [
        "this conversation is now called 'a pipe'",
        "nplt: offline/echo fails, as it was asked to",
        "nplt: There is no /nonsense. /help lists all; // begins a text with a slash.",
    ]
    assert done.returncode == 6, "the worst of all"


def test_a_pipe_gets_exact_answers(server: str, tmp_path: Path) -> None:
    hostile = "a\x1b[2J\x07b\u2028c\u202ed"
    done = run_nplt("chat", stdin=f"{hostile}\n", server=server, home=tmp_path)
    assert done.stdout == f"{hostile}\n"
    assert (done.stderr, done.returncode) == ("", 0)


def test_every_command_works_in_a_pipe(server: str, tmp_path: Path) -> None:
    steps = (
        ("a draft", ""),
        ("/system Be brief.", "the system message is set"),
        ("/search draft", "draft"),
        ("/edit", "sending this replaces your last message"),
        ("changed", ""),
        ("/retry", ""),
        ("/fork a copy", "this is a copy of"),
        (f"/export {tmp_path}/copy.md", "written to"),
        ("/raw", "always shown as they are written"),
        ("/theme light", "the theme is now light"),
        ("/reconnect", "already connected"),
        ("/copy", "no terminal whose clipboard"),
        ("/compact", ""),
        ("/tools", "now"),
        ("/usage", "tokens"),
        ("/context", "changed"),
        ("/allow", "No tool waits"),
    )
    lines = "\n".join(line for line, _ in steps)
    done = run_nplt("chat", stdin=lines, server=server, home=tmp_path)
    assert done.stdout == "a draft\nchanged\nchanged\n"
    place = 0
    for _, expected in steps:
        place = done.stderr.index(expected, place)
    assert (tmp_path / "copy.md").read_text().count("changed") == 2


def test_in_a_pipe_ctrl_c_stops_the_answer_and_then_the_chat(server: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*NPLT, "chat", server],
        env=private_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=default_ctrl_c,
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write(b"!slow 60\nnext\n")
        chat.stdin.flush()
        assert chat.stdout.read(5) == b"word1"
        chat.send_signal(signal.SIGINT)
        shown = b""
        while not shown.endswith(b"\nnext\n"):
            shown += chat.stdout.read(1)
        chat.send_signal(signal.SIGINT)
        assert chat.wait(SECONDS_MAX) == 130


def test_a_chat_with_a_broken_pipe_ends_silently(server: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*NPLT, "chat", server],
        env=private_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as chat:
        assert chat.stdout is not None
        chat.stdout.close()
        _, errors = chat.communicate(b"one\ntwo\n", SECONDS_MAX)
        assert (chat.returncode, errors) == (141, b"")


def test_a_whole_session_of_the_plain_chat(server: str, tmp_path: Path) -> None:
    with at_terminal("chat", home=tmp_path, NPLT_SERVER=server) as person:
        person.is_asked()
        person.types("good morning")
        person.sees("good morning\r\n")
        person.is_asked()
        person.types("/rename my morning")
        person.sees("now called 'my morning'")
        person.is_asked()
        person.types("/sessions")
        person.sees("my morning")
        person.is_asked()
        person.types("/sesions")
        person.sees("Did you mean /sessions?")
        person.is_asked()
        person.types("//not a command")
        person.sees("/not a command\r\n")
        person.is_asked()
        person.presses_ctrl_d()
        farewell = "come back to 'my morning' with: nplt chat --resume ([0-9a-f]{8})\r"
        session_id = person.sees_match(farewell)
        assert person.sees_it_end() == 0
    with at_terminal("--resume", "my morning", home=tmp_path, NPLT_SERVER=server) as person:
        person.sees("/not a command")
        person.is_asked()
        person.types("/quit")
        person.sees(session_id)
        assert person.sees_it_end() == 0


def test_ctrl_c_cancels_an_answer_and_keeps_its_beginning(server: str, tmp_path: Path) -> None:
    with at_terminal(server, home=tmp_path) as person:
        person.is_asked()
        person.types("!slow 60")
        person.sees("word2")
        person.presses_ctrl_c()
        person.sees("(interrupted)")
        person.is_asked()
        person.types("/history 1")
        person.sees("interrupted")
        person.sees("word1 word2")
        person.is_asked()
        person.presses_ctrl_c()
        person.sees("(Ctrl+D or /quit leaves)")
        person.is_asked()
        person.types("still here")
        person.sees("still here\r\n")
        person.is_asked()
        person.presses_ctrl_d()
        person.sees(f"come back with: nplt chat {server} --resume ")
        assert person.sees_it_end() == 0


def test_a_file_named_in_a_typed_prompt_is_attached_after_a_question(
    server: str, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("pears and quinces")
    with at_terminal("chat", home=tmp_path, NPLT_SERVER=server) as person:
        person.is_asked()
        person.types(f"read @{note}")
        person.sees(f"attach {note} (17 bytes)? [y/n] ")
        time.sleep(0.5)  # what comes at once was pasted
        person.types("y")
        person.is_asked()
        person.types(f"and again @{note}")
        person.sees("[y/n] ")
        time.sleep(0.5)
        person.types("n")
        person.is_asked()
        person.types("/history --entries")
        shown = person.is_asked()
        person.presses_ctrl_d()
        assert person.sees_it_end() == 0
    assert shown.count("attachments:") == 1


def test_a_pasted_line_does_not_attach_the_file_that_the_line_before_it_names(
    server: str, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("a secret")
    with at_terminal("chat", home=tmp_path, NPLT_SERVER=server) as person:
        person.is_asked()
        person.types(f"read @{note}\ry")
        person.sees("[y/n] ")
        time.sleep(0.5)
        person.types("n")
        person.is_asked()
        person.types("/history --entries")
        assert "attachments:" not in person.is_asked()
        person.presses_ctrl_d()
        assert person.sees_it_end() == 0


def test_tab_completes_commands_and_files(server: str, tmp_path: Path) -> None:
    (tmp_path / "quinces.txt").write_text("yellow")
    with at_terminal("chat", home=tmp_path, NPLT_SERVER=server) as person:
        person.is_asked()
        person.types("/stat\t")
        person.sees("uptime")
        person.is_asked()
        person.types(f"read @{tmp_path}/quin\t")
        person.sees(f"attach {tmp_path}/quinces.txt (6 bytes)? [y/n] ")
        time.sleep(0.5)
        person.types("n")
        person.is_asked()
        person.presses_ctrl_d()
        assert person.sees_it_end() == 0


CTRL_C_WITH_THE_PROMPT = """
import ctypes, functools, os, readline, signal

# All in C: with a step of Python in it the handler would run at once.
readline.set_pre_input_hook(
    functools.partial(ctypes.CDLL(None).kill, os.getpid(), signal.SIGINT)
)
prompts = iter((True, False))
readline.set_startup_hook(lambda: next(prompts, 0) or readline.set_pre_input_hook(None))
"""


def test_ctrl_c_while_the_prompt_appears_is_not_lost(server: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CTRL_C_WITH_THE_PROMPT)
    with at_terminal(server, home=tmp_path, PYTHONPATH=str(tmp_path)) as person:
        person.is_asked()
        person.sees("(Ctrl+D or /quit leaves)")
        person.is_asked()
        person.types("still here")
        person.sees("still here\r\n")


def test_every_slash_command_works(server: str, tmp_path: Path) -> None:
    with at_terminal("chat", home=tmp_path, NPLT_SERVER=server) as person:
        for line, expected in (
            ("/help", "/attach FILE"),
            ("/new chapter one", "in the new conversation 'chapter one'"),
            ("/model", r"* offline/echo"),
            ("/model offline/echo", "the model is now offline/echo"),
            ("/model no/such", "nplt: "),
            (f"/attach {tmp_path}/nowhere.txt", "nowhere.txt: No such file"),
            ("something to read", "something to read\r\n"),
            ("/clear", "cleared"),
            ("/status", "uptime"),
            ("/new chapter two", "in the new conversation 'chapter two'"),
            ("/switch chapter one", "in 'chapter one'"),
            ("/switch", "/switch needs ID|NAME"),
            ("/history many", "a number of messages"),
            ("/history", "something to read"),
            ("/delete chapter two", "is in the trash"),
            ("/delete", "is in the trash"),
            ("!fail", "nplt: offline/echo fails"),
        ):
            person.is_asked()
            person.types(line)
            person.sees(expected)
        person.is_asked()
        person.types("/quit")
        assert person.sees_it_end() == 0


def test_continue_goes_to_the_most_recent_conversation(tmp_path: Path) -> None:
    with running_server(tmp_path) as url:
        with at_terminal("--continue", home=tmp_path, NPLT_SERVER=url) as person:
            person.sees("there is no conversation yet")
            person.is_asked()
            person.types("the older one")
            person.is_asked()
            person.types("/new")
            person.is_asked()
            person.types("the newer one")
            person.sees("the newer one\r\n")
            person.is_asked()
            person.presses_ctrl_d()
            assert person.sees_it_end() == 0
        with at_terminal("--continue", home=tmp_path, NPLT_SERVER=url) as person:
            person.sees("the newer one")
            person.is_asked()
            person.presses_ctrl_d()
            assert person.sees_it_end() == 0


async def test_events_of_another_client_are_shown_while_the_input_waits(
    server: str, tmp_path: Path
) -> None:
    async with nplt_client.connect(server) as other:
        created = await other.new("shared")
        url = f"{server}/{created.session_id}"
        with at_terminal(url, home=tmp_path) as person:
            person.is_asked()
            person.types_without_enter("half a sen")
            await other.ask_text("typed elsewhere")
            person.sees("someone ▸ typed elsewhere")
            person.sees("typed elsewhere")
            person.sees("half a sen")
            await other.rename("shared by two")
            person.sees("(this conversation is now called 'shared by two')")
            person.types("tence")
            person.sees("half a sentence\r\n")
            person.is_asked()
            person.presses_ctrl_d()
            assert person.sees_it_end() == 0


def enter_scripted(talk: Talk) -> None:
    talk.welcome()
    give_empty_history(talk)


def test_a_plain_chat_reconnects_to_its_conversation_after_a_server_restart(
    tmp_path: Path,
) -> None:
    at_prompt_again = threading.Event()

    def goes(talk: Talk) -> None:
        enter_scripted(talk)
        talk.answer("one answer")
        assert at_prompt_again.wait(SECONDS_MAX)

    def comes_back(talk: Talk) -> None:
        talk.welcome(session_id="b" * 32)
        seq, place = talk.expect(Attach)
        assert (place.session_id, place.after_seq) == (SESSION, 2)
        here = Attached(
            session_id=SESSION, name="n", model=MODEL, head_seq=2, active_turn=None, queue=()
        )
        talk.reply(MessageType.ATTACH, seq, here)
        talk.answer("another answer", turn_id="turn-2", seq=4)
        talk.wait_until_gone()

    with scripted_peer(goes, comes_back) as peer, at_terminal(peer.url, home=tmp_path) as person:
        person.is_asked()
        person.types("hello")
        person.sees("one answer\r\n")
        person.is_asked()
        at_prompt_again.set()
        person.sees("(the server closed the connection; reconnecting …)")
        person.sees("(online again)")
        person.is_asked()
        person.types("still there?")
        person.sees("another answer\r\n")
        person.is_asked()
        person.presses_ctrl_d()
        assert person.sees_it_end() == 0


def test_an_attachment_is_sent_with_the_next_message_only(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes")
    attachments: list[tuple[str, ...]] = []

    def script(talk: Talk) -> None:
        enter_scripted(talk)
        seq, description = talk.expect(FileMetadata)
        assert (description.filename, description.size) == ("notes.txt", 10)
        assert talk.expect(FileData)[1].data == b"some notes"
        stored = FileStored(file_id="file-1", size=10, sha256="0" * 64)
        talk.reply(MessageType.FILE_METADATA, seq, stored)
        for number in ("1", "2"):
            attachments.append(talk.answer(f"answer {number}", turn_id=number).attachments)
        talk.wait_until_gone()

    with scripted_peer(script) as peer, at_terminal(peer.url, home=tmp_path) as person:
        person.is_asked()
        person.types(f"/attach {tmp_path}/notes.txt")
        person.sees("notes.txt (10 bytes) goes with your next message")
        for number in ("1", "2"):
            person.is_asked()
            person.types("look")
            person.sees(f"answer {number}")
        person.is_asked()
        person.presses_ctrl_d()
        assert person.sees_it_end() == 0
    assert attachments == [("file-1",), ()]


def hostile_texts(count: int) -> list[str]:
    chance = random.Random(16)
    speakable = [bit for bit in BITS if bit.isascii() or bit[0] < "\ud800"]
    return ["".join(chance.choices(speakable, k=chance.randint(1, 8))) for _ in range(count)]


def test_ask_prints_on_a_terminal_how_to_continue_unless_quiet(server: str, tmp_path: Path) -> None:
    for option, notices in (("--no-stream", True), ("-q", False)):
        with at_terminal("ask", option, "hi", "--server", server, home=tmp_path) as person:
            shown = person.sees_all()
            assert person.sees_it_end() == 0
        assert shown.startswith("hi\r\n")
        assert ("go on with: nplt ask -s " in shown) is notices


def test_ten_thousand_hostile_strings_bring_no_escape_byte_to_a_terminal(tmp_path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.answer(*hostile_texts(10_000))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        arguments = ("ask", "go", "--server", peer.url)
        with at_terminal(*arguments, home=tmp_path, NO_COLOR="1") as person:
            shown = person.sees_all()
            assert person.sees_it_end() == 0
    assert "text" in shown
    assert not FORBIDDEN.search(shown.replace("\r\n", "\n"))


def test_thoughts_tools_and_other_clients_bring_no_escape_byte_either(tmp_path: Path) -> None:
    texts = hostile_texts(200)

    def script(talk: Talk) -> None:
        enter_scripted(talk)
        events: list[Event] = []
        for number, text in enumerate(texts):
            thought = {"session_id": SESSION, "turn_id": "turn-1", "type": "reasoning"}
            events.append(AgentThought(**thought, text=text))  # type: ignore[arg-type]
            events.append(
                ToolStarted(
                    session_id=SESSION,
                    turn_id="turn-1",
                    call=0,
                    tool_call_id=str(number),
                    tool_name=text,
                    arguments={"a": text},
                )
            )
            events.append(entry(text, turn_id="theirs", role="user", seq=number + 1))
        talk.take_prompt(events=(*events, *whole_turn("the end", seq=len(texts) + 1)))
        talk.wait_until_gone()

    with (
        scripted_peer(script) as peer,
        at_terminal(peer.url, home=tmp_path, FORCE_COLOR="1") as person,
    ):
        person.is_asked()
        person.types("go")
        shown = person.sees("the end\r\n") + person.is_asked()
        person.types("/quit")
        assert person.sees_it_end() == 0
    assert "someone ▸ " in shown
    assert not FORBIDDEN.search(OURS.sub("", shown).replace("\r", ""))


def test_reasoning_and_tools_are_dimmed_and_only_with_colours(server: str, tmp_path: Path) -> None:
    for environ, seen in (({"FORCE_COLOR": "1"}, True), ({}, False)):
        with at_terminal("chat", server, home=tmp_path, **environ) as person:
            person.is_asked()
            person.types("!think deep-thought")
            assert ("\x1b[2mdeep-thought\x1b[0m" in person.is_asked()) is seen
            person.presses_ctrl_d()
            assert person.sees_it_end() == 0
