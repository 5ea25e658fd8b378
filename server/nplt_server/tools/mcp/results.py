"""Cleans what MCP servers send: results as text, lists of tools, names and descriptions.

All of it is untrusted data. Invisible characters are removed and sizes bounded; a tool
that is not well formed is left out by itself.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import orjson
from msgspec import Struct

from nplt_protocol import JsonValue
from nplt_server.digest.text import clean_text
from nplt_server.tools import ToolFailed

if TYPE_CHECKING:
    import mcp_types


_KEPT: Final = frozenset("\n\t")
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""They make a line read otherwise than it is."""
_TAGS: Final = range(0xE0000, 0xE0080)
"""Letters that are invisible to people and plain to a model."""

_DROPPED: Final = dict.fromkeys(
    code for code in (*_CONTROLS, *_DIRECTIONS, *_TAGS) if chr(code) not in _KEPT
)


def clean_foreign(text: str) -> str:
    """Removes hidden characters, and control characters other than line ends and tabs."""
    return clean_text(text.replace("\r\n", "\n").replace("\r", "\n").translate(_DROPPED))


def cut_foreign(text: str, *, characters_max: int) -> str:
    cleaned = clean_foreign(text).strip()
    return cleaned if len(cleaned) <= characters_max else cleaned[: characters_max - 1] + "…"


def one_line(text: str, *, characters_max: int = 200) -> str:
    return cut_foreign(" ".join(clean_foreign(text).split()), characters_max=characters_max)


# ------------------------------------------------------------------------------
# Results of a call as text
#
# Text stays as it is; anything else is described in brackets with its size. Structured data is
# added as JSON, without what the content holds already: texts, pictures, resources, whole blocks.
# The reference filesystem server repeats a picture there, for one. Base64 is for programs: it
# never goes to a model as text, wherever it stands.

_NOTHING: Final = "(done; there was nothing to say)"
_REPEATED: Final = "(see the text above)"
_BLOCK_FIELDS: Final = frozenset(
    {"type", "text", "data", "blob", "resource", "mimeType", "mime_type", "uri", "name", "title"}
    | {"annotations", "_meta"}
)
_PAYLOADS: Final = ("text", "data", "blob", "resource")
_BASE64: Final = re.compile(
    r"(?<![A-Za-z0-9+/_-])(?:data:[\w.+-]{1,50}/[\w.+-]{1,50};base64,)?"
    r"(?:[A-Za-z0-9+/_-]{512,}"
    r"|(?:[A-Za-z0-9+/]{60,128}(?:\r?\n|\\r\\n|\\n)){8,}[A-Za-z0-9+/]*)={0,2}"
)
"""A long run of its letters, also in lines as mail has it, in a text or in JSON."""
_BLANK: Final = re.compile(r"\s")
_PIECE_CHARACTERS: Final = 256 * 1024
"""A long text is searched piece by piece, because `re` blocks all other threads meanwhile."""


def result_text(result: mcp_types.CallToolResult) -> str:
    """Raises `ToolFailed` with the same text if the server says that it went wrong."""
    parts = [_block(block) for block in result.content]
    structured: JsonValue = result.structured_content
    texts = [block.text for block in result.content if block.type == "text"]
    if structured is not None and not _say_the_same(texts, structured):
        payloads = {payload.strip() for block in result.content for payload in _payloads(block)}
        rest = _without_repetitions(structured, payloads - {""})
        if rest is not _REPEATED:
            parts.append(json.dumps(rest, ensure_ascii=False))
    text = without_base64("\n".join(part for part in parts if part))
    text = clean_foreign(text) or _NOTHING
    if result.is_error:
        raise ToolFailed(text)
    return text


def without_base64(text: str) -> str:
    """The text with its size in place of each long piece of base64."""

    def described(found: re.Match[str]) -> str:
        whole = found[0]
        letters = whole[:_LETTERS_LOOKED_AT]
        # Neither a row of one letter nor a sequence of genes is base64.
        kinds = (str.isupper, str.islower, str.isdigit)
        if not all(any(map(kind, letters)) for kind in kinds):
            return whole
        data = _BETWEEN_LINES.sub("", whole.partition(",")[2] or whole)
        return f"[base64, {_base64_bytes(data):,} bytes]"

    pieces: list[str] = []
    begin = 0
    while cut := _BLANK.search(text, begin + _PIECE_CHARACTERS):
        pieces.append(_BASE64.sub(described, text[begin : cut.start()]))
        begin = cut.start()
    return "".join((*pieces, _BASE64.sub(described, text[begin:])))


