"""From the server's events to changes on the screen. Pure but for its memory.

The memory is small: how much of each running call's text was told already (a
piece sent twice counts once, offsets say which), and the sanitizer's state for
each of them. What is stored replaces what was streamed. That a turn is over is
told by its last entry too: whoever was away when it ended hears no other word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nplt_client.fullscreen.changes import (
    ApprovalSettled,
    ApprovalWanted,
    Change,
    Doing,
    ModelChanged,
    OutOfDate,
    PresenceChanged,
    PromptShown,
    ReasoningGrew,
    ReasoningStands,
    Renamed,
    TextGrew,
    TextStands,
    Told,
    ToolShown,
    TurnBegan,
    TurnEnded,
)
from nplt_client.fullscreen.company import guests_in
from nplt_client.fullscreen.retold import (
    answer_changes,
    arguments_shown,
    fault_changes,
    tokens_of,
    tool_changes,
)
from nplt_client.fullscreen.safe_text import SafeStream, safe, safe_json, safe_line
from nplt_protocol.events import (
    AgentThought,
    ApprovalRequest,
    EntryAdded,
    ErrorReport,
    Event,
    SessionEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from nplt_protocol.json_values import JsonObject

_SAID_BY_OTHER_EVENTS = frozenset({"tool_call"})

_OUT_OF_DATE = {
    "lagged": "some events were missed; read again",
    "rolled_back": "some messages were rolled back",
    "redacted": "a message was erased",
}
_REMARKS = {
    "cleared": "cleared: the model is shown nothing older",
    "compacted": "compacted: the model is shown older turns in less detail",
    "deleted": "this conversation was deleted",
    "quarantined": "an entry was quarantined: models are not shown it",
    "released": "an entry is no longer quarantined: models are shown it again",
    "shutdown": "the server is shutting down",
}


class _Flow:
    """One call's text, or its reasoning, as it comes. `length` counts as offsets do."""

    __slots__ = ("_stream", "_told", "length")

    def __init__(self) -> None:
        self.length = 0
        self._stream = SafeStream()
        self._told: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._told)

    def unseen(self, text: str, offset: int | None) -> str:
        start = self.length if offset is None else offset
        new = text[max(0, self.length - start) :]
        self.length = max(self.length, start + len(text))
        piece = self._stream.feed(new)
        self._told.append(piece)
        return piece


