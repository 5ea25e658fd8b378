"""Makes the pictures of the page in the documents: `make screenshots`.

Each sheet shows every flow at one size, in light and in dark colours.
"""

from __future__ import annotations

import base64
import signal
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from tests.browser.conftest import CHROMIUM, FLAGS, Window
from tests.browser.stage import (
    CHECK,
    CONTRACT,
    PICTURE,
    RETRY,
    SHORTER,
    begin,
    fill,
    send_later,
    stage,
)
from tests.support.server_process import ServerProcess
from tests.vendors import HostedEmulator

FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"
SIZES = ((360, 740, 2, 7), (820, 1180, 3, 7), (1440, 900, 4, 6))
"""Width, height, by how much the sheet makes a picture smaller, and how many it has in a row."""
CAPTION = 26
SYSTEM = "Answer briefly, in British English. Code is Python 3.11, with types."
THEMES = ("light", "dark")
PAUSE = 250
LOGO = Path(__file__).parents[2] / "gateway" / "nplt_gateway" / "page" / "icon-192.png"
DRAG = """(main) => {
    const data = new DataTransfer();
    data.items.add(new File(["a"], "a.txt"));
    main.dispatchEvent(new DragEvent("dragover", { dataTransfer: data, cancelable: true }));
}"""
DROP = """(main, text) => {
    const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], "logo.png", { type: "image/png" }));
    main.dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
}"""


def send(window: Window, text: str) -> None:
    window.page.get_by_label("Prompt", exact=True).last.fill(text)
    window.page.locator(".composer .send").click()


def ask(window: Window, text: str) -> None:
    send(window, text)
    window.until_idle()


def to_top(window: Window) -> None:
    window.page.locator(".transcript").evaluate("(element) => { element.scrollTop = 0; }")


def show_list(window: Window) -> bool:
    """Opens the list, and gives whether it wasn't visible."""
    button = window.page.locator(".menu-button")
    is_open = window.run("document.body.classList.contains('list-open')")
    if is_open or not button.is_visible():
        return False
    button.click()
    return True


def close_notice(window: Window) -> None:
    window.run("{ nplt.client.notice = null; nplt.changed(); }")


def flows_of_files(window: Window) -> Iterator[str]:
    page, server = window.page, window.server
    page.locator("main").evaluate(DRAG)
    yield "drop"
    page.locator("main").evaluate(DROP, base64.b64encode(LOGO.read_bytes()).decode())
    window.wait("document.querySelectorAll('.composer .chip progress[hidden]').length === 1")
    picker = page.locator("input[type=file]")
    server.signal(signal.SIGSTOP)  # so that the upload stays where it is
    recording = server.data_dir.parent / "recording.wav"
    recording.write_bytes(bytes(20_000_000))
    picker.set_input_files(recording)
    window.wait("document.querySelectorAll('.composer progress')[1].value > 0")
    yield "files"
    page.get_by_label("Remove").last.click()
    server.signal(signal.SIGCONT)
    window.until_online()
    picker.set_input_files([])
    ask(window, PICTURE)
    page.locator(".prompt .picture img").last.wait_for()
    yield "picture"


def flows(window: Window, vendors: HostedEmulator) -> Iterator[str]:
    """Goes through the page, and stops wherever a picture is to be made."""
    page, server = window.page, window.server
    window.open().page.get_by_role("heading", name="Log in").wait_for()
    yield "login"
    window.log_in()
    begin(server)
    window.wait("nplt.client.list.counts.asking && nplt.client.list.counts.unread")
    yield "empty"
    if show_list(window):
        yield "list"
    page.get_by_role("link", name="Kubernetes").locator("..").hover()
    page.get_by_role("link", name="Kubernetes").locator("..").get_by_role("button").click()
    yield "list, menu"
    page.keyboard.press("Escape")
    page.locator(".menu").wait_for(state="detached")
    page.keyboard.press("Escape")
    send(window, RETRY)
    window.wait("document.querySelector('.live .markdown pre')")
    yield "streaming"
    page.get_by_label("Prompt", exact=True).last.fill(SHORTER)
    yield "a prompt that waits"
    page.get_by_label("Prompt", exact=True).last.fill("")
    vendors.release()
    window.until_idle()
    to_top(window)
    yield "answer"
    page.reload()
    window.until_online().until_idle()
    page.locator(".thinking summary").click()
    to_top(window)
    yield "thoughts"
    ask(window, SHORTER)
    window.run("nplt.client.clear()")
    page.locator(".clear-line").wait_for()
    window.run("{ nplt.client.notice = null; nplt.changed(); }")
    send(window, CHECK)
    page.get_by_role("alertdialog").wait_for()
    yield "permission"
    window.click("Allow")
    window.until_idle()
    due = datetime.now(UTC) + timedelta(hours=15)
    send_later(server, window.session_id, "Compare this with what changed since yesterday.", due)
    page.locator(".later").wait_for()
    page.locator(".tool summary").last.click()
    yield "tool"
    page.locator(".model").click()
    page.get_by_role("option").first.wait_for()
    yield "models"
    page.keyboard.press("Escape")
    page.get_by_label("Prompt", exact=True).last.fill("Tomorrow, please.")
    window.click("Send later")
    yield "later"
    page.keyboard.press("Escape")
    page.get_by_label("Prompt", exact=True).last.fill("")
    page.get_by_label("What can be done").last.click()
    yield "menu"
    window.click("Tokens and cost", "menuitem")
    page.locator(".facts-table").wait_for()
    yield "tokens"
    page.keyboard.press("Escape")
    page.get_by_label("What can be done").last.click()
    window.click("System message", "menuitem")
    page.get_by_label("System message").last.fill(SYSTEM)
    yield "system message"
    page.keyboard.press("Escape")
    page.get_by_label("What can be done").last.click()
    window.click("Rename", "menuitem")
    page.get_by_label("Name", exact=True).fill("Safe retries")
    yield "rename"
    page.keyboard.press("Enter")
    page.locator(".title").get_by_text("Safe retries").wait_for()
    page.get_by_label("What can be done").last.click()
    with page.expect_download():
        window.click("Export as Markdown", "menuitem")
    page.get_by_text("Saved.").wait_for()
    yield "export"
    close_notice(window)
    page.locator(".prompt").last.hover()
    page.get_by_label("Edit and ask again").last.click()
    yield "edit"
    page.keyboard.press("Escape")
    page.locator(".answer").last.get_by_label("More").click()
    window.click("Erase for good …", "menuitem")
    yield "erase"
    page.keyboard.press("Escape")
    yield from flows_of_files(window)
    send(window, CONTRACT)
    page.locator(".fault").last.wait_for()
    window.until_idle()
    yield "fault"
    page.get_by_label("What can be done").last.click()
    window.click("Take the last turn back", "menuitem")
    page.get_by_role("button", name="Undo").wait_for()
    yield "undo"
    close_notice(window)
    page.keyboard.press("Control+k")
    page.keyboard.type("ghent")
    page.locator(".hit").first.wait_for()
    yield "search"
    page.keyboard.press("Escape")
    show_list(window)
    page.locator(".account").click()
    page.locator(".login-row").first.wait_for()
    yield "settings"
    page.keyboard.press("Escape")
    show_list(window)
    for shelf in ("Archive", "Trash"):
        window.click(shelf)
        window.wait("nplt.client.list.rows.size === 2")
        yield shelf.lower()
    page.locator(".shelf").click()
    window.wait("nplt.client.list.rows.size > 2")
    page.keyboard.press("Escape")
    page.context.set_offline(True)
    window.run("nplt.client.wire.end(nplt.client.wire.socket)")
    send(window, "This waits for the network.")
    page.get_by_text("There is no network").wait_for()
    yield "offline"
    page.context.set_offline(False)


