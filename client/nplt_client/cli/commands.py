"""The commands that send a request, print the reply and end.

`--json` prints the reply unchanged; formatting for people is in `render.reports`. A
conversation may be named by id, by name, by a prefix of its id or as `@last`, which is the
default of commands that only read. `nplt server` manages only the server that nplt started
in the background. `nplt config` prints no token and sends nothing.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict, TypeVar, Unpack

import click
from msgspec import convert
from msgspec.structs import replace

from nplt_client.background import (
    compare_versions,
    ensure_running,
    last_lines,
    log_path,
    wait_until_gone,
)
from nplt_client.chat.prompt_history import PROMPTS_FILE, PromptHistory
from nplt_client.cli.options import completes, connection_options, help_epilog
from nplt_client.errors import (
    CannotConnect,
    ConfigurationError,
    LimitExceeded,
    NpltError,
    ProtocolViolation,
    RequestRefused,
    TimedOut,
)
from nplt_client.render import reports
from nplt_client.render.terminal import is_terminal, print_remark
from nplt_client.render.text import dump_json, pairs, sanitize_line, shorten
from nplt_client.settings import (
    DELETE_PREFIX_MIN,
    LAST,
    check_delete_target,
    default_address,
    find_address,
    find_ca_file,
    find_reconnect_seconds,
    find_server,
    find_token,
    parse_url,
    read_config,
    state_dir,
)
from nplt_client.wire.blocking import BlockingConnection, Deadline, open_for_command, open_running
from nplt_client.wire.replay import PageGuard
from nplt_protocol import messages
from nplt_protocol.codec import to_object

_ROWS_PER_PAGE = 100
_SHOWN_WIDTH = 60
_REPLY_SECONDS_MAX = 3.0
_NONE = "no server of yours is running on this machine; to start one: nplt server start"

R = TypeVar("R", bound=messages.Reply)
Row = TypeVar("Row", messages.SessionRow, messages.SearchHit)
Page = TypeVar("Page", messages.SessionRows, messages.SearchHits)


session_argument = click.argument("wanted", metavar="ID|NAME", shell_complete=completes("sessions"))
last_by_default = click.argument(
    "wanted",
    metavar="[ID|NAME]",
    required=False,
    default=LAST,
    shell_complete=completes("sessions"),
)


def limited(to: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Adds the option `--limit`."""
    return click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(min=1),
        default=20,
        show_default=True,
        help=f"how many {to} at most",
    )


COMMANDS: list[click.Command] = []
"""The commands of this module, for the group `nplt`."""


def command(
    *examples: str, name: str | None = None, has_json: bool = False
) -> Callable[[Callable[..., object]], click.Command]:
    """Makes a command that connects to a server. `has_json` adds the option `--json`."""

    def add(function: Callable[..., object]) -> click.Command:
        made = click.command(name, epilog=help_epilog(*examples))(function)
        if has_json:
            made.params.append(click.Option(["--json", "as_json"], is_flag=True, help="print JSON"))
        COMMANDS.append(connection_options(made))
        return made

    return add


Found: TypeAlias = messages.Attached | messages.SessionRow


@contextmanager
def _conversation(
    server: str | None, wanted: str, *, also_damaged: bool = False
) -> Iterator[tuple[BlockingConnection, Found]]:
    """Attaches to the conversation. A damaged one can't be attached to, but `also_damaged` finds
    it, to be read or deleted."""
    with open_for_command(server) as connection:
        found: Found
        try:
            asked = messages.SessionSwitch(session_id=wanted, create=False)
            found = connection.request(asked, messages.Attached)
        except RequestRefused as error:
            if error.code != "read_only" or not also_damaged:
                raise
            pages = _pages(connection, messages.SessionList(), messages.SessionRows)
            rows = [row for page in pages for row in page.sessions if row.damaged]
            meant = [row for row in rows if row.name == wanted or row.session_id.startswith(wanted)]
            if not meant:
                raise
            found = meant[0]
        yield connection, found


def _pages(
    connection: BlockingConnection,
    request: messages.SessionList | messages.Search,
    expected: type[Page],
) -> Iterator[Page]:
    guard = PageGuard()
    while True:
        page = connection.request(request, expected)
        yield page
        cursor = guard.next_page(page.next_cursor)
        if cursor is None:
            return
        request = replace(request, cursor=cursor)


