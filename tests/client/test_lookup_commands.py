"""The commands that look something up, and chat in a pipe: real processes, a real server."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from tests.client.nplt_process import run_nplt
from tests.client.scripted_peer import Talk, delta, finished, scripted_peer, started

from nplt_protocol.codes import MessageType
from nplt_protocol.messages import Attached, SessionList, SessionRows, SessionSwitch

pytestmark = pytest.mark.slow


def new_conversation(server: str, home: Path, text: str) -> str:
    done = run_nplt("ask", "--json", text, home=home, server=server)
    return str(orjson.loads(done.stdout)["session_id"])


def test_sessions_are_listed_as_text_and_as_json(server: str, tmp_path: Path) -> None:
    session_id = new_conversation(server, tmp_path, "a 漢字 conversation")
    shown = run_nplt("sessions", "--query", "漢字", home=tmp_path, server=server)
    assert shown.stdout.splitlines()[0].split()[:2] == ["ID", "NAME"]
    assert session_id[:8] in shown.stdout
    listed = run_nplt("sessions", "--json", home=tmp_path, server=server)
    assert session_id in [row["session_id"] for row in orjson.loads(listed.stdout)]


def test_an_incomplete_list_of_sessions_is_reported(tmp_path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, _ = talk.expect(SessionList)
        talk.reply(MessageType.SESSION_LIST, seq, SessionRows(sessions=(), incomplete=True))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        done = run_nplt("sessions", home=tmp_path, server=peer.url)
    assert "not complete yet" in done.stderr


def test_history_shows_the_newest_page_and_older_ones(server: str, tmp_path: Path) -> None:
    session_id = new_conversation(server, tmp_path, "first words")
    run_nplt("ask", "-s", session_id, "second words", home=tmp_path, server=server)
    shown = run_nplt("history", session_id[:12], "--limit", "2", home=tmp_path, server=server)
    assert "second words" in shown.stdout
    assert "first words" not in shown.stdout.split("\n\n", 1)[1]
    page = orjson.loads(
        run_nplt(
            "history", session_id, "--limit", "2", "--json", home=tmp_path, server=server
        ).stdout
    )
    assert page["page"]["has_more_before"]
    before = str(page["page"]["before"])
    older = run_nplt("history", session_id, "--before", before, home=tmp_path, server=server)
    assert "first words" in older.stdout


def test_models_and_status_are_shown(server: str, tmp_path: Path) -> None:
    assert "* offline/echo" in run_nplt("models", home=tmp_path, server=server).stdout
    status = run_nplt("status", home=tmp_path, server=server)
    assert "uptime" in status.stdout
    assert status.returncode == 0
    listed = run_nplt("models", "--json", home=tmp_path, server=server)
    assert orjson.loads(listed.stdout)["models"] == ["offline/echo"]


def test_a_conversation_is_renamed_and_deleted(server: str, tmp_path: Path) -> None:
    session_id = new_conversation(server, tmp_path, "to be deleted")
    name = f"short-lived {session_id[:6]}"
    renamed = run_nplt("rename", session_id, name, home=tmp_path, server=server)
    assert (renamed.returncode, renamed.stdout) == (0, "")
    assert run_nplt("delete", name, home=tmp_path, server=server).returncode == 0
    gone = run_nplt("history", session_id, home=tmp_path, server=server)
    assert gone.returncode == 2


def test_a_short_prefix_of_an_id_cannot_delete(tmp_path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, _ = talk.expect(SessionSwitch)
        found = Attached(
            session_id="abc" + "0" * 29,
            name="precious",
            model="m",
            head_seq=1,
            active_turn=None,
            queue=(),
        )
        talk.reply(MessageType.SESSION_SWITCH, seq, found)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        done = run_nplt("delete", "ab", home=tmp_path, server=peer.url)
    assert done.returncode == 2
    assert "precious" in done.stderr


def test_an_ambiguous_name_lists_its_conversations(server: str, tmp_path: Path) -> None:
    ids = [new_conversation(server, tmp_path, "a twin") for _ in range(2)]
    name = f"twins {ids[0][:6]}"
    for session_id in ids:
        run_nplt("rename", session_id, name, home=tmp_path, server=server)
    done = run_nplt("history", name, home=tmp_path, server=server)
    assert done.returncode == 2
    assert all(f"    {session_id}  {name}\n" in done.stderr for session_id in ids)


@pytest.mark.parametrize("command", ["status", "chat"])
def test_with_an_address_given_no_server_is_ever_started(tmp_path: Path, command: str) -> None:
    done = run_nplt(command, home=tmp_path, server="nplt://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("nplt: can't connect to nplt://127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


def test_help_and_version_need_no_server(tmp_path: Path) -> None:
    for arguments in (("--help",), ("--version",)):
        done = run_nplt(*arguments, home=tmp_path, server="nplt://127.0.0.1:1")
        assert (done.returncode, done.stderr) == (0, "")


def test_in_a_pipe_each_line_is_a_prompt(server: str, tmp_path: Path) -> None:
    done = run_nplt("chat", home=tmp_path, server=server, stdin="one\n\n//two\nthree")
    assert (done.stdout, done.stderr, done.returncode) == ("one\n/two\nthree\n", "", 0)


def test_a_pipe_without_a_command_runs_chat(server: str, tmp_path: Path) -> None:
    done = run_nplt(server, home=tmp_path, stdin="hello\n")
    assert (done.stdout, done.returncode) == ("hello\n", 0)


def test_a_pipe_goes_on_after_a_failure_and_exits_with_the_worst_code(
    server: str, tmp_path: Path
) -> None:
    done = run_nplt("chat", home=tmp_path, server=server, stdin="/nonsense\n!fail\nlast\n")
    assert (done.stdout, done.returncode) == ("last\n", 6)
    assert "There is no /nonsense" in done.stderr


def test_chat_with_new_and_continue_is_wrong_usage(server: str, tmp_path: Path) -> None:
    done = run_nplt("chat", "--new", "--continue", home=tmp_path, server=server)
    assert done.returncode == 2


def test_resuming_an_unknown_conversation_is_wrong_usage(server: str, tmp_path: Path) -> None:
    done = run_nplt("chat", "--resume", "nowhere to be found", home=tmp_path, server=server)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_pipe_ends_when_the_server_does(tmp_path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(), delta("half", 0)))

    with scripted_peer(script) as peer:
        at_once = {"NPLT_RECONNECT_SECONDS": "0"}
        done = run_nplt("chat", home=tmp_path, server=peer.url, stdin="one\ntwo\n", environ=at_once)
    assert (done.stdout, done.returncode) == ("half\n", 5)


def test_an_interrupted_answer_in_a_pipe_is_reported(tmp_path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(delta("half", 0), finished(state="interrupted")))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        done = run_nplt("chat", home=tmp_path, server=peer.url, stdin="one\n")
    assert (done.stdout, done.returncode) == ("half\n", 130)
