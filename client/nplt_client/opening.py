"""How a command gets to its server: find the address, connect, start one if need be.

Only the default address, the one nobody named, may have a server started for
it; with an address given, nothing listening there is an error.
"""

from __future__ import annotations

from nplt_client.errors import CannotConnect
from nplt_client.link import Deadline, Link, open_link
from nplt_client.settings import Address, find_address, find_token
from nplt_protocol.requests import Hello

COMMAND_NAME = "nplt/1"


def open_for_command(server: str | None) -> Link:
    return open_at(find_address(server), Deadline(None))


def open_at(address: Address, deadline: Deadline) -> Link:
    hello = Hello(client=COMMAND_NAME, token=find_token(None))
    try:
        return open_link(address, hello, deadline)
    except CannotConnect as error:
        if not (address.is_default and error.nobody_listens):
            raise
    from nplt_client.background import compare_versions, ensure_running

    ensure_running(address)
    link = open_link(address, hello, deadline)
    compare_versions(link.welcome.server)
    return link
