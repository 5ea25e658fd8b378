"""Options, completion of arguments and the end of `--help`, shared by the commands of `nplt`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:  # slow to load, and needed for completion only
    from click.shell_completion import CompletionItem


def server_option(command: click.Command) -> click.Command:
    """Adds `--server` and `--ca` after the other options."""
    command.params.append(
        click.Option(
            ["--server"], metavar="URL", help="nplt://host:port[/session]; default: $NPLT_SERVER"
        )
    )
    command.params.append(
        click.Option(
            ["--ca"],
            metavar="FILE",
            expose_value=False,
            callback=_use_ca_file,
            help="nplts: trust the authorities in this PEM file; default: $NPLT_CA_FILE",
        )
    )
    return command


def _use_ca_file(_context: click.Context, _option: click.Parameter, path: str | None) -> None:
    if path:
        os.environ["NPLT_CA_FILE"] = path


def offers_of(
    what: Literal["sessions", "trash", "models"],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]:
    """Makes a `shell_complete` callback, which loads the code for the server when it is called."""

    def offers(
        context: click.Context, parameter: click.Parameter, begun: str
    ) -> list[CompletionItem[str]]:
        from nplt_client.cli.completion import offers_from_server

        return offers_from_server(context, what, begun)

    return offers


def notes(*examples: str) -> str:
    """Formats the examples and exit codes at the end of every `--help`."""
    shown = "".join(f"  {example}\n" for example in examples)
    return f"\b\nExamples:\n{shown}\n{EXIT_CODES}"


EXIT_CODES = (
    "Exit codes: 0 success, 1 internal error, 2 wrong usage or refused by the server, 3 settings, "
    "4 token, 5 no connection, 6 model provider, 7 time-out, 8 protocol, 9 limit, "
    "130 interrupted, 141 output closed."
)
