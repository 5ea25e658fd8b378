"""Tool loops with Gemini and DeepSeek through the API they share with OpenAI."""

from __future__ import annotations

import pytest
from tests.server.providers.openai_stage import CHAT, Talk, request
from tests.support.vendor_models import rendered_in
from tests.vendors.answers import Text, Thinking, ToolCall
from tests.vendors.rejections import Rejection
from tests.vendors.sse import Wire

from nplt_server.providers.openai_chat import ChatApi
from nplt_server.request_form import RequestForm

LOOK = ToolCall("look", arguments='{"at": "sky"}')
AGAIN = ToolCall("look", arguments='{"at": "sea"}')
WIRE = Wire(reasoning_field="reasoning_content")


@pytest.mark.parametrize("model", ["gemini-3.8-flash", "deepseek-v4-pro"])
def test_a_tool_loop_goes_on_for_several_rounds_and_turns(model: str) -> None:
    talk = Talk(CHAT, model=model)
    for prompt in ("what do you see?", "and now?"):
        talk.prompt(prompt)
        talk.answers(Thinking("the sky first"), LOOK, AGAIN, wire=WIRE)
        talk.runs_tools()
        talk.answers(Thinking("and the sea"), AGAIN, wire=WIRE)
        talk.runs_tools()
        talk.answers(Text("Both are blue."), wire=WIRE)


def test_what_is_opaque_in_a_call_goes_back_to_that_call() -> None:
    talk = Talk(CHAT, model="gemini-3.8-flash")
    talk.prompt("what do you see?")
    talk.answers(LOOK, AGAIN)
    talk.runs_tools()
    talk.answers(Text("Blue."))
    first, second = talk.bodies[-1]["messages"][-3]["tool_calls"]
    assert first["extra_content"]["google"]["thought_signature"].startswith("signature of")
    assert "extra_content" not in second


def test_reasoning_goes_back_to_deepseek_only() -> None:
    for model in ("deepseek-v4-pro", "gpt-5.2"):
        talk = Talk(CHAT, model=model)
        talk.prompt("what do you see?")
        talk.answers(Thinking("the sky first"), LOOK, wire=WIRE)
        talk.runs_tools()
        talk.answers(Text("Blue."))
        message = talk.bodies[-1]["messages"][-2]
        assert message.get("reasoning_content") == ("the sky first" if "deep" in model else None)


@pytest.mark.parametrize("model", ["gemini-3.8-flash", "deepseek-v4-pro"])
def test_a_call_that_another_model_made_is_taken_too(model: str) -> None:
    talk = Talk(CHAT, model="gpt-4o-mini")
    talk.prompt("what do you see?")
    talk.answers(LOOK)
    talk.runs_tools()
    talk.model = model
    talk.answers(Text("Blue."))


def test_the_emulator_holds_the_rules() -> None:
    deaf = ChatApi(form=RequestForm(returns_reasoning=False))
    talk = Talk(deaf, model="deepseek-v4-pro")
    talk.prompt("what do you see?")
    talk.answers(Thinking("the sky first"), LOOK, wire=WIRE)
    talk.runs_tools()
    with pytest.raises(Rejection, match="must be passed back"):
        talk.answers(Text("Blue."))
    talk = Talk(CHAT, model="gemini-3.8-flash")
    talk.prompt("what do you see?")
    talk.answers(LOOK)
    talk.runs_tools()
    body = rendered_in(CHAT, request(*talk.context, model=talk.model)).body
    del body["messages"][-2]["tool_calls"][0]["extra_content"]
    with pytest.raises(Rejection, match="missing a thought_signature"):
        talk.api.admit(body)
