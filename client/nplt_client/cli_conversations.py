"""`nplt search | fork | redact | undelete | export | import`: names and options.

What is done is in `arranging`, `finding` and `carrying`, loaded when it is needed.
"""

from __future__ import annotations

from typing import Literal

import click

from nplt_client.cli_options import json_option, server_option, session_argument


@click.command()
@click.argument("query")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@json_option
@server_option
def search(query: str, limit: int, as_json: bool, server: str | None) -> None:
    """Find conversations by name, and messages by their words."""
    from nplt_client.finding import print_hits

    print_hits(query, server=server, limit=limit, as_json=as_json)


@click.command()
@session_argument
@click.option("--at", "at_seq", type=click.IntRange(min=1), metavar="SEQ", help="up to this entry")
@click.option("--name", metavar="NAME", help="what the fork is called")
@server_option
def fork(wanted: str, at_seq: int | None, name: str | None, server: str | None) -> None:
    """Begin another conversation like this one. Prints its id."""
    from nplt_client.arranging import fork

    fork(wanted, server=server, at_seq=at_seq, name=name)


@click.command()
@session_argument
@click.argument("seq", type=click.IntRange(min=1))
@click.option("-y", "--yes", is_flag=True, help="without asking")
@server_option
def redact(wanted: str, seq: int, yes: bool, server: str | None) -> None:
    """Erase what one entry says, for good."""
    from nplt_client.arranging import redact

    redact(wanted, seq, server=server, is_sure=yes)


@click.command()
@click.argument("session_id", metavar="ID")
@server_option
def undelete(session_id: str, server: str | None) -> None:
    """Bring a conversation back from the trash."""
    from nplt_client.arranging import undelete

    undelete(session_id, server=server)


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@server_option
def import_(files: tuple[str, ...], server: str | None) -> int:
    """Take in conversations from files. Prints their ids."""
    from pathlib import Path

    from nplt_client.carrying import import_files

    return import_files([Path(file) for file in files], server=server)


@click.command()
@session_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "json", "jsonl", "html"]),
    default="md",
    show_default=True,
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE")
@server_option
def export(
    wanted: str,
    form: Literal["md", "json", "jsonl", "html"],
    output: str | None,
    server: str | None,
) -> None:
    """Write a conversation's messages to stdout, or to a file."""
    from pathlib import Path

    from nplt_client.carrying import export

    export(wanted, server=server, form=form, output=Path(output) if output else None)


COMMANDS = (search, fork, redact, undelete, import_, export)
