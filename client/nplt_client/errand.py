"""One prompt and its answer, blocking, over as many connections as it takes.

What `nplt ask` needs of the library's reconnecting, without an event loop: the
same cursor, the same patience, the same reading from the record. A connection
that is lost is looked for again within the command's own deadline, and not for
longer than a minute.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic

from nplt_client.cursor import Cursor
from nplt_client.errors import ConnectionLost, NpltError, RequestRefused
from nplt_client.interrupts import Interrupts
from nplt_client.link import Link
from nplt_client.patience import Backoff, Patience, worth_another_try
from nplt_client.retelling import ENDED, Storyline, retelling
from nplt_client.settings import RECONNECT_SECONDS_MAX, find_reconnect_seconds
from nplt_client.turn_record import TurnRecord
from nplt_protocol.events import EntryAdded, Event, SessionEvent
from nplt_protocol.replies import Attached, Receipt
from nplt_protocol.requests import Prompt

Took = Callable[[Event, str], None]
"""An event of the turn, and the piece of the answer it adds."""


class Errand:
    def __init__(
        self,
        link: Link,
        prompt: Prompt,
        *,
        cursor: Cursor,
        reopen: Callable[[], Link],
    ) -> None:
        self.link = link
        self.record = TurnRecord()
        self._prompt = prompt
        self._cursor = cursor
        self._reopen = reopen
        self._interrupts: Interrupts | None = None
        self._story = Storyline()
        self._patience = Patience(give_up_seconds=find_reconnect_seconds(RECONNECT_SECONDS_MAX))

    def watch(self, interrupts: Interrupts) -> None:
        """Ctrl+C is noticed in every wait from now on."""
        self._interrupts = self.link.interrupts = interrupts

    def ask(self) -> Receipt:
        """Until the prompt is on the server's disk."""
        while True:
            try:
                receipt = self.record.receipt = self.link.request(self._prompt, Receipt)
            except ConnectionLost as lost:
                self._come_back(lost)
            else:
                if receipt.session_id != self._cursor.session_id:
                    self._cursor = Cursor(session_id=receipt.session_id, seq=receipt.seq - 1)
                return receipt

    def hear(self, took: Took) -> None:
        """Until the turn is over."""
        receipt = self._receipt
        if receipt.duplicate and receipt.state in ENDED:
            self._hear_of_the_end(took)
        while self.record.finished is None:
            try:
                self._take(self.link.next_event(), took)
            except ConnectionLost as lost:
                if self._come_back(lost):
                    self._hear_of_the_end(took)
        if self.record.lacks_text:
            self._read_again(took)

    def close(self) -> None:
        self.link.close()

    @property
    def _receipt(self) -> Receipt:
        assert self.record.receipt is not None
        return self.record.receipt

    def _take(self, event: Event, took: Took) -> None:
        if isinstance(event, SessionEvent) and event.event == "lagged":
            # Whoever reads our stdout was so slow that the server dropped events for us.
            if self._take_up():
                self._hear_of_the_end(took)
            return
        new = self._cursor.take(event)
        if new is None or getattr(new, "turn_id", None) != self._receipt.turn_id:
            return
        if isinstance(new, EntryAdded):
            self._story.take(new)
        took(new, self.record.apply(new))

    def _hear_of_the_end(self, took: Took) -> None:
        """No more events will come of it, but those that have come already."""
        while self.record.finished is None and self.link.has_events:
            self._take(self.link.next_event(), took)
        if self.record.finished is not None:
            return
        if self._story.end is not None:
            took(self._story.end, self.record.apply(self._story.end))
        else:
            self._read_again(took)

    def _read_again(self, took: Took) -> None:
        story = retelling(self._receipt)
        try:
            request = next(story)
            while True:
                request = story.send(self.link.look_up(request))
        except StopIteration as told:
            for event in told.value:
                took(event, self.record.apply(event))

    # Lost and found

    def _come_back(self, lost: NpltError) -> bool:
        """Whether the turn was over when we came back."""
        backoff = Backoff(self._patience)
        backoff.lost(monotonic())
        while (delay := backoff.next_delay(monotonic())) is not None:
            self.link.close()
            self._wait(delay)
            try:
                self.link = self._reopen()
                self.link.interrupts = self._interrupts
                return self._take_up()
            except NpltError as error:
                if not worth_another_try(error):
                    raise
                self.link.deadline.left()  # speaks up when it is over
                lost = error
        raise lost

    def _wait(self, seconds: float) -> None:
        left = self.link.deadline.left()
        patience = seconds if left is None else min(seconds, left)
        watched = [] if self._interrupts is None else [self._interrupts]
        select.select(watched, [], [], patience)
        if self._interrupts is not None:
            self._interrupts.check()

    def _take_up(self) -> bool:
        place = self._cursor.attach()
        try:
            attached = self.link.request(place, Attached)
        except RequestRefused:
            if self.record.receipt is not None or self._cursor.seq:
                raise
            # It was only reserved for us, by a server that is no more.
            self._cursor = Cursor(session_id=self.link.welcome.session_id)
            return False
        self._cursor = self._cursor.moved(attached, place)
        if self.record.receipt is None:
            return False
        running = attached.active_turn.turn_id if attached.active_turn else None
        return self._receipt.turn_id not in (running, *attached.queue)
