"""Keys that come fast, windows that open meanwhile, texts that come from elsewhere.

One chat is opened for several steps where they don't disturb each other:
opening one costs more than all that is done in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.client.hostile_bits import FORBIDDEN
from tests.client.screen_stage import chat_on_stage, chat_with, screen_text, until
from tests.client.scripted_peer import SESSION, approval_request, started
from tests.client.staged_server import Stage, message_json
from tests.client.test_screen_widgets import asked_in, decisions, row
from textual.events import Key, Paste
from textual.widgets import Input

from nplt_client.chat import approvals
from nplt_client.chat.approvals import approval_wanted
from nplt_client.chat.changes import ApprovalSettled
from nplt_client.render.text import objects_in
from nplt_client.tui.app import ChatApp
from nplt_client.tui.composer import ApprovalPanel, Composer
from nplt_client.tui.screens import PickerScreen
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import ApprovalRequest, Event, Prompt

pytestmark = pytest.mark.slow

HOSTILE = "last \x1b]0;PWNED\x07\x1b[31mX\x1b[2J\x9b31mY\u202e\u2028Z"


def burst(app: ChatApp, *keys: str) -> None:
    """All at once, as a fast typist over a slow line."""
    for key in keys:
        app.post_message(Key(key, key if len(key) == 1 else None))


def prompts(stage: Stage) -> list[str]:
    return [one.text for one in stage.asked if isinstance(one, Prompt)]


def silence(prompt: Prompt) -> Sequence[Event]:
    return [asked_in(prompt)]


async def test_keys_act_in_the_order_they_were_pressed(tmp_path: Path) -> None:
    stage = Stage(answers=silence)
    async with chat_with(stage, tmp_path) as (app, pilot):
        composer = app.query_one(Composer)
        burst(app, *"abc", "ctrl+u", *"def")
        await until(pilot, lambda: composer.text == "def")
        burst(app, "home", *"x", "end", "backspace", "left", *"y")
        await until(pilot, lambda: composer.text == "xdye")
        burst(app, *"gone", "ctrl+c", *"left")
        await until(pilot, lambda: composer.text == "left")
        burst(app, "ctrl+u", *"fi\u200drst\u3000\u202e1", "enter", *"second1", "enter", *"third")
        await until(pilot, lambda: composer.text == "third")
        await until(pilot, lambda: len(prompts(stage)) == 2)
        assert prompts(stage) == ["fi\u200drst\u30001", "second1"]
        burst(app, "ctrl+u", *"/theme li", "enter", *"next")
        await until(pilot, lambda: app.theme == "light")
        assert composer.text == "next"


async def test_keys_in_the_picker_act_in_order_too(tmp_path: Path) -> None:
    rows = (row("b" * 32, "topology"), row("c" * 32, "markup"), row("d" * 32, f"markdown{HOSTILE}"))
    stage = Stage(answers=silence, sessions=rows)
    async with chat_with(stage, tmp_path) as (app, pilot):
        await pilot.press(*"/sessions", "enter")
        await until(pilot, lambda: "topology" in screen_text(app))
        field = app.screen.query_one(Input)
        burst(app, *"topolog", *["backspace"] * 7, *"nowhere")
        await until(pilot, lambda: field.value == "nowhere")
        await until(pilot, lambda: "nothing matches" in screen_text(app))
        burst(app, "ctrl+u", *"markd", "ctrl+n")
        await until(pilot, lambda: field.value.startswith("markdown"))
        assert not FORBIDDEN.search(field.value), "a name that is laid out to be changed"
        burst(app, "escape", *"mark", "down", "enter")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await until(pilot, lambda: app.session.client.session_id == "d" * 32)


async def test_text_put_into_the_input_is_sanitized(tmp_path: Path) -> None:
    stage = Stage(answers=silence, messages=[message_json(1, "user", HOSTILE)])
    async with chat_with(stage, tmp_path, resume=SESSION) as (app, pilot):
        composer = app.query_one(Composer)
        await pilot.press(*"/edit", "enter")
        await until(pilot, lambda: composer.text.startswith("last X"))
        assert not FORBIDDEN.search(composer.text)
        assert composer.text.endswith("\nZ")
        composer.text = HOSTILE
        assert not FORBIDDEN.search(composer.text)


def asking(prompt: Prompt) -> Sequence[Event]:
    return [asked_in(prompt), started(), approval_request()]


def keys_shown(app: ChatApp) -> str:
    """As far as it stands on the screen."""
    place = app.screen.query_one("#keys").region
    lines = screen_text(app).splitlines()[place.y : place.bottom]
    return " ".join(" ".join(line[place.x : place.right] for line in lines).split())


async def test_no_approval_is_given_by_keys_meant_for_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "PAUSE_SECONDS", 3_600)
    stage = Stage(answers=asking)
    async with chat_with(stage, tmp_path, size=(40, 12)) as (app, pilot):
        composer = app.query_one(Composer)
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: "write_file" in screen_text(app))
        burst(app, *"why not saa", "backspace", *"y yes already")
        app.post_message(Paste(" y"))
        await until(pilot, lambda: composer.text == "why not say yes already y")
        assert "Pause typing to decide · Esc later (/allow, /deny)" in keys_shown(app)
        burst(app, "enter")
        await until(pilot, lambda: len(prompts(stage)) == 2)
        assert decisions(stage) == []


async def test_after_a_pause_a_letter_and_enter_decide_an_approval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "PAUSE_SECONDS", 0.01)
    stage = Stage(answers=asking)
    async with chat_with(stage, tmp_path, size=(40, 12)) as (app, pilot):
        composer = app.query_one(Composer)
        await pilot.press(*"go", "enter")
        keys = "y, n, a or arrows, then Enter · Esc later (/allow, /deny)"
        await until(pilot, lambda: keys in keys_shown(app))
        assert "waiting for you" in screen_text(app)
        assert '"path": "/etc/passwd"' in screen_text(app)
        await pilot.press("y")
        await until(pilot, lambda: "Enter allows it" in screen_text(app))
        await pilot.press("e")
        await until(pilot, lambda: composer.text == "ye")
        await until(pilot, lambda: keys in keys_shown(app))
        await pilot.press("n", "enter")
        await until(pilot, lambda: decisions(stage) == [("one", "deny", False)])
        assert composer.text == "ye"
        assert "write_file" not in screen_text(app)


async def test_arrows_choose_an_approval_decision_in_an_empty_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "PAUSE_SECONDS", 0.01)
    stage = Stage(answers=asking)
    async with chat_with(stage, tmp_path, size=(80, 24)) as (app, pilot):
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: "or arrows" in keys_shown(app))
        await pilot.press("enter")
        assert decisions(stage) == [], "nothing is marked yet"
        await until(pilot, lambda: "or arrows" in keys_shown(app))
        await pilot.press("right", "right", "left", "left")
        await until(pilot, lambda: "Enter allows this tool from now on" in keys_shown(app))
        await pilot.press("enter")
        await until(pilot, lambda: decisions(stage) == [("one", "allow", True)])


@pytest.mark.parametrize("size", [(90, 30), (80, 24), (40, 12)])
async def test_no_window_covers_an_approval_question(tmp_path: Path, size: tuple[int, int]) -> None:
    stage = Stage()
    async with chat_with(stage, tmp_path, size=size) as (app, pilot):
        await pilot.press(*"/sessions", "enter")
        await until(pilot, lambda: isinstance(app.screen, PickerScreen))
        app.session.change_queue.add([approval_wanted(approval_request())])
        await until(pilot, lambda: "write_file waits for you · Esc" in screen_text(app))
        window, question = app.screen.query_one("#window"), app.query_one(ApprovalPanel)
        has_room = size[1] >= 20
        await until(pilot, lambda: (window.region.bottom <= question.region.y) is has_room)
        await pilot.press("escape")
        await until(pilot, lambda: "May the tool write_file run with this?" in screen_text(app))
        assert '"path": "/etc/passwd"' in screen_text(app)
        assert " y yes   n no   a always" in screen_text(app)
        app.remark("something else")
        await until(pilot, lambda: "something else" in str(app.transcript.children[-1].render()))
        assert not app._notifications
        app.session.change_queue.add([ApprovalSettled(approval_id="one")])
        await until(pilot, lambda: "May write_file" not in screen_text(app))


async def test_long_arguments_in_an_approval_question_can_be_scrolled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "PAUSE_SECONDS", 0.01)

    def asking_at_length(prompt: Prompt) -> Sequence[Event]:
        *before, request = asking(prompt)
        assert isinstance(request, ApprovalRequest)
        arguments: JsonObject = {f"argument {number}": number for number in range(1, 31)}
        return [*before, replace(request, arguments=arguments)]

    stage = Stage(answers=asking_at_length)
    async with chat_with(stage, tmp_path, size=(40, 12)) as (app, pilot):
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: "PageDown: more" in keys_shown(app))
        assert "argument 30" not in screen_text(app)
        seen = ""
        for _ in range(31):
            await pilot.press("pagedown")
            seen += screen_text(app)
        assert all(f'"argument {number}": {number}' in seen for number in range(3, 31))
        assert app.query_one(Composer).region.bottom <= 12


async def test_a_refused_prompt_comes_back_to_the_input_and_typing_replaces_it(
    tmp_path: Path,
) -> None:
    stage = Stage(answers=silence)
    async with chat_with(stage, tmp_path) as (app, pilot):
        composer = app.query_one(Composer)
        await app.refused("m", "three")
        assert composer.text == "three"
        await pilot.press(*"/undo")
        assert composer.text == "/undo"
        await app.refused("m", "four")
        assert composer.text == "/undo", "what is typed meanwhile is not lost for it"


async def test_a_typed_file_name_attaches_the_file_and_a_pasted_one_does_not(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("typed.txt", "pasted.txt"):
        (tmp_path / name).write_text("words")
    async with chat_on_stage(server, tmp_path) as (app, pilot):
        composer = app.query_one(Composer)
        await pilot.press(*"see @ty")
        await until(pilot, lambda: "typed.txt  5 bytes" in screen_text(app))
        await pilot.press("tab")
        assert composer.text == "see @typed.txt "
        composer.post_message(Paste("and @pasted.txt"))
        await until(pilot, lambda: composer.text.endswith("pasted.txt"))
        await pilot.press("enter")
        await until(pilot, lambda: "file typed.txt (5 bytes" in screen_text(app))
        page = await app.session.client.history()
        assert page.messages[0]["content"] == "see @typed.txt and @pasted.txt"
        files = objects_in(page.messages[0]["attachments"])
        assert [file["filename"] for file in files] == ["typed.txt"]


async def test_a_long_paste_is_shown_as_a_chip_and_sent_whole(server: str, tmp_path: Path) -> None:
    text = "\n".join(map(str, range(45)))
    async with chat_on_stage(server, tmp_path) as (app, pilot):
        composer = app.query_one(Composer)
        for _ in range(2):
            composer.post_message(Paste(text))
        await until(pilot, lambda: composer.text == "[paste 1: 45 lines][paste 2: 45 lines]")
        await pilot.press("backspace")
        assert composer.text == "[paste 1: 45 lines]"
        await until(pilot, lambda: "opens the paste" in screen_text(app))
        await pilot.press(*" ok", "enter")
        await until(pilot, lambda: app.answers == [f"{text} ok"])
        composer.post_message(Paste(text))
        await until(pilot, lambda: composer.text == "[paste 3: 45 lines]")
        await pilot.press("tab")
        assert composer.text == text