def _print(reply: R, as_text: Callable[[R], str], *, as_json: bool) -> None:
    print(dump_json(to_object(reply), pretty=True) if as_json else as_text(reply))


def _print_list(
    found: Sequence[Row], as_text: Callable[[Sequence[Row]], str], *, as_json: bool, if_none: str
) -> None:
    if as_json:
        print(dump_json([to_object(one) for one in found], pretty=True))
    elif found:
        print(as_text(found))
    else:
        print_remark(if_none)


@command("nplt sessions --query notes", "nplt sessions --trash", has_json=True)
@click.option("--query", metavar="TEXT", help="list only those that match")
@click.option("--trash", is_flag=True, help="list the deleted ones, which can be undeleted")
def sessions(query: str | None, trash: bool, as_json: bool, server: str | None) -> None:
    """List the conversations, newest first."""
    with open_for_command(server) as connection:
        request = messages.SessionList(query=query, limit=_ROWS_PER_PAGE, trash=trash)
        pages = list(_pages(connection, request, messages.SessionRows))
    rows = [row for page in pages for row in page.sessions]
    if trash and any(row.deleted_at is None for row in rows):
        raise ProtocolViolation("this server is too old to list deleted conversations")
    what = "deleted conversations" if trash else "conversations"
    none = f"no {what}" + (f" match {query!r}" if query else "" if trash else " yet")
    as_table = reports.trash_table if trash else reports.sessions_table
    _print_list(rows, as_table, as_json=as_json, if_none=none)
    if any(page.incomplete for page in pages):
        print_remark(reports.INCOMPLETE)


class HistoryOptions(TypedDict):
    limit: int
    before: int | None
    detail: Literal["live", "summary", "gist"]


@command("nplt history", 'nplt history "my notes" --limit 50', has_json=True)
@last_by_default
@limited("messages")
@click.option(
    "--before", type=click.IntRange(min=0), metavar="SEQ", help="show only older messages"
)
@click.option("--entries", is_flag=True, help="show every stored entry with its kind")
@click.option(
    "--detail",
    type=click.Choice(["live", "summary", "gist"]),
    default="live",
    help="the detail of each message: that in which models are shown older ones",
)
def history(
    wanted: str, entries: bool, as_json: bool, server: str | None, **asked: Unpack[HistoryOptions]
) -> None:
    """Show a conversation's messages, oldest first."""
    with _conversation(server, wanted, also_damaged=True) as (connection, found):
        request = messages.HistoryRequest(
            session_id=found.session_id, view="entries" if entries else "messages", **asked
        )
        page = connection.request(request, messages.HistoryPage)
    _print(page, functools.partial(reports.history_text, entries=entries), as_json=as_json)


def _number_of_call(_: click.Context, option: click.Parameter, given: str | None) -> int | None:
    if given is None or given == "last":
        return None if given is None else 0
    if not given.isdecimal() or not int(given):
        raise click.BadParameter("give the number of an answer in nplt history, or last")
    return int(given)


@command("nplt context", 'nplt context "my notes" --text "and now?"', has_json=True)
@last_by_default
@click.option("--text", metavar="TEXT", help="as if this were the next prompt")
@click.option(
    "--call",
    metavar="SEQ|last",
    callback=_number_of_call,
    help="what was sent for the answer with that number, or for the last one",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="as if this model were to answer",
    shell_complete=completes("models"),
)
@click.option(
    "--unhide",
    metavar="SEQ",
    type=click.IntRange(min=1),
    help="show models the entry again that a provider refused",
)
def context(
    wanted: str, unhide: int | None, as_json: bool, server: str | None, **about: object
) -> None:
    """Show what a model would be sent, or was sent, entry by entry, and why."""
    if about["call"] is not None and (about["text"] is not None or about["model"] is not None):
        raise click.UsageError("With --call, leave out --text and --model: the call has its own.")
    with _conversation(server, wanted) as (connection, found):
        if unhide is not None:
            update = messages.SessionUpdate(session_id=found.session_id, unhide=unhide)
            connection.request(update, messages.SessionRow)
        request = convert({**about, "session_id": found.session_id}, messages.ContextRequest)
        account = connection.request(request, messages.ContextAccount)
    _print(account, reports.context_text, as_json=as_json)


@command("nplt usage", 'nplt usage "my notes" --json', has_json=True)
@last_by_default
def usage(wanted: str, as_json: bool, server: str | None) -> None:
    """Show the tokens a conversation has used, and their cost."""
    with _conversation(server, wanted) as (connection, found):
        account = connection.request(
            messages.Usage(session_id=found.session_id), messages.UsageAccount
        )
    _print(account, reports.usage_text, as_json=as_json)


