"""Answers that were cut, that another model gave, and messages that a provider refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.browser.conftest import NewWindow, Window
from tests.browser.stage import PICTURE, stage
from tests.support.scripted_vendor import Json, Reply, chat, refusal, vendor
from tests.support.server_process import ServerProcess
from tests.vendors import Cut

pytestmark = pytest.mark.slow


@contextmanager
def window_at(
    directory: Path, new_window: NewWindow, *replies: Reply | Callable[[Json], Reply]
) -> Iterator[Window]:
    down = refusal(503, "down")
    with vendor(*replies) as good, vendor(down) as bad:
        settings: dict[str, object] = {
            "providers": [good.provider("good"), bad.provider("bad")],
            "fallback": ["good/m"],
            "limits": {"retries_max": 0},
        }
        server = ServerProcess(directory / "data", settings=settings).start()
        try:
            yield new_window(server).log_in()
        finally:
            server.terminate()


def test_a_cut_answer_says_so_and_goes_on_as_one(tmp_path: Path, new_window: NewWindow) -> None:
    parts = (chat("The quick bro", "length"), chat("wn fox", "length"), chat(" jumps."))
    with window_at(tmp_path, new_window, *parts) as window:
        window.ask("Say it.")
        assert window.texts(".remark:not([hidden])") == [
            "The answer was cut at the longest that the model may give."
        ]
        for whole in ("The quick brown fox", "The quick brown fox jumps."):
            window.click("Go on")
            window.until_idle()
            assert window.answers == [whole]
        assert window.texts(".remark:not([hidden])") == []
        assert window.page.get_by_role("button", name="Go on").count() == 0
        window.page.reload()
        window.until_online()
        window.until_idle()
        assert window.answers == ["The quick brown fox jumps."]
        assert window.texts(".bubble") == ["Say it."]
        window.click("Ask again")
        last = "nplt.client.conversation.messages.at(-1)"
        window.wait(f"{last}.seq > 7 && {last}.role === 'assistant'")
        window.until_idle()
        assert window.answers == ["The quick brown fox jumps."]
        assert window.errors == []


def test_an_answer_that_broke_off_says_so_and_can_be_continued(
    tmp_path: Path, new_window: NewWindow
) -> None:
    with stage(tmp_path, limits={"retries_max": 0}) as (server, vendors):
        window = new_window(server).log_in()
        vendors.fail_next(*[Cut(after=30)] * 30)
        window.ask(PICTURE)
        broken = window.texts(".remark:not([hidden])")
        assert broken == ["This answer broke off: the connection to the provider broke; ask again."]
        assert window.page.get_by_role("button", name="Go on").is_visible()
        window.page.reload()
        window.until_online()
        window.until_idle()
        window.wait_for_text("This answer broke off.")
        assert window.errors == []


def test_a_fallback_is_told_with_its_reason_also_if_its_answer_was_cut(
    tmp_path: Path, new_window: NewWindow
) -> None:
    with window_at(tmp_path, new_window, chat("The quick bro", "length")) as window:
        window.run("nplt.client.ask(0x0f, { model: 'bad/m' })")
        window.ask("Say it.")
        (remark,) = window.texts(".remark:not([hidden])")
        assert remark.startswith("The answer was cut at the longest that the model may give. ")
        assert "bad/m could not answer: the provider has a problem of its own (503)" in remark


def test_a_message_that_a_provider_refuses_is_marked(tmp_path: Path, new_window: NewWindow) -> None:
    # https://github.com/alan-turing-institute/t0-1/issues/69
    flagged = "your prompt was flagged as potentially violating our usage policy."

    def reply(body: Json) -> Reply:
        is_first = len(body["messages"]) == 1
        if is_first or "poison" not in str(body["messages"]):
            return chat("fine")
        return refusal(400, f"Invalid 'messages[0].content': {flagged}")

    with window_at(tmp_path, new_window, reply) as window:
        window.ask("poison")
        window.ask("go on")
        window.wait_for_text("Models of good refused this and are not shown it.")