_LETTERS_LOOKED_AT: Final = 4_096
_BETWEEN_LINES: Final = re.compile(r"\\[rn]|\s")
"""Ends of lines, as they are and in JSON."""


def _payloads(block: mcp_types.ContentBlock) -> list[str]:
    """The texts and data of a block of the content."""
    match block.type:
        case "text":
            return [block.text]
        case "image" | "audio":
            return [block.data]
        case "resource":
            fields = ("text", "blob")
            return [value for name in fields if (value := getattr(block.resource, name, None))]
        case _:
            return []


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
            resource = block.resource
            uri, kind = one_line(resource.uri), one_line(resource.mime_type or "")
            text: str | None = getattr(resource, "text", None)
            if text is not None:
                return f"[{uri}{', ' if kind else ''}{kind}]\n{text}"
            size = _base64_bytes(getattr(resource, "blob", ""))
            return f"[{uri}, {kind or 'unknown type'}, {size:,} bytes]"


def _base64_bytes(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")


def _say_the_same(texts: list[str], structured: JsonValue) -> bool:
    """A value that is no object is often wrapped, `{"result": …}`, for data had to be an
    object once; and of a list each part may be a text of its own."""
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(structured["result"])
    stated: list[JsonValue] = []
    for text in texts:
        try:
            stated.append(orjson.loads(text))
        except (orjson.JSONDecodeError, UnicodeError):
            stated.append(text)
    return stated in values or any(one in values for one in (*stated, *texts))


def _without_repetitions(value: JsonValue, payloads: set[str]) -> JsonValue:
    """Servers repeat a file they have read, say, in a field of the data, or whole blocks of the
    content. What is left is `_REPEATED` if all of it is repeated."""
    match value:
        case str() if value.strip() in payloads:
            return _REPEATED
        case dict() if value:
            rest = {key: _without_repetitions(part, payloads) for key, part in value.items()}
            repeated = [key for key in _PAYLOADS if rest.get(key) is _REPEATED]
            if repeated and rest.keys() <= _BLOCK_FIELDS and "type" in rest:
                return _REPEATED  # a block
            if "blob" in repeated or ("text" in repeated and "uri" in rest):
                return _REPEATED  # a resource
            return _REPEATED if all(part is _REPEATED for part in rest.values()) else rest
        case list() if value:
            parts = [_without_repetitions(part, payloads) for part in value]
            return _REPEATED if all(part is _REPEATED for part in parts) else parts
        case _:
            return value


# ------------------------------------------------------------------------------
# Resources and prompts as files, to be attached to a prompt


class McpFile(Struct, frozen=True, kw_only=True):
    filename: str
    content_type: str
    data: bytes


PICTURES_MAX: Final = 4
"""The images of one result that are used."""
_PICTURE_TYPES: Final = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
}


def pictures_in(result: mcp_types.CallToolResult) -> list[McpFile]:
    """The images of the result, of types that models accept, each once."""
    found: dict[bytes, McpFile] = {}
    for block in result.content:
        if block.type == "image":
            kind, text = block.mime_type, block.data
        elif block.type == "resource":
            kind = block.resource.mime_type or ""
            text = getattr(block.resource, "blob", "")
        else:
            continue
        if (ending := _PICTURE_TYPES.get(kind)) and len(found) < PICTURES_MAX:
            with suppress(ValueError):
                data = base64.b64decode(text, validate=True)
                name = f"picture-{len(found) + 1}.{ending}"
                found.setdefault(data, McpFile(filename=name, content_type=kind, data=data))
    return list(found.values())


def file_of_resource(uri: str, read: mcp_types.ReadResourceResult) -> McpFile:
    """The texts of all its parts; where there is none, the data of the first."""
    found = [getattr(part, "text", None) for part in read.contents]
    texts = [clean_foreign(text) for text in found if text is not None]
    first = read.contents[0] if read.contents else None
    kind = one_line((first.mime_type if first is not None else None) or "text/plain")
    name = re.sub(r"[^\w.-]+", "_", uri.partition("?")[0].rstrip("/").rpartition("/")[2])[-100:]
    data = "\n".join(texts).encode()
    if not texts and first is not None:
        try:
            data = base64.b64decode(getattr(first, "blob", ""), validate=True)
        except ValueError:
            raise ToolFailed("the server gave data that can't be read") from None
    return McpFile(filename=name.strip(".") or "resource", content_type=kind, data=data)


