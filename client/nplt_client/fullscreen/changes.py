"""What can change on the screen, one frozen value per kind of change.

Every text in here has been through the sanitizer. Changes name what they are
about (a turn, a call, a tool call), so that showing one twice shows it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from nplt_client.fullscreen.company import Guest

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from nplt_protocol.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShown:
    turn_id: str
    text: str
    message_id: str | None = None
    seq: int = 0
    is_mine: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBegan:
    turn_id: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextGrew:
    turn_id: str
    call: int
    piece: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStands:
    """The text of that call as it is stored; it replaces what came piece by piece."""

    turn_id: str
    call: int
    text: str
    is_whole: bool = True
    """Not when a piece was sent again from an earlier place: more follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGrew:
    turn_id: str
    call: int
    piece: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningStands:
    turn_id: str
    call: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolShown:
    """A tool call, from its beginning (`pending`) to its result."""

    turn_id: str
    call: int
    tool_call_id: str
    name: str
    arguments: str | None = None
    status: str = "pending"
    seconds: float | None = None
    result: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    turn_id: str
    state: Literal["completed", "interrupted", "failed"]
    error: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """What the running turn is at: a short word for the status line."""

    turn_id: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A remark that stands in the transcript."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalWanted:
    approval_id: str
    tool_name: str
    arguments: str
    expires_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettled:
    approval_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChanged:
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PresenceChanged:
    guests: tuple[Guest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfDate:
    """What stands on the screen is no longer the conversation: it is read again."""

    why: str


Change: TypeAlias = (
    PromptShown
    | TurnBegan
    | TextGrew
    | TextStands
    | ReasoningGrew
    | ReasoningStands
    | ToolShown
    | TurnEnded
    | Doing
    | Told
    | ApprovalWanted
    | ApprovalSettled
    | Renamed
    | ModelChanged
    | PresenceChanged
    | OutOfDate
)

OfTurn: TypeAlias = (
    PromptShown
    | TurnBegan
    | TextGrew
    | TextStands
    | ReasoningGrew
    | ReasoningStands
    | ToolShown
    | TurnEnded
)
