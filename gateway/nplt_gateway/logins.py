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
    token_mark: str | None
    """The mark of the token that the user had at the beginning of the login."""


class Logins:
    def __init__(
        self, path: Path, admission: Admission, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._admission = admission
        self._clock = clock

    async def make_code(self, user: str) -> str:
        """Returns a code that logs a browser in as the user, once."""
        code, mark = "-".join(_letters(4) for _ in range(3)), self._token_of(user)
        await self._in_thread(lambda: self._add_code(user, mark, code))
        return code

    async def redeem(self, code: str, device: str) -> tuple[str, str] | None:
        """Returns the user and the secret of a new login, or `None` if the code is wrong, was used
        or is too old."""
        taken = await self._in_thread(lambda: self._take_code(code.strip().upper()))
        if taken is None or not self._is_valid(*taken):
            return None
        return taken[0], await self.begin(taken[0], device)

    async def begin(self, user: str, device: str) -> str:
        """Returns the secret of a new login."""
        secret, mark = secrets.token_urlsafe(32), self._token_of(user)
        await self._in_thread(lambda: self._add_login(user, mark, secret, device))
        return secret

    async def find(self, secret: str) -> Login | None:
        """Returns the login, and notes that it was used."""
        login = await self._in_thread(lambda: self._use(secret)) if secret else None
        if login is None or not self._is_valid(login.user, login.token_mark):
            return None
        return login

    async def of_user(self, user: str) -> list[Login]:
        """Returns the user's logins, the last used first."""
        mark = self._token_of(user)
        return await self._in_thread(lambda: self._list(user, mark))

    async def end(self, user: str, login_id: str) -> bool:
        """Revokes a login of the user. Returns False if there is none with that id."""
        return await self._in_thread(lambda: self._delete(user, login_id))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work)

    def _add_code(self, user: str, mark: str | None, code: str) -> None:
        with self._database() as database:
            database.execute("DELETE FROM codes WHERE ends_at < ?", (self._clock(),))
            _keep_newest(database, "codes", "ends_at", _CODES_MAX)
            ends_at = self._clock() + CODE_SECONDS_MAX
            row = (_hash(code), user, mark, ends_at)
            database.execute("INSERT INTO codes VALUES (?, ?, ?, ?)", row)

    def _take_code(self, code: str) -> tuple[str, str | None] | None:
        with self._database() as database:
            taken = database.execute(
                "DELETE FROM codes WHERE hash = ? RETURNING user, token, ends_at", (_hash(code),)
            ).fetchone()
        if taken is None or taken[2] < self._clock():
            return None
        return taken[0], taken[1]

    def _add_login(self, user: str, mark: str | None, secret: str, device: str) -> None:
        now = self._clock()
        with self._database() as database:
            database.execute("DELETE FROM logins WHERE used_at < ?", (now - _IDLE_SECONDS_MAX,))
            _keep_newest(database, "logins", "used_at", _LOGINS_MAX)
            row = (_letters(8), _hash(secret), user, mark, device[:100], now, now)
            database.execute("INSERT INTO logins VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _use(self, secret: str) -> Login | None:
        now = self._clock()
        with self._database() as database:
            found = database.execute(
                "SELECT id, user, device, created_at, used_at, token FROM logins WHERE hash = ?",
                (_hash(secret),),
            ).fetchone()
            if found is None:
                return None
            login = Login(*found)
            if login.used_at < now - _IDLE_SECONDS_MAX:
                return None
            if login.used_at < now - _USED_SECONDS:
                database.execute("UPDATE logins SET used_at = ? WHERE id = ?", (now, login.id))
        return login

    def _list(self, user: str, mark: str | None) -> list[Login]:
        with self._database() as database:
            found = database.execute(
                "SELECT id, user, device, created_at, used_at, token FROM logins "
                "WHERE user = ? AND token = ? AND used_at >= ? ORDER BY used_at DESC",
                (user, mark, self._clock() - _IDLE_SECONDS_MAX),
            ).fetchall()
        return [Login(*row) for row in found]

    def _delete(self, user: str, login_id: str) -> bool:
        with self._database() as database:
            ended = database.execute(
                "DELETE FROM logins WHERE user = ? AND id = ?", (user, login_id.upper())
            )
            return ended.rowcount > 0

    def _is_valid(self, user: str, mark: str | None) -> bool:
        """Whether the user still has the token of this mark. It is asked after the database has
        answered, because the users may have changed in the meantime."""
        return mark is not None and mark == self._token_of(user)

    def _token_of(self, user: str) -> str | None:
        """Identifies the user's present token, so that a new one ends the logins of the old.
        `None`, which no login matches: there is no such user."""
        return self._admission.token_mark(user)

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