def file_of_prompt(name: str, prompt: mcp_types.GetPromptResult) -> McpFile:
    texts = [f"{message.role}: {_block(message.content)}" for message in prompt.messages]
    text = clean_foreign("\n\n".join(texts))
    filename = re.sub(r"[^\w.-]+", "_", name)[:100].strip(".") or "prompt"
    return McpFile(filename=f"{filename}.txt", content_type="text/plain", data=text.encode())


# ------------------------------------------------------------------------------
# Lists of tools, filtered: a malformed tool is left out, the others stay
#
# Only name, description and the schema of the arguments are kept. Annotations (that a tool is
# harmless, say) are not trusted.

DESCRIPTION_CHARACTERS_MAX: Final = 1024
TOOL_NAME_CHARACTERS_MAX: Final = 256
SCHEMA_BYTES_MAX: Final = 32 * 1024
SCHEMA_DEPTH_MAX: Final = 16
_FOR_READERS: Final = ("description", "title", "$comment")


def checked_listing(
    tools: list[JsonValue], *, left_out: Callable[[str, str], None]
) -> list[JsonValue]:
    """A page of a list of tools, as it came; what is given is well formed. `left_out` hears
    the name of a tool that is left out, and why."""
    kept: dict[str, JsonValue] = {}
    for tool in tools:
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or not isinstance(name, str) or not name:
            left_out("?", "it has no name")
        elif name in kept:
            left_out(one_line(name), "there is another of this name")
        elif (reason := _what_is_wrong(name, tool.get("inputSchema"))) is not None:
            left_out(one_line(name), reason)
        else:
            description = tool.get("description")
            kept[name] = {
                "name": name,
                "description": _description(description if isinstance(description, str) else ""),
                "inputSchema": _with_clean_descriptions(tool["inputSchema"]),
            }
    return list(kept.values())


def _what_is_wrong(name: str, schema: JsonValue) -> str | None:
    if len(name) > TOOL_NAME_CHARACTERS_MAX:
        return f"its name is longer than {TOOL_NAME_CHARACTERS_MAX} characters"
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "its schema is not that of an object"
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not all(
        isinstance(each, dict | bool) for each in properties.values()
    ):
        return "the properties in its schema are no schemas"
    if _is_deeper_than(schema, SCHEMA_DEPTH_MAX):
        return f"its schema is nested deeper than {SCHEMA_DEPTH_MAX}"
    if not _has_clean_names(schema):
        return "a name in its schema has characters that nobody sees"
    try:
        size = len(orjson.dumps(schema))
    except orjson.JSONEncodeError:
        return "its schema can't be written as JSON"
    if size > SCHEMA_BYTES_MAX:
        return f"its schema has {size:,} bytes, more than {SCHEMA_BYTES_MAX:,}"
    return None


def _is_deeper_than(value: JsonValue, depth_max: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return depth_max == 0 or any(_is_deeper_than(part, depth_max - 1) for part in parts)


def _has_clean_names(value: JsonValue) -> bool:
    """They can't be cleaned: the server knows its arguments by them."""
    match value:
        case dict():
            names_are_clean = all(clean_foreign(name) == name for name in value)
            return names_are_clean and all(map(_has_clean_names, value.values()))
        case list():
            return all(map(_has_clean_names, value))
        case _:
            return True


def _description(text: str) -> str:
    return cut_foreign(text, characters_max=DESCRIPTION_CHARACTERS_MAX)


def _with_clean_descriptions(schema: JsonValue) -> JsonValue:
    """Cleans the texts that are meant for a reader. Names and values must stay as the server
    knows them."""
    match schema:
        case dict():
            return {
                key: _description(part)
                if key in _FOR_READERS and isinstance(part, str)
                else _with_clean_descriptions(part)
                for key, part in schema.items()
            }
        case list():
            return [_with_clean_descriptions(part) for part in schema]
        case _:
            return schema
