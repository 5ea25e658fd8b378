"""Whatever was said before, and by whom: OpenAI's rules let the next request pass."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from nplt_server.context import ContextMessage
from nplt_server.providers.openai.dialect import Dialect
from nplt_server.providers.openai.responses_render import ResponsesDialect
from nplt_server.testing.vendors.answers import Part, Refusal, Text, Thinking, ToolCall
from nplt_server.testing.vendors.emulator import Emulator, Limits
from nplt_server.testing.vendors.models import GptModel

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
_SPEAKERS: st.SearchStrategy[tuple[Dialect, str]] = st.sampled_from(
    [
        (CHAT, PLAIN),
        (CHAT, REASONER),
        (RESPONSES, PLAIN),
        (RESPONSES, REASONER),
        (ResponsesDialect(summarizes_reasoning=True), REASONER),
    ]
)


_FEWER = settings(max_examples=settings().max_examples // 4)
"""The compiler's own properties try the same contexts."""


@pytest.mark.parametrize(("dialect", "name"), [(CHAT, "chat"), (RESPONSES, "responses")])
@_FEWER
@given(context=contexts)
def test_every_context_is_admitted(
    dialect: Dialect, name: str, context: list[ContextMessage]
) -> None:
    vendors = Emulator(limits=Limits(gpt_models=(GptModel(name=OWN.model, reasons=True),)))
    asked = replace(request(dialect=dialect, tools=(LOOK,)), context=context, invocation=OWN)
    rendered = dialect.render(asked)
    body = orjson.loads(orjson.dumps(rendered.body))
    vendors.api("chat" if name == "chat" else "responses").admit(body)
    assert len(rendered.seqs) == len(body["messages" if name == "chat" else "input"])


@_FEWER
@given(steps=st.lists(st.tuples(_SPEAKERS, _ANSWERS, st.booleans()), max_size=6))
def test_models_take_turns_and_each_admits_what_the_others_said(
    steps: list[tuple[tuple[Dialect, str], list[Part], bool]],
) -> None:
    talk = Talk(CHAT)
    for (dialect, model), parts, tools_run in steps:
        talk.dialect, talk.model = dialect, model
        talk.prompt("and now?")
        talk.answers(*parts)  # raises what the vendor would answer
        if tools_run:
            talk.runs_tools()
            talk.answers(*parts)
