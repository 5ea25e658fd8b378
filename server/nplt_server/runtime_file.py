"""Writes where the server listens, for `nplt` of the same user.

The file is `server.json` in the user's state folder (`~/.local/state/nplt`), readable by
that user alone: `{"url", "unix", "pid", "version", "data_dir"}`. The server holds a lock on
it as long as it lives, so that a file left behind by a killed server is told from a living
one's. Where two servers of one user run, the first keeps the file.

`local_token` is for systems that can't tell whose a local connection is (`local_users`).
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import logging
import os
import secrets
import time

from nplt_server import __version__
from nplt_server.settings import Settings, user_dir

log = logging.getLogger(__name__)

_LOCK_SECONDS_MAX = 0.1
"""A client that looks whether a server lives holds the lock for a moment."""


class RuntimeFile:
    def __init__(self) -> None:
        self._path = user_dir("state") / "server.json"
        self._descriptor: int | None = None

    def write(self, settings: Settings, host: str, port: int) -> None:
        """A server that can't write it serves all the same: clients can name its address."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error.strerror)
            return
        if not _lock(descriptor):
            os.close(descriptor)
            log.info("another server of yours is in %s: nplt goes there", self._path)
            return
        self._descriptor = descriptor
        # An address that can be connected to, also when the server listens on all there are.
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
        place = f"[{host}]" if ":" in host else host
        described = {
            "url": f"{'nplts' if settings.listen.tls else 'nplt'}://{place}:{port}",
            "unix": str(settings.listen.unix) if settings.listen.unix else None,
            "pid": os.getpid(),
            "version": __version__,
            "data_dir": str(settings.data_dir),
        }
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(described).encode() + b"\n", 0)

    def remove(self) -> None:
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> bool:
    give_up = time.monotonic() + _LOCK_SECONDS_MAX
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                return False
            time.sleep(_LOCK_SECONDS_MAX / 20)
        else:
            return True


def local_token() -> str:
    """The token of this user's programs; made at the first start, in a file of its own."""
    path = user_dir("state") / "token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        token = secrets.token_urlsafe(32)
        file.write(f"{token}\n")
    return token
