"""The slash commands: names, arguments, help and what each one does.

A typed line goes to `take_line`, which distinguishes commands and prompts. Every chat has all
commands. A command acts on the `ChatDisplay` it was typed in. It fails without a connection;
only prompts wait for one (in a pipe, commands wait too). The caller shows the errors of a
command.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from nplt_client.chat.approvals import ApprovalDecision
from nplt_client.chat.display import THEMES, ChatDisplay
from nplt_client.chat.prompt_history import parse_prompt
from nplt_client.client import Client
from nplt_client.errors import ConfigurationError, ConnectionLost, LimitExceeded, RequestRefused
from nplt_client.later import read_delay, read_time
from nplt_client.render import reports
from nplt_client.render.export import FORMS, ConversationWalk, exported, form_of, with_content
from nplt_client.render.text import (
    code_blocks,
    number_in,
    objects_in,
    pairs,
    safe_line,
    word_in,
)
from nplt_client.settings import DELETE_PREFIX_MIN, check_delete_target
from nplt_client.wire.reconnect_policy import Offline, Online
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import EFFORTS

Run: TypeAlias = Callable[[ChatDisplay, str], Awaitable[None]]

_ENTRIES_SHOWN = 20
_MESSAGES_PER_PAGE = 200


class Command(Struct, frozen=True, kw_only=True):
    argument: str
    """The argument as `/help` shows it; one in brackets is optional."""
    help: str
    run: Run
    needs_server: bool


COMMANDS: dict[str, Command] = {}
"""The commands by name, in the order of `/help` and of the functions below."""


def _command(argument: str, about: str, *, needs_server: bool = True) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        COMMANDS[run.__name__.strip("_")] = Command(
            argument=argument, help=about, run=run, needs_server=needs_server
        )
        return run

    return add


def parse_command(line: str) -> tuple[str, str]:
    """Returns name and argument. The error for an unknown name suggests a similar one."""
    typed, _, argument = line[1:].partition(" ")
    name, argument = typed.lower(), argument.strip()
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean /{near[0]}?" if near else ""
        raise RequestRefused(
            f"There is no /{typed}.{hint} /help lists all; // begins a text with a slash.",
            code="not_found",
        )
    wanted = COMMANDS[name].argument
    if wanted and not wanted.startswith("[") and not argument:
        raise RequestRefused(f"/{name} needs {wanted}.", code="malformed")
    if argument and not wanted:
        raise RequestRefused(f"/{name} takes nothing: nothing was done.", code="malformed")
    return name, argument


async def take_line(chat: ChatDisplay, line: str, not_typed: Sequence[str] = ()) -> None:
    """Runs a command, or sends a prompt. `not_typed`: texts in it that were not typed."""
    prompt = parse_prompt(line)
    if prompt is None:
        await run_command(chat, line)
    else:
        await chat.ask(prompt, typed=line, not_typed=not_typed)


async def run_command(chat: ChatDisplay, line: str) -> None:
    name, argument = parse_command(line)
    command = COMMANDS[name]
    is_online = isinstance(chat.session.client.connection, Online)
    if command.needs_server and not is_online and not chat.waits_for_server:
        raise ConnectionLost(
            f"Not connected: /{name} can't be done now. /reconnect tries the server again at once."
        )
    await command.run(chat, argument)


@_command("", "this list", needs_server=False)
async def _help(chat: ChatDisplay, argument: str) -> None:
    rows = [(f"/{name} {one.argument}".rstrip(), one.help) for name, one in COMMANDS.items()]
    await chat.show_text(
        pairs([*rows, ("//…", "a text that begins with a slash"), *chat.keys_help])
    )


@_command("[NAME]", "begin a new conversation")
async def _new(chat: ChatDisplay, argument: str) -> None:
    """The new conversation keeps a model that was chosen in this one."""
    client = chat.session.client
    chosen = client.model if client.model != client.welcome.model else None
    await chat.session.move(client.new(argument or None, model=chosen), name=argument)


@_command("[TEXT]", "list conversations")
async def _sessions(chat: ChatDisplay, argument: str) -> None:
    await chat.show_sessions(argument)


@_command("", "go to the next conversation that asks, failed or is unread")
async def _next(chat: ChatDisplay, argument: str) -> None:
    await chat.go_to_next()


@_command("ID|NAME", "go to a conversation")
async def _switch(chat: ChatDisplay, argument: str) -> None:
    await chat.session.move(chat.session.client.switch(argument))


@_command("NAME", "rename this conversation")
async def _rename(chat: ChatDisplay, argument: str) -> None:
    row = await chat.session.client.rename(argument)
    chat.remark(f"this conversation is now called {row.name!r}")


@_command("[ID|NAME]", "move one to the trash (this one)")
async def _delete(chat: ChatDisplay, argument: str) -> None:
    client, here = chat.session.client, chat.session.client.session_id
    if not argument:
        name = chat.session.name or "the conversation"
        was_stored = chat.session.is_stored
        await chat.session.move(client.delete(here))
        way_back = f"; {_undelete_words(here)}" if was_stored else ""
        await chat.show_text(f"{name!r} is in the trash{way_back}. This is a new conversation.")
        return
    found = await client.switch(argument)
    try:
        check_delete_target(argument, session_id=found.session_id, name=found.name)
        await client.delete(found.session_id)
    finally:
        if client.session_id != here and found.session_id != here:
            await client.attach(here)
    if found.session_id == here:
        await chat.session.read_again()
    await chat.show_text(f"{found.name!r} is in the trash; {_undelete_words(found.session_id)}")


def _undelete_words(session_id: str) -> str:
    return f"`nplt undelete {session_id[:DELETE_PREFIX_MIN]}` brings it back"


@_command("[NAME]", "show or switch the model")
async def _model(chat: ChatDisplay, argument: str) -> None:
    client = chat.session.client
    if not argument:
        choice = await client.models(listed=True)
        names = (*choice.models, *reports.listed_models(choice))
        about = {name: reports.model_words(choice, name) for name in names}
        argument = await chat.choose("models", names, choice.model, about) or ""
    if argument:
        choice = await client.switch_model(argument)
        chat.remark(f"the model is now {choice.model}")


@_command("[NAME]", "switch to the model of a role")
async def _role(chat: ChatDisplay, argument: str) -> None:
    client = chat.session.client
    if not argument:
        roles = sorted((await client.models()).roles)
        if not roles:
            raise RequestRefused("The server's settings give no role a model.", code="not_found")
        argument = await chat.choose("roles", roles) or ""
    if argument:
        choice = await client.switch_model(role=argument)
        chat.remark(f"the model is now {choice.model}, the {argument}")


@_command("[LEVEL]", "how much the model thinks")
async def _effort(chat: ChatDisplay, argument: str) -> None:
    client, known = chat.session.client, (*EFFORTS, "default")
    if not argument:
        current = str(((await client.models()).options or {}).get("effort", "default"))
        argument = await chat.choose("efforts", known, current) or ""
    if not argument:
        return
    if argument not in known:
        raise RequestRefused(f"/effort takes one of {', '.join(known)}.", code="malformed")
    await client.switch_model(options={"effort": None if argument == "default" else argument})
    chat.remark(f"the effort is now {argument}, in this conversation")


@_command("[TEXT]", "show or set the system message")
async def _system(chat: ChatDisplay, argument: str) -> None:
    client = chat.session.client
    if argument:
        await client.update(system=argument)
        chat.remark("the system message is set")
        return
    page = await client.history(200, roles=("system",))
    newest = page.messages[-1].get("content") if page.messages else None
    await chat.show_text(str(newest) if newest else "there is no system message")


@_command("[N] [--entries]", "the last messages, or all that is stored, by kind")
async def _history(chat: ChatDisplay, argument: str) -> None:
    words = argument.split()
    wants_entries = "--entries" in words
    if wants_entries:
        words.remove("--entries")
    if len(words) > 1 or not all(word.isdecimal() and int(word) for word in words):
        raise RequestRefused(
            "/history takes a number of messages, and --entries.", code="malformed"
        )
    count = int(words[0]) if words else None
    if not wants_entries:
        await chat.show_history(count)
        return
    page = await chat.session.client.history(count or _ENTRIES_SHOWN, view="entries")
    await chat.show_text(reports.history_text(page, entries=True))


@_command("TEXT", "find words in all conversations")
async def _search(chat: ChatDisplay, argument: str) -> None:
    await chat.search(argument)


@_command("", "show the model nothing older")
async def _clear(chat: ChatDisplay, argument: str) -> None:
    await chat.session.client.clear()  # the event shows it in all chats, ours too


@_command("[N]", "take back your last message (or N) and its answer")
async def _undo(chat: ChatDisplay, argument: str) -> None:
    if argument and not (argument.isdecimal() and 1 <= int(argument) <= _MESSAGES_PER_PAGE):
        raise RequestRefused("/undo takes a number of messages of yours.", code="malformed")
    client, count = chat.session.client, int(argument or 1)
    newest = (await client.history(count, roles=("user",))).messages
    if not newest:
        chat.remark("there is nothing to take back")
        return
    turns = tuple(dict.fromkeys(word_in(message, "turn_id") for message in newest))
    with _at_rest("undo"), chat.session.expecting("rolled_back"):
        if all(turns):
            await client.roll_back(turns=turns)
        else:  # an imported message without a turn
            await client.roll_back(number_in(newest[0], "seq") - 1)
    text = safe_line(newest[0].get("content"), 60)
    more = f" and {len(newest) - 1} more" if len(newest) > 1 else ""
    if len(newest) < count:
        more += f", which {'is the only message' if not more else 'are all messages'} of yours"
    chat.remark(f"taken back: {text}{more} (/redo brings it back)")


@_command("", "bring back what /undo took")
async def _redo(chat: ChatDisplay, argument: str) -> None:
    with _at_rest("redo"), chat.session.expecting("rolled_back"):
        try:
            await chat.session.client.redo()
        except RequestRefused as error:
            if error.code != "not_found":
                raise
            chat.remark("there is nothing to bring back: /redo comes right after /undo")
            return
    chat.remark("brought back")


@contextlib.contextmanager
def _at_rest(command: str) -> Iterator[None]:
    try:
        yield
    except LimitExceeded as error:
        if error.code == "busy":
            raise _still_running(command) from error
        raise


def _still_running(command: str) -> LimitExceeded:
    return LimitExceeded(f"An answer is still running. Press Esc, then /{command}.", code="busy")


@_command("", "change your last message and ask again")
async def _edit(chat: ChatDisplay, argument: str) -> None:
    """Puts the last message into the input; it is rolled back when the new text is sent. A draft
    that was typed meanwhile stays: Enter would send the old message otherwise."""
    last = await _replace_last(chat, "edit")
    if chat.draft:
        chat.session.replace_from = None
        chat.remark("you went on typing: your last message stays as it was")
        return
    text = str(last.get("content") or "")
    chat.pasted.note(text)  # its files are sent again
    chat.fill(text)
    chat.remark("sending this replaces your last message; Ctrl+C leaves it as it was")


@_command("", "ask your last message again")
async def _retry(chat: ChatDisplay, argument: str) -> None:
    last = await _replace_last(chat, "retry")
    await chat.ask(str(last.get("content") or ""))


@_command("TIME TEXT", "send TEXT at that time: 18:30, or 2026-03-01 18:30")
async def _at(chat: ChatDisplay, argument: str) -> None:
    time, text = _time_and_text(argument)
    now = datetime.now(UTC)
    try:
        at = read_time(time, now=now)
    except (ValueError, OverflowError) as error:
        raise RequestRefused(f"{error}", code="malformed") from None
    await _ask_later(chat, text, at.isoformat(), is_past=at <= now)


@_command("DELAY TEXT", "send TEXT after that: 90s, 5m, 2h30m, 1d")
async def _in(chat: ChatDisplay, argument: str) -> None:
    delay, text = _time_and_text(argument)
    try:
        seconds = read_delay(delay)
    except ValueError as error:
        raise RequestRefused(f"{error}", code="malformed") from None
    await _ask_later(chat, text, seconds, is_past=not seconds)


def _time_and_text(argument: str) -> tuple[str, str]:
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d\s+\d\S*|\S+)\s+(.*)", argument, re.DOTALL)
    if found is None:
        raise RequestRefused("Give a time and a text: /in 5m TEXT", code="malformed")
    return found[1], found[2]


async def _ask_later(
    chat: ChatDisplay, text: str, not_before: str | float, *, is_past: bool
) -> None:
    if is_past:
        chat.remark("this time has passed; it is sent now")
        await chat.ask(text)
        return
    receipt = await chat.session.client.ask_later(text, not_before)
    due_at = datetime.fromisoformat(receipt.due_at or "").astimezone()
    when = f"{due_at:%Y-%m-%d %H:%M:%S}"
    chat.remark(f"this runs at {when}; to list or cancel it, enter in a shell: nplt later")


@_command("[TEXT]", "have the model go on with an answer that was cut")
async def _continue(chat: ChatDisplay, argument: str) -> None:
    try:
        await chat.go_on(argument)
    except LimitExceeded as error:
        if error.code == "busy":
            raise _still_running("continue") from error
        raise


@_command("[TEXT]", "send the prompt that did not fit the model, cut in the middle")
async def _cut(chat: ChatDisplay, argument: str) -> None:
    text = argument or chat.too_long
    if not text:
        raise RequestRefused("There is no prompt that was too long.", code="not_found")
    if chat.draft == text:
        chat.fill("")
    await chat.ask(text, cut=True, message_id=chat.too_long_id if text == chat.too_long else "")


async def _replace_last(chat: ChatDisplay, command: str) -> JsonObject:
    """Makes the next prompt replace the last message and keep its attachments."""
    session = chat.session
    newest = (await session.client.history(1, roles=("user",))).messages
    if not newest:
        raise RequestRefused("There is no message of yours yet.", code="not_found")
    if session.turn_status.running is not None:
        raise _still_running(command)
    last = await _whole(session.client, newest[-1])
    files = (word_in(attached, "file_id") for attached in objects_in(last.get("attachments")))
    session.replace_from = number_in(last, "seq")
    session.replaced_attachments = tuple(file_id for file_id in files if file_id)
    return last


async def all_messages(client: Client) -> AsyncIterator[JsonObject]:
    """Yields each prompt with its answer, and at the end the queued prompts."""
    walk = ConversationWalk()
    while not walk.is_over:
        page = await client.history(_MESSAGES_PER_PAGE, after=walk.after)
        for message in walk.take(page):
            yield await _whole(client, message)


async def _whole(client: Client, message: JsonObject) -> JsonObject:
    """Reads the rest of a text that was too long for a page."""
    if not message.get("truncated"):
        return message
    content = word_in(message, "content")
    while len(content) < number_in(message, "size"):
        part = await client.message_text(number_in(message, "seq"), offset=len(content))
        if not part.content:
            break
        content += part.content
    return with_content(message, content)


@_command("[NAME]", "go on in a copy of this conversation")
async def _fork(chat: ChatDisplay, argument: str) -> None:
    origin = chat.session.name or chat.session.client.session_id
    created = await chat.session.client.fork(name=argument or None)
    await chat.session.move(chat.session.client.switch(created.session_id))
    await chat.show_text(f"this is a copy of {origin!r}, which stays as it is")


@_command("[TEXT]", "what the model would be sent; --call last: what it was sent")
async def _context(chat: ChatDisplay, argument: str) -> None:
    first, _, which = argument.partition(" ")
    if first != "--call":
        account = await chat.session.client.context(text=argument or None)
    else:
        which = which.strip() or "last"
        if which != "last" and not (which.isdecimal() and int(which)):
            raise RequestRefused(
                "/context --call takes the number of an answer, or last.", code="malformed"
            )
        account = await chat.session.client.context(call=0 if which == "last" else int(which))
    await chat.show_text(reports.context_text(account))


@_command("", "show the model older turns in less detail")
async def _compact(chat: ChatDisplay, argument: str) -> None:
    with chat.session.expecting("compacted"):
        try:
            begun = await chat.session.client.compact()
        except RequestRefused as error:
            if error.code != "conflict":
                raise
            chat.remark(error.message)
            return
    await chat.show_text(reports.epoch_text(begun))
    await chat.session.refresh_usage()


@_command("", "tokens and cost of this conversation")
async def _usage(chat: ChatDisplay, argument: str) -> None:
    await chat.show_text(reports.usage_text(await chat.session.client.usage()))


@_command("", "what the model may call")
async def _tools(chat: ChatDisplay, argument: str) -> None:
    await chat.show_text(reports.tools_text(await chat.session.client.tools()))


@_command("[always]", "run the tool that waits for a decision")
async def _allow(chat: ChatDisplay, argument: str) -> None:
    await _decide(chat, argument, allow=True)


@_command("[always]", "deny that tool")
async def _deny(chat: ChatDisplay, argument: str) -> None:
    await _decide(chat, argument, allow=False)


async def _decide(chat: ChatDisplay, argument: str, *, allow: bool) -> None:
    if argument not in ("", "always"):
        raise RequestRefused("/allow and /deny take nothing, or always.", code="malformed")
    decision = ApprovalDecision(allow=allow, remember=bool(argument))
    chat.remark(await chat.session.approvals.decide_oldest(decision))


@_command("", "how the server is")
async def _status(chat: ChatDisplay, argument: str) -> None:
    await chat.show_text(reports.status_text(await chat.session.client.status()))


@_command("FILE", "send a file, or mcp:… of /tools, with the next message")
async def _attach(chat: ChatDisplay, argument: str) -> None:
    stored = await chat.session.client.upload(argument)
    chat.session.attachments.append(stored.file_id)
    name = argument if argument.startswith("mcp:") else Path(argument).name
    chat.remark(f"{name} ({stored.size:,} bytes) goes with your next message")


@_command("[N|code]", "copy an answer, the N-th from the end, or its code", needs_server=False)
async def _copy(chat: ChatDisplay, argument: str) -> None:
    """Copies to the terminal's clipboard by OSC 52, which works over ssh too."""
    answers = [answer for answer in chat.answers if answer]
    if argument == "code":
        blocks = [code for answer in answers for _, code in code_blocks(answer)]
        if not blocks:
            raise RequestRefused("There is no code to copy.", code="not_found")
        chat.copy(blocks[-1])
        return
    if argument and not argument.isdecimal():
        raise RequestRefused("/copy takes a number, or code.", code="malformed")
    place = int(argument or 1)
    if not 1 <= place <= len(answers):
        raise RequestRefused("There is no such answer on the screen.", code="not_found")
    chat.copy(answers[-place])


