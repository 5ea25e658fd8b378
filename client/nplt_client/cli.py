"""The `nplt` command: names and options, nothing else.

Every command loads its work when it runs, so that the quick ones stay quick.
`nplt` without a command is `nplt chat`.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Literal, TypedDict, Unpack

import click

from nplt_client.cli_options import (
    json_option,
    offer_models,
    offer_sessions,
    server_option,
    session_argument,
)
from nplt_client.exits import run_to_exit_code
from nplt_client.terminal import has_screen, prepare_standard_streams

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
OF_THE_GROUP = ("-h", "--help", "--version")


def main() -> int:
    prepare_standard_streams()
    code = run_to_exit_code(_run)
    # Python would look through all objects twice before it ends, a tenth of our time.
    gc.freeze()
    return code


def _run() -> object:
    if "_NPLT_COMPLETE" in os.environ:
        from nplt_client.completing import complete

        return complete(nplt)
    # Not click's own `main`: it turns a closed pipe into exit code 1.
    with nplt.make_context("nplt", sys.argv[1:]) as context:
        return nplt.invoke(context)


class ChatByDefault(click.Group):
    """Options and addresses without a command are meant for `chat`. Commands that are
    defined elsewhere are fetched when one of them is meant, or all are to be listed."""

    def fetch_the_rest(self) -> None:
        from nplt_client import cli_conversations, cli_setup

        for command in (*cli_conversations.COMMANDS, *cli_setup.COMMANDS):
            self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        self.fetch_the_rest()
        return super().list_commands(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:
            return super().parse_args(ctx, args)  # a shell asks which commands there are
        if not args or (args[0] not in OF_THE_GROUP and (args[0][:1] == "-" or "://" in args[0])):
            args = ["chat", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            self.fetch_the_rest()
        if args and args[0] not in self.commands:
            import difflib

            near = difflib.get_close_matches(args[0], self.commands, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class ChatChoices(TypedDict):
    go_on: bool
    resume: str | None
    new: bool
    model: str | None


class AskChoices(TypedDict):
    session: str | None
    model: str | None
    system: str | None
    quiet: bool
    timeout: float | None
    server: str | None


@click.group(cls=ChatByDefault, context_settings=SETTINGS)
@click.version_option(package_name="nplt")
def nplt() -> None:
    """Conversations with language models, kept by a server the way tmux keeps shells.

    Without a command: chat. With no server named and none running, one is
    started in the background.
    """


@nplt.command()
@click.argument("server_url", required=False)
@click.option("--continue", "go_on", is_flag=True, help="the most recent conversation")
@click.option(
    "--resume", metavar="ID|NAME", help="that conversation", shell_complete=offer_sessions
)
@click.option("--new", is_flag=True, help="a new conversation (the default)")
@click.option("--model", metavar="MODEL", help="the model to talk to", shell_complete=offer_models)
@click.option("--no-alt-screen", is_flag=True, help="line mode, in the terminal's own scrollback")
@click.option("--plain", is_flag=True, help="lines without colours, for any terminal")
@server_option
def chat(
    server_url: str | None,
    server: str | None,
    *,
    plain: bool,
    no_alt_screen: bool,
    **choices: Unpack[ChatChoices],
) -> int:
    """Talk. stdin not a terminal: each line is a prompt, answers go to stdout."""
    from nplt_client.chat_order import ChatOrder

    if sum(map(bool, (choices["go_on"], choices["resume"], choices["new"]))) > 1:
        raise click.UsageError("Only one of --continue, --resume and --new can be meant.")
    order = ChatOrder(server=server_url or server, **choices)
    if plain or not has_screen():
        from nplt_client.chat import chat

        if plain and not os.environ.get("FORCE_COLOR"):
            os.environ["NO_COLOR"] = "1"
        return chat(order)
    if no_alt_screen:
        from nplt_client.linemode.running import chat_in_lines

        return chat_in_lines(order)
    from nplt_client.fullscreen.running import chat_fullscreen

    return chat_fullscreen(order)


@nplt.command()
@click.argument("prompt", required=False)
@click.option(
    "-s",
    "--session",
    metavar="ID|NAME",
    help="go on with that conversation",
    shell_complete=offer_sessions,
)
@click.option(
    "-m", "--model", metavar="MODEL", help="the model that answers", shell_complete=offer_models
)
@click.option("--system", metavar="TEXT", help="the system message of the conversation")
@click.option("--json", "form", flag_value="json", help="one JSON object at the end")
@click.option("--jsonl", "form", flag_value="jsonl", help="one JSON object per event")
@click.option("-x", "--extract", "form", flag_value="code", help="only the code of the answer")
@click.option("--no-stream", is_flag=True, help="the answer at the end, in one piece")
@click.option("-q", "--quiet", is_flag=True, help="no remarks on stderr")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="give up (and cancel the answer) after that time",
)
@server_option
def ask(
    prompt: str | None,
    form: Literal["json", "jsonl", "code"] | None,
    *,
    no_stream: bool,
    **choices: Unpack[AskChoices],
) -> int:
    """Ask once. PROMPT, or - for stdin; with both, stdin is context."""
    from nplt_client.ask import AskOrder, ask

    return ask(AskOrder(prompt=prompt, form=form or "text", streams=not no_stream, **choices))


@nplt.command()
@click.option("--query", metavar="TEXT", help="only those that match")
@json_option
@server_option
def sessions(query: str | None, as_json: bool, server: str | None) -> None:
    """List the conversations, newest first."""
    from nplt_client.listings import print_sessions

    print_sessions(server=server, query=query, as_json=as_json)


@nplt.command()
@session_argument
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--before", type=click.IntRange(min=0), metavar="SEQ", help="only older ones")
@json_option
@server_option
def history(wanted: str, limit: int, before: int | None, as_json: bool, server: str | None) -> None:
    """Show a conversation's messages, oldest first."""
    from nplt_client.listings import print_history

    print_history(wanted, server=server, limit=limit, before=before, as_json=as_json)


