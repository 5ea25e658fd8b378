"""The full-screen chat, its keys pressed and its widgets looked at, without a terminal.

One chat is opened for several steps where they don't disturb each other:
opening one costs more than all that is done in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.client.screen_stage import chat_on_stage, chat_with, screen_text, until
from tests.client.scripted_peer import (
    SESSION,
    Talk,
    delta,
    finished,
    scripted_peer,
    started,
)
from tests.client.staged_server import Stage, message_json, talked
from textual.events import Paste
from textual.widget import Widget
from textual.widgets import Markdown, Static

from nplt_client.chat import approvals, display
from nplt_client.chat.changes import Change, EventTranslator, PromptShown
from nplt_client.tui import transcript
from nplt_client.tui.composer import ROWS_MAX, Composer
from nplt_client.tui.transcript import CollapsibleLine
from nplt_protocol.codes import ErrorCode
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    AgentThought,
    Approval,
    ApprovalRequest,
    Cancel,
    EntryAdded,
    Event,
    Hello,
    HistoryRequest,
    Prompt,
    SearchHit,
    SessionDelete,
    SessionEvent,
    SessionRow,
    SessionUpdate,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)

pytestmark = pytest.mark.slow

DELTAS = 3_000
PART = 300


def asked_in(prompt: Prompt, *, seq: int = 1, turn_id: str = "turn-1") -> EntryAdded:
    entry: JsonObject = {
        "seq": seq,
        "role": "user",
        "content": prompt.text,
        "message_id": prompt.message_id,
    }
    return EntryAdded(session_id=SESSION, turn_id=turn_id, entry=entry)


def answered(text: str, *, seq: int = 2, call: int = 0) -> EntryAdded:
    entry: JsonObject = {"seq": seq, "role": "assistant", "content": text}
    return EntryAdded(session_id=SESSION, turn_id="turn-1", call=call, entry=entry)


def translated(event: Event) -> list[Change]:
    return list(EventTranslator(lambda turn_id: True).changes_of(event))


def long_answer() -> list[TextDelta]:
    """Three thousand pieces: paragraphs, lists, code."""
    pieces: list[str] = []
    for number in range(DELTAS):
        match number % PART:
            case 0:
                pieces.append(f"\n\n## Part {number}\n\n")
            case 100:
                pieces.append("\n\n- one\n- two\n\n")
            case 200:
                pieces.append("\n\n```python\nx = 1\n```\n\n")
            case _:
                pieces.append("word ")
    offset, deltas = 0, []
    for piece in pieces:
        deltas.append(delta(piece, offset))
        offset += len(piece)
    return deltas


def is_finished(widget: Widget, markdown: Markdown | None) -> bool:
    """Whether it stands on the screen above the block that still grows."""
    if markdown is None or markdown not in widget.ancestors:
        return widget.is_attached
    *above, _ = markdown.children
    return any(block in above for block in widget.ancestors_with_self)


async def test_three_thousand_deltas_never_redraw_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = long_answer()
    stage = Stage(
        messages=talked(8),
        answers=lambda prompt: [asked_in(prompt, seq=17), started(), *deltas],
    )
    redrawn: list[Widget] = []
    drawn = 0
    draw = Static.update

    def counted(self: Static, content: Any = "", *, layout: bool = True) -> None:
        nonlocal drawn
        drawn += 1
        growing = app.transcript.turns[-1].query(Markdown)
        if app.transcript in self.ancestors and is_finished(self, next(iter(growing), None)):
            redrawn.append(self)
        draw(self, content, layout=layout)

    async with chat_with(stage, tmp_path, resume=SESSION) as (app, pilot):
        await until(pilot, lambda: "message number 16" in screen_text(app))
        await app.transcript.begin(PromptShown(turn_id="", text="go", message_id="m"))
        await until(pilot, lambda: "sending" in screen_text(app))
        monkeypatch.setattr(Static, "update", counted)
        await app.session.send("go", "m")
        whole = "".join(one.text for one in deltas)
        await until(pilot, lambda: app.transcript.turns[-1].answer == whole)
        shown = app.transcript.turns[-1].query_one(Markdown)
        await until(pilot, lambda: len(shown.children) > 3 * DELTAS // PART)
        assert shown.source == whole
        assert drawn > DELTAS // PART
        own = {one for one in redrawn if "prompt" in one.classes or "end" in one.classes}
        assert set(redrawn) == own, "only the prompt's own line says that it is answered now"


async def test_an_answer_with_thoughts_and_tools_is_shown_in_order(tmp_path: Path) -> None:
    def story(prompt: Prompt) -> Sequence[Event]:
        of_turn = {"session_id": SESSION, "turn_id": "turn-1"}
        tool = {"call": 0, "tool_call_id": "1", "tool_name": "now"}
        return [
            asked_in(prompt),
            started(),
            AgentThought(
                **of_turn,
                type="reasoning",
                call=0,
                offset=0,
                text="deep [b]thoughts[/b]",
            ),
            ToolStarted(**of_turn, **tool, arguments={"zone": "[red]UTC"}),  # type: ignore[arg-type]
            ToolFinished(**of_turn, **tool, status="success", duration=0.25, result="noon"),  # type: ignore[arg-type]
            delta("It is **noon** [bold]there[/bold]", 0, call=1),
            answered("It is **noon** [bold]there[/bold]", call=1),
            finished(),
        ]

    stage = Stage(answers=story, name="[red]a name[/nothing]")
    async with chat_with(stage, tmp_path) as (app, pilot):
        composer = app.query_one(Composer)
        await pilot.press(*"hi", "ctrl+j", *"you", "enter")
        await until(pilot, lambda: "there" in screen_text(app))
        await until(pilot, lambda: app.session.turn_status.running is None)
        assert [one.text for one in stage.asked if isinstance(one, Prompt)] == ["hi\nyou"]
        shown = [line.strip() for line in screen_text(app).splitlines() if line.strip()]
        assert shown[:5] == [
            "▌ hi",
            "▌ you",
            "▸ reasoning · 2 words",
            '▸ ⚙ now {"zone": "[red]UTC"} · success · 0.2 s',
            "It is noon [bold]there[/bold]",
        ]
        assert composer.text == ""

        await pilot.press("ctrl+o")
        await until(pilot, lambda: "deep [b]thoughts[/b]" in screen_text(app))
        assert "    noon" in screen_text(app)
        await pilot.press("ctrl+o")
        assert not any(fold.is_open for fold in app.query(CollapsibleLine))

        await pilot.press(*"/raw", "enter")
        await until(pilot, lambda: "It is **noon**" in screen_text(app))
        await pilot.press(*"/copy", "enter")
        await until(pilot, lambda: app.clipboard == "It is **noon** [bold]there[/bold]")
        await until(pilot, lambda: "[red]a name[/nothing]" in screen_text(app))


async def test_the_input_grows_pastes_completes_and_recalls_prompts(tmp_path: Path) -> None:
    def silence(prompt: Prompt) -> Sequence[Event]:
        return [asked_in(prompt)]

    stage = Stage(answers=silence)
    async with chat_with(stage, tmp_path) as (app, pilot):
        composer = app.query_one(Composer)
        composer.post_message(Paste("one\rtwo\n\x1b[31mthree\n"))
        await until(pilot, lambda: composer.text == "one\ntwo\nthree\n")
        assert composer.size.height == 4
        composer.post_message(Paste("\n" * 19))
        await until(pilot, lambda: composer.text.count("\n") == 22)
        assert composer.size.height == ROWS_MAX
        await pilot.press("ctrl+c")
        assert composer.text == ""

        await pilot.press(*"a\\", "enter", *"b", "shift+enter", *"c", "alt+enter")
        assert composer.text.startswith("a\nb\nc")
        await pilot.press("ctrl+c", *"first", "enter", *"draft", "up")
        assert composer.text == "first"
        await pilot.press("down")
        assert composer.text == "draft"
        await pilot.press("ctrl+c", *"/thm")
        assert "/theme" not in screen_text(app)
        await pilot.press("backspace", "backspace", "tab")
        assert composer.text.startswith("/t")
        await pilot.press("ctrl+c", *"/theme li", "enter")
        await until(pilot, lambda: app.theme == "light")
        await pilot.press(*"/nonsense", "enter")
        await until(pilot, lambda: "There is no /nonsense" in screen_text(app))
        await pilot.press("ctrl+r", *"fir", "enter")
        await until(pilot, lambda: composer.text == "first")
        assert len([one for one in stage.asked if isinstance(one, Prompt)]) == 1
        (stored,) = (tmp_path / "prompts.jsonl").read_text().splitlines()
        assert json.loads(stored)["text"] == "first"
        await pilot.press("ctrl+c", "ctrl+c", "ctrl+c")
        await until(pilot, lambda: not app.is_running)


async def test_escape_cancels_the_running_turn_and_queued_prompts_are_shown(tmp_path: Path) -> None:
    turns = iter(("a", "b"))

    def slow(prompt: Prompt) -> Sequence[Event]:
        turn_id = next(turns)
        asked = asked_in(prompt, seq=ord(turn_id), turn_id=turn_id)
        begun = [started(turn_id), delta("half of", 0, turn_id=turn_id)]
        return [asked, *(begun if turn_id == "a" else ())]

    stage = Stage(answers=slow)
    async with chat_with(stage, tmp_path) as (app, pilot):
        await pilot.press(*"one", "enter")
        await until(pilot, lambda: "half of" in screen_text(app))
        await pilot.press(*"two", "enter")
        await until(pilot, lambda: "waiting for its turn" in screen_text(app))
        assert "1 waiting" in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: Cancel(turn_id="a") in stage.asked)


def queueing(*turn_ids: str) -> Stage:
    """The first turn runs, the others wait until they are cancelled."""
    left = iter(turn_ids)

    def answers(prompt: Prompt) -> Sequence[Event]:
        turn_id = next(left)
        asked = asked_in(prompt, seq=turn_ids.index(turn_id) + 1, turn_id=turn_id)
        is_first = turn_id == turn_ids[0]
        return [asked, *([started(turn_id), delta("half of", 0, turn_id=turn_id)] * is_first)]

    return Stage(answers=answers)


def cancelled(stage: Stage) -> list[str | None]:
    return [one.turn_id for one in stage.asked if isinstance(one, Cancel)]


async def test_up_takes_back_the_last_queued_prompt_which_disappears(tmp_path: Path) -> None:
    stage = queueing("a", "b", "c")
    async with chat_with(stage, tmp_path) as (app, pilot):
        for prompt in ("one", "two", "three"):
            await pilot.press(*prompt, "enter")
        await until(pilot, lambda: "2 waiting" in screen_text(app))
        await pilot.press("up")
        assert app.draft == "three"
        await until(pilot, lambda: cancelled(stage) == ["c"])
        await pilot.press("up")
        assert app.draft != "two", "with a text in the input Up goes through earlier prompts"
        end = TurnFinished(session_id=SESSION, turn_id="c", state="interrupted", seq=9)
        app.session.change_queue.add([*translated(end), *translated(end)])
        await until(pilot, lambda: "1 waiting" in screen_text(app))
        assert [turn.turn_id for turn in app.transcript.turns] == ["a", "b"]


async def test_esc_twice_stops_the_answer_and_empties_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "ESCAPE_SECONDS", 3_600)
    remarks: list[str] = []
    stage = queueing("a", "b", "c")
    async with chat_with(stage, tmp_path) as (app, pilot):
        for prompt in ("one", "two", "three"):
            await pilot.press(*prompt, "enter")
        await until(pilot, lambda: "2 waiting" in screen_text(app))
        monkeypatch.setattr(app, "remark", remarks.append)
        await pilot.press("escape", "escape")
        await until(pilot, lambda: {"a", "b", "c"} <= set(cancelled(stage)))
        await until(pilot, lambda: bool(remarks))
        assert remarks == ["2 prompts taken back; Up brings back what you typed"]


async def test_an_approval_is_decided_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "PAUSE_SECONDS", 0.01)

    def wanting(prompt: Prompt) -> Sequence[Event]:
        def wanted(approval_id: str) -> ApprovalRequest:
            return ApprovalRequest(
                session_id=SESSION,
                turn_id="turn-1",
                approval_id=approval_id,
                tool_name="write_file",
                arguments={"path": f"/etc/{approval_id}\x1b[2J[/red]"},
                expires_at="",
            )

        asks = [wanted("one"), wanted("two"), wanted("three")]
        settled = SessionEvent(session_id=SESSION, event="approval", details={"approval_id": "two"})
        return [asked_in(prompt), started(), *asks, settled]

    stage = Stage(answers=wanting)
    async with chat_with(stage, tmp_path) as (app, pilot):
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: r"/etc/one\u001b[2J[/red]" in screen_text(app))
        await until(pilot, lambda: "or arrows" in screen_text(app))
        await pilot.press("y", "enter")
        await until(pilot, lambda: "/etc/three" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: "/etc/three" not in screen_text(app))
        assert "waiting for you" in screen_text(app)
        await pilot.press(*"/deny always", "enter")
        await until(pilot, lambda: len(decisions(stage)) == 2)
        assert decisions(stage) == [("one", "allow", False), ("three", "deny", True)]


def decisions(stage: Stage) -> list[tuple[str, str, bool]]:
    return [
        (one.approval_id, one.decision, one.remember)
        for one in stage.asked
        if isinstance(one, Approval)
    ]


async def test_older_messages_are_read_when_the_top_is_reached(tmp_path: Path) -> None:
    stage = Stage(messages=talked(40), answers=lambda prompt: [asked_in(prompt, seq=81)])
    async with chat_with(stage, tmp_path, resume=SESSION) as (app, pilot):
        await until(pilot, lambda: "message number 80" in screen_text(app))
        assert len(app.transcript.turns) == 15
        await pilot.press("pageup")
        app.transcript.scroll_home(animate=False)
        await until(pilot, lambda: len(app.transcript.turns) == 30)
        assert not app.transcript.follows
        stood = app.transcript.turns[15]
        await until(pilot, lambda: app.transcript.scroll_y > 0)
        prompt = stood.query(Static).first()
        assert str(prompt.render()) == "message number 51"
        app.session.change_queue.add(translated(answered("news", seq=90)))
        await until(pilot, lambda: "new line" in screen_text(app))
        await pilot.press("ctrl+end")
        await until(pilot, lambda: "news" in screen_text(app))
        assert "↓" not in screen_text(app)


async def test_turns_far_above_are_dropped_while_the_end_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "VIEWS_MAX", 6)
    monkeypatch.setattr(transcript, "VIEWS_KEPT", 4)
    stage = Stage()
    async with chat_with(stage, tmp_path) as (app, pilot):
        await until(pilot, lambda: app.session.change_queue is not None)
        for number in range(9):
            prompt = Prompt(text=f"prompt {number}")
            asked = asked_in(prompt, seq=number + 1, turn_id=str(number))
            app.session.change_queue.add(translated(asked))
        last = "prompt 8"
        await until(pilot, lambda: last in screen_text(app))
        await until(pilot, lambda: len(app.transcript.turns) == 4)
        assert app.session.has_older


def row(session_id: str, name: str, preview: str = "") -> SessionRow:
    return SessionRow(
        session_id=session_id,
        name=name,
        message_count=3,
        created_at="",
        updated_at="",
        last_accessed="",
        is_current=False,
        model="m",
        state="running",
        preview=preview,
    )


async def test_a_conversation_is_picked_by_a_few_letters(tmp_path: Path) -> None:
    rows = (row("b" * 32, "trip to 京都"), row("c" * 32, "[red]notes\x1b[2J", "about milk"))
    stage = Stage(sessions=rows, messages=[message_json(1, "user", "a stored prompt")])
    async with chat_with(stage, tmp_path) as (app, pilot):
        await pilot.press(*"/sessions", "enter")
        await until(pilot, lambda: "[red]notes" in screen_text(app))
        assert "running" in screen_text(app)
        await pilot.press(*"milk")
        await until(pilot, lambda: "京都" not in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await until(pilot, lambda: app.session.client.session_id == "c" * 32)


async def test_a_deletion_is_undone_in_the_picker(tmp_path: Path) -> None:
    idle = [replace(row(letter * 32, f"notes {letter}"), state="idle") for letter in "bc"]
    stage = Stage(sessions=[*idle, row("d" * 32, "busy")])
    async with chat_with(stage, tmp_path, size=(40, 12)) as (app, pilot):
        await pilot.press(*"/sessions", "enter")
        await until(pilot, lambda: "notes b" in screen_text(app))
        await pilot.press("ctrl+x")
        await until(pilot, lambda: "deleted notes b; Ctrl+Z" in screen_text(app))
        await until(pilot, lambda: screen_text(app).count("notes b") == 1)
        await pilot.press("ctrl+z")
        await until(pilot, lambda: "Ctrl+Z" not in screen_text(app))
        assert "notes b" in screen_text(app)
        changed = [one for one in stage.asked if isinstance(one, SessionDelete | SessionUpdate)]
        assert changed == [
            SessionDelete(session_id="b" * 32),
            SessionUpdate(session_id="b" * 32, deleted=False),
        ]
        await pilot.press(*"busy", "ctrl+x")
        await until(pilot, lambda: "Ctrl+X once more" in screen_text(app))


async def test_an_empty_conversation_shows_its_model_until_the_first_prompt(
    tmp_path: Path,
) -> None:
    stage = Stage(answers=lambda prompt: [asked_in(prompt), started()])
    async with chat_with(stage, tmp_path, size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: "it only repeats what you type" in screen_text(app))
        assert "OPENAI_API_KEY" in screen_text(app)
        assert "/help" in screen_text(app)
        await pilot.press(*"hello", "enter")
        await until(pilot, lambda: "repeats" not in screen_text(app))


async def test_new_lines_are_counted_while_the_transcript_is_scrolled_up(
    tmp_path: Path,
) -> None:
    stage = Stage(messages=talked(14))  # nothing older is read
    async with chat_with(stage, tmp_path, resume=SESSION) as (app, pilot):
        await until(pilot, lambda: app.transcript.max_scroll_y > 0)
        app.transcript.look_at_top()
        app.session.change_queue.add([*translated(started()), *translated(delta("a", 0))])
        await until(pilot, lambda: "↓ 1 new line ·" in screen_text(app))
        app.session.change_queue.add(translated(delta("\n\nb\n", 0)))
        await until(pilot, lambda: "↓ 4 new lines · Ctrl+End" in screen_text(app))
        await pilot.press("ctrl+end")
        await until(pilot, lambda: "↓" not in screen_text(app))


async def test_switch_completes_the_names_of_conversations(tmp_path: Path) -> None:
    stage = Stage(sessions=(row("b" * 32, "trip to 京都"), row("c" * 32, "notes")))
    async with chat_with(stage, tmp_path) as (app, pilot):
        await pilot.press(*"/switch ")
        await until(pilot, lambda: "trip to 京都" in screen_text(app))
        await pilot.press(*"no", "tab")
        assert app.draft == "/switch notes"


async def test_the_picker_shows_several_rows_on_a_small_screen(tmp_path: Path) -> None:
    stage = Stage(sessions=[row(f"{number:032x}", f"row-{number}") for number in range(20)])
    async with chat_with(stage, tmp_path, size=(40, 12)) as (app, pilot):
        await pilot.press(*"/sessions", "enter")
        await until(pilot, lambda: screen_text(app).count("row-") >= 5)
        assert "Esc" in screen_text(app)


async def test_the_picker_previews_the_last_messages_and_opens_at_the_match(
    tmp_path: Path,
) -> None:
    hit = SearchHit(
        session_id="b" * 32, name="long", seq=10, role="assistant", snippet="s", timestamp=""
    )
    stage = Stage(sessions=[row("b" * 32, "long")], messages=talked(60), hits=[hit])
    async with chat_with(stage, tmp_path, size=(80, 24)) as (app, pilot):
        await pilot.press(*"/sessions", "enter")
        await until(pilot, lambda: "◂ message number 120" in screen_text(app))
        await pilot.press(*"number")
        await until(pilot, lambda: any(one.around == 10 for one in pages_asked(stage)))
        await pilot.press("enter")
        await until(pilot, lambda: bool(re.search(r"▌ message number 9\b", screen_text(app))))
        assert "message number 120" not in screen_text(app)


def pages_asked(stage: Stage) -> list[HistoryRequest]:
    return [one for one in stage.asked if isinstance(one, HistoryRequest)]


async def test_the_stored_answer_replaces_the_streamed_one(tmp_path: Path) -> None:
    streamed = "- a\n- b\n\n<b>c</b>\n\n| x |\n|---|\n| y |\n"
    stage, translator = Stage(), EventTranslator(lambda turn_id: True)
    async with chat_with(stage, tmp_path) as (app, pilot):
        for place in range(0, len(streamed), 4):
            piece = delta(streamed[place : place + 4], place)
            app.session.change_queue.add(translator.changes_of(piece))
            await pilot.pause()
        await until(pilot, lambda: "  ─\n  y\n" in screen_text(app))
        assert "<b>c</b>" in screen_text(app)
        app.session.change_queue.add(translator.changes_of(answered("another text")))
        await until(pilot, lambda: "another text" in screen_text(app))
        assert "<b>" not in screen_text(app)


async def test_a_chat_refused_at_a_reconnect_can_retry_and_keeps_its_draft(
    tmp_path: Path,
) -> None:
    stage = Stage(messages=talked(1))

    def goes_away(talk: Talk) -> None:
        talk.welcome()
        for _ in range(2):
            stage.serve(talk)

    def refuses(talk: Talk) -> None:
        talk.greet()
        seq, _ = talk.expect(Hello)
        talk.refuse(seq, ErrorCode.UNAUTHORIZED, "the token [/red] is not known any more")

    with scripted_peer(goes_away, refuses) as peer:
        async with chat_on_stage(peer.url, tmp_path, resume=SESSION) as (app, pilot):
            await until(pilot, lambda: "◌ reconnecting" in screen_text(app))
            await until(pilot, lambda: "○ offline" in screen_text(app))
            await until(pilot, lambda: "the token [/red] is not known any more" in screen_text(app))
            await pilot.press(*"/reconnect", "enter")
            app.fill("a draft")
            await until(pilot, lambda: not app.is_running)
            assert app.return_value is True
            assert app.draft == "a draft"


async def test_an_error_is_visible_while_the_transcript_is_scrolled_up(tmp_path: Path) -> None:
    stage = Stage(messages=talked(20))
    async with chat_with(stage, tmp_path, resume=SESSION) as (app, pilot):
        await until(pilot, lambda: app.transcript.max_scroll_y > 0)
        app.transcript.look_at_top()
        await until(pilot, lambda: "message number 40" not in screen_text(app))
        await pilot.press(*"/nonsense", "enter")
        await until(pilot, lambda: "There is no /nonsense" in screen_text(app))


async def test_leaving_works_while_an_answer_has_lost_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remarks: list[str] = []
    stage = Stage(answers=lambda prompt: [started(), delta("half an ans", 0)])

    def goes_away_in_mid_answer(talk: Talk) -> None:
        talk.welcome()
        while not any(isinstance(request, Prompt) for request in stage.asked):
            stage.serve(talk)

    with scripted_peer(goes_away_in_mid_answer) as peer:
        async with chat_on_stage(peer.url, tmp_path) as (app, pilot):
            await pilot.press(*"go", "enter")
            await until(pilot, lambda: "half an ans" in screen_text(app))
            await until(pilot, lambda: "◌ reconnecting" in screen_text(app))
            assert app.session.turn_status.running is not None
            assert "(Esc stops)" not in screen_text(app)
            await pilot.press(*"/status", "enter")
            await until(pilot, lambda: "Not connected: /status" in screen_text(app))
            monkeypatch.setattr(app, "remark", remarks.append)
            await pilot.press("ctrl+c")
            await until(pilot, lambda: bool(remarks))
            assert "while disconnected" in remarks[0]
            await pilot.press("ctrl+c")
            await until(pilot, lambda: not app.is_running)
