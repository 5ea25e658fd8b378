"""No text runs as a script in the page, and none makes the browser fetch anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browser.conftest import NewWindow, Window
from tests.browser.hostile_strings import hostile_strings
from tests.support.raw_client import SESSION_NEW, RawClient
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Request

Start = Callable[..., ServerProcess]

_AT_ONCE = 100
_WATCH = """() => {
    window.hits = 0;
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) =>
        window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
}"""


class Counted:
    """What the browser did with the texts."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.foreign: list[str] = []
        self.dialogs: list[str] = []
        self._own = window.server.http_url
        window.page.on("request", self._note_request)
        window.page.on("dialog", self._note_dialog)
        window.page.evaluate(_WATCH)

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((self._own, "blob:")):
            self.foreign.append(request.url)

    def _note_dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    @property
    def all(self) -> tuple[object, ...]:
        run = self.window.run
        return run("window.hits"), run("window.violations"), self.foreign, self.dialogs


@pytest.mark.parametrize(
    "count", [300, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])]
)
def test_hostile_texts_do_nothing_in_any_view(
    start_server: Start, new_window: NewWindow, count: int, tmp_path: Path
) -> None:
    server = start_server(tools={"notebook": "ask"})
    window = new_window(server).log_in()
    counted = Counted(window)
    strings = hostile_strings(count)
    for at in range(0, count, _AT_ONCE):
        texts = strings[at : at + _AT_ONCE]
        # In the prompt, the answer, the thoughts, the list and the title:
        window.ask("\n\n".join(texts))
        window.run(f"nplt.client.update(nplt.client.conversation.id, {{name: {_name(texts[0])}}})")
    hostile = strings[0].replace("\n", " ")
    window.ask(f"!think {hostile}")
    window.page.locator(".thinking summary").last.click()
    # As the arguments and the result of a tool that asks:
    written = {"action": "write", "text": " ".join(strings[:20])}
    window.send(f"!tool notebook {json.dumps(written)}")
    window.page.get_by_role("alertdialog").wait_for()
    window.click("Allow")
    window.until_idle()
    for summary in window.page.locator(".tool summary").all():
        summary.click()
    # As the name of a file, and in what a search finds:
    file = tmp_path / "<img src=x onerror=window.hits=1>.html"
    file.write_text("<script>parent.hits=1</script>")
    window.page.locator("input[type=file]").set_input_files(file)
    window.wait("[...document.querySelectorAll('.composer progress')].every((bar) => bar.hidden)")
    window.ask("a file")
    for query in ("script", "evil", "onerror"):
        window.page.locator(".search input").fill(query)
        window.wait(f"nplt.client.list.query === {json.dumps(query)} && nplt.client.list.hits")
    # As a prompt for later, and its beginning:
    later = [f"{text} {number}" for number, text in enumerate(strings[:12])]
    window.page.evaluate(
        "(texts) => texts.forEach((text) => nplt.client.prompt(text, [],"
        " { not_before: new Date(Date.now() + 3_600_000).toISOString() }))",
        later,
    )
    window.wait(f"document.querySelectorAll('.later').length === {len(later)}")
    # As the system message:
    system = "\n".join(strings[:20])
    window.run(f"nplt.client.update(nplt.client.conversation.id, {{system: {json.dumps(system)}}})")
    window.page.get_by_label("What can be done").last.click()
    window.click("System message", "menuitem")
    window.page.locator("dialog textarea").wait_for()
    window.page.keyboard.press("Escape")
    # As the names of conversations that have the text of an erased message, too:
    with RawClient(server.port) as terminal:
        terminal.hello()
        for name in strings[:5]:
            terminal.request(SESSION_NEW, {"name": json.loads(_name(name))})
            terminal.ask("secretword99")
    window.ask(f"secretword99 {hostile}")
    window.page.locator(".prompt").last.hover()
    window.page.locator(".prompt").last.get_by_label("More").click()
    window.click("Erase for good …", "menuitem")
    window.click("Erase it")
    window.wait("document.querySelectorAll('.copies a').length >= 5")
    window.click("Close")
    # All of it again from the record, the thoughts too:
    window.page.reload()
    window.until_online()
    counted.window.page.evaluate(_WATCH)
    window.until_idle()
    window.wait(f"document.querySelectorAll('.later').length === {len(later)}")
    for summary in window.page.locator(".thinking:not([hidden]) summary").all():
        summary.click()
    window.page.wait_for_timeout(300)
    assert counted.all == (0, [], [], [])
    links = window.run("[...document.querySelectorAll('.markdown a')].map((a) => [a.href, a.rel])")
    assert links
    for href, rel in links:
        assert href.startswith(("http://", "https://", "mailto:"))
        assert rel == "noopener noreferrer"
    # As the names of the conversations that an empty one names:
    window.click("New conversation")
    window.wait("document.querySelectorAll('.recent a').length === 3")
    window.page.wait_for_timeout(300)
    assert counted.all == (0, [], [], [])


def _name(text: str) -> str:
    return json.dumps(text.replace("\n", " ").replace("\x00", "")[:190] or "name")


def test_the_counters_of_this_test_count(window: Window) -> None:
    counted = Counted(window)
    window.run("{ const image = new Image(); image.src = 'http://evil.example/x.png'; }")
    window.wait("window.violations.length === 1")
    window.run("window.hits = 1")
    assert counted.all[:2] == (1, ["img-src http://evil.example/x.png"])
    window.errors.clear()


def test_html_can_not_be_set_but_by_the_renderer(window: Window) -> None:
    refused = window.run(
        "{ try { document.body.innerHTML = '<p>'; return 'set' }"
        " catch (error) { return error.name } }"
    )
    another = window.run(
        "{ try { trustedTypes.createPolicy('other', {}); return 'made' }"
        " catch (error) { return error.name } }"
    )
    assert (refused, another) == ("TypeError", "TypeError")
    window.errors.clear()


def test_names_of_conversations_from_elsewhere_are_text(
    shared_server: ServerProcess, window: Window
) -> None:
    with RawClient(shared_server.port) as terminal:
        terminal.hello()
        terminal.request(0x16, {"name": "<img src=x onerror=window.hits=1>"})
    window.page.reload()
    window.until_online()
    window.wait_for_text("<img src=x onerror=window.hits=1>", "nav")
    assert window.run("window.hits") is None
