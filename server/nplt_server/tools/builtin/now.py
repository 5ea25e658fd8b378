"""`now`: what a model can't know by itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from nplt_server.tools.base import Tool, ToolFailed
from nplt_server.tools.typed import typed_tool


def now_tool(clock: Callable[[], datetime]) -> Tool:
    async def now(
        timezone: Annotated[str, Field(description="IANA name, e.g. Asia/Tokyo")] = "UTC",
    ) -> str:
        """The present date and time, in ISO 8601."""
        try:
            return clock().astimezone(ZoneInfo(timezone)).isoformat(timespec="seconds")
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ToolFailed(f"there is no time zone {timezone[:60]!r}") from None

    return typed_tool(now)
