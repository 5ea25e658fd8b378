"""What a model asked a tool to do, and what came of it.

The raw arguments are kept as the text the model wrote, beside what they parse
to: a broken call can be shown to the model again, and nothing is lost to a
parser. Results are paired with requests by place, ids are a check on that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from nplt_storage.facts.json_values import JsonValue
from nplt_storage.facts.sections import LevelOfDetailSections

ToolStatus: TypeAlias = Literal["success", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRequest:
    tool_call_id: str
    tool_name: str
    raw_arguments: str
    arguments: Mapping[str, JsonValue] | None
    """`None` when the raw text is not a JSON object; `parse_error` says why."""
    parse_error: str | None = None
    parse_warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobReference:
    """Where the whole of something is kept of which an entry holds the beginning."""

    blob_id: str
    size: int
    """Bytes, as UTF-8 where it is text."""
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallResult:
    tool_call_id: str
    tool_name: str
    status: ToolStatus
    result: str
    duration: float
    timestamp: datetime
    blob: BlobReference | None = None
    """The whole result, where `result` is only its beginning."""
    sections: LevelOfDetailSections | None = None
