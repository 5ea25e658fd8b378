"""What a model is shown of a conversation, what that costs, which tools it has.

Commands like those in `listings`: each opens a link, asks, and prints. `--json`
gives the server's reply as it is, one object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nplt_client.ask_json import json_text
from nplt_client.link import Link
from nplt_client.opening import open_for_command
from nplt_client.showing_accounts import context_text, tools_text, usage_text
from nplt_protocol.replies import Attached, ContextAccount, Reply, ToolList, UsageAccount
from nplt_protocol.requests import ContextRequest, SessionSwitch, Tools, Usage
from nplt_protocol.shapes import write

R = TypeVar("R", bound=Reply)


def print_context(
    wanted: str, *, server: str | None, text: str | None, model: str | None, as_json: bool
) -> None:
    with open_for_command(server) as link:
        request = ContextRequest(session_id=_meant(link, wanted), text=text, model=model)
        account = link.request(request, ContextAccount)
    _print(account, context_text, as_json=as_json)


def print_usage(wanted: str, *, server: str | None, as_json: bool) -> None:
    with open_for_command(server) as link:
        account = link.request(Usage(session_id=_meant(link, wanted)), UsageAccount)
    _print(account, usage_text, as_json=as_json)


def print_tools(*, server: str | None, as_json: bool) -> None:
    with open_for_command(server) as link:
        listed = link.request(Tools(), ToolList)
    _print(listed, tools_text, as_json=as_json)


def _meant(link: Link, wanted: str) -> str:
    return link.request(SessionSwitch(session_id=wanted), Attached).session_id


def _print(reply: R, as_text: Callable[[R], str], *, as_json: bool) -> None:
    print(json_text(write(reply), pretty=True) if as_json else as_text(reply))
