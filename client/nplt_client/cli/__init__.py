"""The `nplt` command: names, arguments, options and exit codes.

`chat` and `ask` are defined here and import their implementation when they run, so that
asking stays quick; the short commands are in `cli.commands`. `nplt` without a command is
`nplt chat`, or `nplt ask` if the first argument reads as a question (`is_question`).
A failure is one sentence on stderr and one of

    0 ok · 1 internal · 2 usage · 3 config · 4 auth · 5 can't connect or lost ·
    6 provider · 7 timeout · 8 protocol · 9 limit · 130 interrupted ·
    141 the reader of our output has gone (silent)

`run_to_exit_code` is the one place where every exception is caught.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable

import click

from nplt_client.cli.options import completes, connection_options, help_epilog
from nplt_client.errors import NpltError
from nplt_client.render.terminal import (
    discard_stdout,
    has_screen,
    prepare_standard_streams,
    print_error,
    print_remark,
)

INTERNAL = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

_HELP_WANTED: type[Exception] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""click raises it for a group without a command; older versions print the help themselves."""


def run_to_exit_code(command: Callable[[], object]) -> int:
    try:
        code = command()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except NpltError as error:
        print_error(error)
        return error.exit_code
    except click.UsageError as error:
        _explain_usage(error)
        return USAGE
    except click.ClickException as error:
        print_remark(f"nplt: {error.format_message()}")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        discard_stdout()
        return PIPE_CLOSED
    except OSError as error:
        discard_stdout()
        print_remark(
            f"nplt: {error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        )
        return INTERNAL
    except Exception:
        import traceback

        print_remark("nplt: this is a mistake in nplt itself; please report it:")
        sys.stderr.write(traceback.format_exc())
        return INTERNAL


def _explain_usage(error: click.UsageError) -> None:
    if isinstance(error, _HELP_WANTED):  # its message is the help itself
        sys.stderr.write(f"{error.format_message()}\n")
        return
    if error.ctx is not None:
        sys.stderr.write(f"{error.ctx.get_usage()}\n")
        print_remark(f"Try '{error.ctx.command_path} --help' for help.")
    print_remark(f"Error: {error.format_message()}")


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
OF_THE_GROUP = ("-h", "--help", "--version")


def main() -> int:
    prepare_standard_streams()
    code = run_to_exit_code(_run)
    # Without this, Python collects garbage twice before it exits, a tenth of our time.
    gc.freeze()
    return code


def _run() -> object:
    if "_NPLT_COMPLETE" in os.environ:
        from nplt_client.cli.completion import complete

        return complete(nplt)
    # click's own `main` is not used, since it turns a closed pipe into exit code 1.
    with nplt.make_context("nplt", sys.argv[1:]) as context:
        return nplt.invoke(context)


def is_question(argument: str) -> bool:
    """Whether a first argument that names no command is a question: it contains a blank, ends
    with a question mark, or has letters that no command has. Any other word is treated as a
    mistyped command."""
    is_word = argument.split() == [argument] and argument.isascii()
    return argument == "-" or not is_word or argument.endswith("?")


class ChatByDefault(click.Group):
    """A group with a default command: `ask` for a question, `chat` for options and addresses.

    Commands other than `chat` and `ask` are loaded when one of them, or the list, is needed.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._add_short_commands()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            self._add_short_commands()
        return super().get_command(ctx, cmd_name)

    def _add_short_commands(self) -> None:
        from nplt_client.cli.watching import COMMANDS

        for command in COMMANDS:
            self.add_command(command)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:
            return super().parse_args(ctx, args)  # a shell completes the command's name
        if not args or args[0] not in OF_THE_GROUP:
            implied = ["ask"] if self._is_one_word(ctx, args) else _implied_command(args)
            args = [*implied, *args]
        return super().parse_args(ctx, args)

    def _is_one_word(self, ctx: click.Context, args: list[str]) -> bool:
        """Whether the question is a single word: nothing else is given, and it resembles no
        command, because a mistyped one must not be sent to a model."""
        if len(args) != 1 or not args[0].isalpha() or self.get_command(ctx, args[0]) is not None:
            return False
        return not self._commands_like(args[0])

    def _commands_like(self, word: str) -> list[str]:
        import difflib

        return difflib.get_close_matches(word, self.commands, n=1)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            import shlex

            near = self._commands_like(args[0])
            ask = _ASK_IN_QUOTES if args[1:] else f"To ask it: nplt ask {shlex.quote(args[0])}"
            hint = f"Did you mean {near[0]!r}?" if near else ask
            if ":" in args[0]:
                hint = f"For a server at that address: nplt nplt://{args[0]}"
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


_ASK_IN_QUOTES = 'To ask a question, put it in quotes: nplt "why is the sky blue?"'


def _implied_command(args: list[str]) -> list[str]:
    """Returns the default command; empty if the first argument is a command, or a mistyped
    one."""
    first = _first_argument(args)
    if first is None or "://" in first:
        return ["chat"]
    if is_question(first):
        return ["ask"]
    return [] if args[0] == first else ["chat"]


def _first_argument(args: list[str]) -> str | None:
    """Returns the first argument that is neither an option nor the value of one."""
    with_value = {
        name
        for command in (chat_command, ask_command)
        for option in command.params
        if isinstance(option, click.Option) and not option.is_flag
        for name in option.opts
    }
    rest = iter(args)
    for word in rest:
        if word == "--":
            return next(rest, None)
        if word == "-" or not word.startswith("-"):
            return word
        if word in with_value:
            next(rest, None)
    return None


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""A copy of `nplt_protocol.messages.EFFORTS`, whose import would take time."""

create_option = click.option(
    "--create", is_flag=True, help="create the named conversation if it does not exist"
)
history_option = click.option(
    "--history",
    metavar="ID",
    help="the history, in the server's settings, that stores a new conversation",
)


@click.group(
    cls=ChatByDefault,
    context_settings=SETTINGS,
    subcommand_metavar='COMMAND [ARGS]... | "QUESTION"',
    epilog=help_epilog('nplt "why is the sky blue?"', "nplt -c"),
)
@click.version_option(package_name="nplt")
def nplt() -> None:
    """Conversations with language models, kept by a server the way tmux keeps shells.

    Without a command: chat; with a question in quotes instead of a command: ask.
    If you name no server and none is running, nplt starts one in the background.
    """


continue_option = click.option(
    "-c", "--continue", "go_on", is_flag=True, help="continue the last conversation"
)
model_option = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="switch the conversation to this model",
    shell_complete=completes("models"),
)


