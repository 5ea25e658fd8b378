"""Whether everybody can use the page (axe-core), and how fast it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

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
    window.send("!tool sys_monitor {}")
    window.page.get_by_role("alertdialog").wait_for()
    check_with_axe(window)
    window.page.keyboard.press("Control+k")
    window.page.wait_for_timeout(100)
    check_with_axe(window)
    window.page.locator(".account").click()
    window.page.locator(".login-row").first.wait_for()
    check_with_axe(window)


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


@pytest.mark.slow
def test_an_answer_of_a_megabyte_streams_without_long_tasks(
    start_server: Start, new_window: NewWindow
) -> None:
    window = new_window(start_server()).log_in()
    window.run(
        "{ window.tasks = []; new PerformanceObserver((list) => list.getEntries().forEach((each) =>"
        " window.tasks.push(each.duration))).observe({ entryTypes: ['longtask'] }) }"
    )
    text = "\n\n".join(f"Paragraph {n} " + "of **many** words " * 10 for n in range(5_000))
    window.page.evaluate("(text) => nplt.client.prompt(text)", text[:1_000_000])
    window.wait("nplt.client.conversation.messages.length === 2", 60)
    window.until_idle()
    assert window.run("document.querySelectorAll('.answer .markdown > p').length") > 4_000
    tasks = window.run("window.tasks")
    print(f"{len(tasks)} long tasks, the longest {max(tasks, default=0):.0f} ms")
    assert max(tasks, default=0) <= 500  # a goal of 100 is measured on a quiet machine
