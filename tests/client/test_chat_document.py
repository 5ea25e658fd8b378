"""What docs/chat.md says of commands and keys is what the chats do."""

from __future__ import annotations

import re
from pathlib import Path

from nplt_client.chat_commands import COMMANDS as PLAIN
from nplt_client.chat_vocabulary import VOCABULARY
from nplt_client.fullscreen.commands import COMMANDS as SCREEN
from nplt_client.linemode.commands import COMMANDS as LINES

DOCUMENT = (Path(__file__).parents[2] / "docs" / "chat.md").read_text(encoding="utf-8")


def test_the_table_of_commands_is_the_vocabulary() -> None:
    told = re.findall(r"^\| `(/[^`]+)` \| (.+) \| (yes|) \|$", DOCUMENT, re.MULTILINE)
    assert told == [
        (
            f"/{name} {word.argument}".rstrip().replace("|", "\\|"),
            word.help,
            "yes" if name in PLAIN else "",
        )
        for name, word in VOCABULARY.items()
    ]


def test_lines_and_full_screen_know_the_same_commands() -> None:
    assert set(LINES) == set(SCREEN) == set(VOCABULARY)
    assert set(PLAIN) <= set(VOCABULARY)
