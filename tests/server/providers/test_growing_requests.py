"""A request of a conversation is the one before it and what is new."""

from __future__ import annotations

import threading
from operator import is_
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.server.providers.compiler_contexts import OWN, asks, call, contexts, gives, result, says
from tests.vendors.emulator import emulator

from nplt_server.context.messages import (
    Beginning,
    ContextMessage,
    KeptRenderings,
    ModelInputMessage,
    ModelOutputMessage,
)
from nplt_server.providers import LlmRequest
from nplt_server.providers.anthropic import MessagesApi
from nplt_server.providers.client import VendorProvider
from nplt_server.providers.compiler import CompiledContext, ContextCompiler
from nplt_server.providers.openai import OpenAIClient
from nplt_server.providers.openai_chat import ChatApi
from nplt_server.providers.openai_responses import ResponsesApi
from nplt_server.providers.vendor_api import RenderedRequest, Rendering, VendorApi
from nplt_server.request_form import RequestForm
from nplt_server.tools import ToolDescription
from nplt_storage.entries import OutputPart

LOOK = ToolDescription(name="look", description="Looks.", parameters={"type": "object"})
NINE = RequestForm(call_ids="9 alphanumeric")
APIS: dict[str, VendorApi] = {
    "chat": ChatApi(),
    "chat, nine": ChatApi().in_form(NINE),
    "chat, no system role": ChatApi().in_form(RequestForm(without_system_role=True)),
    "responses": ResponsesApi(),
    "messages": MessagesApi(),
}
ALL = pytest.mark.parametrize("api", APIS.values(), ids=APIS)


class Growing:
    """The requests of one context, call after call."""

    def __init__(self, api: VendorApi) -> None:
        self.api = api
        self._compiler, self._rendering = ContextCompiler(api.rules), Rendering()

    def request(self, messages: Beginning[ContextMessage]) -> RenderedRequest:
        return self.api.render(_request(messages), self._compiled(messages), self._rendering)

    def _compiled(self, messages: Beginning[ContextMessage]) -> CompiledContext:
        return self._compiler.compile(messages, origin=OWN, form=self.api.form)


def _request(messages: Beginning[ContextMessage]) -> LlmRequest:
    return LlmRequest(invocation=OWN, context=messages, tools=(LOOK,))


def beginning(context: list[ContextMessage]) -> Beginning[ContextMessage]:
    return Beginning(context, len(context))


def anew(api: VendorApi, messages: Beginning[ContextMessage]) -> RenderedRequest:
    return Growing(api).request(beginning(list(messages)))


def check_same(one: RenderedRequest, other: RenderedRequest) -> None:
    assert one.body == other.body
    assert (one.seqs, one.block_seqs) == (other.seqs, other.block_seqs)
    assert (one.kind, one.own_names) == (other.kind, other.own_names)


@ALL
@given(messages=contexts, lengths=st.lists(st.integers(0, 20), max_size=4).map(sorted))
def test_a_request_that_grows_is_the_one_that_is_made_at_once(
    api: VendorApi, messages: list[ContextMessage], lengths: list[int]
) -> None:
    growing, context = Growing(api), list[ContextMessage]()
    for length in [*lengths, len(messages)]:
        context += messages[len(context) : length]
        shown = beginning(context)
        check_same(growing.request(shown), anew(api, shown))


@ALL
def test_a_long_context_is_the_same_in_pieces(api: VendorApi) -> None:
    growing, context = Growing(api), list[ContextMessage]()
    for number in range(150):
        context.append(asks(f"question {number}", seq=4 * number + 1))
        context.append(says("", call(f"call_{number}"), seq=4 * number + 2))
        context.append(gives(result(f"call_{number}"), seq=4 * number + 3))
        growing.request(beginning(context))
        context.append(says(f"answer {number}", seq=4 * number + 4))
    context.append(asks("and then?", seq=601))
    check_same(growing.request(beginning(context)), anew(api, beginning(context)))


@ALL
def test_what_was_rendered_is_not_rendered_again(api: VendorApi) -> None:
    growing, context = Growing(api), list[ContextMessage]()
    for number in range(100):
        context += [asks(f"question {number}"), says(f"answer {number}")]
    context.append(asks("?"))
    first = growing.request(beginning(context))
    context += [says("yes"), asks("and?")]
    second = growing.request(beginning(context))
    assert len(second.steps) == 203
    assert all(map(is_, first.steps[:200], second.steps))
    assert len(second.messages) < 100


def test_a_call_whose_id_is_a_vendors_earlier_one_gets_another() -> None:
    """The whole request then has to be made again: the earlier call keeps its own id."""
    context: list[ContextMessage] = [
        asks("go"),
        structs.replace(
            says("", call("call_1")),
            parts=(
                OutputPart(kind="call", size=0),
                OutputPart(kind="opaque", data={"call_ids": ["theirs"]}),
            ),
        ),
        gives(result("call_1")),
    ]
    growing = Growing(APIS["chat"])
    assert _call_ids(growing.request(beginning(context))) == ["theirs"]
    context += [says("", call("theirs")), gives(result("theirs"))]
    grown = growing.request(beginning(context))
    assert _call_ids(grown) == ["call_1", "theirs"]
    check_same(grown, anew(growing.api, beginning(context)))


def _call_ids(request: RenderedRequest) -> list[str]:
    return [
        each["id"] for message in request.body["messages"] for each in message.get("tool_calls", ())
    ]


@ALL
def test_another_instruction_or_other_tools_are_sent_at_once(api: VendorApi) -> None:
    context: list[ContextMessage] = [asks("go"), says("gone"), asks("on")]
    compiled = ContextCompiler(api.rules).compile(context, origin=OWN)
    rendering = Rendering()
    for system in ("Be brief.", "Be long."):
        for tools in ((LOOK,), (), (structs.replace(LOOK, name="peek"),)):
            asked = LlmRequest(invocation=OWN, context=context, tools=tools)
            shown = structs.replace(compiled, system=system)
            check_same(api.render(asked, shown, rendering), api.render(asked, shown))


def test_only_a_few_renderings_of_a_context_are_kept() -> None:
    kept = KeptRenderings()
    for number in range(3):
        kept.keep(number, f"rendering {number}")
    assert [kept.take(number) for number in range(3)] == [None, "rendering 1", "rendering 2"]
    assert kept.take(2) is None


async def test_a_long_context_is_rendered_in_a_thread_and_what_follows_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    render = ChatApi.render

    def watched(*given: Any) -> RenderedRequest:
        threads.append(threading.current_thread())
        return render(*given)

    monkeypatch.setattr(ChatApi, "render", watched)
    context: list[ContextMessage] = []
    for _ in range(200):
        context += [
            ModelInputMessage(content="word " * 100, seq=1),
            ModelOutputMessage(content="word " * 100, seq=2),
        ]
    renderings = KeptRenderings()
    async with emulator() as vendors:
        client = OpenAIClient(api_key=vendors.key, base_url=vendors.openai_url)
        provider = VendorProvider("openai", client, apis=(ChatApi(),), models=())
        for _ in range(2):
            context.append(ModelInputMessage(content="hello", seq=3))
            asked = LlmRequest(
                invocation=structs.replace(OWN, specification="openai-chat", model="gpt-4.1"),
                context=beginning(context),
                renderings=renderings,
            )
            async with provider.call_model(asked) as deltas:
                assert [delta async for delta in deltas]
            context.append(ModelOutputMessage(content="hello", seq=4))
        await provider.aclose()
        messages: Any = vendors.received[-1].body
    assert [thread is threading.main_thread() for thread in threads] == [False, True]
    assert len(messages["messages"]) == 403
