"""Somebody who has only the address asks, leaves, comes back, approves, edits and finds an old
conversation: with a thumb on a phone, and with nothing but the keyboard. They act only on what they
can see: labels and texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.browser.conftest import NewWindow, Window
from tests.gateway.http_client import request
from tests.support.raw_client import RawClient
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
PHONE = {
    "viewport": {"width": 360, "height": 740},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}
ASKS = {"tools": {"sys_monitor": "ask"}, "approvals": {"wait_when_alone": True}}


def start(start_server: Start) -> ServerProcess:
    server = start_server(**ASKS)
    with RawClient(server.port) as terminal:
        terminal.hello()
        terminal.ask("two days in Ghent, beginning with the castle")
    return server


def address(server: ServerProcess) -> str:
    code = request(f"{server.http_url}login/codes", "POST").json["code"]
    return f"#code={code}"


def leave_and_come_back(window: Window) -> Window:
    """To the bare address: the conversation is to be found from there."""
    context, server = window.page.context, window.server
    window.page.close()
    return Window(context.new_page(), server).open().until_online()


@pytest.mark.slow
def test_with_a_thumb_on_a_phone(start_server: Start, new_window: NewWindow) -> None:
    server = start(start_server)
    window = new_window(server, **PHONE).open(address(server))
    page = window.page
    page.get_by_role("textbox", name="Prompt").tap()
    page.keyboard.type("!tool sys_monitor {}")
    page.get_by_role("button", name="Send", exact=True).tap()
    page.get_by_role("article", name="You").wait_for()
    window.wait("!nplt.client.outbox.prompts.length")

    window = leave_and_come_back(window)
    page = window.page
    page.get_by_role("link", name="asks for your permission").tap()
    allow = page.get_by_role("button", name="Allow", exact=True)
    allow.wait_for()
    box = allow.bounding_box()
    assert box is not None
    assert box["height"] >= 40
    assert box["y"] > 740 / 3  # in reach of a thumb
    allow.tap()
    window.wait_for_text("CPU usage", ".markdown")

    page.get_by_role("button", name="Edit and ask again").tap()
    editor = page.get_by_role("textbox", name="Your prompt")
    editor.wait_for()
    window.wait("!nplt.isWaiting")
    assert window.run(
        "(document.querySelector('.editor').getBoundingClientRect().top >="
        " document.querySelector('.transcript').getBoundingClientRect().top - 1)"
    )
    editor.fill("edited on the phone")
    page.locator(".editor").get_by_role("button", name="Send").tap()
    window.wait("nplt.client.conversation.messages.at(-1)?.content === 'edited on the phone'")

    page.get_by_role("button", name="Conversations").tap()
    page.get_by_role("searchbox").tap()
    page.keyboard.type("castle")
    page.get_by_role("link", name="Ghent").first.tap()
    window.wait_for_text("beginning with the castle", ".bubble")
    assert window.run("document.documentElement.scrollWidth <= innerWidth")
    assert window.errors == []


def test_with_nothing_but_the_keyboard(start_server: Start, new_window: NewWindow) -> None:
    server = start(start_server)
    window = new_window(server, viewport={"width": 1920, "height": 1080}).open(address(server))
    window.until_online()
    keyboard = window.page.keyboard
    keyboard.type("!tool sys_monitor {}")
    keyboard.press("Enter")
    window.wait("!nplt.client.outbox.prompts.length && nplt.client.conversation.isRunning")

    window = leave_and_come_back(window)
    keyboard = window.page.keyboard
    window.wait_for_text("sys_monitor", "nav")
    tab_to(window, "a[href^='#/c/']")
    keyboard.press("Enter")
    window.page.get_by_role("alertdialog").wait_for()
    tab_to(window, ".approval .primary")
    keyboard.press("Enter")
    window.wait_for_text("CPU usage", ".markdown")

    tab_to(window, ".composer textarea")
    keyboard.press("ArrowUp")
    window.wait("document.activeElement.closest('.editor') && document.activeElement.value")
    keyboard.press("Control+A")
    keyboard.type("edited by keyboard")
    keyboard.press("Enter")
    window.wait("nplt.client.conversation.messages.at(-1)?.content === 'edited by keyboard'")

    keyboard.press("Control+k")
    keyboard.type("castle")
    window.page.locator(".hit").first.wait_for()
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    window.wait_for_text("beginning with the castle", ".bubble")
    assert window.errors == []


def tab_to(window: Window, selector: str) -> None:
    for _ in range(60):
        window.page.keyboard.press("Tab")
        if window.run(f"document.activeElement.matches({selector!r})"):
            return
    raise AssertionError(f"the Tab key does not lead to {selector}")
