"""Fixtures for the tests of the HTTP door."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Connect
from tests.support.raw_client import HISTORY_REQUEST
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def url(shared_server: ServerProcess) -> str:
    return shared_server.http_url


@pytest.fixture
def contents(connect: Connect, shared_server: ServerProcess) -> Callable[[str], list[str]]:
    """The texts of a conversation's messages, as a client of the protocol reads them."""
    client = connect(shared_server)
    client.hello()

    def contents(session_id: str) -> list[str]:
        page = client.request(HISTORY_REQUEST, {"session_id": session_id}).json
        return [message["content"] for message in page["messages"]]

    return contents
