"""A bar for a person who waits, and nothing for anyone else."""

from __future__ import annotations

from io import StringIO

import pyte

from nplt_client.cli.transfer import BEGIN_AFTER_SECONDS, BETWEEN_SECONDS, ProgressBar


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


def test_the_progress_bar_appears_after_a_moment_and_is_removed() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressBar("big.json", 200, stream=stream, clock=clock) as bar:
        bar.show(10)
        assert stream.getvalue() == ""
        clock.now = BEGIN_AFTER_SECONDS
        bar.show(50)
        clock.now += BETWEEN_SECONDS / 2
        bar.show(60)
        assert lines_of(stream.getvalue())[0] == "big.json  " + "█" * 6 + "░" * 18 + "   25%"
        clock.now += BETWEEN_SECONDS
        bar.show(300)
        assert lines_of(stream.getvalue())[0].endswith("100%")
        bar.note("elsewhere …")
        assert lines_of(stream.getvalue())[0] == "big.json  elsewhere …"
    assert lines_of(stream.getvalue()) == ["", "", ""]


def test_no_progress_bar_is_written_to_a_pipe() -> None:
    stream, clock = StringIO(), Clock()
    with ProgressBar("big.json", 200, stream=stream, clock=clock) as bar:
        clock.now = 100.0
        bar.show(50)
    assert stream.getvalue() == ""


def test_the_progress_bar_sanitizes_a_hostile_name() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressBar("a\x1b[2J\nb" + "漢" * 60, 2, stream=stream, clock=clock) as bar:
        clock.now = 100.0
        bar.show(1)
        assert lines_of(stream.getvalue())[1] == "", "one line and no more"
    assert "\x1b" not in stream.getvalue()
