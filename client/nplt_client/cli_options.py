"""Arguments and options that many commands share, and what a shell offers for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., object])


def server_option(command: F) -> F:
    return click.option(
        "--server", metavar="URL", help="nplt://host:port[/session]; default: $NPLT_SERVER"
    )(command)


def offer_sessions(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem[str]]:
    from nplt_client.completing import sessions

    return sessions(context, begun)


def offer_models(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem[str]]:
    from nplt_client.completing import models

    return models(context, begun)


session_argument = click.argument("wanted", metavar="ID|NAME", shell_complete=offer_sessions)
json_option = click.option("--json", "as_json", is_flag=True, help="for programs")
