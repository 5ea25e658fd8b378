"""A picture that goes with a prompt, as each vendor's API takes it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec import structs
from tests.server.providers import anthropic_stage, openai_stage
from tests.server.providers.compiler_contexts import asks, call, gives, result, says
from tests.server.providers.openai_stage import CHAT, RESPONSES
from tests.support.vendor_models import rendered_in
from tests.vendors.emulator import Emulator

from nplt_server.context.messages import ContextAttachment, ModelInputMessage
from nplt_server.providers.anthropic import MessagesApi
from nplt_server.providers.compiler import ContextCompiler, VendorRules
from nplt_server.providers.vendor_api import VendorApi

PICTURE = ContextAttachment(name="cat.png", content_type="image/png", data_base64="iVBORw0KGgo=")
ASKED = ModelInputMessage(seq=3, content="what is this?", attachments=(PICTURE,))
URL = "data:image/png;base64,iVBORw0KGgo="


def admitted(api: Any, body: object) -> Any:
    sent = orjson.loads(orjson.dumps(body))
    Emulator().api(api).admit(sent)  # raises what the vendor would answer
    return sent


@pytest.mark.parametrize(
    ("vendor_api", "api", "picture"),
    [
        (CHAT, "chat", {"type": "image_url", "image_url": {"url": URL}}),
        (RESPONSES, "responses", {"type": "input_image", "image_url": URL}),
    ],
)
def test_openai_is_shown_the_picture_before_the_words(
    vendor_api: VendorApi, api: str, picture: dict[str, object]
) -> None:
    rendered = rendered_in(vendor_api, openai_stage.request(ASKED, vendor_api=vendor_api))
    sent = admitted(api, rendered.body)
    shown, text = (sent.get("messages") or sent["input"])[-1]["content"]
    assert shown == picture
    assert text["text"] == "[Picture cat.png]\n\nwhat is this?"
    assert rendered.seqs == ((3,),)


def test_claude_is_shown_the_picture_before_the_words() -> None:
    request = anthropic_stage.request(ASKED)
    compiled = ContextCompiler(VendorRules()).compile(request.context, origin=request.invocation)
    rendered = MessagesApi().render(request, compiled)
    sent = admitted("messages", rendered.body)
    shown, text = sent["messages"][-1]["content"]
    assert shown["source"] == {
        "type": "base64",
        "media_type": "image/png",
        "data": "iVBORw0KGgo=",
    }
    assert text["text"].endswith("what is this?")
    assert rendered.block_seqs == ((3, 3),), "each block is blamed on the prompt"


REPORT = ContextAttachment(
    name="report.pdf", content_type="application/pdf", pdf_base64="JVBERi0=", text="Sales grew."
)
REPORT_URL = "data:application/pdf;base64,JVBERi0="


@pytest.mark.parametrize(
    ("vendor_api", "api", "document"),
    [
        (
            CHAT,
            "chat",
            {"type": "file", "file": {"filename": "report.pdf", "file_data": REPORT_URL}},
        ),
        (
            RESPONSES,
            "responses",
            {"type": "input_file", "filename": "report.pdf", "file_data": REPORT_URL},
        ),
    ],
)
def test_openai_is_sent_a_pdf_as_a_file_part_and_not_its_text(
    vendor_api: VendorApi, api: str, document: dict[str, object]
) -> None:
    taken = REPORT.for_model(takes_images=True, takes_pdfs=True)
    asked = structs.replace(ASKED, attachments=(taken,))
    rendered = rendered_in(vendor_api, openai_stage.request(asked, vendor_api=vendor_api))
    sent = admitted(api, rendered.body)
    shown, said = (sent.get("messages") or sent["input"])[-1]["content"]
    assert shown == document
    assert said["text"] == "[Document report.pdf]\n\nwhat is this?"


def test_claude_is_sent_a_pdf_as_a_document_block_and_not_its_text() -> None:
    taken = REPORT.for_model(takes_images=True, takes_pdfs=True)
    request = anthropic_stage.request(structs.replace(ASKED, attachments=(taken,)))
    compiled = ContextCompiler(VendorRules()).compile(request.context, origin=request.invocation)
    rendered = MessagesApi().render(request, compiled)
    sent = admitted("messages", rendered.body)
    shown, said = sent["messages"][-1]["content"]
    assert shown == {
        "type": "document",
        "title": "report.pdf",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
    }
    assert said["text"] == "[Document report.pdf]\n\nwhat is this?"
    assert rendered.block_seqs == ((3, 3),), "each block is blamed on the prompt"


def test_a_model_that_takes_no_pdfs_is_shown_the_text_of_one() -> None:
    taken = REPORT.for_model(takes_images=True, takes_pdfs=False)
    request = openai_stage.request(structs.replace(ASKED, attachments=(taken,)), vendor_api=CHAT)
    [message] = admitted("chat", rendered_in(CHAT, request).body)["messages"]
    assert message["content"] == "File report.pdf:\n```\nSales grew.\n```\n\nwhat is this?"


LOOKED = (
    asks("what is there?", 1),
    says("", call("c1"), seq=2),
    structs.replace(gives(result("c1", "[image/png, 8 bytes]"), seq=3), images=(PICTURE,)),
)


@pytest.mark.parametrize(("vendor_api", "api"), [(CHAT, "chat"), (RESPONSES, "responses")])
def test_openai_is_shown_a_picture_of_a_tool_after_its_result(
    vendor_api: VendorApi, api: str
) -> None:
    rendered = rendered_in(vendor_api, openai_stage.request(*LOOKED, vendor_api=vendor_api))
    sent = admitted(api, rendered.body)
    *_, given, shown = sent.get("messages") or sent["input"]
    assert given.get("content", given.get("output")) == "[image/png, 8 bytes]"
    picture, text = shown["content"]
    assert URL in (picture["image_url"], picture["image_url"]["url"] if api == "chat" else "")
    assert text["text"] == "[Picture cat.png] of the tools"


def test_claude_is_shown_a_picture_of_a_tool_after_its_result() -> None:
    request = anthropic_stage.request(*LOOKED)
    compiled = ContextCompiler(VendorRules()).compile(request.context, origin=request.invocation)
    rendered = MessagesApi().render(request, compiled)
    sent = admitted("messages", rendered.body)
    given, shown, text = sent["messages"][-1]["content"]
    assert [given["type"], shown["type"], text["type"]] == ["tool_result", "image", "text"]
    assert rendered.block_seqs[-1] == (3, 3, 3), "each block is blamed on the results"
