"""The logins of browsers: one-time codes, and the secrets that browsers keep in a cookie.

`nplt web` gets a code, which a browser exchanges for a login within minutes. Only hashes of codes
and secrets are stored, in a database of the data directory, so that a login survives a restart and
every worker process knows it. A login ends when it is revoked, when its user's token changes, or
after a time without use.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from msgspec import Struct

from nplt_server.connections.admission import Admission

CODE_SECONDS_MAX: Final = 300
_CODES_MAX: Final = 100
_LOGINS_MAX: Final = 1_000
_IDLE_SECONDS_MAX: Final = 60 * 24 * 3_600
_USED_SECONDS: Final = 60
"""A login's last use is stored at most this often."""
_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS codes (hash TEXT PRIMARY KEY, user TEXT, token TEXT, ends_at REAL);
CREATE TABLE IF NOT EXISTS logins (
    id TEXT PRIMARY KEY, hash TEXT UNIQUE, user TEXT, token TEXT, device TEXT,
    created_at REAL, used_at REAL
);
"""
T = TypeVar("T")


class Login(Struct, frozen=True):
    id: str
    user: str
    device: str
    created_at: float
    used_at: float


class Logins:
    def __init__(
        self, path: Path, admission: Admission, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._admission = admission
        self._clock = clock

    async def make_code(self, user: str) -> str:
        """Returns a code that logs a browser in as the user, once."""
        code = "-".join(_letters(4) for _ in range(3))
        await self._in_thread(lambda: self._add_code(user, code))
        return code

    async def redeem(self, code: str, device: str) -> tuple[str, str] | None:
        """Returns the user and the secret of a new login, or `None` if the code is wrong, was used
        or is too old."""
        user = await self._in_thread(lambda: self._take_code(code.strip().upper()))
        return None if user is None else (user, await self.begin(user, device))

    async def begin(self, user: str, device: str) -> str:
        """Returns the secret of a new login."""
        secret = secrets.token_urlsafe(32)
        await self._in_thread(lambda: self._add_login(user, secret, device))
        return secret

    async def find(self, secret: str) -> Login | None:
        """Returns the login, and notes that it was used."""
        return await self._in_thread(lambda: self._use(secret)) if secret else None

    async def of_user(self, user: str) -> list[Login]:
        """Returns the user's logins, the last used first."""
        return await self._in_thread(lambda: self._list(user))

    async def end(self, user: str, login_id: str) -> bool:
        """Revokes a login of the user. Returns False if there is none with that id."""
        return await self._in_thread(lambda: self._delete(user, login_id))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work)

    def _add_code(self, user: str, code: str) -> None:
        with self._database() as database:
            database.execute("DELETE FROM codes WHERE ends_at < ?", (self._clock(),))
            _keep_newest(database, "codes", "ends_at", _CODES_MAX)
            ends_at = self._clock() + CODE_SECONDS_MAX
            row = (_hash(code), user, self._token_of(user), ends_at)
            database.execute("INSERT INTO codes VALUES (?, ?, ?, ?)", row)

    def _take_code(self, code: str) -> str | None:
        with self._database() as database:
            taken = database.execute(
                "DELETE FROM codes WHERE hash = ? RETURNING user, token, ends_at", (_hash(code),)
            ).fetchone()
        if taken is None or taken[2] < self._clock() or taken[1] != self._token_of(taken[0]):
            return None
        return str(taken[0])

    def _add_login(self, user: str, secret: str, device: str) -> None:
        now = self._clock()
        with self._database() as database:
            database.execute("DELETE FROM logins WHERE used_at < ?", (now - _IDLE_SECONDS_MAX,))
            _keep_newest(database, "logins", "used_at", _LOGINS_MAX)
            row = (_letters(8), _hash(secret), user, self._token_of(user), device[:100], now, now)
            database.execute("INSERT INTO logins VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _use(self, secret: str) -> Login | None:
        now = self._clock()
        with self._database() as database:
            found = database.execute(
                "SELECT token, id, user, device, created_at, used_at FROM logins WHERE hash = ?",
                (_hash(secret),),
            ).fetchone()
            if found is None:
                return None
            token, login = found[0], Login(*found[1:])
            if token != self._token_of(login.user) or login.used_at < now - _IDLE_SECONDS_MAX:
                return None
            if login.used_at < now - _USED_SECONDS:
                database.execute("UPDATE logins SET used_at = ? WHERE id = ?", (now, login.id))
        return login

    def _list(self, user: str) -> list[Login]:
        with self._database() as database:
            found = database.execute(
                "SELECT id, user, device, created_at, used_at FROM logins "
                "WHERE user = ? AND token = ? AND used_at >= ? ORDER BY used_at DESC",
                (user, self._token_of(user), self._clock() - _IDLE_SECONDS_MAX),
            ).fetchall()
        return [Login(*row) for row in found]

    def _delete(self, user: str, login_id: str) -> bool:
        with self._database() as database:
            ended = database.execute(
                "DELETE FROM logins WHERE user = ? AND id = ?", (user, login_id.upper())
            )
            return ended.rowcount > 0

    def _token_of(self, user: str) -> str:
        """Identifies the user's present token, so that a new one ends the logins of the old."""
        return self._admission.token_mark(user) or "unknown user"

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Opens the database for one transaction."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        with closing(sqlite3.connect(self._path, timeout=10)) as database, database:
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                database.executescript(_SCHEMA)
            yield database


def _keep_newest(database: sqlite3.Connection, table: str, by: str, most: int) -> None:
    """Leaves room for one more row."""
    database.execute(
        f"DELETE FROM {table} WHERE rowid NOT IN "
        f"(SELECT rowid FROM {table} ORDER BY {by} DESC LIMIT ?)",
        (most - 1,),
    )


def _letters(count: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(count))


def _hash(secret: str) -> str:
    return sha256(secret.encode(errors="replace")).hexdigest()
