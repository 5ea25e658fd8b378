"""What a shell offers when Tab is pressed: commands, options, conversations, models.

The scripts (`completion_scripts`) call `nplt` with the line so far in the
environment and get one line per offer: what it is, the word, a note, with tabs
between. Someone waits with a finger on a key: a server is asked only if it is
there already, for a second at most, and whatever goes wrong is silence.

Names come from outside. bash types what it gets into the line, so each
character that means something to it is escaped here; zsh and fish do that
themselves.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from nplt_client.alarm import Alarm
from nplt_client.link import Deadline, Link
from nplt_client.opening import reopen_at
from nplt_client.sanitize import sanitize_line
from nplt_client.settings import find_address
from nplt_protocol.replies import SessionRow, SessionRows
from nplt_protocol.requests import SessionList

SHELL = "_NPLT_COMPLETE"
LINE = "_NPLT_LINE"
SECONDS_MAX = 1.0
_OFFERS_MAX = 100
_SHORT_ID = 12
_WORD_AT_END = re.compile(r"(?:\\.|[^\s\\])\\?$")
_MEANS_SOMETHING = re.compile(r"[^\w@%+=:,./-]")


def complete(program: click.Command) -> int:
    try:
        shell, line = os.environ[SHELL], os.environ.get(LINE, "")
        with Alarm(SECONDS_MAX):
            found = list(offers(program, line, shell=shell))
        sys.stdout.write("".join(offer + "\n" for offer in found))
    except Exception:
        # A person in the middle of a line: nothing to offer is all they want to hear.
        pass
    return 0


def offers(program: click.Command, line: str, *, shell: str) -> Iterator[str]:
    words = split_arg_string(line)[1:]
    quoted = bool(line.count('"') % 2 or line.count("'") % 2)
    begun = words.pop() if words and (quoted or _WORD_AT_END.search(line)) else ""
    found = ShellComplete(program, {}, "nplt", SHELL).get_completions(words, begun)
    for item in found:
        value = sanitize_line(str(item.value))
        if shell == "bash" and item.type == "plain":
            bare = _for_bash(value, begun, quoted=quoted)
            if bare is None:
                continue
            value = bare
        yield f"{item.type}\t{value}\t{sanitize_line(item.help or '')}"


def _for_bash(value: str, begun: str, *, quoted: bool) -> str | None:
    if quoted:  # within quotation marks nothing can be escaped in the same way everywhere
        return value if not _MEANS_SOMETHING.search(value.replace(" ", "")) else None
    if ":" in begun:  # a word ends there for bash, and only what comes after is replaced
        value = value[begun.rindex(":") + 1 :]
    return _MEANS_SOMETHING.sub(lambda found: "\\" + found.group(), value)


def sessions(context: click.Context, begun: str) -> list[CompletionItem[str]]:
    with _ask_quickly(context) as link:
        rows = link.request(SessionList(limit=_OFFERS_MAX), SessionRows).sessions
    return list(_offered(rows, begun))


def _offered(rows: Iterable[SessionRow], begun: str) -> Iterator[CompletionItem[str]]:
    """By name where a name is enough to be found by, else by id."""
    all_rows = list(rows)
    names = [row.name for row in all_rows]
    for row in all_rows:
        is_plain = row.name == sanitize_line(row.name) and row.name[:1] not in ("-", "")
        if is_plain and names.count(row.name) == 1 and row.name.startswith(begun):
            yield CompletionItem(row.name, help=row.session_id[:_SHORT_ID])
        elif row.session_id.startswith(begun):
            yield CompletionItem(row.session_id, help=row.name)


def models(context: click.Context, begun: str) -> list[CompletionItem[str]]:
    with _ask_quickly(context) as link:
        known = link.welcome.models
    return [CompletionItem(model) for model in known if model.startswith(begun)]


def _ask_quickly(context: click.Context) -> Link:
    named = context.params.get("server") or context.params.get("server_url")
    return reopen_at(find_address(named), Deadline(SECONDS_MAX))
