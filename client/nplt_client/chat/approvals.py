"""Approvals: questions about tool calls, and the decisions on them.

`Approvals` is shared by all chats; a display draws the question and passes the decision on.
Questions are asked one at a time, the oldest first, each once. A postponed question stays open
until it is decided or expires; `/allow` and `/deny` decide the oldest one. Every attached person
may decide, and the first decision counts.

The arguments come from a model, so they are shown exactly, with every character escaped that
could control a terminal. `OpenQuestion` is a question above an input, with the marked decision.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from msgspec import Struct

from nplt_client.client import Client
from nplt_client.errors import NpltError, RequestRefused
from nplt_client.render.text import objects_in, safe_json, safe_line, shorten, word_in
from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_protocol.messages import ApprovalRequest

LINE_WIDTH_MAX = 2_000
PAUSE_SECONDS = 1.0


class ApprovalWanted(Struct, frozen=True, kw_only=True):
    approval_id: str
    tool_name: str
    arguments: str
    """The arguments as JSON on several lines."""
    line: str = ""
    """The same on one line, shortened."""
    tool_call_id: str = ""
    is_mine: bool = False
    """Whether this client started the turn."""


class ApprovalDecision(Struct, frozen=True, kw_only=True):
    allow: bool
    remember: bool = False


ARROWS = {"left": -1, "up": -1, "right": 1, "down": 1}
"""The keys that move the mark, and by how many choices."""
CHOICES = (("y", "yes"), ("n", "no"), ("a", "always"))
"""The possible decisions: the letter and its meaning."""
DECISIONS_HELP = "y: yes, this once; n: no; a: yes, always in this conversation"


def parse_decision(line: str) -> ApprovalDecision | None:
    """Returns `None` if the line is not a decision."""
    typed = line.strip().lower()
    chosen = next((words for letter, words in CHOICES if typed in (letter, words)), None)
    if chosen is None:
        return None
    return ApprovalDecision(allow=chosen != "no", remember=chosen == "always")


def approval_wanted(request: ApprovalRequest, *, is_mine: bool = False) -> ApprovalWanted:
    cut = "" if request.size is None else f"(cut; {request.size:,} characters in all)"
    line = shorten(safe_json(request.arguments), LINE_WIDTH_MAX)
    return ApprovalWanted(
        approval_id=request.approval_id,
        tool_name=safe_line(request.tool_name),
        arguments=safe_json(request.arguments, indent=2) + (f"\n… {cut}" if cut else ""),
        line=f"{line} {cut}".rstrip(),
        tool_call_id=request.tool_call_id or "",
        is_mine=is_mine,
    )


_ENTRIES_READ = 50


async def pending_approval(client: Client, session_id: str) -> ApprovalWanted | None:
    """Reads the first tool call that a conversation asks about, without attaching to it."""
    facts = await client.history(
        _ENTRIES_READ, session_id=session_id, view="entries", roles=("system",)
    )
    asked: dict[str, JsonObject] = {}
    for entry in facts.messages:
        if entry.get("kind") == "approval":
            approval_id = word_in(entry, "approval_id")
            asked.pop(approval_id, None)
            if entry.get("state") == "asked":
                asked[approval_id] = entry
    if not asked:
        return None
    approval_id, entry = next(iter(asked.items()))
    page = await client.history(_ENTRIES_READ, session_id=session_id)
    arguments: JsonValue = None
    for message in page.messages:
        for call in objects_in(message.get("tool_calls")):
            if call.get("tool_call_id") == entry.get("tool_call_id"):
                arguments = call.get("arguments")
    return approval_wanted(
        ApprovalRequest(
            session_id=session_id,
            approval_id=approval_id,
            turn_id=word_in(entry, "turn_id"),
            tool_name=word_in(entry, "tool_name"),
            arguments=arguments if isinstance(arguments, dict) else {},
            expires_at=word_in(entry, "expires_at"),
        )
    )


class OpenQuestion:
    """The question above the input, and the marked decision.

    A key meant for the input must not decide. So the question accepts keys only after a pause in
    typing, and a letter or an arrow only marks a decision, which Enter confirms.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.wanted: ApprovalWanted | None = None
        self.marked: str | None = None
        """The letter of the marked decision."""
        self._clock = clock
        self._typed_at = 0.0

    def open(self, wanted: ApprovalWanted | None) -> None:
        """Shows this question, or none."""
        if wanted is None or self.wanted is None or wanted.approval_id != self.wanted.approval_id:
            self.wanted = wanted
            self.note_typing()

    def note_typing(self) -> None:
        self.marked = None
        self._typed_at = self._clock()

    @property
    def listens(self) -> bool:
        return self.wanted is not None and self._clock() - self._typed_at >= PAUSE_SECONDS

    def move_mark(self, step: int) -> None:
        letters = [letter for letter, _ in CHOICES]
        if self.marked is None:
            self.marked = letters[0 if step > 0 else -1]
        else:
            self.marked = letters[(letters.index(self.marked) + step) % len(letters)]

    @property
    def decision(self) -> ApprovalDecision | None:
        """The decision that Enter makes."""
        return parse_decision(self.marked) if self.marked else None


class Approvals:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[str, ApprovalWanted] = {}
        self._asked: set[str] = set()

    @property
    def oldest(self) -> ApprovalWanted | None:
        return next(iter(self._waiting.values()), None)

    @property
    def not_asked(self) -> int:
        return sum(approval_id not in self._asked for approval_id in self._waiting)

    def take_next_question(self) -> ApprovalWanted | None:
        """Returns the oldest question that has not been asked, and marks it as asked."""
        for wanted in self._waiting.values():
            if wanted.approval_id not in self._asked:
                self._asked.add(wanted.approval_id)
                return wanted
        return None

    def add(self, wanted: ApprovalWanted) -> bool:
        """Adds a question. Returns False if it had been added already."""
        is_new = wanted.approval_id not in self._waiting
        self._waiting.setdefault(wanted.approval_id, wanted)
        return is_new

    def settle(self, approval_id: str) -> ApprovalWanted | None:
        """Removes a question that has been decided or has expired. Returns `None` for an unknown
        one."""
        return self._waiting.pop(approval_id, None)

    def start_over(self) -> None:
        """Removes all questions, after a switch to another conversation."""
        self._waiting.clear()
        self._asked.clear()

    async def decide(self, wanted: ApprovalWanted, decision: ApprovalDecision) -> str:
        """Sends the decision. Returns a sentence that says which decision counts, perhaps another
        person's."""
        waited = self.settle(wanted.approval_id)
        try:
            decided = await self._client.approve(
                wanted.approval_id, allow=decision.allow, remember=decision.remember
            )
        except NpltError as error:
            # A refusal means that the question is already decided or has expired.
            if waited is not None and not isinstance(error, RequestRefused):
                self._waiting = {waited.approval_id: waited, **self._waiting}
            raise
        allowed = decided.decision == "allow"
        if allowed != decision.allow:
            who = safe_line(decided.decided_by or "no one")
            return f"{who} decided before: {safe_line(decided.decision)}"
        return f"{wanted.tool_name}: {'allowed' if allowed else 'denied'}"

    async def decide_oldest(self, decision: ApprovalDecision) -> str:
        if self.oldest is None:
            raise RequestRefused("No tool waits for a decision.", code="not_found")
        return await self.decide(self.oldest, decision)