def _names_conversation(server: str | None) -> bool:
    from nplt_client.settings import find_address

    return find_address(server).session is not None


@connection_options
@nplt.command(
    "chat", epilog=help_epilog("nplt chat -c", 'nplt chat --resume "my notes" -m offline/echo')
)
@click.argument("server_url", required=False)
@continue_option
@click.option(
    "--resume",
    metavar="ID|NAME",
    help="continue this conversation",
    shell_complete=completes("sessions"),
)
@click.option("--new", is_flag=True, help="start a new conversation (the default)")
@create_option
@history_option
@model_option
@click.option(
    "--no-alt-screen", is_flag=True, help="line mode: keeps the terminal's own scrollback"
)
@click.option("--plain", is_flag=True, help="plain lines without colours, for any terminal")
def chat_command(
    server_url: str | None,
    server: str | None,
    *,
    plain: bool,
    no_alt_screen: bool,
    **choices: object,
) -> int:
    """Open a chat. If stdin is not a terminal, each line is a prompt."""
    from msgspec import convert

    from nplt_client.chat.chat_session import ChatOptions

    options = convert({**choices, "server": server_url or server}, ChatOptions)
    if sum(map(bool, (options.go_on, options.resume, options.new))) > 1:
        raise click.UsageError("Give only one of --continue, --resume and --new.")
    if options.create and not (options.resume or _names_conversation(options.server)):
        raise click.UsageError("--create needs a name: --resume ID|NAME.")
    if plain or not has_screen():
        from nplt_client.lines.plain_terminal import run_plain_chat

        if plain and not os.environ.get("FORCE_COLOR"):
            os.environ["NO_COLOR"] = "1"
        return run_plain_chat(options)
    if no_alt_screen:
        from nplt_client.lines.composer import run_line_chat

        return run_line_chat(options)
    from nplt_client.tui.app import run_full_screen_chat

    return run_full_screen_chat(options)


