"""What people do in the page: ask, correct, find, sort, allow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.browser.conftest import SECONDS_MAX, NewWindow, Window
from tests.support.raw_client import HISTORY_REQUEST, PROMPT, RawClient
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
SIZES = [
    (360, 740),
    pytest.param((820, 1180), marks=pytest.mark.slow),
    pytest.param((1440, 900), marks=pytest.mark.slow),
]
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154"
    "789c6360000002000001e221bc330000000049454e44ae426082"
)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}")
def test_a_prompt_is_answered_and_is_there_after_a_reload(
    shared_server: ServerProcess, new_window: NewWindow, size: tuple[int, int]
) -> None:
    viewport = {"width": size[0], "height": size[1]}
    window = new_window(shared_server, viewport=viewport).log_in()
    window.ask("# Title\n\nsome **bold** text\n\n```python\nx = 1\n```")
    assert window.texts(".answer h1") == ["Title"]
    assert window.texts(".answer strong") == ["bold"]
    assert window.page.locator(".answer pre .n").inner_text() == "x"
    assert window.run("document.documentElement.scrollWidth <= innerWidth")
    window.page.reload()
    window.until_online()
    window.wait("document.querySelector('.answer h1')")
    assert window.texts(".bubble")[0].startswith("# Title")
    assert window.errors == []


@pytest.mark.slow
def test_a_prompt_is_edited_asked_again_and_taken_back(window: Window) -> None:
    window.ask("first")
    window.ask("second")
    window.page.locator(".prompt").last.hover()
    window.click("Edit and ask again")
    editor = window.page.locator(".editor textarea")
    editor.fill("second, better")
    editor.press("Enter")
    window.wait("!document.querySelector('.editor')")
    window.until_idle()
    assert window.answers == ["first", "second, better"]
    window.click("Ask again")
    window.wait(
        "nplt.client.conversation.messages.length === 4 && nplt.client.conversation.headSeq > 8"
    )
    window.until_idle()
    assert window.answers == ["first", "second, better"]
    window.click("Take this turn back")
    window.wait("document.querySelectorAll('.answer').length === 1")
    window.click("Undo")
    window.wait("document.querySelectorAll('.answer').length === 2")
    assert window.answers == ["first", "second, better"]


@pytest.mark.slow
def test_the_answer_continues_in_a_copy_from_the_middle(window: Window) -> None:
    window.ask("one")
    window.ask("two")
    original = window.session_id
    window.page.get_by_label("Continue in a copy from here").first.click()
    window.wait(f"nplt.client.conversation.id !== {json.dumps(original)}")
    window.wait("document.querySelectorAll('.answer').length === 1")
    window.until_rendered()
    assert window.answers == ["one"]


def test_a_tool_runs_once_it_is_allowed(start_server: Start, new_window: NewWindow) -> None:
    window = new_window(start_server(tools={"sys_monitor": "ask"})).log_in()
    window.send("!tool sys_monitor {}")
    window.page.get_by_role("alertdialog").wait_for()
    window.wait("document.title.startsWith('❓')")
    window.click("Allow")
    window.until_idle()
    assert "CPU usage" in window.answers[-1]
    window.page.locator(".tool summary").click()
    assert "CPU usage" in window.texts(".tool .folded")[0]
    assert window.texts(".tool .folded")[0].startswith("Result"), "it got no arguments"
    window.send("!tool sys_monitor {}")
    window.page.get_by_role("alertdialog").wait_for()
    window.page.reload()
    window.until_online()
    window.page.get_by_role("alertdialog").wait_for()
    window.click("Deny")
    window.until_idle()
    assert window.texts(".tool .tool-state")[-1] != "waits"
    assert window.errors == []


def test_a_running_answer_is_stopped(window: Window) -> None:
    window.send("!slow 60")
    window.wait("nplt.client.conversation.live && nplt.client.conversation.live.text")
    window.page.keyboard.press("Escape")
    window.until_idle()
    assert window.texts(".remark:not([hidden]), .fault p")


def test_prompts_wait_their_turn(window: Window) -> None:
    window.send("!slow 1 slowly")
    window.send("second")
    window.wait("nplt.client.conversation.queue.length === 1")
    window.wait("document.querySelectorAll('.answer:not(.live)').length === 2")
    window.until_idle()
    assert window.texts(".bubble") == ["!slow 1 slowly", "second"]
    assert window.answers == ["slowly", "second"]


def test_a_failed_turn_says_why_and_is_asked_again(window: Window) -> None:
    window.ask("!fail")
    assert "fails, as it was asked to" in window.texts(".fault p")[0]
    window.click("Ask again")
    window.wait("nplt.client.conversation.headSeq > 4")
    window.until_idle()
    assert len(window.texts(".fault")) == 1


@pytest.mark.slow
def test_conversations_are_renamed_pinned_archived_deleted_and_restored(
    server: ServerProcess, new_window: NewWindow
) -> None:
    window = new_window(server).log_in()
    for name in ("one", "two"):
        window.ask(name)
        window.click("New conversation")
    rows = window.page.locator(".line")

    def choose(name: str, what: str) -> None:
        line = rows.filter(has_text=name).first
        line.hover()
        line.get_by_label("What can be done").click()
        window.click(what, "menuitem")

    window.wait("document.querySelectorAll('.line').length === 2")
    choose("one", "Rename")
    window.page.get_by_label("Name", exact=True).fill("renamed")
    window.page.keyboard.press("Enter")
    window.wait_for_text("renamed", "nav")
    choose("renamed", "Pin")
    window.wait_for_text("Pinned", "nav")
    choose("renamed", "Archive")
    window.wait("document.querySelectorAll('.line').length === 1")
    choose("two", "Move to the trash")
    window.wait("document.querySelectorAll('.line').length === 0")
    window.click("Trash")
    window.wait_for_text("two", "nav")
    choose("two", "Restore")
    window.wait("document.querySelectorAll('.line').length === 0")
    window.page.locator(".shelf").click()
    window.wait_for_text("two", "nav")
    window.click("Archive")
    window.wait_for_text("renamed", "nav")
    assert window.errors == []


def test_an_answer_that_was_replaced_is_brought_back(window: Window) -> None:
    window.ask("one")
    window.page.get_by_label("Edit and ask again").first.click()
    window.page.get_by_label("Your prompt").fill("two")
    window.page.keyboard.press("Enter")
    window.wait_for_text("The earlier answer was replaced.", ".notice")
    assert window.answers == ["two"]
    window.click("Undo")
    window.wait("nplt.client.conversation.messages.some((each) => each.content === 'one')")
    window.until_idle()
    assert window.answers == ["one"]


def test_a_conversation_in_the_trash_is_restored_before_it_goes_on(
    server: ServerProcess, new_window: NewWindow
) -> None:
    window = new_window(server).log_in()
    window.ask("why is the sky blue")
    session_id = window.session_id
    window.page.locator(".bar").get_by_label("What can be done").click()
    window.click("Move to the trash", "menuitem")
    window.wait("nplt.client.conversation.isNew")
    window.click("Trash")
    window.page.locator(".line a").first.click()
    window.wait_for_text("This conversation is in the trash")
    assert window.page.get_by_role("textbox", name="Prompt").is_disabled()
    window.click("Restore")
    window.until_rendered()
    window.ask("and why is the sunset red")
    assert window.session_id == session_id
    assert window.answers == ["why is the sky blue", "and why is the sunset red"]


def test_what_happens_elsewhere_is_marked_until_it_is_read(
    shared_server: ServerProcess, window: Window
) -> None:
    window.ask("here")
    with RawClient(shared_server.port) as terminal:
        session_id = terminal.hello()["session_id"]
        terminal.ask("news from a terminal")
    unread = f"nplt.client.list.rows.get({json.dumps(session_id)})?.unread"
    window.wait(f"{unread} > 0 && document.querySelector('.line.unread')")
    window.page.locator(".line.unread", has_text="news from a terminal").first.click()
    window.wait(f"{unread} === 0")


def test_a_message_is_found_by_its_words(window: Window) -> None:
    window.ask("an unusual wombat")
    for number in range(12):
        window.ask(f"something else {number}\n\n" + "and more\n\n" * 5)
    window.click("New conversation")
    window.page.keyboard.press("Control+k")
    window.page.keyboard.type("unusual wombat")
    window.page.locator(".hit").first.wait_for()
    window.page.locator(".hit").last.click()
    window.wait("document.querySelector('.bubble')")
    window.page.locator(".bubble", has_text="an unusual wombat").wait_for()


@pytest.mark.slow
def test_two_windows_and_a_terminal_see_the_same(
    shared_server: ServerProcess, new_window: NewWindow
) -> None:
    first = new_window(shared_server).log_in()
    first.ask("from the first")
    second = new_window(shared_server).log_in()
    second.open(f"#/c/{first.session_id}").until_online()
    second.wait("document.querySelectorAll('.answer').length === 1")
    second.ask("from the second")
    with RawClient(shared_server.port) as terminal:
        terminal.hello({"session_id": first.session_id})
        terminal.ask("from a terminal")
    for window in (first, second):
        window.wait("document.querySelectorAll('.answer').length === 3")
        window.until_idle()
        assert window.answers == ["from the first", "from the second", "from a terminal"]
        assert window.texts(".bubble") == window.answers


def test_files_are_sent_shown_and_saved(window: Window, tmp_path: Path) -> None:
    picture, page = tmp_path / "dot.png", tmp_path / "page.html"
    picture.write_bytes(PNG)
    page.write_text("<script>alert(1)</script>")
    window.page.locator("input[type=file]").set_input_files([picture, page])
    window.wait("[...document.querySelectorAll('.composer progress')].every((bar) => bar.hidden)")
    window.ask("two files")
    window.wait("document.querySelector('.prompt img')?.naturalWidth === 1")
    with window.page.expect_download() as saving:
        window.page.locator(".prompt .chip", has_text="page.html").click()
    assert saving.value.suggested_filename == "page.html"
    assert Path(saving.value.path()).read_text() == page.read_text()


@pytest.mark.slow
def test_drafts_are_kept_for_each_conversation(window: Window) -> None:
    window.ask("one")
    one = window.session_id
    area = window.page.get_by_label("Prompt", exact=True).last
    area.fill("a draft")
    window.click("New conversation")
    assert area.input_value() == ""
    window.page.reload()
    window.until_online()
    window.open(f"#/c/{one}")
    window.wait("document.querySelector('.composer textarea')?.value === 'a draft'")


@pytest.mark.slow
def test_the_model_is_chosen(window: Window) -> None:
    window.page.locator(".model").click()
    window.page.get_by_role("option").first.wait_for()
    assert "echo" in window.texts(".model-option")[0]
    window.page.get_by_role("option").first.click()
    window.wait("!document.querySelector('dialog')")


@pytest.mark.slow
def test_an_old_page_of_a_long_conversation_is_loaded_while_scrolling(
    shared_server: ServerProcess, new_window: NewWindow
) -> None:
    with RawClient(shared_server.port) as terminal:
        session_id = terminal.hello()["session_id"]
        for number in range(80):
            terminal.ask(f"prompt {number}")
    window = new_window(shared_server).log_in()
    window.open(f"#/c/{session_id}").until_online()
    window.wait_for_text("prompt 79", ".bubble")
    assert len(window.texts(".bubble")) < 40
    for _ in range(200):
        if "prompt 0" in window.texts(".bubble"):
            break
        window.page.locator(".transcript").hover()
        window.page.mouse.wheel(0, -3_000)
        window.page.wait_for_timeout(50)
    assert window.texts(".bubble")[0] == "prompt 0"
    window.click("To the end")
    window.wait_for_text("prompt 79", ".bubble")


@pytest.mark.slow
def test_a_conversation_is_exported(window: Window) -> None:
    window.ask("to be exported")
    window.page.get_by_label("What can be done").last.click()
    with window.page.expect_download() as saving:
        window.click("Export as Markdown", "menuitem")
    text = Path(saving.value.path()).read_text()
    assert text.count("to be exported") == 3


@pytest.mark.slow
def test_everything_is_reached_by_the_keyboard(window: Window) -> None:
    keyboard = window.page.keyboard
    keyboard.press("Control+Shift+O")
    keyboard.type("by keyboard")
    keyboard.press("Enter")
    window.wait("document.querySelectorAll('.answer:not(.live)').length === 1")
    window.until_idle()
    keyboard.press("ArrowUp")
    window.wait("document.activeElement.value === 'by keyboard'")
    keyboard.press("Control+A")
    keyboard.type("edited")
    keyboard.press("Enter")
    window.wait("nplt.client.conversation.messages.at(-1)?.content === 'edited'")
    keyboard.press("Control+k")
    keyboard.type("edited")
    window.page.locator(".hit").first.wait_for()
    keyboard.press("ArrowDown")
    assert window.run("document.activeElement.closest('.hit') !== null")
    keyboard.press("Enter")
    window.wait("document.querySelector('.bubble')")
    keyboard.press("Control+b")
    assert not window.page.locator(".sidebar").is_visible()


@pytest.mark.slow
def test_thoughts_are_read_after_a_reload(window: Window) -> None:
    window.ask("!think about a wombat")
    window.page.reload()
    window.until_online()
    window.until_idle()
    assert not window.run("nplt.client.conversation.messages[1].reasoning")
    window.page.locator(".thinking summary").click()
    window.wait_for_text("about a wombat", ".thinking .folded")


@pytest.mark.slow
def test_a_cleared_context_is_marked_and_can_be_undone(window: Window) -> None:
    window.ask("before")
    window.page.get_by_label("What can be done").last.click()
    window.click("Let models forget the above", "menuitem")
    window.wait("document.querySelectorAll('.clear-line').length === 1")
    assert window.texts(".cleared .bubble") == ["before"]
    window.click("Undo")
    window.wait("!document.querySelector('.clear-line')")
    assert window.texts(".cleared") == []


@pytest.mark.slow
def test_a_message_is_erased_and_its_copies_are_listed(
    shared_server: ServerProcess, window: Window
) -> None:
    window.ask("the password is swordfish99")
    first = window.session_id
    window.click("New conversation")
    window.until_online()
    window.ask("again: swordfish99")
    window.page.locator(".prompt").hover()
    window.page.locator(".prompt").get_by_label("More").click()
    window.click("Erase for good …", "menuitem")
    window.click("Erase it")
    window.page.get_by_role("heading", name="The message was erased").wait_for()
    assert window.page.locator(f".copies a[href^='#/c/{first}/']").count()
    for button in window.page.locator(".copies button").element_handles():
        button.click()
    window.wait("!document.querySelector('.copies button')")
    window.click("Close")
    window.wait("document.querySelector('.bubble').textContent.includes('(erased)')")
    with RawClient(shared_server.port) as terminal:
        terminal.hello()
        for session_id in (first, window.session_id):
            messages = terminal.request(HISTORY_REQUEST, {"session_id": session_id}).json
            assert "swordfish99" not in json.dumps(messages)


@pytest.mark.slow
def test_the_effort_is_chosen_for_the_conversation(window: Window) -> None:
    window.ask("one")
    window.page.locator(".model").click()
    window.page.get_by_label("Thinking").select_option("high")
    window.wait("document.querySelector('.model').textContent.endsWith('· high')")
    window.page.keyboard.press("Escape")
    window.page.reload()
    window.until_online()
    window.wait("document.querySelector('.model').textContent.endsWith('· high')")
    window.page.locator(".model").click()
    assert window.page.get_by_label("Thinking").input_value() == "high"
    window.page.get_by_label("Thinking").select_option("")
    window.wait("document.querySelector('.model').textContent.endsWith('echo')")


def test_a_prompt_is_sent_for_later_listed_and_cancelled(window: Window) -> None:
    window.ask("now")
    window.page.get_by_label("Prompt", exact=True).last.fill("a long prompt " * 20 + "its end")
    window.click("Send later")
    window.page.get_by_text("Tomorrow morning").click()
    window.wait_for_text("Runs tomorrow at 09:00", ".later")
    assert window.answers == ["now"]
    assert window.run("nplt.client.outbox.prompts.length") == 0
    window.page.locator(".line .due").first.wait_for()
    window.page.reload()
    window.until_online()
    window.wait_for_text("its end", ".later .text")
    window.page.locator(".later").get_by_text("Cancel").click()
    window.wait("!document.querySelector('.later')")
    window.page.reload()
    window.until_online().until_idle()
    assert window.texts(".later") == []


@pytest.mark.slow
def test_prompts_for_later_of_a_copy_are_held_until_they_are_released(
    shared_server: ServerProcess, window: Window
) -> None:
    window.ask("now")
    original = window.session_id
    due = datetime.now(UTC) + timedelta(hours=20)
    with RawClient(shared_server.port) as terminal:
        terminal.hello()
        fields = {"session_id": original, "text": "much later", "not_before": due.isoformat()}
        assert terminal.request(PROMPT, fields).json["state"] == "later"
    window.wait_for_text("much later", ".later")
    window.page.get_by_label("What can be done").last.click()
    window.click("Continue in a copy", "menuitem")
    window.wait_for_text("Held, because this is a copy", ".later")
    window.click("Let it run")
    window.wait_for_text("Runs ", ".later .head")


@pytest.mark.slow
def test_a_prompt_for_later_becomes_a_prompt_when_its_time_has_come(window: Window) -> None:
    window.ask("now")
    window.run(
        "nplt.client.prompt('soon', [], { not_before: new Date(Date.now() + 1500).toISOString() })"
    )
    window.page.locator(".later").wait_for()
    window.wait("!document.querySelector('.later')")
    window.wait("document.querySelectorAll('.answer:not(.live)').length === 2")
    window.until_idle()
    assert window.texts(".bubble") == window.answers == ["now", "soon"]


@pytest.mark.slow
def test_the_rest_of_a_very_long_answer_is_shown_when_it_is_asked_for(window: Window) -> None:
    words = "of many 😀 " * 80
    text = "\n\n".join(f"Paragraph {number} {words}end" for number in range(700))
    window.page.evaluate("(text) => { nplt.client.prompt(text) }", text)
    window.wait("nplt.client.conversation.messages.length === 2")
    window.until_idle()
    window.page.reload()
    window.until_online()
    window.until_idle()
    window.page.get_by_text("Show the rest").click()
    last = "nplt.client.conversation.messages.at(-1)"
    window.wait(f"!{last}.truncated")
    assert window.run(f"{last}.content") == text


@pytest.mark.slow
def test_files_come_by_drop_and_by_paste_and_a_long_text_becomes_one(window: Window) -> None:
    window.page.evaluate(
        """() => {
            const with_ = (file, text) => {
                const data = new DataTransfer();
                if (file) data.items.add(new File(["data"], file, { type: "text/plain" }));
                if (text) data.setData("text/plain", text);
                return data;
            };
            const dropped = { dataTransfer: with_("dropped.txt"), bubbles: true };
            document.querySelector("main").dispatchEvent(new DragEvent("drop", dropped));
            const area = document.querySelector(".composer textarea");
            for (const pasted of [with_("pasted by hand.txt"), with_(null, "x".repeat(9000))]) {
                const options = { clipboardData: pasted, bubbles: true };
                area.dispatchEvent(new ClipboardEvent("paste", options));
            }
        }"""
    )
    window.wait("document.querySelectorAll('.composer .chip').length === 3")
    window.wait("[...document.querySelectorAll('.composer progress')].every((bar) => bar.hidden)")
    names = [text.split("\n")[0] for text in window.texts(".composer .chip")]
    assert names == ["dropped.txt", "pasted by hand.txt", "pasted.txt"]
    window.ask("three files")
    window.wait("document.querySelectorAll('.prompt .chip').length === 3")


@pytest.mark.slow
def test_somebody_who_looked_away_is_offered_notifications_and_gets_them(
    shared_server: ServerProcess, new_window: NewWindow
) -> None:
    window = new_window(shared_server, permissions=["notifications"]).log_in()
    hide = (
        "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden,"
        " configurable: true }); document.dispatchEvent(new Event('visibilitychange')); }"
    )
    window.page.evaluate(
        "() => { window.shown = []; window.Notification = class { static permission = 'default';"
        " static requestPermission = async () => (Notification.permission = 'granted');"
        " constructor(title, options) { window.shown.push([title, options.body]); } } }"
    )
    window.send("!slow 1.5 first")
    window.wait("nplt.client.conversation.live?.text")
    assert window.run("document.title").startswith("… ")
    assert window.run("document.querySelector('link[rel=icon]').href").endswith("icon-running.svg")
    window.page.evaluate(hide, True)
    window.until_idle()
    assert window.run("window.shown") == []
    window.page.evaluate(hide, False)
    window.click("Yes")
    window.send("!slow 1.5 second")
    window.wait("nplt.client.conversation.live?.text")
    window.page.evaluate(hide, True)
    window.wait("window.shown.length === 1")
    assert window.run("window.shown[0][1]") == "The answer is ready."
    assert window.errors == []


def test_tokens_and_cost_are_shown(window: Window) -> None:
    window.ask("count these words")
    window.page.get_by_label("What can be done").last.click()
    window.click("Tokens and cost", "menuitem")
    window.page.locator(".facts-table").wait_for()
    rows = dict(row.split("\t") for row in window.texts(".facts-table tr"))
    assert rows["Calls"] == "1"
    assert rows["Tokens written"] == "3"


def test_the_end_stays_in_view_when_the_text_grows_before_a_scroll_is_reported(
    window: Window,
) -> None:
    window.ask("\n\n".join(f"Line {number}" for number in range(60)))
    window.wait("nplt.transcript.isAtEnd")
    below = (
        "(({scrollTop, scrollHeight, clientHeight}) => scrollHeight - scrollTop - clientHeight)"
        "(nplt.transcript.element)"
    )
    # As when a picture has been loaded:
    window.run(
        "{ nplt.transcript.items.style.paddingBottom = '500px';"
        " nplt.transcript.element.dispatchEvent(new Event('scroll')); }"
    )
    window.wait(f"{below} < 2")
    assert window.run("nplt.transcript.isAtEnd")
    window.run("{ nplt.transcript.element.scrollTop -= 700; }")
    window.wait("!nplt.transcript.isAtEnd")
    window.run("{ nplt.transcript.items.style.paddingBottom = '900px'; }")
    window.page.wait_for_timeout(100)
    assert window.run(below) > 700


def test_the_system_message_is_shown_and_changed(
    shared_server: ServerProcess, window: Window
) -> None:
    window.ask("hello")
    area = window.page.locator("dialog textarea")
    for before, after in (("", "Answer in verse."), ("Answer in verse.", "Answer in prose.")):
        window.page.get_by_label("What can be done").last.click()
        window.click("System message", "menuitem")
        area.wait_for()
        assert area.input_value() == before
        area.fill(after)
        window.click("Save")
        window.page.locator("dialog").wait_for(state="detached")
    with RawClient(shared_server.port) as client:
        client.hello()
        fields = {"session_id": window.session_id, "roles": ["system"]}
        stored: list[str] = []
        deadline = time.monotonic() + SECONDS_MAX
        while (
            len(stored) < 2 and time.monotonic() < deadline
        ):  # the dialog closes before it is sent
            messages = client.request(HISTORY_REQUEST, fields).json["messages"]
            stored = [each["content"] for each in messages]
    assert stored == ["Answer in verse.", "Answer in prose."]
