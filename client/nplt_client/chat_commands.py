"""What can be said to the chat itself: lines that begin with a slash.

`//` at the beginning of a line is an escaped slash. Everything these commands
show goes to stderr: stdout is for answers. Unknown commands are never sent to
a model; they are answered with the nearest name there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from nplt_client.chat_notices import NoticeBoard
from nplt_client.chat_vocabulary import help_rows, order_in
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


Run: TypeAlias = Callable[[ChatFloor, str], None]


def run_command(chat: ChatFloor, line: str) -> None:
    order = order_in(line, COMMANDS)
    COMMANDS[order.name](chat, order.argument)


def _help(chat: ChatFloor, argument: str) -> None:
    rows = help_rows(COMMANDS)
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
    chat.board.tell_pending(found)
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
    with chat.board.expecting("deleted", ""):
        chat.client.delete(wanted)
    if wanted != here:
        chat.client.attach(here)
    else:
        chat.worth_returning = False
    say(f"{wanted} is in the trash; `nplt undelete {wanted}` brings it back")


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


def _allow(chat: ChatFloor, argument: str) -> None:
    _decide(chat, argument, allow=True)


def _deny(chat: ChatFloor, argument: str) -> None:
    _decide(chat, argument, allow=False)


def _decide(chat: ChatFloor, argument: str, *, allow: bool) -> None:
    if argument not in ("", "always"):
        raise RequestRefused("/allow and /deny take nothing, or always.", code="malformed")
    oldest = next(iter(chat.board.questions), None)
    if oldest is None:
        say("no tool waits for an answer")
        return
    chat.client.approve(oldest, allow=allow, remember=bool(argument))  # the event tells everyone


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


COMMANDS: dict[str, Run] = {
    "help": _help,
    "new": _new,
    "sessions": _sessions,
    "switch": _switch,
    "rename": _rename,
    "delete": _delete,
    "model": _model,
    "history": _history,
    "clear": _clear,
    "undo": _undo,
    "context": _context,
    "compact": _compact,
    "usage": _usage,
    "tools": _tools,
    "allow": _allow,
    "deny": _deny,
    "status": _status,
    "attach": _attach,
    "quit": _quit,
}
