"""Whether a tool may be run: the library answers, and a person at a terminal is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.client.terminal_user import at_terminal
from tests.support.server_process import ServerProcess

import nplt_client
from nplt_client.approving import Verdict, question_text, verdict_in
from nplt_client.pending import pending_questions
from nplt_protocol.events import ApprovalRequest
from nplt_protocol.replies import ApprovalDecided, Attached


@pytest.fixture(scope="module")
def asking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("asking") / "data"
    server = ServerProcess(data_dir, settings={"tools": {"now": "ask"}}).start()
    yield server
    server.kill()


def url(server: ServerProcess) -> str:
    return f"nplt://127.0.0.1:{server.port}"


async def test_the_library_hears_the_question_and_answers_it(asking_server: ServerProcess) -> None:
    async with nplt_client.connect(url(asking_server)) as client:
        decided: list[ApprovalDecided] = []
        async with client.ask("!tool now {}") as turn:
            async for event in turn:
                if isinstance(event, ApprovalRequest):
                    decided.append(await client.approve(event.approval_id, allow=False))
        assert [(each.decision, each.decided_by) for each in decided] == [("deny", "local")]
        assert turn.text == "not run: local said no to this call of now"


def test_a_person_is_asked_and_may_say_yes_no_or_always(
    asking_server: ServerProcess, tmp_path: Path
) -> None:
    with at_terminal("chat", url(asking_server), "--new", home=tmp_path) as person:
        person.is_asked()
        person.types("!tool now {}")
        person.sees("allow now {}? [y/n/a] ")
        person.types("perhaps")
        person.sees("y: yes, this once")
        person.sees("[y/n/a] ")
        person.types("n")
        person.sees("not run: local said no")
        person.is_asked()
        person.types("!tool now {}")
        person.sees("[y/n/a] ")
        person.types("a")
        person.sees("+00:00")
        person.is_asked()
        person.types("!tool now {}")
        assert "[y/n/a]" not in person.is_asked()


def test_a_script_is_not_kept_waiting_for_an_answer(
    asking_server: ServerProcess, tmp_path: Path
) -> None:
    done = run_nplt("ask", "!tool now {}", server=url(asking_server), home=tmp_path)
    assert done.stdout == "not run: local said no to this call of now\n"
    assert "nobody is here to be asked" in done.stderr


def question(name: str = "write", **fields: object) -> ApprovalRequest:
    return ApprovalRequest(
        session_id="s",
        approval_id="a",
        turn_id="t",
        tool_name=name,
        arguments={"path": "a\x1b[2J\nb"},
        expires_at="2026-01-01T00:00:00+00:00",
        **fields,  # type: ignore[arg-type]
    )


def test_a_question_is_one_line_without_a_byte_that_acts_on_a_terminal() -> None:
    text = question_text(question("wr\x1b]0;x\x07ite\nit", truncated=True, size=9_000))
    assert text.isprintable()
    assert "(cut; 9,000 characters in all)" in text


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("y", Verdict(allow=True)),
        (" YES ", Verdict(allow=True)),
        ("a", Verdict(allow=True, remember=True)),
        ("no", Verdict(allow=False)),
        ("", None),
        ("yep", None),
    ],
)
def test_only_a_clear_word_is_an_answer(line: str, verdict: Verdict | None) -> None:
    assert verdict_in(line) == verdict


def test_what_was_asked_before_we_came_is_read_and_what_is_odd_is_left_out() -> None:
    attached = Attached(
        session_id="s",
        name="n",
        model="m",
        head_seq=1,
        active_turn=None,
        queue=(),
        pending_approvals=(
            {
                "approval_id": "a",
                "turn_id": "t",
                "tool_name": "write",
                "arguments": {},
                "expires_at": "x",
            },
            {"novelty": True},
        ),
    )
    (found,) = pending_questions(attached)
    assert (found.session_id, found.approval_id) == ("s", "a")
