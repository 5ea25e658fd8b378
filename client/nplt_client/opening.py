"""How a command gets to its server: find the address, connect, start one if need be.

Only the default address, the one nobody named, may have a server started for
it; with an address given, nothing listening there is an error.
"""

from __future__ import annotations

from nplt_client.errors import CannotConnect
from nplt_client.link import Deadline, Link, open_link
from nplt_client.settings import Address, find_address, find_token
from nplt_protocol.requests import Hello
from nplt_protocol.version import __version__

COMMAND_NAME = "nplt/1"
OUR_SERVER = f"nplt/{__version__}"
"""How a server of our own version introduces itself."""


def open_for_command(server: str | None) -> Link:
    return open_at(find_address(server), Deadline(None))


def reopen_at(address: Address, deadline: Deadline) -> Link:
    """One that was there before: none is started in its place."""
    return open_link(address, _hello(address), deadline)


def open_at(address: Address, deadline: Deadline) -> Link:
    hello = _hello(address)
    try:
        link = open_link(address, hello, deadline)
    except CannotConnect as error:
        if not (address.is_default and error.nobody_listens):
            raise
        from nplt_client.background import ensure_running

        ensure_running(address)
        link = open_link(address, hello, deadline)
    if address.is_default and link.welcome.server != OUR_SERVER:
        # Whoever upgraded nplt may still have the server from before in the background.
        from nplt_client.background import compare_versions, find_server

        if find_server() is not None:
            compare_versions(link.welcome.server)
    return link


def _hello(address: Address) -> Hello:
    return Hello(client=COMMAND_NAME, token=find_token(None, address=address))
