"""Who wants to hear of a conversation: the feeds, and the turns that are followed.

They outlive connections. A turn is followed from its receipt on; one whose
prompt was sent again is recognized in the replay by its `message_id`, before
the receipt comes, for its words may already be in that replay.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from weakref import WeakSet

from nplt_client.errors import MovedElsewhere, NpltError
from nplt_client.mailbox import EventFeed, Mailbox, forget_when_full
from nplt_client.retelling import Storyline
from nplt_protocol.events import EntryAdded, Event, TurnFinished, TurnStarted
from nplt_protocol.replies import Receipt

OWN_TURNS_REMEMBERED = 1_000


@dataclass(slots=True, kw_only=True)
class Followed:
    session_id: str
    turn_id: str
    mailbox: Mailbox
    prompt_seq: int
    heard_seq: int = 0
    """The newest of its entries that was put into its mailbox."""
    story: Storyline = field(default_factory=Storyline)
    has_started: bool = False
    is_over: bool = False

    def put(self, event: Event) -> None:
        if isinstance(event, EntryAdded):
            if isinstance(seq := event.entry.get("seq"), int):
                if seq <= self.heard_seq:
                    return
                self.heard_seq = seq
            self.story.take(event)
        self.has_started |= isinstance(event, TurnStarted)
        self.is_over |= isinstance(event, TurnFinished)
        self.mailbox.put(event)


class Listeners:
    def __init__(self) -> None:
        self._turns: dict[str, Followed] = {}
        self._expected: dict[str, Mailbox] = {}
        self._feeds: WeakSet[Mailbox] = WeakSet()
        self._own_turns: deque[str] = deque(maxlen=OWN_TURNS_REMEMBERED)
        self._end: NpltError | None = None

    @property
    def turns(self) -> tuple[Followed, ...]:
        return tuple(self._turns.values())

    @property
    def newest_own_turn(self) -> str | None:
        return self._own_turns[-1] if self._own_turns else None

    def started_here(self, turn_id: str | None) -> bool:
        return turn_id in self._own_turns

    def feed(self) -> EventFeed:
        mailbox = Mailbox(forget_when_full)
        if self._end is not None:
            mailbox.close(self._end)
        self._feeds.add(mailbox)
        return EventFeed(mailbox)

    def expect(self, message_id: str, mailbox: Mailbox) -> None:
        self._expected[message_id] = mailbox

    def expect_no_more(self, message_id: str) -> None:
        self._expected.pop(message_id, None)

    def follow(self, receipt: Receipt, mailbox: Mailbox) -> None:
        """At once when the receipt comes: its events may be in the very same batch."""
        if not self.started_here(receipt.turn_id):
            self._own_turns.append(receipt.turn_id)
        self._turns.setdefault(
            receipt.turn_id,
            Followed(
                session_id=receipt.session_id,
                turn_id=receipt.turn_id,
                mailbox=mailbox,
                prompt_seq=receipt.seq,
            ),
        )

    def followed(self, turn_id: str) -> Followed | None:
        return self._turns.get(turn_id)

    def unfollow(self, turn_id: str) -> None:
        self._turns.pop(turn_id, None)

    def put(self, event: Event) -> None:
        if self._expected and isinstance(event, EntryAdded):
            self._recognize(event)
        followed = self._turns.get(getattr(event, "turn_id", None) or "")
        if followed is not None:
            followed.put(event)
        self.put_to_feeds(event)

    def put_to_feeds(self, event: Event) -> None:
        for feed in tuple(self._feeds):
            feed.put(event)

    def leave_turns_except(self, session_id: str | None) -> None:
        for turn in self.turns:
            if turn.session_id != session_id:
                turn.mailbox.close(
                    MovedElsewhere(
                        "this client went to another conversation; the turn goes on there"
                    )
                )

    def close_turns(self, error: NpltError) -> None:
        for turn in self.turns:
            turn.mailbox.close(error)

    def close(self, error: NpltError, *, feeds_end_quietly: bool = False) -> None:
        self._end = error
        self.close_turns(error)
        for feed in tuple(self._feeds):
            feed.close(None if feeds_end_quietly else error)

    def _recognize(self, event: EntryAdded) -> None:
        message_id, seq = event.entry.get("message_id"), event.entry.get("seq")
        if not (isinstance(message_id, str) and event.turn_id and isinstance(seq, int)):
            return
        mailbox = self._expected.pop(message_id, None)
        if mailbox is not None:
            receipt = Receipt(
                turn_id=event.turn_id,
                session_id=event.session_id,
                seq=seq,
                message_id=message_id,
                position=0,
                state="running",
            )
            self.follow(receipt, mailbox)
