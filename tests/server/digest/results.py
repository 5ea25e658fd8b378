"""Tool results to be digested."""

from __future__ import annotations

from datetime import UTC, datetime

from nplt_server.digest import levels_of
from nplt_storage.entries import (
    BlobReference,
    LevelOfDetailSections,
    ToolCallResult,
    ToolExecutionStatus,
)


def levels_of_result(
    tool_name: str, status: ToolExecutionStatus, text: str, *, size: int | None = None
) -> LevelOfDetailSections | None:
    """`size`: of the whole, where `text` is its beginning."""
    return levels_of(
        ToolCallResult(
            tool_name=tool_name,
            status=status,
            result=text,
            duration=0.0,
            timestamp=datetime(2026, 1, 2, tzinfo=UTC),
            tool_call_id="c1",
            blob=None if size is None else BlobReference(blob_id="b", size=size, sha256="b"),
        )
    )


def summary_and_gist_of_result(text: str) -> tuple[str, str]:
    levels = levels_of_result("run", "success", text)
    assert levels is not None
    assert levels.live == (("", text),)
    return levels.to_plain_text("summary"), levels.to_plain_text("gist")
