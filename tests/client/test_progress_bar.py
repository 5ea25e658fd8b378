"""A bar for a person who waits, and nothing for anyone else."""

from __future__ import annotations

from io import StringIO

import pyte
import pytest

from nplt_client.cli.transfer import BEGIN_AFTER_SECONDS, ProgressBar


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(written: str) -> list[str]:
    screen = pyte.Screen(100, 3)
    pyte.Stream(screen).feed(written)
    return [line.rstrip() for line in screen.display]


@pytest.fixture(autouse=True)
def _no_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_the_progress_bar_appears_after_a_moment_and_is_removed() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressBar("big.json", 200, stream=stream, clock=clock) as bar:
        bar.show(10)
        assert stream.getvalue() == ""
        clock.now = BEGIN_AFTER_SECONDS
        bar.show(50)
        line = lines_of(stream.getvalue())[0]
        assert line.startswith("big.json ")
        assert line.endswith(" 25%")
    assert lines_of(stream.getvalue()) == ["", "", ""]


def test_the_progress_bar_shows_a_note_while_the_server_works() -> None:
    stream = Terminal()
    with ProgressBar("[b]big.json", 200, stream=stream) as bar:
        bar.note("the server imports it …")
        assert lines_of(stream.getvalue())[0].startswith("[b]big.json  the server imports it … ")
    assert lines_of(stream.getvalue()) == ["", "", ""]


def test_no_progress_bar_is_written_to_a_pipe() -> None:
    stream, clock = StringIO(), Clock()
    with ProgressBar("big.json", 200, stream=stream, clock=clock) as bar:
        clock.now = 100.0
        bar.show(50)
    assert stream.getvalue() == ""


def test_no_progress_bar_is_drawn_on_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressBar("big.json", 200, stream=stream) as bar:
        bar.note("elsewhere …")
    assert stream.getvalue().strip() == ""


def test_the_progress_bar_sanitizes_a_hostile_name() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressBar("a\x1b[2J\nb" + "漢" * 60, 2, stream=stream, clock=clock) as bar:
        clock.now = 100.0
        bar.show(1)
        assert lines_of(stream.getvalue())[1] == "", "one line and no more"
    assert "\x1b[2J" not in stream.getvalue()