@command("nplt tools", "nplt tools --json", has_json=True)
def tools(as_json: bool, server: str | None) -> None:
    """List the tools that models may call."""
    with open_for_command(server) as connection:
        listed = connection.request(messages.Tools(), messages.ToolList)
    _print(listed, reports.tools_text, as_json=as_json)


@command("nplt models", "nplt models --json", has_json=True)
def models(as_json: bool, server: str | None) -> None:
    """List the models; * marks the default. Providers are asked for lists of their own."""
    request, stop_at = messages.ModelSwitch(listed=True), time.monotonic() + _LISTS_SECONDS_MAX
    with open_for_command(server) as connection:
        choice = connection.request(request, messages.ModelChoice)
        while _is_asking(choice) and time.monotonic() < stop_at:
            time.sleep(_LISTS_SECONDS)
            choice = connection.request(request, messages.ModelChoice)
    _print(choice, reports.models_text, as_json=as_json)


_LISTS_SECONDS = 0.1
_LISTS_SECONDS_MAX = 5.0


def _is_asking(choice: messages.ModelChoice) -> bool:
    lists = (choice.listed or {}).values()
    return any(isinstance(one, dict) and "asking" in one for one in lists)


@command("nplt status", "nplt status --json", has_json=True)
def status(as_json: bool, server: str | None) -> None:
    """Show the state of the server. Starts none."""
    address = find_address(server)
    if address.is_default and find_server() is None:
        raise CannotConnect(_NONE)
    with open_running(address, Deadline(None)) as connection:
        reply = connection.request(messages.StatusRequest(), messages.Status)
    _print(reply, reports.status_text, as_json=as_json)


@command("nplt web", "nplt web --qr")
@click.option("--qr", is_flag=True, help="print a QR code, for a phone")
@click.option("--no-open", is_flag=True, help="only print the address")
@click.option("--sessions", "lists", is_flag=True, help="list the browsers that are logged in")
@click.option("--revoke", metavar="ID", help="log a browser out")
def web(qr: bool, no_open: bool, lists: bool, revoke: str | None, server: str | None) -> None:
    """Open the page in a browser, logged in."""
    from nplt_client.cli import web as pages

    address = find_address(server)
    if address.over_ssh:
        raise click.UsageError(
            "the page of a server behind ssh is reached through a forwarded port: "
            f"ssh -L 9998:127.0.0.1:9998 {address.host}, and nplt web there"
        )
    with open_for_command(server) as connection:
        page = pages.WebPage(connection, address)
    if lists:
        for login in page.logins():
            print(sanitize_line(pages.login_line(login)))
        return
    if revoke is not None:
        page.revoke(revoke)
        return
    url = page.new_address()
    is_opened = not (no_open or qr) and pages.has_display() and pages.open_in_browser(url)
    print(url)
    if qr:
        print(pages.qr_code(url))
    if qr and page.is_local:
        for line in pages.how_to_reach_from_a_phone(page.place).splitlines():
            print_remark(line)
    used_once = "it logs one browser in, within five minutes"
    print_remark(f"opened in the browser; {used_once}" if is_opened else f"open it: {used_once}")


@command('nplt rename @last "my notes"', "nplt rename 1f0c2a3b plans")
@session_argument
@click.argument("name")
def rename(wanted: str, name: str, server: str | None) -> None:
    """Rename a conversation."""
    with _conversation(server, wanted) as (connection, found):
        row = connection.request(
            messages.SessionUpdate(session_id=found.session_id, name=name), messages.SessionRow
        )
    print_remark(f"{found.name!r} is now called {row.name!r}")


@command('nplt delete "my notes"', "nplt delete @last")
@session_argument
def delete(wanted: str, server: str | None) -> None:
    """Move a conversation to the trash.

    It is kept there for 30 days; `nplt undelete` brings it back.
    """
    with _conversation(server, wanted, also_damaged=True) as (connection, found):
        check_delete_target(wanted, session_id=found.session_id, name=found.name)
        connection.request(
            messages.SessionDelete(session_id=found.session_id), messages.SessionDeleted
        )
    print_remark(
        f"{found.name!r} is in the trash; "
        f"to bring it back: nplt undelete {found.session_id[:DELETE_PREFIX_MIN]}"
    )