@connection_options
@nplt.command("attach", epilog=help_epilog("nplt attach @last", 'nplt attach "my notes"'))
@click.argument("wanted", metavar="ID|NAME", shell_complete=completes("sessions"))
@click.pass_context
def attach_command(context: click.Context, wanted: str, server: str | None) -> object:
    """Open a chat in a conversation."""
    return context.invoke(chat_command, resume=wanted, server=server)


@connection_options
@nplt.command(
    "ask",
    epilog=help_epilog(
        'nplt ask "why is the sky blue?"',
        'git diff | nplt ask "review this" -m offline/echo --json',
    ),
)
@click.argument("prompt", required=False)
@continue_option
@click.option(
    "-s",
    "--session",
    metavar="ID|NAME",
    help="continue this conversation",
    shell_complete=completes("sessions"),
)
@create_option
@history_option
@model_option
@click.option("--role", metavar="ROLE", help="the model of this role answers this prompt")
@click.option(
    "--effort",
    type=click.Choice(_EFFORTS),
    metavar="LEVEL",
    help=f"how much the model thinks: {', '.join(_EFFORTS)}",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 2),
    metavar="NUMBER",
    help="0 to 2, for models that take one",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="how long the answer may be, thinking included",
)
@click.option(
    "--schema",
    type=click.Path(),
    metavar="FILE",
    help="print only JSON that fits the JSON schema in this file",
)
@click.option(
    "-a",
    "--attach",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="send this file with the prompt; may be given several times",
)
@click.option("--system", metavar="TEXT", help="set the conversation's system message")
@click.option("--json", "form", flag_value="json", help="print one JSON object at the end")
@click.option("--jsonl", "form", flag_value="jsonl", help="print one JSON object per event")
@click.option(
    "-x", "--extract", "form", flag_value="code", help="print only the code blocks of the answer"
)
@click.option("--no-stream", is_flag=True, help="print the answer at the end, in one piece")
@click.option(
    "--raw", is_flag=True, help="print the answer's Markdown unchanged, even on a terminal"
)
@click.option(
    "--allow",
    multiple=True,
    metavar="TOOL",
    help="run this tool without asking; SERVER__ for all of an MCP server, '*' for all",
)
@click.option(
    "--deny",
    multiple=True,
    metavar="TOOL",
    help="do not run this tool for this prompt, even if the server allows it",
)
@click.option("-q", "--quiet", is_flag=True, help="print no remarks on stderr")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="give up and cancel the answer after this time",
)
@click.option(
    "--cut",
    is_flag=True,
    help="if the prompt does not fit the model's window, cut its middle instead of failing",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="fail at once if the conversation is too busy for another prompt",
)
@click.option(
    "--at",
    metavar="TIME",
    help="store the prompt, and run it at that time: 18:30, or 2026-03-01 18:30",
)
@click.option(
    "--in",
    "delay",
    metavar="DELAY",
    help="store the prompt, and run it after that: 90s, 5m, 2h30m, 1d",
)
@click.option(
    "--detach",
    is_flag=True,
    help="print the ids of the conversation and the turn, and exit; the answer continues",
)
def ask_command(*, go_on: bool, **choices: object) -> int:
    """Send one prompt and print the answer.

    The prompt is PROMPT, or stdin if PROMPT is -. With both, stdin is context.
    Ctrl+C, SIGTERM, a closed pipe and --timeout cancel the answer.
    """
    from msgspec import convert

    from nplt_client.cli.ask import AskOptions, ask
    from nplt_client.settings import LAST

    if go_on and choices["session"]:
        raise click.UsageError("Give either --continue or --session, not both.")
    if go_on:
        choices["session"] = LAST
    options = convert(choices, AskOptions)
    if options.at is not None and options.delay is not None:
        raise click.UsageError("Give either --at or --in, not both.")
    if options.create and not (options.session or _names_conversation(options.server)):
        raise click.UsageError("--create needs a name: -s ID|NAME.")
    if options.form == "code" and options.schema is not None:
        raise click.UsageError("With --schema the answer is JSON; there is no code to extract.")
    if options.form == "code" and options.detach:
        raise click.UsageError("With --detach there is no answer to extract code from.")
    return ask(options)
