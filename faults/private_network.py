"""A network for one check alone, in which packets can be dropped.

`private_network` moves the calling thread into a network namespace of its own; the threads and
processes that it starts from then on are there too. The namespace has only a loopback device, so
that rules made there concern nobody else. `black_hole` drops packets as a broken network does: no
reset and no refusal, and what the kernel sends again arrives afterwards, perhaps much later.

It needs root and iptables; `why_no_black_holes` says what is missing.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Final, Literal

from faults.results import CannotBeDone

Way = Literal["both ways", "towards", "back"]
"""Whether packets towards the port are dropped, or those that come back from it, or both."""

_NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET
_READ_FLAGS: Final = 0x8913  # SIOCGIFFLAGS
_SET_FLAGS: Final = 0x8914  # SIOCSIFFLAGS
_UP: Final = 0x1  # IFF_UP
_INTERFACE: Final = "16sh14x"  # struct ifreq, with flags
_OPTIONS: Final = {
    "both ways": ("--dport", "--sport"),
    "towards": ("--dport",),
    "back": ("--sport",),
}


@contextmanager
def private_network() -> Iterator[None]:
    """Raises `CannotBeDone` if this machine or this user can't have one."""
    if (why := why_no_black_holes()) is not None:
        raise CannotBeDone(why)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _enter_new_network()
        try:
            yield
        finally:
            _call("setns", before, _NEW_NETWORK)
    finally:
        os.close(before)


@contextmanager
def private_network_if_possible() -> Iterator[str | None]:
    """Gives why there is none, or `None`."""
    with ExitStack() as stack:
        why = why_no_black_holes()
        if why is None:
            stack.enter_context(private_network())
        yield why


@cache
def why_no_black_holes() -> str | None:
    if _iptables() is None:
        return "there is no iptables here"
    if os.geteuid() != 0:
        return "only root may drop packets"
    found: list[str] = []

    def attempt() -> None:
        """In a thread of its own, because a thread that fails halfway stays where it is."""
        try:
            _enter_new_network()
            _change_rules(["-A", "INPUT", "-p", "tcp", "--dport", "1", "-j", "DROP"])
        except (OSError, CannotBeDone) as error:
            found.append(f"packets can't be dropped here: {error}")

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return found[0] if found else None


class Hole:
    """How many packets have vanished; known when the hole is over."""

    def __init__(self) -> None:
        self.dropped = 0


@contextmanager
def black_hole(ports: Sequence[int], way: Way = "both ways") -> Iterator[Hole]:
    """Drops the packets to and from these ports of this network, for as long as the context
    lasts."""
    hole = Hole()
    rules = [
        ["INPUT", "-p", "tcp", option, str(port), "-j", "DROP"]
        for port in ports
        for option in _OPTIONS[way]
    ]
    for rule in rules:
        _change_rules(["-A", *rule])
    try:
        yield hole
    finally:
        hole.dropped = _dropped()
        for rule in rules:
            _change_rules(["-D", *rule])


def _dropped() -> int:
    """The packets that the rules of this network have met; one check has one hole at a time."""
    rows = _change_rules(["-nvxL", "INPUT"]).splitlines()
    return sum(int(row.split()[0]) for row in rows if " DROP " in row)


def _change_rules(arguments: Sequence[str]) -> str:
    command = [_iptables() or "iptables", "-w", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise CannotBeDone(f"iptables failed: {ran.stderr.strip()}")
    return ran.stdout


def _iptables() -> str | None:
    return shutil.which("iptables") or shutil.which("iptables", path="/usr/sbin:/sbin")


def _enter_new_network() -> None:
    _call("unshare", _NEW_NETWORK)
    with socket.socket() as any_socket:
        loopback = struct.pack(_INTERFACE, b"lo", 0)
        flags = struct.unpack(_INTERFACE, fcntl.ioctl(any_socket, _READ_FLAGS, loopback))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack(_INTERFACE, b"lo", flags | _UP))


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
