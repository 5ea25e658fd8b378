"""Every command and every chat, against a server all of whose strings are hostile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.client.hostile_server import ATTACK, HostileServer, foreign_bytes, hostile_server
from tests.client.nplt_process import run_nplt
from tests.client.screen_user import ScreenPerson, at_screen
from tests.client.terminal_user import at_terminal

from nplt_client.chat.commands import COMMANDS as CHAT_COMMANDS
from nplt_client.cli import nplt

pytestmark = pytest.mark.slow

OF_OUR_OWN = re.compile("\x1b\\[[02]m")
SHOWS_TEXTS = ("ask", "history", "export")
"""What they print may begin a line as it likes."""
COMMANDS = [
    ["ask", "hello"],
    ["ask", "hello", "--no-stream"],
    ["ask", "hello", "--json"],
    ["ask", "hello", "--jsonl"],
    ["ask", "hello", "-x"],
    ["ask", "hello", "--detach"],
    ["sessions"],
    ["sessions", "--trash"],
    ["sessions", "--json"],
    ["history", "x"],
    ["history", "x", "--entries"],
    ["history", "x", "--json"],
    ["context"],
    ["context", "--json"],
    ["usage"],
    ["tools"],
    ["models"],
    ["status"],
    ["rename", "x", "y"],
    ["delete", "12345678"],
    ["delete", "x"],
    ["search", "x"],
    ["fork", "x"],
    ["undelete", "x"],
    ["repair", "x"],
    ["redact", "x", "1"],
    ["import", "talk.json"],
    ["export", "x"],
    ["export", "x", "--format", "html"],
    ["export", "x", "--format", "json"],
    ["server", "log"],
]
ON_THIS_MACHINE = {
    *("chat", "completion", "config path", "config show", "config check"),
    *("server status", "server start", "server restart", "server stop"),
}
"""The chat has tests of its own; the others ask no server, or none but their own."""


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with hostile_server() as server:
        yield server


def commands_in(group: click.Group, *before: str) -> Iterator[str]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands_in(command, *before, name)
        else:
            yield " ".join((*before, name))


def test_every_command_is_tested_against_the_hostile_server() -> None:
    tried = {name for name in commands_in(nplt) for one in COMMANDS if name in " ".join(one)}
    assert tried | ON_THIS_MACHINE == set(commands_in(nplt))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    log = tmp_path / ".local" / "state" / "nplt" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text(ATTACK, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_an_escape_sequence_of_a_hostile_server(
    server: HostileServer, home: Path, command: list[str]
) -> None:
    talk = home / "talk.json"
    talk.write_text("{}", encoding="utf-8")
    command = [str(talk) if word == talk.name else word for word in command]
    with at_terminal(*command, home=home, NPLT_SERVER=server.url) as person:
        if command[0] in ("ask", "redact"):
            person.types("y")
        shown = OF_OUR_OWN.sub("", person.sees_all().replace("\r\n", "\n"))
    assert shown.strip()
    assert "mistake in nplt itself" not in shown
    assert not foreign_bytes(shown)
    if command[0] not in SHOWS_TEXTS and command != ["server", "log"]:
        assert not [line for line in shown.split("\n") if line.startswith("FORGED")]


@pytest.mark.parametrize("command", ["fork x", "import talk.json", "ask hello --detach"])
def test_an_id_for_a_script_is_one_line_without_control_characters(
    server: HostileServer, home: Path, command: str
) -> None:
    (home / "talk.json").write_text("{}", encoding="utf-8")
    words = [str(home / word) if word == "talk.json" else word for word in command.split()]
    done = run_nplt(*words, home=home, server=server.url)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("session")
    assert not foreign_bytes(done.stdout + done.stderr)


ARGUMENTS = {
    **dict.fromkeys(("switch", "rename", "search", "system", "model", "role"), "x"),
    "attach": "talk.json",
    "export": "out.md",
    "copy": "1",
    "theme": "dark",
    "effort": "low",
}
LAST = ("new", "delete", "quit")
ASK_AGAIN = {"edit", "retry"}
"""Where lines are read one by one, what follows would be taken for an answer."""
OPEN_WINDOWS = {"sessions", "search"}
WINDOW = "╭─ conversations"
IN_THE_INPUT = "│ content31m"
"""What `/edit` puts there."""


def goes_through_everything(person: ScreenPerson, home: Path, *, display: str) -> None:
    (home / "talk.json").write_text("{}", encoding="utf-8")
    person.sees("FORGED")
    person.types("hello\r")
    if display == "--plain":
        person.sees("[y/n/a]")
        person.types("y\r")
        person.sees("(decided_by")
    else:
        person.sees("message31m")
    for name in (*(one for one in CHAT_COMMANDS if one not in LAST), *LAST):
        if display == "--plain" and name in ASK_AGAIN:
            continue
        argument = ARGUMENTS.get(name, "")
        argument = f" {home}/{argument}" if "." in argument else f" {argument}"
        person.types(f"/{name}{argument}".rstrip())
        person.presses_enter()
        if not display and name in OPEN_WINDOWS:
            person.sees(WINDOW)
            person.presses_escape()
            person.sees_no(WINDOW)
        elif name == "edit":
            if display:
                person.receives(b"sending this")
            else:
                person.sees(IN_THE_INPUT)
            person.presses_ctrl("c")
    assert person.sees_it_end() == 0


@pytest.mark.parametrize(
    ("display", "size"),
    [
        ("", (24, 80)),
        ("", (12, 40)),
        ("--no-alt-screen", (24, 80)),
        ("--no-alt-screen", (12, 40)),
        ("--plain", (24, 80)),
    ],
)
def test_no_chat_prints_an_escape_sequence_of_a_hostile_server(
    server: HostileServer, home: Path, display: str, size: tuple[int, int]
) -> None:
    config = home / ".config" / "nplt" / "client.toml"
    config.parent.mkdir(parents=True)
    config.write_text('notify = "off"\n', encoding="utf-8")
    rows, columns = size
    options = [display] if display else []
    with at_screen(
        "chat", "--resume", "x", *options, home=home, rows=rows, columns=columns,
        NPLT_SERVER=server.url,
    ) as person:  # fmt: skip
        goes_through_everything(person, home, display=display)
        shown = person.raw.decode(errors="surrogateescape")
    assert "mistake in nplt itself" not in shown
    assert not foreign_bytes(shown)
