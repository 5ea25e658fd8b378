"""Connections that come through a proxy, such as a load balancer, and the address behind it.

Only the addresses in `listen.proxies` are believed. Such a proxy begins each connection with a
header of the PROXY protocol, version 1 or 2
(https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt), which comes before TLS. A proxy of
HTTP may name its clients in `X-Forwarded-For` instead. Whoever runs the proxy, its clients need a
token: the kernel knows only the proxy's user.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

_V1_BEGINS: Final = b"PROXY "
_V1_BYTES_MAX: Final = 107
_V2_BEGINS: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEAD: Final = struct.Struct("!12sBBH")
_V2_BYTES_MAX: Final = 4_096
_V2_PROXY: Final = 0x21
_V2_LOCAL: Final = 0x20
_V2_SIZES: Final = {0x11: (socket.AF_INET, 4), 0x21: (socket.AF_INET6, 16)}
"""The families of TCP, and the bytes of an address in each."""
_PAUSE_SECONDS: Final = 0.01
"""The pause before an incomplete header is read again."""


class BadHeader(OSError):
    """A proxy did not begin the connection as agreed."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted connection."""

    sock: socket.socket
    address: str
    """The address of the client; empty for a Unix socket, and for a peer that has gone."""
    name: str
    """The peer in the log."""
    is_proxied: bool = False


class Proxies:
    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def holds(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            given = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = given.ipv4_mapped if isinstance(given, ipaddress.IPv6Address) else None
        return any((mapped or given) in network for network in self._networks)

    def client_in(self, forwarded_for: Sequence[str]) -> str | None:
        """The client that `X-Forwarded-For` names: the last address that is not a proxy's. Those
        before it were written by the client itself."""
        named = [part.strip() for header in forwarded_for for part in header.split(",")]
        for address in reversed(named):
            try:
                ipaddress.ip_address(address)
            except ValueError:
                return None
            if not self.holds(address):
                return address
        return None


def accept_directly(sock: socket.socket) -> Accepted:
    try:
        name = sock.getpeername()
    except OSError:
        return Accepted(sock, "", "?")
    if isinstance(name, tuple):
        return Accepted(sock, str(name[0]), f"{name[0]}:{name[1]}")
    return Accepted(sock, "", str(name))


async def accept_through(proxy: Accepted, *, seconds: float, needs_header: bool) -> Accepted:
    """Reads the header of a connection from a proxy, and nothing after it. Raises `BadHeader`.
    Without `needs_header` the connection may begin with something else."""
    sock = proxy.sock
    sock.setblocking(False)
    try:
        with anyio.fail_after(seconds):
            begins = await _peek(sock, len(_V1_BEGINS))
            if begins == _V1_BEGINS:
                return await _read_v1(proxy)
            if begins == _V2_BEGINS[: len(_V1_BEGINS)]:
                return await _read_v2(proxy)
    except TimeoutError:
        raise BadHeader("the proxy sent no whole header of the PROXY protocol in time") from None
    if needs_header:
        raise BadHeader("the proxy did not begin with a header of the PROXY protocol")
    return Accepted(sock, proxy.address, proxy.name, is_proxied=True)


async def _read_v1(proxy: Accepted) -> Accepted:
    line = b""
    while b"\r\n" not in line:
        if len(line) >= _V1_BYTES_MAX:
            raise BadHeader("a header of the PROXY protocol is too long")
        line = await _peek(proxy.sock, _V1_BYTES_MAX, after=len(line))
    line = line[: line.index(b"\r\n")]
    proxy.sock.recv(len(line) + 2)
    words = line.decode("ascii", "replace").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return Accepted(proxy.sock, proxy.address, proxy.name, is_proxied=True)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise BadHeader("a header of the PROXY protocol can't be read")
    return _client(proxy, words[2], words[4])


async def _read_v2(proxy: Accepted) -> Accepted:
    head = b""
    while len(head) < _V2_HEAD.size:
        head = await _peek(proxy.sock, _V2_HEAD.size, after=len(head))
    begins, command, family, size = _V2_HEAD.unpack(head)
    if begins != _V2_BEGINS or command not in (_V2_PROXY, _V2_LOCAL) or size > _V2_BYTES_MAX:
        raise BadHeader("a header of the PROXY protocol can't be read")
    whole = b""
    while len(whole) < _V2_HEAD.size + size:
        whole = await _peek(proxy.sock, _V2_HEAD.size + size, after=len(whole))
    proxy.sock.recv(len(whole))
    body = whole[_V2_HEAD.size :]
    if command == _V2_LOCAL or family not in _V2_SIZES:  # a check of the proxy's own
        return Accepted(proxy.sock, proxy.address, proxy.name, is_proxied=True)
    kind, length = _V2_SIZES[family]
    if size < 2 * length + 4:
        raise BadHeader("a header of the PROXY protocol is too short")
    port = int.from_bytes(body[2 * length : 2 * length + 2])
    return _client(proxy, socket.inet_ntop(kind, body[:length]), str(port))


def _client(proxy: Accepted, address: str, port: str) -> Accepted:
    try:
        known = str(ipaddress.ip_address(address))
    except ValueError:
        raise BadHeader("a header of the PROXY protocol names no address") from None
    name = f"{known}:{port[:5]} through {proxy.name}"
    return Accepted(proxy.sock, known, name, is_proxied=True)


async def _peek(sock: socket.socket, size: int, *, after: int = -1) -> bytes:
    """The first bytes that have come, at most `size`, without taking them; more than `after`. With
    `after` -1: all `size` bytes, or the first line if it is shorter."""
    while True:
        await anyio.wait_readable(sock)
        data = sock.recv(size, socket.MSG_PEEK)
        if not data:
            raise BadHeader("the proxy closed the connection before its header")
        if len(data) == size or (after >= 0 and len(data) > after):
            return data
        if after < 0 and not (_V1_BEGINS.startswith(data) or _V2_BEGINS.startswith(data)):
            return data
        await anyio.sleep(_PAUSE_SECONDS)