@command('nplt search "trailing newline"', "nplt search parser --limit 5 --json", has_json=True)
@click.argument("query")
@limited("hits")
def search(query: str, limit: int, as_json: bool, server: str | None) -> None:
    """Search the names of conversations and the text of messages."""
    with open_for_command(server) as connection:
        request = messages.Search(query=query, limit=min(limit, _ROWS_PER_PAGE))
        pages = _pages(connection, request, messages.SearchHits)
        hits = list(islice((hit for page in pages for hit in page.hits), limit))
    none = f"nothing was found for {query!r}"
    _print_list(hits, reports.hits_text, as_json=as_json, if_none=none)


@command('nplt fork "my notes" --name "other notes"', "nplt fork @last --at 12")
@session_argument
@click.option(
    "--at", "at_seq", type=click.IntRange(min=1), metavar="SEQ", help="copy up to this entry"
)
@click.option("--name", metavar="NAME", help="the name of the new conversation")
def fork(wanted: str, at_seq: int | None, name: str | None, server: str | None) -> None:
    """Copy a conversation into a new one, and print its id."""
    with _conversation(server, wanted) as (connection, found):
        request = messages.SessionFork(session_id=found.session_id, at_seq=at_seq, name=name)
        made = connection.request(request, messages.SessionCreated)
    print(sanitize_line(made.session_id))
    print_remark(f"{made.name!r} begins like {found.name!r}")


@command('nplt undelete "my notes"', "nplt undelete 1f0c2a3b")
@click.argument("wanted", metavar="ID|NAME", shell_complete=completes("trash"))
def undelete(wanted: str, server: str | None) -> None:
    """Bring a conversation back from the trash.

    ID may be the beginning of an id, if only one deleted conversation begins so.
    `nplt sessions --trash` lists them.
    """
    with open_for_command(server) as connection:
        row = connection.request(
            messages.SessionUpdate(session_id=wanted, deleted=False), messages.SessionRow
        )
    print_remark(f"{row.name!r} is back")


@command('nplt redact "my notes" 12', "nplt redact @last 12 --yes --everywhere")
@session_argument
@click.argument("seq", type=click.IntRange(min=1))
@click.option("-y", "--yes", is_flag=True, help="do not ask for confirmation")
@click.option("--everywhere", is_flag=True, help="also erase the copies that are found")
def redact(wanted: str, seq: int, yes: bool, everywhere: bool, server: str | None) -> None:
    """Erase the content of one entry for good.

    Other entries with the same text, or with a word of it that looks like a secret, are then
    listed: answers, later prompts, forks, imported copies. What can't be reached is named.
    """
    with _conversation(server, wanted) as (connection, found):
        if not yes:
            part = messages.HistoryRequest(
                session_id=found.session_id, seq=seq, length=4 * _SHOWN_WIDTH
            )
            _confirm(connection.request(part, messages.MessageRange).content, found.name, seq)
        done = _redact(connection, found.session_id, seq)
        # Without the conversation's name, which may have been the beginning of the text.
        print_remark(f"the text of entry {seq} is erased")
        if done.copies:
            _print_remarks(reports.copies_lines(done))
            if everywhere or (not yes and _is_confirmed("Erase these too?")):
                _redact_copies(connection, done.copies)
            else:
                commands = (f"  nplt redact {one.session_id} {one.seq}" for one in done.copies)
                _print_remarks(["to erase them:", *commands])
        _print_remarks(reports.remains_lines(done))


def _print_remarks(lines: Iterable[str]) -> None:
    for line in lines:
        print_remark(line)


def _redact(connection: BlockingConnection, session_id: str, seq: int) -> messages.Redacted:
    request = messages.Redact(seq=seq, session_id=session_id)
    done = connection.request(request, messages.Redacted)
    PromptHistory(Path(state_dir(), PROMPTS_FILE)).forget(done.message_ids)
    return done


def _redact_copies(connection: BlockingConnection, copies: Sequence[messages.RedactedCopy]) -> None:
    erased = 0
    for one in copies:
        try:
            _redact(connection, one.session_id, one.seq)
            erased += 1
        except (LimitExceeded, RequestRefused) as error:
            which = f"entry {one.seq} of {sanitize_line(one.name)!r}"
            print_remark(f"{which} is not erased: {error.message}")
    print_remark(f"{erased} of {len(copies)} copies are erased")


