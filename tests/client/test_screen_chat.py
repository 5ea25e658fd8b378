"""The full-screen chat in a real pseudo-terminal, with a real server."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest
from tests.client.hostile_bits import FORBIDDEN
from tests.client.nplt_process import NPLT, SECONDS_MAX, private_environment
from tests.client.screen_user import ScreenPerson, at_screen
from tests.client.scripted_peer import scripted_peer, whole_turn
from tests.client.staged_server import Stage, message_json
from tests.client.terminal_user import at_terminal, end
from tests.client.test_plain_chat import hostile_texts
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow

HOSTILE = 1_500
READY = "Ask something."

OURS = re.compile(
    r"\x1b(?:"
    r"\[[0-9;:]*m"  # colours
    r"|\[[0-9;]*[HK]"  # where to write, and cleaning up behind it
    r"|\[\?(?:1000|1002|1003|1004|1006|1015|1016|1049|2004|2026|2048|25|7)(?:[hl]|\$p)"  # modes
    r"|\[[<>=][0-9;]*u"  # which keys are told apart
    r"|\]22;[a-z-]*\x07"  # the shape of the mouse pointer
    r")"
)
"""What is sent to the terminal by the program itself."""


def test_a_whole_session_of_the_full_screen_chat(server: str, tmp_path: Path) -> None:
    with at_screen("chat", home=tmp_path, NPLT_SERVER=server) as person:
        person.sees(READY, "● online · offline/echo · new conversation")

        person.sees_the_cursor_in(READY)  # where an input method opens its window
        person.types("你好，世界")
        person.sees("│ 你好，世界")
        row, column = person.cursor
        assert person.screen.splitlines()[row].startswith("│ 你好")
        assert column == len("│ ") + 2 * len("你好，世界")
        person.presses_enter()
        person.sees("▌ 你好，世界", "\n  你好，世界", READY)

        person.pastes("one\x1b\rtwo\nthree\x1b[A\x03")
        person.sees("│ one", "│ two", "│ three")
        person.types("\n")
        person.types("four")
        person.presses_enter()
        person.sees("▌ one", "▌ four", READY)

        person.types("!slow 60\r")
        person.sees("word2", " answering ", "(Esc stops)")
        person.types("after that\r")
        person.sees("waiting for its turn", "1 waiting")
        person.presses_escape()
        person.sees("■ interrupted; what came is kept", "\n  after that")

        person.resizes(20, 60)
        person.sees("after that", READY)
        assert all(len(line) <= 60 for line in person.screen.splitlines())
        person.resizes(30, 90)

        person.types("/rename 京都 notes\r")
        person.sees("· 京都 notes")
        person.types("/new\r")
        person.sees_no("after that")
        person.types("/sessions\r")
        person.sees("conversations", "京都 notes")
        person.types("notes")
        person.presses_enter()
        person.sees("after that", "· 京都 notes")
        person.presses_ctrl("d")
        assert person.sees_it_end() == 0
        farewell = person.last_line
        assert re.fullmatch(
            r"come back to '京都 notes' with: nplt chat --resume [0-9a-f]{8}", farewell
        )


def test_the_screen_shows_a_reconnect_and_the_resumed_answer(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    again = ServerProcess(tmp_path / "data", "--port", str(server.port))
    try:
        with at_screen(f"nplt://127.0.0.1:{server.port}", home=tmp_path) as person:
            person.sees(READY)
            person.types("!slow 60\r")
            person.sees("word2", "answering")
            server.kill()
            person.sees("◌ reconnecting")
            person.types("a draft")
            person.sees("│ a draft")
            again.start()
            person.sees("● online", "word1 word2", "■ interrupted", "│ a draft")
            person.presses_enter()
            person.sees("▌ a draft", "\n  a draft")
            assert person.screen.count("word2") == 1
            person.presses_ctrl("d")
            assert person.sees_it_end() == 0
    finally:
        server.kill()
        again.kill()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Fits a line of the input, which pytest's own do not."""
    with TemporaryDirectory(prefix="n") as folder:
        yield Path(folder)


def test_hostile_strings_bring_no_foreign_escape_byte(tmp_path: Path, short_path: Path) -> None:
    texts = hostile_texts(HOSTILE)
    stage = Stage(
        answers=lambda prompt: whole_turn(*texts, "\n\nthe end"),
        messages=[message_json(1, "user", "".join(texts).replace("\x00", "") + "\nthe last word")],
        name="".join(texts[:20]),
    )
    (short_path / "aa \x1b]0;PWNED\x07\x1b[2J x").touch()
    (short_path / "fine").touch()
    with scripted_peer(stage.script()) as peer:
        with at_screen(peer.url, home=tmp_path, NO_COLOR="1") as person:
            person.sees(READY)
            person.types("go\r")
            person.sees("the end")
            person.types("/raw\r")
            person.sees("answers as they are written")
            person.types("/edit\r")
            person.sees("│ the last word")
            person.types(f"\x03/attach {short_path}/\t")
            person.sees(f"│ /attach {short_path}/fine")
            person.presses_ctrl("u")
            person.sees(READY)
            person.presses_ctrl("d")
            assert person.sees_it_end() == 0
        shown = person.raw.decode()
    assert shown.count("\x1b[?1049h") == 1
    assert not re.search(r"\x1b\[[0-9;]*[34]8;", shown), "colours, though none were wanted"
    left = OURS.sub("", shown).replace("\r\n", "\n")
    assert not FORBIDDEN.search(left), FORBIDDEN.search(left)


def test_a_dumb_terminal_and_plain_use_the_line_chat(server: str, tmp_path: Path) -> None:
    with at_terminal("chat", "--plain", home=tmp_path, NPLT_SERVER=server, TERM="dumb") as person:
        assert "\x1b" not in person.is_asked()
        person.presses_ctrl_d()
        assert person.sees_it_end() == 0


def test_a_server_that_hangs_is_shown_and_esc_is_acknowledged(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server()
    with at_screen("chat", home=tmp_path, NPLT_SERVER=f"nplt://127.0.0.1:{server.port}") as person:
        person.sees(READY)
        person.presses_escape()
        person.sees("there is no answer to stop")
        person.types("!slow 60\r")
        person.sees("word2", "(Esc stops)")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            person.sees("no answer for ")
            person.presses_escape()
            person.sees("no answer for ", " stopping ")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        person.sees("■ interrupted; what came is kept", "● online")


def test_ctrl_z_stops_the_whole_job_and_fg_redraws_it(server: str, tmp_path: Path) -> None:
    environ = private_environment(tmp_path, NPLT_SERVER=server, PS1="$ ", COLORTERM="truecolor")
    shell: Any = pexpect.spawn(
        "bash", ["--norc", "-i"], env=environ, timeout=SECONDS_MAX, dimensions=(24, 80)
    )
    shell.delaybeforesend = None
    person = ScreenPerson(shell, rows=24, columns=80)
    try:
        # As under make: a process that waits for the chat is in the same job.
        person.types(f"sh -c '{' '.join(NPLT)} chat; true'\r")
        person.sees(READY)
        person.types("a draft")
        person.sees("│ a draft")
        for _ in range(2):
            person.presses_ctrl("z")
            person.sees("Stopped", "\n$")
            person.types("fg\r")
            person.sees("│ a draft", "● online")
        person.types(" goes on")
        person.sees("│ a draft goes on")
    finally:
        end(shell)
