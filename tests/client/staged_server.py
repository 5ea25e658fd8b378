"""A conversation with known words, on a real socket: for looking at the screen.

Every kind of request gets a fixed reply; a prompt gets the events that were
prepared for it. Nothing depends on a clock or on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.client.scripted_peer import MODEL, SESSION, Script, Talk, receipt

from nplt_protocol.codec import encode_event
from nplt_protocol.codes import MessageType
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    REQUEST_TYPES,
    Approval,
    Attach,
    Attached,
    Cancel,
    Cancelled,
    Event,
    HistoryPage,
    HistoryRequest,
    ModelChoice,
    ModelSwitch,
    PageEdges,
    Ping,
    Pong,
    Prompt,
    Reply,
    Request,
    Search,
    SearchHit,
    SearchHits,
    SessionDelete,
    SessionDeleted,
    SessionList,
    SessionRow,
    SessionRows,
    SessionSwitch,
    SessionUpdate,
    Usage,
    UsageAccount,
)

_TYPE_OF = {kind: code for code, kind in REQUEST_TYPES.items() if code != MessageType.CHAT_TEXT}


@dataclass(kw_only=True)
class Stage:
    name: str = "a staged conversation"
    model: str = MODEL
    messages: Sequence[JsonObject] = ()
    sessions: Sequence[SessionRow] = ()
    hits: Sequence[SearchHit] = ()
    answers: Callable[[Prompt], Sequence[Event]] = lambda prompt: ()
    clients: Sequence[JsonObject] = ()
    usage: JsonObject = field(default_factory=dict)
    percent: float = 0.0
    cost: JsonObject | None = None
    asked: list[Request] = field(default_factory=list)
    """All that was asked, in order."""

    def script(self) -> Script:
        def play(talk: Talk) -> None:
            talk.welcome(model=self.model, models=(self.model,))
            while True:
                self.serve(talk)

        return play

    def serve(self, talk: Talk) -> None:
        received = talk.next_request()
        request = received.request
        self.asked.append(request)
        if isinstance(request, Prompt):
            events = self.answers(request)
            reply = talk.connection.send_reply(
                MessageType.PROMPT, received.seq, receipt(request, _turn_of(events))
            )
            talk.send(reply + b"".join(map(encode_event, events)))
        else:
            talk.reply(_TYPE_OF[type(request)], received.seq, self._reply_to(request))

    def _reply_to(self, request: Request) -> Reply | JsonObject:
        match request:
            case HistoryRequest():
                return self._page(request)
            case Usage():
                return self._account()
            case Search():
                return SearchHits(hits=tuple(self.hits), next_cursor=None)
            case SessionDelete():
                return SessionDeleted(session_id=request.session_id, current_session_id=SESSION)
            case SessionUpdate():
                return next(row for row in self.sessions if row.session_id == request.session_id)
            case SessionList():
                return SessionRows(sessions=tuple(self.sessions), next_cursor=None)
            case Attach() | SessionSwitch():
                return self._attached(request.session_id)
            case ModelSwitch():
                return ModelChoice(
                    model=self.model, previous_model=self.model, models=(self.model,)
                )
            case Cancel():
                return Cancelled(cancelled=True)
            case Ping():
                return Pong(data=request.data)
            case Approval():
                return {
                    "approval_id": request.approval_id,
                    "decision": request.decision,
                    "decided_by": "local",
                }
            case _:
                raise AssertionError(f"nobody prepared an answer to {request}")

    def _page(self, request: HistoryRequest) -> HistoryPage:
        before = request.before or len(self.messages) + 1
        first = max(1, before - request.limit)
        shown = tuple(self.messages[first - 1 : before - 1])
        return HistoryPage(
            session_id=SESSION,
            name=self.name,
            message_count=len(self.messages) + sum(isinstance(one, Prompt) for one in self.asked),
            head_seq=len(self.messages),
            messages=shown,
            page=PageEdges(
                has_more_before=first > 1,
                has_more_after=False,
                before=first,
                after=before - 1,
            ),
        )

    def _account(self) -> UsageAccount:
        return UsageAccount(
            session_id=SESSION,
            model=self.model,
            billed=self.usage,
            occupancy={"percent": self.percent},
            estimate={},
            cost=self.cost,
        )

    def _attached(self, session_id: str) -> Attached:
        return Attached(
            session_id=session_id,
            name=self.name,
            model=self.model,
            head_seq=len(self.messages),
            active_turn=None,
            queue=(),
            clients=tuple(self.clients),
        )


def give_empty_history(talk: Talk) -> None:
    """What a chat asks for when it enters a conversation, for a script without a `Stage`."""
    edges = PageEdges(has_more_before=False, has_more_after=False, before=0, after=0)
    page = HistoryPage(
        session_id=SESSION, name="n", message_count=0, head_seq=0, messages=(), page=edges
    )
    talk.reply(MessageType.HISTORY_REQUEST, talk.expect(HistoryRequest)[0], page)


def _turn_of(events: Sequence[Event]) -> str:
    return next((turn_id for one in events if (turn_id := getattr(one, "turn_id", None))), "turn-1")


def message_json(seq: int, role: str, content: str, **more: object) -> JsonObject:
    message: JsonObject = {
        "seq": seq,
        "id": f"{seq:032x}",
        "role": role,
        "content": content,
        "timestamp": "2026-01-02T03:04:05+00:00",
        "tool_calls": [],
        "metadata": {},
        "turn_id": f"turn-of-{(seq + 1) // 2}",
    }
    return {**message, **more}  # type: ignore[dict-item]


def talked(turns: int) -> list[JsonObject]:
    """So many questions, each with an answer."""
    return [
        message_json(seq, "user" if seq % 2 else "assistant", f"message number {seq}")
        for seq in range(1, 2 * turns + 1)
    ]
