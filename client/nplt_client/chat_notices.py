"""What others do in our conversation, while we type or wait.

A thread of its own follows the events. A notice is shown at once while the
person is at the prompt, on a line of its own, with the half-typed line put
back below it; while an answer streams it is held until the answer is done. Our
own turns are shown by the chat itself and left out here.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nplt_client.approving import question_text
from nplt_client.connection_states import ConnectionState, Online, Reconnecting
from nplt_client.errors import NpltError
from nplt_client.line_input import LineInput
from nplt_client.pending import pending_questions
from nplt_client.sanitize import sanitize, sanitize_line
from nplt_client.sync import Client, EventFeed
from nplt_client.terminal import Paint, colour_wanted, is_terminal
from nplt_protocol.events import ApprovalRequest, EntryAdded, ErrorReport, Event, SessionEvent
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Attached


class NoticeBoard:
    def __init__(self, client: Client, lines: LineInput) -> None:
        self.lost: NpltError | None = None
        self._client = client
        self._lines = lines
        self._mutex = threading.Lock()
        self._held: list[str] = []
        self._at_prompt = False
        self._was_lost = False
        self._own_deeds: set[tuple[str, str]] = set()
        self.questions: dict[str, ApprovalRequest] = {}
        """What others' turns wait for, the oldest first."""
        self._feed: EventFeed = client.events()
        self._paint = Paint(enabled=colour_wanted(sys.stderr))
        self._thread = threading.Thread(target=self._follow, name="nplt-notices", daemon=True)
        self._thread.start()

    def open(self) -> None:
        """The person is at the prompt from now on."""
        with self._mutex:
            for notice in self._held:
                self._write(notice + "\n")
            self._held.clear()
            self._at_prompt = True

    def hold(self) -> None:
        with self._mutex:
            self._at_prompt = False

    @contextmanager
    def expecting(self, event: str, value: str) -> Iterator[None]:
        """Our own command causes this, unless it is refused; the person need not be told."""
        self._own_deeds.add((event, value))
        try:
            yield
        except NpltError:
            self._own_deeds.discard((event, value))
            raise

    def tell_pending(self, attached: Attached) -> None:
        """What waited for an answer before we came."""
        self.questions.clear()
        for question in pending_questions(attached):
            if notice := self.wanted(question):
                self._show(notice)

    def close(self) -> None:
        self.hold()
        self._feed.close()
        self._thread.join(timeout=5)

    def _follow(self) -> None:
        try:
            for event in self._feed:
                notice = self._notice_of(event)
                if notice:
                    self._show(notice)
        except NpltError as error:
            self._lose(error)
        except RuntimeError:
            pass  # the event loop is gone: the chat is over

    def _lose(self, error: NpltError) -> None:
        """Whoever sits at the prompt would never notice by himself."""
        with self._mutex:
            self.lost = error
            if self._at_prompt:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _notice_of(self, event: Event) -> str | None:
        match event:
            case EntryAdded() if not self._client.started_here(event.turn_id):
                return _entry_notice(event)
            case SessionEvent(event="lagged"):
                return "(some events were missed; /history has them)"
            case SessionEvent():
                return self._session_notice(event)
            case ApprovalRequest() if not self._client.started_here(event.turn_id):
                return self.wanted(event)
            case ErrorReport():
                return sanitize_line(f"(the server says: {event.message})")
            case _:
                return None

    def wanted(self, event: ApprovalRequest) -> str | None:
        """Someone else's turn waits for an answer, which anyone may give."""
        if event.approval_id in self.questions:
            return None
        self.questions[event.approval_id] = event
        return f"({question_text(event).rpartition('?')[0]}? /allow or /deny)"

    def connection_changed(self, state: ConnectionState) -> None:
        """Called in the connection's thread. Said once per loss, not per attempt."""
        match state:
            case Reconnecting(attempt=1) if state.in_seconds:
                self._was_lost = True
                self._show(sanitize_line(f"({state.reason}; reconnecting …)"))
            case Online() if self._was_lost:
                self._was_lost = False
                self._show("(online again)")
            case _:
                pass

    def _session_notice(self, event: SessionEvent) -> str | None:
        if event.event == "approval":
            return self._decided(event.details)
        value = str(event.details.get("name") or event.details.get("model") or "")
        if (event.event, value) in self._own_deeds:
            self._own_deeds.discard((event.event, value))
            return None
        sentence = _DEEDS.get(event.event)
        return sanitize_line(f"({sentence} {value}".rstrip() + ")") if sentence else None

    def _decided(self, details: JsonObject) -> str | None:
        event = self.questions.pop(str(details.get("approval_id")), None)
        if event is None:
            return None
        who, decision = details.get("decided_by") or "nobody", details.get("decision")
        return sanitize_line(f"({who} decided about {event.tool_name}: {decision})")

    def _show(self, notice: str) -> None:
        with self._mutex:
            if not self._at_prompt:
                self._held.append(notice)
            elif not self._lines.interactive:
                self._write(notice + "\n")
            elif self._paint.enabled and is_terminal(sys.stderr):
                self._write(f"\r\x1b[K{self._paint.dim(notice)}\n{self._typed()}")
            else:
                self._write(f"\n{notice}\n{self._typed()}")

    def _typed(self) -> str:
        return sanitize(self._lines.shown)

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


_DEEDS = {
    "renamed": "this conversation is now called",
    "model": "the model is now",
    "cleared": "cleared: the model is shown nothing older",
    "rolled_back": "some messages were rolled back",
    "redacted": "what a message said was erased for good",
    "system": "the model is given another instruction from now on",
    "deleted": "this conversation was deleted",
    "shutdown": "the server is shutting down",
}


def _entry_notice(event: EntryAdded) -> str | None:
    content = event.entry.get("content")
    if not isinstance(content, str) or not content.strip():
        return None
    match event.entry.get("role"):
        case "user":
            return f"someone ▸ {sanitize(content)}"
        case "assistant":
            return f"answer ▸ {sanitize(content)}"
        case _:
            return None
