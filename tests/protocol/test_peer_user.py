"""Which user of this machine is at the other end, as the kernel says and as its tables do."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from nplt_protocol import peer_user

pytestmark = pytest.mark.skipif(not peer_user.can_look_up(), reason="only Linux tells")

NOBODY = 65_534
US = os.geteuid()
SOMEBODY = US or NOBODY
"""Root can be somebody else for a moment: its own number is what an empty column says too."""


@pytest.fixture(params=["kernel", "tables"], autouse=True)
def _asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tables":
        monkeypatch.setattr(socket, "AF_NETLINK", 255)  # no such family: it can't be asked


_Ends = tuple[socket.socket, socket.socket]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@contextmanager
def _connected(listens_at: str, reached_at: str) -> Iterator[_Ends]:
    """The end of SOMEBODY, and the accepted one."""
    if ":" in reached_at and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server((listens_at, 0), family=_family(listens_at)) as listening:
        os.seteuid(SOMEBODY)
        try:
            theirs = socket.socket(_family(reached_at))
        finally:
            os.seteuid(US)
        with theirs:
            theirs.connect((reached_at, listening.getsockname()[1]))
            with listening.accept()[0] as accepted:
                yield theirs, accepted


@pytest.mark.parametrize(
    ("listens_at", "reached_at"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("127.0.0.1", "::ffff:127.0.0.1"),
    ],
)
def test_the_peer_user_is_the_owner_of_the_other_socket(listens_at: str, reached_at: str) -> None:
    with _connected(listens_at, reached_at) as (_, accepted):
        assert peer_user.find_user(accepted) == SOMEBODY


def test_a_closed_connection_has_no_peer_user() -> None:
    with _connected("127.0.0.1", "127.0.0.1") as (theirs, accepted):
        theirs.close()
        assert peer_user.find_user(accepted) == peer_user.GONE


class _From:
    """A connection that the kernel does not know, as far as `find_user` looks at it."""

    family = socket.AF_INET

    def __init__(self, address: str, port: int) -> None:
        self._peer_name = address, port

    def getpeername(self) -> tuple[str, int]:
        return self._peer_name

    def getsockname(self) -> tuple[str, int]:
        return "203.0.113.6", 8_765


def test_a_remote_peer_is_no_local_user_even_if_a_program_listens_on_its_port() -> None:
    with socket.create_server(("", 0)) as listening:
        for port in (listening.getsockname()[1], 1):
            elsewhere = cast("socket.socket", _From("203.0.113.5", port))
            assert peer_user.find_user(elsewhere) is None


def test_a_peer_at_this_machine_s_own_address_that_the_kernel_does_not_know_has_no_user() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.5", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        own_address = probe.getsockname()[0]
    unknown = cast("socket.socket", _From(own_address, 1))
    assert peer_user.find_user(unknown) == peer_user.GONE
