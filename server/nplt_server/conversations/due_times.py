"""Knows when the prompts for later are due.

`DueTimes` knows one time for each conversation: that of its first prompt for later. A time is
measured from the moment at which it is noted, by a clock that nobody sets and that goes on while
the machine sleeps, so that a change of the time of day makes no prompt early. `due_prompts` waits
for these times; the record of each conversation says which of its prompts are due.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
from msgspec import Struct

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_server.settings import Limits
from nplt_storage.durations import boot_time
from nplt_storage.rows import ConversationRow

_SLEEP_SECONDS_MAX: Final = 5.0
"""While the machine sleeps, a timer of the event loop does not go on."""
_LATE_SECONDS: Final = 10.0


class DueConversation(Struct, frozen=True, kw_only=True):
    session_id: str
    user: str
    due_at: datetime
    """All of its prompts up to this time are due."""
    deadline: float


class DueTimes:
    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float] = boot_time,
    ) -> None:
        self.is_restoring = False
        """The prompts for later of a restored back-up are being held; meanwhile, none is run or
        accepted."""
        self._limits = limits
        self._clock = clock
        self._monotonic = monotonic
        self._known: dict[str, DueConversation] = {}
        self._changed = anyio.Event()

    def __len__(self) -> int:
        return len(self._known)

    def now(self) -> datetime:
        return self._clock()

    def is_late(self, due_at: datetime) -> bool:
        """Whether the time has passed so long ago that no server can have been there to run it."""
        return (self.now() - due_at).total_seconds() > _LATE_SECONDS

    def note(self, row: ConversationRow) -> None:
        """Notes when the conversation's first prompt for later is due, or that it has none."""
        due_at, known = row.due_at, self._known.get(row.session_id)
        if due_at is None:
            self._known.pop(row.session_id, None)
            return
        if known is not None and known.due_at == due_at:
            deadline = known.deadline
        else:
            deadline = self._monotonic() + (due_at - self.now()).total_seconds()
        self._known[row.session_id] = DueConversation(
            session_id=row.session_id,
            user=row.user,
            due_at=due_at,
            deadline=deadline,
        )
        self._changed.set()

    def forget(self, session_id: str) -> None:
        self._known.pop(session_id, None)

    async def next(self) -> list[DueConversation]:
        """Waits until some are due. They are forgotten here until they are noted again."""
        while True:
            self._changed = anyio.Event()
            now = self._monotonic()
            due = [each for each in self._known.values() if each.deadline <= now]
            if due:
                for each in due:
                    del self._known[each.session_id]
                return sorted(due, key=lambda each: each.due_at)
            first = min((each.deadline for each in self._known.values()), default=math.inf)
            with anyio.move_on_after(min(first - now, _SLEEP_SECONDS_MAX) if self._known else None):
                await self._changed.wait()

    def resolve(self, not_before: str | float) -> datetime:
        """The instant that a prompt gives as `not_before`. Raises `malformed`."""
        if self.is_restoring:
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                "the server is still reading a restored back-up; try again in a moment",
                retry_after=1.0,
            )
        now = self.now()
        try:
            if isinstance(not_before, str):
                due_at = datetime.fromisoformat(not_before)
                if due_at.tzinfo is None:
                    raise _malformed("a time needs an offset from UTC, as in 2026-03-01T09:00:00Z")
                due_at = due_at.astimezone(UTC)
            else:
                due_at = now + timedelta(seconds=not_before)
        except (ValueError, OverflowError):
            raise _malformed("give a time by RFC 3339, or a number of seconds") from None
        if due_at - now > timedelta(days=self._limits.later_days_max):
            days = f"{self._limits.later_days_max:g} days"
            raise _malformed(f"a prompt can't be for later than {days} from now")
        return due_at


def _malformed(message: str) -> RequestError:
    return RequestError(ErrorCode.MALFORMED, message, field="not_before")
