"""What can be said to the chat itself: lines that begin with a slash.

`//` at the beginning of a line is an escaped slash. Everything these commands
show goes to stderr: stdout is for answers. Unknown commands are never sent to
a model; they are answered with the nearest name there is.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nplt_client.chat_notices import NoticeBoard
from nplt_client.errors import RequestRefused
from nplt_client.listings import check_meant
from nplt_client.sanitize import sanitize_line
from nplt_client.showing import history_text, models_text, sessions_table, status_text
from nplt_client.showing_accounts import context_text, epoch_text, tools_text, usage_text
from nplt_client.sync import Client
from nplt_client.tables import pairs, shorten
from nplt_client.terminal import say

_REMARK_WIDTH = 60


class ChatFloor(Protocol):
    """What a command may touch of the chat."""

    client: Client
    board: NoticeBoard
    attachments: list[str]
    model: str | None
    over: bool
    worth_returning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    argument: str
    help: str
    run: Callable[[ChatFloor, str], None]


def run_command(chat: ChatFloor, line: str) -> None:
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        near = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
        hint = f" Did you mean /{near[0]}?" if near else ""
        raise RequestRefused(
            f"There is no /{name}.{hint} /help lists all; // begins a text with a slash.",
            code="not_found",
        )
    argument = argument.strip()
    if command.argument and not command.argument.startswith("[") and not argument:
        raise RequestRefused(f"/{name} needs {command.argument}.", code="malformed")
    command.run(chat, argument)


def _help(chat: ChatFloor, argument: str) -> None:
    rows = [
        (f"/{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()
    ]
    say(pairs([*rows, ("//…", "a text that begins with a slash"), ("Ctrl+D", "leave")]))


def _new(chat: ChatFloor, argument: str) -> None:
    created = chat.client.new(argument or None)
    chat.worth_returning = True
    say(f"in the new conversation {created.name!r} ({created.session_id})")


def _sessions(chat: ChatFloor, argument: str) -> None:
    rows = chat.client.sessions(argument or None)
    say(sessions_table(rows) if rows else "no conversations yet")


def _switch(chat: ChatFloor, argument: str) -> None:
    found = chat.client.switch(argument)
    chat.worth_returning = True
    say(f"in {found.name!r} ({found.session_id}), model {found.model}")


def _rename(chat: ChatFloor, argument: str) -> None:
    with chat.board.expecting("renamed", argument):
        row = chat.client.rename(argument)
    say(f"this conversation is now called {row.name!r}")


def _delete(chat: ChatFloor, argument: str) -> None:
    wanted = argument or chat.client.session_id
    here = chat.client.session_id
    if argument:
        found = chat.client.switch(argument)
        try:
            check_meant(argument, found)
        except RequestRefused:
            chat.client.attach(here)
            raise
        wanted = found.session_id
    chat.client.delete(wanted)
    if wanted != here:
        chat.client.attach(here)
    else:
        chat.worth_returning = False
    say(f"{wanted} is in the trash")


def _model(chat: ChatFloor, argument: str) -> None:
    if not argument:
        say(models_text(chat.client.models()))
        return
    with chat.board.expecting("model", argument):
        choice = chat.client.switch_model(argument)
    chat.model = None
    say(f"the model is now {choice.model}")


def _history(chat: ChatFloor, argument: str) -> None:
    if argument and not (argument.isdecimal() and int(argument)):
        raise RequestRefused("/history takes a number of messages.", code="malformed")
    say(history_text(chat.client.history(int(argument or 20))))


def _clear(chat: ChatFloor, argument: str) -> None:
    chat.client.clear()  # the event tells everyone, us too


def _undo(chat: ChatFloor, argument: str) -> None:
    newest = chat.client.history(1, roles=("user",)).messages
    seq = newest[-1].get("seq") if newest else None
    if not isinstance(seq, int):
        say("there is nothing to take back")
    elif seq <= 1:
        say("there is nothing before your first message to go back to; /new begins anew")
    else:
        with chat.board.expecting("rolled_back", ""):
            chat.client.roll_back(seq - 1)
        text = sanitize_line(str(newest[-1].get("content") or ""))
        say(f"taken back, with all that came after it: {shorten(text, _REMARK_WIDTH)}")


def _context(chat: ChatFloor, argument: str) -> None:
    say(context_text(chat.client.context(text=argument or None, model=chat.model)))


def _usage(chat: ChatFloor, argument: str) -> None:
    say(usage_text(chat.client.usage()))


def _tools(chat: ChatFloor, argument: str) -> None:
    say(tools_text(chat.client.tools()))


def _compact(chat: ChatFloor, argument: str) -> None:
    say(epoch_text(chat.client.compact()))


def _status(chat: ChatFloor, argument: str) -> None:
    say(status_text(chat.client.status()))


def _attach(chat: ChatFloor, argument: str) -> None:
    stored = chat.client.upload(argument)
    chat.attachments.append(stored.file_id)
    say(f"{argument} ({stored.size:,} bytes) goes with your next message")


def _quit(chat: ChatFloor, argument: str) -> None:
    chat.over = True


COMMANDS: dict[str, Command] = {
    "help": Command(argument="", help="this list", run=_help),
    "new": Command(argument="[NAME]", help="begin a new conversation", run=_new),
    "sessions": Command(argument="[TEXT]", help="list conversations", run=_sessions),
    "switch": Command(argument="ID|NAME", help="go to a conversation", run=_switch),
    "rename": Command(argument="NAME", help="rename this conversation", run=_rename),
    "delete": Command(argument="[ID|NAME]", help="move one to the trash (this one)", run=_delete),
    "model": Command(argument="[NAME]", help="show or switch the model", run=_model),
    "history": Command(argument="[N]", help="the last messages", run=_history),
    "clear": Command(argument="", help="show the model nothing older", run=_clear),
    "undo": Command(argument="", help="take back your last message and its answer", run=_undo),
    "context": Command(argument="[TEXT]", help="what the model would be sent", run=_context),
    "compact": Command(argument="", help="show the model older turns in less detail", run=_compact),
    "usage": Command(argument="", help="tokens and cost of this conversation", run=_usage),
    "tools": Command(argument="", help="what the model may call", run=_tools),
    "status": Command(argument="", help="how the server is", run=_status),
    "attach": Command(argument="FILE", help="send a file with the next message", run=_attach),
    "quit": Command(argument="", help="leave", run=_quit),
}
