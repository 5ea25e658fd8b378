"""The tools that come with the server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nplt_protocol.json_values import JsonObject
from nplt_server.tools.base import Tool, ToolDescription, ToolFailed


def now_tool(clock: Callable[[], datetime]) -> Tool:
    async def now(arguments: JsonObject) -> str:
        zone = arguments.get("timezone", "UTC")
        if not isinstance(zone, str):
            raise ToolFailed("timezone must be a string such as Europe/Berlin")
        try:
            return clock().astimezone(ZoneInfo(zone)).isoformat(timespec="seconds")
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ToolFailed(f"there is no time zone {zone!r}") from None

    return Tool(
        description=ToolDescription(
            name="now",
            description="The present date and time, in ISO 8601.",
            parameters={
                "type": "object",
                "properties": {
                    "timezone": {
                        "type": "string",
                        "description": "IANA name, e.g. Asia/Tokyo; UTC if left out",
                    }
                },
                "additionalProperties": False,
            },
        ),
        run=now,
    )
