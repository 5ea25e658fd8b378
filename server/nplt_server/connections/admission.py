"""Admits connections: users and tokens, connection limits, rate limits, idle timeouts.

If no users are configured there is one, `local`, without a token. For a connection from this
machine the kernel knows the user who opened it (`nplt_protocol.peer_user`), so other users of the
machine can be refused. Connections from other machines are authenticated by tokens.

A connection counts from the moment it is accepted. It is undecided until its token is accepted or,
if tokens are not needed, until its first frame; when the server is full, the oldest undecided
connection is closed to make room. One sweep a second checks all connections; no connection has a
timer of its own. Frames above the rate limit are delayed, prompts above it are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import pwd
import secrets
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Protocol

import anyio

from nplt_protocol import ErrorCode, RequestError
from nplt_protocol.frames import ByteBudget
from nplt_protocol.peer_user import GONE, can_look_up, find_user
from nplt_server.connections.proxies import Accepted, Proxies
from nplt_server.conversations.services import Services
from nplt_server.logs import RepeatedWarnings
from nplt_server.settings import Settings, UserSettings, user_dir
from nplt_server.tasks import Activity
from nplt_storage.errors import StorageUnavailable
from nplt_storage.files.format import LOCAL_USER
from nplt_storage.store import Shared

log = logging.getLogger(__name__)


class RateLimit:
    """A token bucket that holds at most `size` tokens and gains `size` every `seconds`."""

    __slots__ = ("_filled_at", "_rate", "_size", "tokens")

    def __init__(self, size: float, *, seconds: float) -> None:
        self._size = size
        self._rate = size / seconds
        self.tokens = size
        self._filled_at = anyio.current_time()

    def take(self, *, on_credit: bool = False) -> float:
        """Returns the seconds until a token is available, in whole milliseconds. Takes one if it is
        available now, or on credit."""
        now = anyio.current_time()
        self.tokens = min(self._size, self.tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        wait = max(0.0, (1 - self.tokens) / self._rate)
        if not wait or on_credit:
            self.tokens -= 1
        return math.ceil(wait * 1_000) / 1_000


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _local_token() -> str:
    """Returns the token of this user's programs, for systems that can't look up the user of a local
    connection. It is created at the first start, in a file of its own."""
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


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


class Connection(Protocol):
    """An accepted connection: an `Arrival`, later its session."""

    @property
    def address(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def is_authenticated(self) -> bool: ...
    @property
    def is_undecided(self) -> bool:
        """Whether it may be closed to make room for others."""
        ...

    def send_away(self, reason: str, code: ErrorCode = ErrorCode.UNAVAILABLE) -> None:
        """Closes the connection, after sending the reason if possible."""
        ...


class Arrival:
    """An accepted connection that has no session yet; its TLS handshake may be in progress."""

    __slots__ = ("address", "scope")

    user = ""
    is_authenticated = False
    is_undecided = True

    def __init__(self, address: str) -> None:
        self.address = address
        self.scope = anyio.CancelScope()

    def send_away(self, reason: str, code: ErrorCode = ErrorCode.UNAVAILABLE) -> None:
        self.scope.cancel()  # the reason can't be sent before the TLS handshake


_NEEDS_USERS = (
    "This connection came through a proxy, and this server has no users with tokens: list them "
    "under users in its settings."
)
KEEPALIVE_FACTOR = 1.5
FAILED_TOKENS_MAX = 3
_ADDRESSES_MAX = 10_000
_FORGIVE_SECONDS = 600.0


class Admission:
    def __init__(self, settings: Settings, greeting: str) -> None:
        self.limits = limits = settings.limits
        self.greeting = greeting
        self._token_sums: dict[str, str] = {}
        self._operators: set[str] = set()
        self.replace_users(settings.users)
        self._may_all = settings.local_users == "any" or not can_look_up()
        """Whether all users of this machine may connect, not only `_local_users`."""
        named = () if isinstance(settings.local_users, str) else settings.local_users
        self._local_users = {0, os.geteuid(), *(pwd.getpwnam(name).pw_uid for name in named)}
        if not self._token_sums and settings.local_users != "any" and not can_look_up():
            self._token_sums = {LOCAL_USER: token_digest(_local_token())}
        self.need_tokens = bool(self._token_sums)
        self.proxies = Proxies(settings.listen.proxies)
        self.connected = Activity()
        self._connections: dict[int, Connection] = {}
        """The connections by number, in order of arrival, so that the oldest is found first."""
        self._numbers = count(1)
        self._by_address: Counter[str] = Counter()
        self._wrong_tokens: Counter[str] = Counter()
        self._forgave_at = anyio.current_time()
        self._refusals = RepeatedWarnings(log)
        self.frames: dict[str, RateLimit] = defaultdict(
            lambda: RateLimit(limits.frames_per_second_max, seconds=1.0)
        )
        self.prompts: dict[str, RateLimit] = defaultdict(
            lambda: RateLimit(limits.prompts_per_minute_max, seconds=60.0)
        )
        self.unfinished = ByteBudget(limits.unfinished_bytes_max)
        """The memory for unfinished messages of all connections, authenticated or not."""
        self.unfinished_of_user: dict[str, ByteBudget] = defaultdict(
            lambda: ByteBudget(limits.unfinished_bytes_per_user_max, self.unfinished)
        )

    def reason_to_refuse(self, address: str) -> str | None:
        """Returns why a connection from this address can't be accepted, or None. A full server
        closes its oldest undecided connection to make room, so that slow or unauthenticated clients
        can't keep others out."""
        per_address = self.limits.connections_per_address_max
        is_loopback = address.startswith("127.") or address in ("::1", "")
        is_shared = is_loopback or self.proxies.holds(address)
        if not is_shared and self._by_address[address] >= per_address:
            return (
                f"There are {per_address} connections from your address already. Try again later."
            )
        if len(self._connections) < self.limits.connections_max:
            return None
        for number, connection in self._connections.items():
            if connection.is_undecided:
                connection.send_away(
                    "The server is full, and you have not been admitted yet. Connect again."
                )
                self.sign_out(number)
                return None
        return f"The server is full ({self.limits.connections_max} connections). Try again later."

    def reason_to_refuse_user(self, accepted: Accepted) -> str | None:
        """Returns why a user of this machine is refused, or None. Users of other machines are not
        looked up. What comes through a proxy needs a token, because the user who runs the proxy is
        not the one who uses it."""
        if accepted.is_proxied:
            return None if self.need_tokens else _NEEDS_USERS
        if self._may_all:
            return None
        try:
            user = find_user(accepted.sock)
        except OSError as error:
            return f"This server can't find out whose connection this is: {error}."
        if user is None or user in self._local_users:
            return None
        if user == GONE:
            return "This connection was closed before the server knew whose it is."
        return (
            f"This server belongs to {_name_of(os.geteuid())}, and you are {_name_of(user)}. "
            "Start one of your own, or have listen.local_users set there."
        )

    def is_operator(self, user: str) -> bool:
        """Whether this user may see the status of all users; the only user always may."""
        return len(self._token_sums) <= 1 or user in self._operators

    def authenticate(self, token: str | None) -> str | None:
        """Returns the user's name, or `None` for a wrong token. All digests are compared in
        constant time, so that the duration reveals nothing."""
        if not self.need_tokens:
            return LOCAL_USER
        given = token_digest(token or "")
        found = None
        for name, expected in self._token_sums.items():
            if hmac.compare_digest(given, expected):
                found = name
        return found

    def replace_users(self, users: Sequence[UserSettings]) -> set[str]:
        """Replaces the users, on a server that has some, by others. Returns those whose token was
        removed or changed."""
        before = self._token_sums
        self._token_sums = {user.name: user.token_sha256.lower() for user in users}
        self._operators = {user.name for user in users if user.operator}
        return {name for name, digest in before.items() if self._token_sums.get(name) != digest}

    def token_mark(self, user: str) -> str | None:
        """Returns a text that changes when the user's token does; `None` for an unknown user."""
        if not self.need_tokens:
            return LOCAL_USER if user == LOCAL_USER else None
        digest = self._token_sums.get(user)
        return None if digest is None else token_digest(digest)[:16]

    def has_room_for(self, user: str) -> bool:
        if not self.need_tokens:
            return True
        connections = self._connections.values()
        mine = sum(each.is_authenticated and each.user == user for each in connections)
        return mine < self.limits.connections_per_user_max

    def arrive(self, arrival: Connection) -> int:
        """Registers an accepted connection, and returns its number."""
        number = next(self._numbers)
        self._connections[number] = arrival
        self.connected.begin()
        self._by_address[arrival.address] += 1
        return number

    def sign_in(self, number: int, session: Connection) -> bool:
        """Replaces the arrival by its session. Returns False if it was closed to make room."""
        if number not in self._connections:
            return False
        self._connections[number] = session
        return True

    def sign_out(self, number: int) -> None:
        if (connection := self._connections.pop(number, None)) is not None:
            self.connected.end()
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def connections_of(self, users: Container[str]) -> list[Connection]:
        return [each for each in self._connections.values() if each.user in users]

    def log_refusal(self, address: str, reason: str) -> None:
        """Logs at most one line per address and minute, so that an attacker can't fill the disk."""
        self._refusals.warn(address, f"refused {address or 'a local connection'}: {reason}")

    def penalty_for(self, address: str) -> float:
        """Returns the seconds to wait after a wrong token, more each time for the same address."""
        self._wrong_tokens[address] += 1
        return float(min(0.05 * 2 ** min(self._wrong_tokens[address], 7), 5.0))

    def forgive(self, now: float) -> None:
        """Clears the counts of wrong tokens and refusals after a while, or if there are too
        many."""
        if now - self._forgave_at > _FORGIVE_SECONDS or len(self._wrong_tokens) > _ADDRESSES_MAX:
            self._forgave_at = now
            self._wrong_tokens.clear()
            self._refusals.clear()

    def take_prompt(self, user: str, services: Services) -> None:
        """Counts a prompt, on a server with tokens; without tokens there is one user, who is not
        limited. Raises `rate_limited` if the user has sent too many in a short time."""
        if wait := self.prompts[user].take():
            raise RequestError(
                ErrorCode.RATE_LIMITED,
                f"too many prompts in a short time; try again in {wait:.0f} s",
                retry_after=wait,
            )
        if (shared := services.histories.shared) is not None:
            services.spawn(partial(self._count_prompt, user, shared))

    async def _count_prompt(self, user: str, shared: Shared) -> None:
        """Counts a prompt in the shared store, and updates the local limit with the prompts at
        other servers. This runs in the background: prompts sent elsewhere count here from the
        user's next prompt on."""
        with suppress(StorageUnavailable):
            left = await shared.count_prompt(user, self.limits.prompts_per_minute_max)
            self.prompts[user].tokens = min(self.prompts[user].tokens, left)
