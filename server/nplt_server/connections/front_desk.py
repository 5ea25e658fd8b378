"""Who is connected: admission, the guest book, and those who went silent.

One sweep a second looks after all connections together; no connection has a
timer of its own while nothing is wrong with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from nplt_server.connections.pace import Bucket
from nplt_server.connections.users import Users
from nplt_server.conversations.activity import Activity

if TYPE_CHECKING:
    from nplt_server.connections.session import Session

_ADDRESSES_MAX = 10_000
_FORGIVE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    connections_max: int = 1_000
    connections_per_address_max: int = 50
    connections_per_user_max: int = 256
    hello_seconds_max: float = 5.0
    plain_heartbeat_seconds: float = 90.0
    plain_silence_seconds_max: float = 180.0
    keepalive_factor: float = 1.5
    failed_tokens_max: int = 3
    frames_per_second_max: float = 200.0
    prompts_per_minute_max: float = 30.0


class FrontDesk:
    def __init__(self, *, users: Users, limits: ConnectionLimits, greeting: str) -> None:
        self.users = users
        self.limits = limits
        self.greeting = greeting
        # In order of arrival, so that the oldest is found first.
        self._sessions: dict[Session, None] = {}
        self._by_address: Counter[str] = Counter()
        self._wrong_tokens: Counter[str] = Counter()
        self._forgave_at = 0.0
        self._frames: dict[str, Bucket] = {}
        self._prompts: dict[str, Bucket] = {}
        self._guests = Activity()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions))

    def reason_to_refuse(self, address: str) -> str | None:
        """Makes room by sending away the oldest connection that never said a
        whole frame: slow senders must not keep anybody out."""
        per_address = self.limits.connections_per_address_max
        if not _is_loopback(address) and self._by_address[address] >= per_address:
            return (
                f"There are {per_address} connections from your address already. Try again later."
            )
        if len(self._sessions) < self.limits.connections_max:
            return None
        for session in self._sessions:
            if session.is_undecided:
                session.send_away("Others need the place: you said nothing.")
                self.sign_out(session)
                return None
        return f"The server is full ({self.limits.connections_max} connections). Try again later."

    def has_room_for(self, user: str) -> bool:
        if not self.users.need_tokens:
            return True
        mine = sum(1 for session in self._sessions if session.user == user)
        return mine < self.limits.connections_per_user_max

    def sign_in(self, session: Session) -> None:
        self._sessions[session] = None
        self._guests.begin()
        self._by_address[session.address] += 1

    def sign_out(self, session: Session) -> None:
        if session in self._sessions:
            del self._sessions[session]
            self._guests.end()
            self._by_address[session.address] -= 1
            if not self._by_address[session.address]:
                del self._by_address[session.address]

    def penalty_for(self, address: str) -> float:
        """Seconds a wrong token costs: more each time from the same address."""
        self._wrong_tokens[address] += 1
        return float(min(0.05 * 2 ** min(self._wrong_tokens[address], 7), 5.0))

    async def keep_pace(self, user: str) -> None:
        """Returns when this user's next frame may be taken up."""
        limit = self.limits.frames_per_second_max
        wait = self._bucket(self._frames, user, limit, 1.0).borrow(anyio.current_time())
        if wait:
            await anyio.sleep(wait)

    def seconds_until_prompt(self, user: str) -> float:
        """0: this user may prompt, and that was counted."""
        if not self.users.need_tokens:
            return 0.0
        limit = self.limits.prompts_per_minute_max
        return self._bucket(self._prompts, user, limit, 60.0).take(anyio.current_time())

    def _bucket(self, buckets: dict[str, Bucket], user: str, size: float, seconds: float) -> Bucket:
        if user not in buckets:
            buckets[user] = Bucket(size, seconds=seconds, now=anyio.current_time())
        return buckets[user]

    async def empty(self) -> None:
        await self._guests.quiet()

    def sweep(self, now: float) -> None:
        if now - self._forgave_at > _FORGIVE_SECONDS or len(self._wrong_tokens) > _ADDRESSES_MAX:
            self._forgave_at = now
            self._wrong_tokens.clear()
        for session in self:
            session.check_pulse(now)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "")