def _is_confirmed(question: str) -> bool:
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _confirm(words: str, name: str, seq: int) -> None:
    """Asks for confirmation on the terminal. Without a terminal, `--yes` is required."""
    if not is_terminal(sys.stdin):
        raise click.UsageError("This erases for good. Add --yes, or run it in a terminal.")
    print_remark(f"Entry {seq} of {name!r}: {shorten(sanitize_line(words), _SHOWN_WIDTH)}")
    if not _is_confirmed("Erase it for good?"):
        raise click.Abort


@command('nplt repair "my notes"', "nplt repair 1f0c2a3b --json", has_json=True)
@session_argument
def repair(wanted: str, as_json: bool, server: str | None) -> None:
    """Make a damaged conversation usable again.

    Every entry that can be read is kept; a note replaces each of the others. The original file
    is kept next to the repaired one.
    """
    with open_for_command(server) as connection:
        done = connection.request(messages.Repair(session_id=wanted), messages.Repaired)
    _print(done, reports.repair_text, as_json=as_json)


@command("nplt import talk.json", "nplt import *.json", name="import")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
def import_(files: tuple[Path, ...], server: str | None) -> int:
    """Import conversations from files, and print their ids."""
    from nplt_client.cli.transfer import import_files

    return import_files(files, server=server)


@command("nplt export > last.md", 'nplt export "my notes" --format html -o notes.html')
@last_by_default
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "json", "jsonl", "html"]),
    help="default: by the ending of FILE, else md",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="write to this file instead of stdout",
)
def export(
    wanted: str,
    form: Literal["md", "json", "jsonl", "html"] | None,
    output: str | None,
    server: str | None,
) -> None:
    """Write a conversation's messages to stdout, or to a file."""
    from nplt_client.cli.transfer import export

    export(wanted, server=server, form=form, output=Path(output) if output else None)