class Story:
    def __init__(self, started_here: Callable[[str | None], bool]) -> None:
        self._started_here = started_here
        self._texts: dict[tuple[str, int], _Flow] = {}
        self._reasoning: dict[tuple[str, int], _Flow] = {}

    def start_over(self) -> None:
        self._texts.clear()
        self._reasoning.clear()

    def so_far(self) -> list[Change]:
        """What runs, as far as it was told: for a screen that begins anew."""
        return [
            *(
                ReasoningStands(turn_id=turn_id, call=call, text=flow.text)
                for (turn_id, call), flow in self._reasoning.items()
            ),
            *(
                TextStands(turn_id=turn_id, call=call, text=flow.text, is_whole=False)
                for (turn_id, call), flow in self._texts.items()
            ),
        ]

    def changes_of(self, event: Event) -> list[Change]:
        return list(self._tell(event))

    def _tell(self, event: Event) -> Iterator[Change]:
        match event:
            case TextDelta():
                yield from self._grow(event)
            case AgentThought():
                yield from self._think(event)
            case TurnStarted():
                yield TurnBegan(turn_id=event.turn_id, model=safe_line(event.model))
            case EntryAdded():
                yield from self._enter(event)
            case ToolStarted() | ToolFinished():
                yield _tool(event)
            case TurnFinished():
                yield self._end(event)
            case ApprovalRequest():
                yield ApprovalWanted(
                    approval_id=event.approval_id,
                    tool_name=safe_line(event.tool_name),
                    arguments=arguments_shown(event.arguments, event.size),
                    expires_at=safe_line(event.expires_at),
                )
            case SessionEvent():
                yield from _happen(event)
            case ErrorReport():
                yield Told(text=f"the server says: {safe_line(event.message)}", is_error=True)

    def _grow(self, event: TextDelta) -> Iterator[Change]:
        key = (event.turn_id, event.call)
        if event.replay_from is not None:
            # Told again from an earlier place: with that place 0, all of it.
            self._texts.pop(key, None)
            yield TextStands(turn_id=event.turn_id, call=event.call, text="", is_whole=False)
        flow = self._texts.setdefault(key, _Flow())
        if piece := flow.unseen(event.text, event.offset):
            yield TextGrew(turn_id=event.turn_id, call=event.call, piece=piece)

    def _think(self, event: AgentThought) -> Iterator[Change]:
        if event.type == "reasoning":
            call = event.call or 0
            flow = self._reasoning.setdefault((event.turn_id, call), _Flow())
            if piece := flow.unseen(event.text or "", event.offset):
                yield ReasoningGrew(turn_id=event.turn_id, call=call, piece=piece)
        elif event.content and event.type not in _SAID_BY_OTHER_EVENTS:
            yield Doing(turn_id=event.turn_id, words=safe_line(event.content, 60))

    def _enter(self, event: EntryAdded) -> Iterator[Change]:
        entry, turn_id = event.entry, event.turn_id or _word(event.entry, "turn_id")
        match entry.get("role"):
            case "user" if turn_id:
                yield PromptShown(
                    turn_id=turn_id,
                    text=safe(_word(entry, "content")),
                    message_id=_word(entry, "message_id") or None,
                    seq=_seq(entry),
                    is_mine=self._started_here(turn_id),
                )
            case "assistant" if turn_id:
                call = event.call or 0
                flow = self._texts.pop((turn_id, call), None)
                told = flow.length if flow else 0
                if entry.get("truncated") and told > len(_word(entry, "content")):
                    return  # what was streamed is more than what fits a message
                yield from answer_changes(entry, turn_id=turn_id, call=call)
            case _ if turn_id and entry.get("kind") == "tool_results":
                yield from tool_changes(entry, turn_id=turn_id, call=event.call or 0)
            case _ if turn_id and entry.get("kind") == "fault":
                yield from fault_changes(entry, turn_id=turn_id)

    def _end(self, event: TurnFinished) -> Change:
        for flows in (self._texts, self._reasoning):
            for key in [key for key in flows if key[0] == event.turn_id]:
                del flows[key]
        sent, received = tokens_of(event.usage)
        return TurnEnded(
            turn_id=event.turn_id,
            state=event.state,
            error=safe_line(_word(event.error or {}, "message")) or None,
            input_tokens=sent,
            output_tokens=received,
        )


def _tool(event: ToolStarted | ToolFinished) -> Change:
    if isinstance(event, ToolStarted):
        return ToolShown(
            turn_id=event.turn_id,
            call=event.call,
            tool_call_id=event.tool_call_id,
            name=safe_line(event.tool_name),
            arguments=safe_json(event.arguments),
        )
    return ToolShown(
        turn_id=event.turn_id,
        call=event.call,
        tool_call_id=event.tool_call_id,
        name=safe_line(event.tool_name),
        status=safe_line(event.status),
        seconds=event.duration,
        result=safe(event.result),
    )


def _happen(event: SessionEvent) -> Iterator[Change]:
    details = event.details
    match event.event:
        case "renamed":
            yield Renamed(name=safe_line(_word(details, "name")))
        case "model":
            yield ModelChanged(model=safe_line(_word(details, "model")))
        case "presence":
            yield PresenceChanged(guests=guests_in(details.get("clients")))
        case "approval":
            yield ApprovalSettled(approval_id=_word(details, "approval_id"))
        case stale if stale in _OUT_OF_DATE:
            yield OutOfDate(why=_OUT_OF_DATE[stale])
        case known if known in _REMARKS:
            yield Told(text=_REMARKS[known])
        case _:
            pass


def _word(row: JsonObject, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _seq(entry: JsonObject) -> int:
    seq = entry.get("seq")
    return seq if isinstance(seq, int) else 0
