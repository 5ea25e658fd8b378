"""Options, argument completion and help epilogs shared by the `nplt` commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:  # slow to load, and needed for completion only
    from click.shell_completion import CompletionItem


def connection_options(command: click.Command) -> click.Command:
    """Adds `--server` and `--ca` after the other options."""
    command.params.append(
        click.Option(
            ["--server"],
            metavar="URL",
            help="nplt://host:port[/session] or ssh://host[/session]; default: $NPLT_SERVER",
        )
    )
    command.params.append(
        click.Option(
            ["--ca"],
            metavar="FILE",
            expose_value=False,
            callback=_use_ca_file,
            help="for nplts:// URLs: trust the certificate authorities in this PEM file; "
            "default: $NPLT_CA_FILE",
        )
    )
    return command


def _use_ca_file(_context: click.Context, _option: click.Parameter, path: str | None) -> None:
    if path:  # in the environment, so that every connection of this process uses it
        os.environ["NPLT_CA_FILE"] = path


def completes(
    kind: Literal["sessions", "trash", "models"],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]:
    """Makes a `shell_complete` callback. It imports the code that asks the server when it is
    called."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        from nplt_client.cli.completion import complete_from_server

        return complete_from_server(context, kind, incomplete)

    return complete


def help_epilog(*examples: str) -> str:
    """Returns the end of a command's `--help`: examples and exit codes."""
    shown = "".join(f"  {example}\n" for example in examples)
    return f"\b\nExamples:\n{shown}\n{EXIT_CODES}"


EXIT_CODES = (
    "Exit codes: 0 success, 1 internal error, 2 usage error or refused by the server, 3 settings, "
    "4 token, 5 no connection, 6 model provider, 7 timeout, 8 protocol, 9 limit, "
    "130 interrupted, 141 output closed."
)