@click.command(
    "completion",
    epilog=help_epilog("source <(nplt completion bash)", "nplt completion fish | source"),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the script that completes nplt commands in a shell.

    \b
    bash: source <(nplt completion bash)     in ~/.bashrc
    zsh:  source <(nplt completion zsh)      in ~/.zshrc, after compinit
    fish: nplt completion fish | source      in ~/.config/fish/config.fish
    """
    from nplt_client.cli.completion import SCRIPTS

    print(SCRIPTS[shell], end="")


@click.command("pipe", epilog=help_epilog("ssh box nplt pipe", "ssh -p 2222 ada@box nplt pipe"))
def pipe_command() -> None:
    """Carry frames over stdin and stdout, for ssh:// addresses.

    Connects to the server of this user, starting it if none runs. `nplt ssh://host` runs
    this on the other machine; people have no need to.
    """
    from nplt_client.wire.pipe import carry_frames

    carry_frames()


@click.group("server", epilog=help_epilog("nplt server status", "nplt server restart"))
def server_group() -> None:
    """Manage the server that nplt started in the background."""


@server_group.command(
    "status", epilog=help_epilog("nplt server status", "nplt server status || nplt server start")
)
def server_status() -> None:
    """Show whether it runs, and where."""
    server = find_server()
    if server is None:
        raise CannotConnect(_NONE)
    welcome = None
    with (
        suppress(NpltError),
        open_running(parse_url(server.url), Deadline(_REPLY_SECONDS_MAX)) as connection,
    ):
        welcome = connection.welcome
    version = welcome.server.removeprefix("nplt/") if welcome else "it does not reply"
    facts = {"pid": server.pid, "address": server.url}
    if server.http is not None:
        facts["http"] = server.http
    facts |= {"version": version, "log": log_path()}
    print(pairs((name, str(value)) for name, value in facts.items()))
    if welcome is not None:
        compare_versions(welcome.server)


@server_group.command(
    "start", epilog=help_epilog("nplt server start", "NPLT_LISTEN__PORT=9998 nplt server start")
)
def server_start() -> None:
    """Start it, unless it runs already."""
    if (running := find_server()) is not None:
        print_remark(f"it runs already at {running.url} (pid {running.pid})")
        return
    print_remark(f"it listens at {ensure_running(default_address())}")


@server_group.command(
    "restart", epilog=help_epilog("nplt server restart", "nplt server restart && nplt status")
)
@click.pass_context
def server_restart(context: click.Context) -> None:
    """Stop it and start it again, with the settings as they are now."""
    context.invoke(server_stop)
    print_remark(f"it listens at {ensure_running(default_address())}")


@server_group.command(
    "stop", epilog=help_epilog("nplt server stop", "nplt server stop && nplt-server doctor")
)
def server_stop() -> None:
    """Stop it, after everything it acknowledged is on disk."""
    server = find_server()
    if server is None:  # not a failure: there is nothing to stop
        print_remark("no server of yours is running on this machine")
        return
    os.kill(server.pid, signal.SIGTERM)
    if not wait_until_gone(server):
        raise TimedOut(
            f"nplt-server (pid {server.pid}) was asked to stop but is still running; "
            "its log may say why: nplt server log"
        )
    print_remark(f"stopped nplt-server (pid {server.pid})")


@server_group.command(
    "install", epilog=help_epilog("nplt server install", "sudo nplt server install --system")
)
@click.option("--system", "for_system", is_flag=True, help="for the machine, not for you alone")
@click.option("--uninstall", "is_removal", is_flag=True, help="remove the units again")
def server_install(*, for_system: bool, is_removal: bool) -> None:
    """Write systemd units that start the server with its first connection."""
    from nplt_client.cli import service

    act, what = (service.uninstall, "removed") if is_removal else (service.install, "wrote")
    commands = act(for_system=for_system)
    print_remark(f"{what} {' and '.join(map(str, service.unit_files(for_system=for_system)))}")
    print_remark("what is left to do:")
    for line in commands:
        print(line)


@server_group.command("log", epilog=help_epilog("nplt server log", "nplt server log -n 200"))
@click.option("-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True)
def server_log(lines: int) -> None:
    """Show the end of its log."""
    path = log_path()
    if not path.exists():
        raise CannotConnect(f"there is no log yet: nplt has started no server ({path})")
    for line in last_lines(path, lines):
        print(line)


@click.group("config", epilog=help_epilog("nplt config show", "nplt config check"))
def config_group() -> None:
    """Show your own settings: server and token."""


@config_group.command("path", epilog=help_epilog("nplt config path", 'cat "$(nplt config path)"'))
def print_config_path() -> None:
    """Print the path of the settings file."""
    print(read_config().path)


@config_group.command(
    "show",
    epilog=help_epilog("nplt config show", "NPLT_SERVER=nplt://127.0.0.1:9999 nplt config show"),
)
def config_show() -> None:
    """Show each setting and where it comes from. Tokens are not shown."""
    config = read_config()
    if named := os.environ.get("NPLT_SERVER"):
        server = f"{named} (NPLT_SERVER)"
    elif config.server:
        server = f"{config.server} (file)"
    else:
        server = f"{find_address(None)} (default; started in the background when needed)"
    token = f"in {config.token_file} (file)" if config.token_file else "none"
    if given := [name for name in ("NPLT_TOKEN", "NPLT_TOKEN_FILE") if os.environ.get(name)]:
        token = f"there is one ({given[0]})"
    seconds = os.environ.get("NPLT_RECONNECT_SECONDS")
    reconnect = f"for {seconds} s (NPLT_RECONNECT_SECONDS)" if seconds else "by itself (default)"
    facts = {
        "file": f"{config.path}{'' if config.exists else ' (not there)'}",
        "server": server,
        "token": token,
        "authorities for TLS": find_ca_file() or "the system's",
        "reconnect": reconnect,
        "notify": config.notify,
    }
    print(pairs(facts.items()))


@config_group.command(
    "check", epilog=help_epilog("nplt config check", "nplt config check && nplt status")
)
def config_check() -> int:
    """Check the settings for mistakes, without connecting."""
    mistakes = list(dict.fromkeys(_mistakes()))
    for mistake in mistakes:
        print_remark(f"nplt: {mistake}")
    if not mistakes:
        print_remark(f"nothing wrong ({find_address(None)})")
    return ConfigurationError.exit_code if mistakes else 0


def _mistakes() -> Iterator[str]:
    config = read_config()
    yield from config.mistakes
    try:
        if config.server:
            parse_url(config.server)
        for url in config.servers.values():
            parse_url(url)
    except ConfigurationError as error:
        yield f"{config.path}: server: {error.message}"
        return
    if config.token_file and not config.server:
        yield f"{config.path}: token_file is for the server of this file, and it names none"
    try:
        find_reconnect_seconds(None)
        find_token(None, address=find_address(None))
    except ConfigurationError as error:
        yield error.message


COMMANDS += (completion_command, pipe_command, server_group, config_group)
