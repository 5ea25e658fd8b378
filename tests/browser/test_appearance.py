"""Whether everybody can use the page (axe-core), and how fast it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.conversations import write_conversation
from tests.browser.conftest import NewWindow, Window
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
AXE = Path(".venv/page-tools/node_modules/axe-core/axe.min.js")
MARKDOWN = """# Title

A paragraph with `code`, **bold** text and a [link](https://example.org/).

- [x] done
- [ ] open

```python
def f(x): return "text", 1  # note
```

| a | b |
|---|---|
| 1 | 2 |

> quoted"""


def check_with_axe(window: Window) -> None:
    devtools = window.page.context.new_cdp_session(window.page)
    devtools.send("Runtime.evaluate", {"expression": AXE.read_text()})
    report = window.page.evaluate("async () => (await axe.run()).violations")
    found = [
        (each["id"], each["impact"], [node["target"] for node in each["nodes"]][:4])
        for each in report
        if each["impact"] in ("serious", "critical")
    ]
    assert found == [], json.dumps(found, indent=1)


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: make browser")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_axe_finds_nothing_serious(
    start_server: Start, new_window: NewWindow, theme: str, width: int
) -> None:
    server = start_server(tools={"sys_monitor": "ask"})
    window = new_window(
        server,
        viewport={"width": width, "height": 800},
        color_scheme=theme,
        reduced_motion="reduce",
    )
    window.open().page.get_by_role("heading", name="Log in").wait_for()
    check_with_axe(window)
    window.log_in()
    check_with_axe(window)
    window.ask(MARKDOWN)
    window.ask(f"!think {MARKDOWN}")
    window.ask("!fail")
    window.page.get_by_label("What can be done").last.click()
    check_with_axe(window)
    window.click("System message", "menuitem")
    window.page.locator("dialog textarea").wait_for()
    check_with_axe(window)
    window.page.keyboard.press("Escape")
    window.page.get_by_label("What can be done").last.click()
    window.click("Let models forget the above", "menuitem")
    window.page.locator(".clear-line").wait_for()
    for opening in (".model", "button[title='Send later']", ".answer button[title='More']"):
        window.page.get_by_label("Prompt", exact=True).last.fill("later")
        window.page.locator(opening).last.click()
        if opening.startswith(".answer"):
            window.click("Erase for good …", "menuitem")
        window.page.locator("dialog").wait_for()
        check_with_axe(window)
        window.page.keyboard.press("Escape")
    window.page.locator("button[title='Send later']").click()
    window.page.get_by_text("Tomorrow morning").click()
    window.page.locator(".later").wait_for()
    window.send("!tool sys_monitor {}")
    window.page.get_by_role("alertdialog").wait_for()
    check_with_axe(window)
    window.page.keyboard.press("Control+k")
    window.page.wait_for_timeout(100)
    check_with_axe(window)
    window.page.locator(".account").click()
    window.page.locator(".login-row").first.wait_for()
    check_with_axe(window)


@pytest.mark.slow
def test_a_screen_reader_hears_sentences_not_pieces(window: Window) -> None:
    window.run(
        "{ window.heard = []; new MutationObserver((changes) => changes.forEach((each) =>"
        " each.addedNodes.forEach((node) => window.heard.push(node.textContent))))"
        ".observe(document.querySelector('[aria-live=polite]'), { childList: true }) }"
    )
    window.ask("!slow 1 The first sentence. The second one is longer. And the last")
    heard = window.run("window.heard")
    assert "".join(heard) == "The first sentence. The second one is longer. And the last"
    assert len(heard) <= 3


def test_the_theme_is_chosen_and_kept(window: Window) -> None:
    window.page.locator(".account").click()
    window.page.get_by_text("Dark", exact=True).click()
    background = "getComputedStyle(document.body).backgroundColor"
    dark = window.run(background)
    window.page.reload()
    window.until_online()
    assert window.run(background) == dark
    window.page.emulate_media(color_scheme="dark")
    assert window.run(background) == dark


@pytest.mark.slow
def test_a_conversation_of_a_hundred_thousand_messages_opens_within_a_second(
    start_server: Start, new_window: NewWindow, tmp_path: Path
) -> None:
    write_conversation(tmp_path / "data0", "long", 100_000, content_bytes=200)
    window = new_window(start_server()).log_in()
    window.open("#/c/long").until_online()
    window.wait("document.querySelectorAll('.answer').length")  # the server has opened it
    window.click("New conversation")
    window.until_online()
    took = window.page.evaluate(
        """async () => {
            const began = performance.now();
            nplt.open("long");
            while (!document.querySelector(".answer .markdown p")) {
                await new Promise(requestAnimationFrame);
            }
            return performance.now() - began;
        }"""
    )
    print(f"opened in {took:.0f} ms")
    assert took <= 1_000
    assert window.run("document.querySelectorAll('article').length") < 100


LONG_ANSWERS = {
    "paragraphs": "\n\n".join(f"Paragraph {n} " + "of **many** words " * 10 for n in range(5_000)),
    "code": "```python\n" + "def f(x): return x + 1  # a note\n" * 40_000,
    "one line": "many words of one line " * 50_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG_ANSWERS)
def test_an_answer_of_a_megabyte_streams_without_long_tasks(
    start_server: Start, new_window: NewWindow, kind: str
) -> None:
    window = new_window(start_server()).log_in()
    text = LONG_ANSWERS[kind][:900_000].strip()
    browser = window.page.context.browser
    assert browser is not None
    browser.start_tracing(page=window.page, categories=["toplevel", "__metadata"])
    try:
        window.page.evaluate("(text) => nplt.client.prompt(text)", text)
        window.wait("nplt.client.conversation.messages.length === 2", 60)
        shown = "document.querySelector('.answer .markdown').textContent.length"
        window.wait(f"!nplt.isWaiting && {shown} > {0.7 * len(text)}", 60)
        window.page.wait_for_timeout(500)
    finally:
        trace = browser.stop_tracing()  # the browser is shared, and has one trace at a time
    tasks = _processor_milliseconds(json.loads(trace))
    print(f"{len(tasks)} tasks, the longest {max(tasks):.0f} ms")
    assert max(tasks) <= 100


def _processor_milliseconds(trace: Any) -> list[float]:
    """How long each task of the page ran, without the time in which other programs ran."""
    events = trace["traceEvents"]
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    return [
        each["tdur"] / 1_000
        for each in events
        if each["name"].endswith("RunTask") and "tdur" in each
        if (each["pid"], each["tid"]) in threads
    ]
