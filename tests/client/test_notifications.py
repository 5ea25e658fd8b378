"""Somebody who looks at another window is called back; the terminal tells who does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.screen_user import at_screen

from nplt_client.render.terminal import notification_sequence

pytestmark = pytest.mark.slow

LOST, GAINED = "\x1b[O", "\x1b[I"
DONE = b"\x1b]9;nplt: the answer is done\x07"


@pytest.mark.parametrize("options", [(), ("--no-alt-screen",)], ids=str)
def test_a_notification_is_sent_when_an_answer_is_done_without_focus(
    server: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    config = tmp_path / ".config" / "nplt" / "client.toml"
    config.parent.mkdir(parents=True)
    config.write_text('notify = "osc9"\n', encoding="utf-8")
    with at_screen("chat", server, *options, home=tmp_path) as person:
        person.sees("● online")
        person.receives(b"\x1b[?1004h")
        person.types("first\r")
        person.sees("  offline/echo" if not options else "\noffline/echo")
        person.types("!slow 2 second\r")
        person.sees("answering")
        person.types(LOST)
        person.receives(DONE)
        person.types(GAINED)
        person.types("third\r")
        person.sees("third\n\n  offline/echo" if not options else "third\n\noffline/echo")
        person.types("/quit\r")
        assert person.sees_it_end() == 0
    assert person.raw.count(DONE) == 1, "not while they were here"
    assert person.raw.rindex(b"\x1b[?1004l") > person.raw.rindex(b"\x1b[?1004h")


def test_the_notify_setting_chooses_bell_osc9_or_off() -> None:
    assert notification_sequence("done", "bell") == "\x07"
    assert notification_sequence("done", "off") == ""
    assert notification_sequence("\x1b]0;x\x07a\nb", "osc9") == "\x1b]9;nplt: a b\x07"
