"""What the slash commands do in the full-screen chat.

Their names and explanations are those of `chat_vocabulary`; the line mode has
the same ones, as far as it can do them. Errors are shown by whoever runs a command.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from nplt_client.chat_vocabulary import help_rows, order_in
from nplt_client.connection_states import Online
from nplt_client.errors import ConnectionLost, RequestRefused
from nplt_client.fullscreen.command_deeds import (
    attach,
    copy,
    edit,
    export,
    fork,
    retry,
    system,
    undo,
)
from nplt_client.fullscreen.floor import Floor
from nplt_client.fullscreen.theme_choice import THEMES
from nplt_client.listings import check_meant
from nplt_client.showing import status_text
from nplt_client.showing_accounts import context_text, epoch_text, tools_text, usage_text
from nplt_client.tables import pairs

Run: TypeAlias = Callable[[Floor, str], Awaitable[None]]

KEYS_HELP = (
    ("//…", "a text that begins with a slash"),
    ("Enter", "sends; Ctrl+J, Alt+Enter, Shift+Enter or \\ Enter: a new line"),
    ("Up, Down, Ctrl+R", "earlier prompts"),
    ("Ctrl+G", "write in your editor"),
    ("Ctrl+O", "open or close reasoning and tool calls"),
    ("Ctrl+P", "all commands"),
    ("PageUp, PageDown, End", "look around; Ctrl+End goes to the end"),
    ("Esc, Ctrl+C", "stop the answer; Ctrl+C twice or Ctrl+D: leave"),
)


_WITHOUT_SERVER = frozenset({"help", "copy", "raw", "theme", "reconnect", "quit"})


def check_reachable(chat: Floor, name: str) -> None:
    """A command is done now or not at all; only prompts wait for the connection."""
    if name not in _WITHOUT_SERVER and not isinstance(chat.visit.client.connection, Online):
        raise ConnectionLost(
            f"Not connected: /{name} can't be done now. /reconnect tries the server again at once."
        )


async def run_command(chat: Floor, line: str) -> None:
    order = order_in(line, COMMANDS)
    check_reachable(chat, order.name)
    await COMMANDS[order.name](chat, order.argument)


async def _help(chat: Floor, argument: str) -> None:
    await chat.tell(pairs([*help_rows(COMMANDS), *KEYS_HELP]))


async def _new(chat: Floor, argument: str) -> None:
    await chat.go(chat.visit.client.new(argument or None))
    chat.visit.is_stored = True
    chat.visit.name = argument


async def _sessions(chat: Floor, argument: str) -> None:
    await chat.pick_session(argument)


async def _switch(chat: Floor, argument: str) -> None:
    await chat.go(chat.visit.client.switch(argument))


async def _rename(chat: Floor, argument: str) -> None:
    row = await chat.visit.client.rename(argument)
    chat.remark(f"this conversation is now called {row.name!r}")


async def _delete(chat: Floor, argument: str) -> None:
    client, here = chat.visit.client, chat.visit.client.session_id
    if not argument:
        name = chat.visit.name or "the conversation"
        was_stored, chat.visit.is_stored = chat.visit.is_stored, False
        await chat.go(client.delete(here))
        way_back = f"; `nplt undelete {here}` brings it back" if was_stored else ""
        await chat.tell(f"{name!r} is in the trash{way_back}. This is a new conversation.")
        return
    found = await client.switch(argument)
    try:
        check_meant(argument, found)
        await client.delete(found.session_id)
    finally:
        if client.session_id != here and found.session_id != here:
            await client.attach(here)
    if found.session_id == here:
        await chat.read_again()
    way_back = f"`nplt undelete {found.session_id}` brings it back"
    await chat.tell(f"{found.name!r} is in the trash; {way_back}")


async def _model(chat: Floor, argument: str) -> None:
    client = chat.visit.client
    if not argument:
        listed = await client.models()
        argument = await chat.choose("models", listed.models, listed.model) or ""
    if argument:
        choice = await client.switch_model(argument)
        chat.visit.choose_model(choice.model)
        chat.remark(f"the model is now {choice.model}")


async def _history(chat: Floor, argument: str) -> None:
    if argument and not (argument.isdecimal() and int(argument)):
        raise RequestRefused("/history takes a number of messages.", code="malformed")
    wanted, shown = int(argument or 1), 0
    while shown < wanted:
        before = len(chat.transcript.turns)
        if not await chat.show_older():
            chat.remark("this is all there is")
            break
        shown += max(1, len(chat.transcript.turns) - before)
    chat.transcript.look_at_top()


async def _clear(chat: Floor, argument: str) -> None:
    await chat.visit.client.clear()  # the event tells everyone, us too


async def _context(chat: Floor, argument: str) -> None:
    await chat.tell(context_text(await chat.visit.client.context(text=argument or None)))


async def _compact(chat: Floor, argument: str) -> None:
    await chat.tell(epoch_text(await chat.visit.client.compact()))
    await chat.visit.weigh()


async def _usage(chat: Floor, argument: str) -> None:
    await chat.tell(usage_text(await chat.visit.client.usage()))


async def _tools(chat: Floor, argument: str) -> None:
    await chat.tell(tools_text(await chat.visit.client.tools()))


async def _allow(chat: Floor, argument: str) -> None:
    await _decide(chat, argument, allow=True)


async def _deny(chat: Floor, argument: str) -> None:
    await _decide(chat, argument, allow=False)


async def _decide(chat: Floor, argument: str, *, allow: bool) -> None:
    if argument not in ("", "always"):
        raise RequestRefused("/allow and /deny take nothing, or always.", code="malformed")
    await chat.decide(allow=allow, remember=bool(argument))


async def _status(chat: Floor, argument: str) -> None:
    await chat.tell(status_text(await chat.visit.client.status()))


async def _raw(chat: Floor, argument: str) -> None:
    await chat.transcript.show_raw(not chat.transcript.is_raw)
    chat.remark("answers as they are written" if chat.transcript.is_raw else "answers as Markdown")


async def _theme(chat: Floor, argument: str) -> None:
    name = argument or await chat.choose("themes", list(THEMES)) or ""
    if name and name not in THEMES:
        raise RequestRefused(f"There is no theme {name!r}; there are {', '.join(THEMES)}.")
    if name:
        chat.wear(name)


async def _reconnect(chat: Floor, argument: str) -> None:
    chat.reconnect()


async def _quit(chat: Floor, argument: str) -> None:
    chat.leave()


COMMANDS: dict[str, Run] = {
    "help": _help,
    "new": _new,
    "sessions": _sessions,
    "switch": _switch,
    "rename": _rename,
    "delete": _delete,
    "model": _model,
    "system": system,
    "history": _history,
    "search": _sessions,
    "clear": _clear,
    "undo": undo,
    "edit": edit,
    "retry": retry,
    "fork": fork,
    "context": _context,
    "compact": _compact,
    "usage": _usage,
    "tools": _tools,
    "allow": _allow,
    "deny": _deny,
    "status": _status,
    "attach": attach,
    "copy": copy,
    "export": export,
    "raw": _raw,
    "theme": _theme,
    "reconnect": _reconnect,
    "quit": _quit,
}