@nplt.command()
@session_argument
@click.option("--text", metavar="TEXT", help="as if that were asked now")
@click.option(
    "--model",
    metavar="MODEL",
    help="as if that model were to answer",
    shell_complete=offer_models,
)
@json_option
@server_option
def context(
    wanted: str, text: str | None, model: str | None, as_json: bool, server: str | None
) -> None:
    """Show what a model would be sent, entry by entry, and why."""
    from nplt_client.accounts import print_context

    print_context(wanted, server=server, text=text, model=model, as_json=as_json)


@nplt.command()
@session_argument
@json_option
@server_option
def usage(wanted: str, as_json: bool, server: str | None) -> None:
    """Say what a conversation has used, and what it cost."""
    from nplt_client.accounts import print_usage

    print_usage(wanted, server=server, as_json=as_json)


@nplt.command()
@json_option
@server_option
def tools(as_json: bool, server: str | None) -> None:
    """List the tools that models may call."""
    from nplt_client.accounts import print_tools

    print_tools(server=server, as_json=as_json)


@nplt.command()
@json_option
@server_option
def models(as_json: bool, server: str | None) -> None:
    """List the models; * marks the default."""
    from nplt_client.listings import print_models

    print_models(server=server, as_json=as_json)


@nplt.command()
@json_option
@server_option
def status(as_json: bool, server: str | None) -> None:
    """Say how the server is."""
    from nplt_client.listings import print_status

    print_status(server=server, as_json=as_json)


@nplt.command()
@session_argument
@click.argument("name")
@server_option
def rename(wanted: str, name: str, server: str | None) -> None:
    """Give a conversation another name."""
    from nplt_client.listings import rename

    rename(wanted, name, server=server)


@nplt.command()
@session_argument
@server_option
def delete(wanted: str, server: str | None) -> None:
    """Move a conversation to the trash."""
    from nplt_client.listings import delete

    delete(wanted, server=server)
