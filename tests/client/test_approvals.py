"""Whether a tool may be run: the library answers, a person at a terminal is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.client.nplt_process import run_nplt
from tests.client.terminal_user import at_terminal
from tests.support.server_process import ServerProcess

import nplt_client
from nplt_client.chat.approvals import (
    PAUSE_SECONDS,
    ApprovalDecision,
    Approvals,
    ApprovalWanted,
    OpenQuestion,
    approval_wanted,
    parse_decision,
)
from nplt_client.errors import NpltError
from nplt_client.lines.plain_terminal import question_text
from nplt_client.wire.wire_session import pending_approvals
from nplt_protocol.messages import ApprovalDecided, ApprovalRequest, Attached


@pytest.fixture(scope="module")
def asking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("asking") / "data"
    server = ServerProcess(data_dir, settings={"tools": {"now": "ask"}}).start()
    yield server
    server.kill()


def url(server: ServerProcess) -> str:
    return f"nplt://127.0.0.1:{server.port}"


async def test_the_library_receives_an_approval_request_and_decides_it(
    asking_server: ServerProcess,
) -> None:
    async with nplt_client.connect(url(asking_server)) as client:
        decided: list[ApprovalDecided] = []
        async with client.ask("!tool now {}") as turn:
            async for event in turn:
                if isinstance(event, ApprovalRequest):
                    decided.append(await client.approve(event.approval_id, allow=False))
        assert [(each.decision, each.decided_by) for each in decided] == [("deny", "local")]
        assert turn.text == "not run: local said no to this call of now"


def test_an_approval_question_takes_yes_no_or_always(
    asking_server: ServerProcess, tmp_path: Path
) -> None:
    with at_terminal("chat", url(asking_server), "--new", home=tmp_path) as person:
        person.is_asked()
        person.types("!tool now {}")
        person.sees("may the tool now run with {}? [y/n/a] ")
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


def test_ask_in_a_script_does_not_wait_for_an_approval(
    asking_server: ServerProcess, tmp_path: Path
) -> None:
    done = run_nplt("ask", "!tool now {}", server=url(asking_server), home=tmp_path)
    assert done.stdout == "not run: local said no to this call of now\n"
    assert "no one is here to decide" in done.stderr


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


def test_an_approval_question_is_one_line_without_control_characters() -> None:
    text = question_text(
        approval_wanted(question("wr\x1b]0;x\x07ite\nit", truncated=True, size=9_000))
    )
    assert text.isprintable()
    assert "(cut; 9,000 characters in all)" in text


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("y", ApprovalDecision(allow=True)),
        (" YES ", ApprovalDecision(allow=True)),
        ("a", ApprovalDecision(allow=True, remember=True)),
        ("no", ApprovalDecision(allow=False)),
        ("", None),
        ("yep", None),
    ],
)
def test_only_a_clear_word_is_an_approval_decision(
    line: str, decision: ApprovalDecision | None
) -> None:
    assert parse_decision(line) == decision


def test_pending_approvals_of_attach_are_read_and_malformed_ones_left_out() -> None:
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
    (found,) = pending_approvals(attached)
    assert (found.approval_id, found.tool_name) == ("a", "write")


class ApprovingClient:
    """Takes decisions as a server would, unless it is lost or somebody was quicker."""

    def __init__(self) -> None:
        self.decisions: list[tuple[str, bool, bool]] = []
        self.error: NpltError | None = None
        self.decided_before: str | None = None

    async def approve(self, approval_id: str, *, allow: bool, remember: bool) -> ApprovalDecided:
        if self.error is not None:
            raise self.error
        self.decisions.append((approval_id, allow, remember))
        return ApprovalDecided(
            approval_id=approval_id,
            decision=self.decided_before or ("allow" if allow else "deny"),
            decided_by="ada",
        )


def wanted(approval_id: str) -> ApprovalWanted:
    return ApprovalWanted(approval_id=approval_id, tool_name="rm", arguments="{}")


async def test_approvals_are_asked_one_at_a_time_and_the_first_decision_counts() -> None:
    client = ApprovingClient()
    approvals = Approvals(cast(nplt_client.Client, client))
    assert approvals.add(wanted("1"))
    assert not approvals.add(wanted("1"))
    assert approvals.add(wanted("2"))
    assert approvals.take_next_question() == wanted("1")
    assert approvals.take_next_question() == wanted("2")
    assert approvals.take_next_question() is None, "each is asked once"
    always = ApprovalDecision(allow=True, remember=True)
    client.error = nplt_client.ConnectionLost("gone")
    with pytest.raises(nplt_client.ConnectionLost):
        await approvals.decide_oldest(always)
    client.error = None
    assert approvals.oldest == wanted("1"), "what did not arrive is still to be decided"
    assert await approvals.decide_oldest(always) == "rm: allowed"
    client.decided_before = "deny"
    assert await approvals.decide_oldest(always) == "ada decided before: deny"
    assert client.decisions == [("1", True, True), ("2", True, True)]
    with pytest.raises(nplt_client.RequestRefused, match="No tool waits"):
        await approvals.decide_oldest(always)
    approvals.add(wanted("3"))
    assert approvals.settle("3") == wanted("3")
    assert approvals.settle("3") is None


def test_an_approval_question_accepts_keys_after_a_pause_and_enter_decides() -> None:
    now = 100.0
    question = OpenQuestion(clock=lambda: now)
    assert not question.listens
    question.open(wanted("1"))
    assert not question.listens
    now += PAUSE_SECONDS
    assert question.listens
    assert question.decision is None
    question.move_mark(1)
    assert question.decision == ApprovalDecision(allow=True)
    question.open(wanted("1"))
    assert question.marked == "y", "the same question drawn again"
    question.move_mark(-1)
    assert question.decision == ApprovalDecision(allow=True, remember=True)
    question.note_typing()
    assert (question.listens, question.decision) == (False, None)
    now += PAUSE_SECONDS
    question.marked = "n"
    question.open(wanted("2"))
    assert (question.listens, question.decision) == (False, None), "another question"
    question.open(None)
    now += PAUSE_SECONDS
    assert not question.listens


def test_long_tool_arguments_are_printed_before_the_approval_question(
    asking_server: ServerProcess, tmp_path: Path
) -> None:
    with at_terminal("chat", url(asking_server), "--new", home=tmp_path) as person:
        person.is_asked()
        person.types('!tool now {"timezone": "' + "x" * 2_500 + 'THE-END"}')
        person.sees("now wants to be run with")
        assert "xTHE-END" in person.sees("[y/n/a] ")
        person.types("n")
        person.sees("not run: local said no")
