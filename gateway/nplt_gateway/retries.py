"""Recognizes requests that are sent again.

A request with an `Idempotency-Key` has it in the id of its prompt, so that the prompt runs once
(`ids_of_key`). The SDKs of OpenAI send a request again by themselves when its connection breaks
(`x-stainless-retry-count`), and give it no key. Such a request joins the turn that is there, if it
is certain which one that is: the same user sent the same body within ten minutes, exactly one turn
has that body, it is the newest of its conversation, and its connection broke before the client had
the final event. Equal bodies alone prove nothing, because people say "yes" twice.

`SentRequests` remembers the requests of this process. A request joins by sending its prompt with
the `message_id` of the first one: the server then sends the receipt of that turn again. After a
restart, or at another server, only a turn that has no end yet, or was cut off by a server's death,
is certain not to have reached its client.

    if retry_count > 0 and (first := sent.to_join(user, body_sha256)) is not None:
        message_id, session_id = first.message_id, first.session_id
    …
    request = sent.add(user, body_sha256, receipt, message_id)
    …
    request.finish()          # the final event was written; or
    request.lose()            # the connection broke before
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from time import monotonic
from typing import Final, Literal

from nplt_protocol.messages import Receipt

JOIN_SECONDS_MAX: Final = 600.0
_REMEMBERED_MAX: Final = 10_000
_DAY_SECONDS: Final = 24 * 3_600


def ids_of_key(key: str, now: datetime) -> tuple[str, str]:
    """The ids that the prompt of a request with this key has if it is sent today, and if it was
    sent yesterday. So a key holds for at least 24 hours, and at most for 48."""
    day = int(now.timestamp()) // _DAY_SECONDS

    def id_on(day: int) -> str:
        return f"request-{sha256(f'{day} {key}'.encode()).hexdigest()[:32]}"

    return id_on(day), id_on(day - 1)


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request whose prompt is stored."""

    user: str
    body_sha256: str
    session_id: str
    turn_id: str
    message_id: str
    sent_at: float
    state: Literal["open", "finished", "lost"] = "open"

    def finish(self) -> None:
        """The client has the final event."""
        self.state = "finished"

    def lose(self) -> None:
        """The connection broke before the client had the final event."""
        if self.state == "open":
            self.state = "lost"


@dataclass(slots=True)
class SentRequests:
    clock: Callable[[], float] = monotonic
    _requests: OrderedDict[str, SentRequest] = field(default_factory=OrderedDict)
    """The requests by turn, in the order in which they were sent."""
    _by_body: defaultdict[tuple[str, str], set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )
    _newest: dict[str, str] = field(default_factory=dict)
    """The newest turn of each conversation among the requests. The caller of `to_join` checks that
    no turn has come another way since."""

    def add(self, user: str, body_sha256: str, receipt: Receipt, message_id: str) -> SentRequest:
        """Notes a request when it has its receipt. One that joined a turn takes the place of the
        one that it repeats."""
        request = SentRequest(
            user=user,
            body_sha256=body_sha256,
            session_id=receipt.session_id,
            turn_id=receipt.turn_id,
            message_id=message_id,
            sent_at=self.clock(),
        )
        self._forget(receipt.turn_id)
        self._requests[receipt.turn_id] = request
        self._by_body[user, body_sha256].add(receipt.turn_id)
        self._newest[receipt.session_id] = receipt.turn_id
        self._forget_old()
        return request

    def to_join(self, user: str, body_sha256: str) -> SentRequest | None:
        """The request that this one repeats, if that is certain."""
        self._forget_old()
        turns = self._by_body.get((user, body_sha256), ())
        if len(turns) != 1:
            return None
        request = self._requests[next(iter(turns))]
        is_newest = self._newest.get(request.session_id) == request.turn_id
        return request if request.state == "lost" and is_newest else None

    def has(self, user: str, body_sha256: str) -> bool:
        """Whether such a request came to this process lately."""
        return (user, body_sha256) in self._by_body

    def knows(self, turn_id: str) -> bool:
        """Whether a request for that turn came to this process lately."""
        return turn_id in self._requests

    def _forget_old(self) -> None:
        since = self.clock() - JOIN_SECONDS_MAX
        while self._requests:
            turn_id, request = next(iter(self._requests.items()))
            if request.sent_at >= since and len(self._requests) <= _REMEMBERED_MAX:
                return
            self._forget(turn_id)

    def _forget(self, turn_id: str) -> None:
        request = self._requests.pop(turn_id, None)
        if request is None:
            return
        key = request.user, request.body_sha256
        self._by_body[key].discard(turn_id)
        if not self._by_body[key]:
            del self._by_body[key]
        if self._newest.get(request.session_id) == turn_id:
            del self._newest[request.session_id]
