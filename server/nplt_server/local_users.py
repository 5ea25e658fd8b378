"""Decides which users of this machine may connect.

A connection that comes from this machine is looked up from its other end: the kernel knows
the user who opened it (`nplt_protocol.peer_user`). So programs need no token, and no
other user of the machine gets in. A connection from elsewhere is not looked up; tokens are
for those. On systems that can't look up the server makes a token (`runtime_file`).
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Sequence
from functools import cache
from typing import Literal, TypeAlias

from nplt_protocol.peer_user import GONE, can_look_up, find_user

Allowed: TypeAlias = Literal["owner", "any"] | Sequence[str]
"""The setting `listen.local_users`."""

ROOT = 0


class LocalUsers:
    """The users of this machine who may connect: names, the server's own user, or all."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed

    def reason_to_refuse(self, accepted: socket.socket) -> str | None:
        if self._allowed == "any" or not can_look_up():
            return None
        try:
            user = find_user(accepted)
        except OSError as error:
            return f"This server can't find out whose connection this is: {error}."
        if user is None or user in (ROOT, os.geteuid()) or user in self._named():
            return None
        if user == GONE:
            return "This connection was closed before the server knew whose it is."
        return (
            f"This server belongs to {_name(os.geteuid())}, and you are {_name(user)}. "
            "Start one of your own, or have listen.local_users set there."
        )

    def _named(self) -> frozenset[int]:
        return frozenset() if isinstance(self._allowed, str) else _numbers(tuple(self._allowed))


@cache
def _numbers(names: tuple[str, ...]) -> frozenset[int]:
    return frozenset(pwd.getpwnam(name).pw_uid for name in names)


def unknown_users(allowed: Allowed) -> list[str]:
    """Names in the setting that no user of this machine has."""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return [] if isinstance(allowed, str) else [name for name in allowed if name not in known]


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
