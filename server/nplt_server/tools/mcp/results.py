"""What an MCP server answers to a call, as text that a model can read.

Text stands as it is, what is no text is told in brackets, with its size. What
the server gives as data beside its text is added as JSON, unless the text
already says the same, as the protocol asks of servers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import orjson

from nplt_protocol.json_values import JsonValue
from nplt_server.tools.base import ToolFailed
from nplt_server.tools.mcp.foreign_text import clean_foreign, one_line

if TYPE_CHECKING:
    import mcp_types

_NOTHING: Final = "(done; there was nothing to say)"


def told(result: mcp_types.CallToolResult) -> str:
    """Raises `ToolFailed` with the same text if the server says that it went wrong."""
    parts = [_block(block) for block in result.content]
    structured: JsonValue = result.structured_content
    texts = [block.text for block in result.content if block.type == "text"]
    if structured is not None and not _say_the_same(texts, structured):
        parts.append(json.dumps(structured, ensure_ascii=False))
    text = clean_foreign("\n".join(part for part in parts if part)) or _NOTHING
    if result.is_error:
        raise ToolFailed(text)
    return text


def _block(block: mcp_types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{one_line(block.mime_type)}, {_base64_bytes(block.data):,} bytes]"
        case "resource_link":
            kind = f", {one_line(block.mime_type)}" if block.mime_type else ""
            return f"[{one_line(block.name)}: {one_line(block.uri)}{kind}]"
        case "resource":
            return _resource(block.resource)


def _resource(resource: mcp_types.TextResourceContents | mcp_types.BlobResourceContents) -> str:
    kind = one_line(resource.mime_type or "")
    uri = one_line(resource.uri)
    text: str | None = getattr(resource, "text", None)
    if text is not None:
        return f"[{uri}{', ' if kind else ''}{kind}]\n{text}"
    blob: str = getattr(resource, "blob", "")
    return f"[{uri}, {kind or 'unknown type'}, {_base64_bytes(blob):,} bytes]"


def _base64_bytes(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")


def _say_the_same(texts: list[str], structured: JsonValue) -> bool:
    """A value that is no object is often wrapped, `{"result": …}`, for data had to be an
    object once; and of a list each part may be a text of its own."""
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(structured["result"])
    said = [_value(text) for text in texts]
    return said in values or any(one in values for one in (*said, *texts))


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeError):
        return text
    return value
