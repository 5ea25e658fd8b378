"""Whatever was said before, and by whom: OpenAI's rules let the next request pass."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.server.providers.compiler_contexts import OWN, contexts
from tests.server.providers.openai_stage import (
    CHAT,
    LOOK,
    PLAIN,
    REASONER,
    RESPONSES,
    Talk,
    request,
)
from tests.support.vendor_models import rendered_in
from tests.vendors.answers import Part, Refusal, Text, Thinking, ToolCall
from tests.vendors.emulator import Emulator, Limits
from tests.vendors.models import GptModel

from nplt_server.context.messages import ContextMessage
from nplt_server.providers.openai_responses import ResponsesApi
from nplt_server.providers.vendor_api import VendorApi

_PARTS: st.SearchStrategy[Part] = st.sampled_from(
    [
        Thinking("hm"),
        Text("yes"),
        Text(" "),
        ToolCall("look", '{"at": 1}'),
        ToolCall("look", "{broken"),
        ToolCall("not/offered"),
        Refusal("no"),
    ]
)
_ANSWERS = st.lists(_PARTS, max_size=5)
_SPEAKERS: st.SearchStrategy[tuple[VendorApi, str]] = st.sampled_from(
    [
        (CHAT, PLAIN),
        (CHAT, REASONER),
        (RESPONSES, PLAIN),
        (RESPONSES, REASONER),
        (ResponsesApi(summarizes_reasoning=True), REASONER),
    ]
)


_FEWER = settings(max_examples=settings().max_examples // 4)
"""The compiler's own properties try the same contexts."""


@pytest.mark.parametrize(("vendor_api", "name"), [(CHAT, "chat"), (RESPONSES, "responses")])
@_FEWER
@given(context=contexts)
def test_every_context_is_admitted(
    vendor_api: VendorApi, name: str, context: list[ContextMessage]
) -> None:
    vendors = Emulator(limits=Limits(gpt_models=(GptModel(name=OWN.model, reasons=True),)))
    asked = replace(request(vendor_api=vendor_api, tools=(LOOK,)), context=context, invocation=OWN)
    rendered = rendered_in(vendor_api, asked)
    body = orjson.loads(orjson.dumps(rendered.body))
    vendors.api("chat" if name == "chat" else "responses").admit(body)
    assert len(rendered.seqs) == len(body["messages" if name == "chat" else "input"])


@_FEWER
@given(steps=st.lists(st.tuples(_SPEAKERS, _ANSWERS, st.booleans()), max_size=6))
def test_models_take_turns_and_each_accepts_the_outputs_of_the_others(
    steps: list[tuple[tuple[VendorApi, str], list[Part], bool]],
) -> None:
    talk = Talk(CHAT)
    for (vendor_api, model), parts, tools_run in steps:
        talk.vendor_api, talk.model = vendor_api, model
        talk.prompt("and now?")
        talk.answers(*parts)  # raises what the vendor would answer
        if tools_run:
            talk.runs_tools()
            talk.answers(*parts)
