"""The page in a real Chromium. Without Chromium or playwright these tests are skipped."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.gateway.http_client import request
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
    "--host-resolver-rules=MAP rebound.example 127.0.0.1",
]  # fmt: skip
SECONDS_MAX = 60.0
"""Only a page that hangs takes so long, even while the machine is busy with other things."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None
    if CHROMIUM is None:
        reason = "needs Chromium"
    else:
        try:
            import playwright  # noqa: F401
        except ImportError:
            reason = "needs playwright"
    if reason is not None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


class Window:
    """A window of the browser with the page, as its user sees it."""

    def __init__(self, page: Page, server: ServerProcess) -> None:
        self.page = page
        self.server = server
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._note)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def open(self, path: str = "") -> Window:
        self.page.goto(f"{self.server.http_url}{path}")
        return self

    def log_in(self) -> Window:
        made = request(f"{self.server.http_url}login/codes", "POST")
        self.open(f"#code={made.json['code']}")
        return self.until_online()

    def until_online(self) -> Window:
        self.wait(
            "window.nplt && nplt.client.phase === 'online' && nplt.client.conversation.isAttached"
        )
        return self

    def run(self, expression: str) -> Any:
        return self.page.evaluate(f"() => {expression}")

    def wait(self, expression: str, seconds: float = SECONDS_MAX) -> None:
        """Waits until it is true. Playwright's own way evaluates text, which the policy forbids."""
        ends_at = time.monotonic() + seconds
        while not self._is_true(expression):
            if time.monotonic() > ends_at:
                raise AssertionError(f"never true: {expression}; {self.state()}; {self.errors}")
            self.page.wait_for_timeout(20)

    def _is_true(self, expression: str) -> bool:
        from playwright.sync_api import Error

        try:
            return bool(self.page.evaluate(f"() => Boolean({expression})"))
        except Error as error:
            if "context was destroyed" in str(error):  # the page is just being loaded again
                return False
            raise

    def state(self) -> str:
        """What the page holds, for the message of a failure."""
        shown = "nplt.client.conversation"
        return str(
            self.run(
                f"window.nplt && JSON.stringify([nplt.client.phase, {shown}.live, {shown}.queue,"
                f" {shown}.messages.slice(-4), nplt.client.outbox.prompts, nplt.client.notice])"
            )
        )[:4_000]

    def wait_for_text(self, text: str, selector: str = "main") -> None:
        self.page.locator(selector).get_by_text(text).first.wait_for(timeout=SECONDS_MAX * 1_000)

    def ask(self, text: str) -> None:
        """Sends a prompt and waits until its answer is shown."""
        self.send(text)
        self.until_idle()

    def send(self, text: str) -> None:
        self.page.get_by_label("Prompt", exact=True).last.fill(text)
        self.page.keyboard.press("Enter")

    def until_idle(self) -> None:
        self.wait(
            "!nplt.client.outbox.prompts.length && !nplt.client.conversation.isRunning"
            " && nplt.client.conversation.isAttached && nplt.client.conversation.isLoaded"
        )
        self.until_rendered()

    def until_rendered(self) -> None:
        """Waits until the document shows the state, and all its Markdown is rendered."""
        self.wait(
            "!nplt.isWaiting && [...document.querySelectorAll('.answer:not(.live) .open')]"
            ".every((open) => !open.childNodes.length)"
        )

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    @property
    def answers(self) -> list[str]:
        return [text.strip() for text in self.texts(".answer .markdown")]

    @property
    def session_id(self) -> str:
        found: str = self.run("nplt.client.conversation.id")
        return found

    def click(self, name: str, role: Any = "button") -> None:
        self.page.get_by_role(role, name=name, exact=True).last.click()


NewWindow = Callable[..., Window]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each file of tests: while playwright runs, no test of asyncio can."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def new_window(browser: Browser) -> Iterator[NewWindow]:
    """Opens windows, each in a browser profile of its own unless one is given."""
    contexts: list[BrowserContext] = []

    def new(server: ServerProcess, context: BrowserContext | None = None, **options: Any) -> Window:
        if context is None:
            context = browser.new_context(
                **{"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", **options}
            )
            contexts.append(context)
        return Window(context.new_page(), server)

    yield new
    for context in contexts:
        context.close()


@pytest.fixture
def window(shared_server: ServerProcess, new_window: NewWindow) -> Iterator[Window]:
    """A logged-in window; the test fails if the page reports an error."""
    opened = new_window(shared_server).log_in()
    yield opened
    assert opened.errors == []