def pictures(
    browser: Browser,
    on_stage: tuple[ServerProcess, HostedEmulator],
    size: tuple[int, int],
    theme: Any,
) -> dict[str, bytes]:
    server, vendors = on_stage
    width, height = size
    is_phone = width < 600
    context = browser.new_context(
        viewport={"width": width, "height": height},
        locale="en-GB",
        color_scheme=theme,
        reduced_motion="reduce",
        has_touch=is_phone,
        is_mobile=is_phone,
    )
    window = Window(context.new_page(), server)
    made = {}
    for name in flows(window, vendors):
        window.page.wait_for_timeout(PAUSE)
        made[name] = window.page.screenshot()
    context.close()
    return made


def save_webp(page: Page, path: Path, quality: int) -> None:
    devtools = page.context.new_cdp_session(page)
    options = {"format": "webp", "quality": quality, "captureBeyondViewport": True}
    taken = devtools.send("Page.captureScreenshot", options)
    path.write_bytes(base64.b64decode(taken["data"]))


def address_of(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def save_sheet(
    page: Page, made: dict[str, dict[str, bytes]], size: tuple[int, int], columns: int
) -> None:
    width, height = size
    rows = sum(-(-len(pictures) // columns) for pictures in made.values())
    box = {"width": columns * (width + 12) + 12, "height": rows * (height + CAPTION + 12) + 12}
    page.set_viewport_size(box)  # type: ignore[arg-type]  # it is a TypedDict
    blocks = (
        "".join(
            f'<figure><figcaption>{name}</figcaption><img src="{address_of(png)}"></figure>'
            for name, png in pictures.items()
        )
        for pictures in made.values()
    )
    page.set_content(
        "<style>body{margin:6px;background:#77746e;font:15px/26px system-ui}"
        f"div{{display:grid;grid-template-columns:repeat({columns},{width}px);gap:12px;"
        "margin:6px 6px 12px}figure{margin:0}figcaption{color:#fff;white-space:nowrap}"
        f"img{{display:block;width:{width}px;height:{height}px}}</style>"
        + "".join(f"<div>{block}</div>" for block in blocks)
    )
    page.wait_for_timeout(PAUSE)


def save_whole(page: Page, png: bytes, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.set_content(f'<style>body{{margin:0}}</style><img src="{address_of(png)}">')
    page.wait_for_timeout(PAUSE)


def make(folder: Path, raw: Path | None = None) -> None:
    """`raw`: a folder for each picture as PNG, to be looked at."""
    with (
        tempfile.TemporaryDirectory() as data,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        sheet = browser.new_page()
        numbers = count()
        for width, height, smaller, columns in SIZES:
            both: dict[str, dict[str, bytes]] = {}
            for theme in THEMES:
                place = Path(data, str(next(numbers)))
                place.mkdir()
                with stage(place) as on_stage:
                    fill(on_stage[0])
                    made = pictures(browser, on_stage, (width, height), theme)
                both[theme] = made
                if raw is not None:
                    for name, png in made.items():
                        (raw / f"{name}-{width}-{theme}.png").write_bytes(png)
                if (width, theme) == (1440, "light"):
                    save_whole(sheet, made["thoughts"], width, height)
                    save_webp(sheet, folder / "page-wide-light.webp", 80)
                if (width, theme) == (360, "dark"):
                    save_whole(sheet, made["permission"], width, height)
                    save_webp(sheet, folder / "page-phone-dark.webp", 80)
            save_sheet(sheet, both, (width // smaller, height // smaller), columns)
            save_webp(sheet, folder / f"page-flows-{width}.webp", 60)
        browser.close()


if __name__ == "__main__":
    make(FOLDER, Path(sys.argv[1]) if len(sys.argv) > 1 else None)