@_command("[FILE]", "write this conversation to a file.md, .html, .json or .jsonl")
async def _export(chat: ChatDisplay, argument: str) -> None:
    """The file's extension decides the format."""
    form = form_of(Path(argument)) if argument else "md"
    if form is None:
        endings = ", ".join(f".{known}" for known in FORMS)
        raise RequestRefused(f"/export writes files that end in {endings}.", code="malformed")
    client = chat.session.client
    messages = [message async for message in all_messages(client)]
    name = chat.session.name or (await client.history(1)).name
    text = "".join(exported(form, name, client.session_id, messages))
    chat.remark(f"written to {write_new_file(argument or file_name(name), text)}")


def file_name(title: str) -> str:
    words = re.sub(r"[^\w]+", "-", title).strip("-_").lower()
    return f"{words[:60] or 'conversation'}.md"


def write_new_file(name: str, text: str) -> Path:
    """Writes a file, and never overwrites one."""
    path = Path(name).expanduser()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"can't write {path}: {error.strerror}") from None
    return path


@_command("", "show answers as they are written, or as Markdown", needs_server=False)
async def _raw(chat: ChatDisplay, argument: str) -> None:
    await chat.show_raw(not chat.is_raw)
    chat.remark("answers as they are written" if chat.is_raw else "answers as Markdown")


@_command("[NAME]", "light, dark, or the terminal's own colours", needs_server=False)
async def _theme(chat: ChatDisplay, argument: str) -> None:
    name = argument or await chat.choose("themes", list(THEMES)) or ""
    if name and name not in THEMES:
        raise RequestRefused(f"There is no theme {name!r}; there are {', '.join(THEMES)}.")
    if name:
        chat.set_theme(name)


@_command("", "try the server again now", needs_server=False)
async def _reconnect(chat: ChatDisplay, argument: str) -> None:
    client = chat.session.client
    if isinstance(client.connection, Online):
        chat.remark("already connected")
    elif isinstance(client.connection, Offline):
        chat.leave(reconnect=True)
    elif chat.session.background is not None:
        await chat.session.restart_server(chat.session.background)
    else:
        client.reconnect_now()


@_command("", "leave", needs_server=False)
async def _quit(chat: ChatDisplay, argument: str) -> None:
    chat.leave()
