"""What a result of an MCP server is as text: each thing once, and base64 never."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from nplt_protocol import JsonValue
from nplt_server.tools.mcp.results import pictures_in, result_text

PICTURE = base64.b64encode(bytes(range(256)) * 40).decode()


def result_with(data: JsonValue, *blocks: Any) -> str:
    import mcp_types as sent

    return result_text(sent.CallToolResult(content=list(blocks), structured_content=data))


@pytest.mark.parametrize("name", ["content", "images", "result"])
def test_picture_that_structured_content_repeats_is_not_sent_again(name: str) -> None:
    import mcp_types as sent

    block = sent.ImageContent(data=PICTURE, mime_type="image/png")
    repeated = block.model_dump(by_alias=True, exclude_none=True)
    assert result_with({name: [repeated]}, block) == "[image/png, 10,240 bytes]"
    rest = result_with({name: [repeated], "width": 4}, block)
    assert rest == f'[image/png, 10,240 bytes]\n{{"{name}": "(see the text above)", "width": 4}}'


@pytest.mark.parametrize("kind", ["text", "blob"])
def test_resource_that_structured_content_repeats_is_not_sent_again(kind: str) -> None:
    import mcp_types as sent

    resource: Any = (
        sent.TextResourceContents(uri="file:///a", text="inside")
        if kind == "text"
        else sent.BlobResourceContents(uri="file:///a", blob=PICTURE, mime_type="image/png")
    )
    block = sent.EmbeddedResource(resource=resource)
    for repeated in (block, resource):
        data = repeated.model_dump(by_alias=True, exclude_none=True, mode="json")
        assert result_with({"contents": [data]}, block) == result_with(None, block)


@pytest.mark.parametrize(
    "text",
    [
        PICTURE,
        f"data:image/png;base64,{PICTURE}",
        base64.urlsafe_b64encode(bytes(range(256)) * 40).decode(),
        "\n".join(PICTURE[at : at + 76] for at in range(0, len(PICTURE), 76)),
    ],
    ids=["plain", "data URL", "for URLs", "in lines"],
)
def test_base64_never_goes_to_a_model_as_text(text: str) -> None:
    import mcp_types as sent

    said = result_with({"other": text}, sent.TextContent(text=f"see: {text} end"))
    assert said == 'see: [base64, 10,240 bytes] end\n{"other": "[base64, 10,240 bytes]"}'


@pytest.mark.parametrize(
    "text", ["a" * 5_000, "ACGT" * 2_000, "some words " * 900, "1234567890" * 90]
)
def test_long_text_that_is_no_base64_stays(text: str) -> None:
    import mcp_types as sent

    assert result_with(None, sent.TextContent(text=text)) == text


def test_picture_in_a_resource_is_kept_once() -> None:
    import mcp_types as sent

    blob = sent.BlobResourceContents(uri="file:///a", blob=PICTURE, mime_type="image/webp")
    result = sent.CallToolResult(
        content=[
            sent.EmbeddedResource(resource=blob),
            sent.ImageContent(data=PICTURE, mime_type="image/webp"),
        ]
    )
    [picture] = pictures_in(result)
    assert picture.filename == "picture-1.webp"
