"""Printed as plainly as can be, whatever was compiled passes the rules of every vendor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import orjson
import pytest
from hypothesis import given
from tests.server.providers.compiler_contexts import OWN, asks, call, contexts, gives, result, says
from tests.vendors.answers import ApiName
from tests.vendors.emulator import Emulator
from tests.vendors.rejections import Rejection

from nplt_server.context.messages import ContextMessage
from nplt_server.providers.compiler import CompiledContext, ContextCompiler, UserStep, VendorRules

Json: TypeAlias = dict[str, Any]
SCHEMA: Json = {"type": "object", "properties": {}}


def as_messages(compiled: CompiledContext) -> Json:
    messages: list[Json] = []
    for step in compiled.steps:
        content: list[Json]
        if isinstance(step, UserStep):
            content = [
                {
                    "type": "tool_result",
                    "tool_use_id": each.call_id,
                    "content": [{"type": "text", "text": each.text}],
                    "is_error": each.status != "success",
                }
                for each in step.results
            ]
            content += [{"type": "text", "text": text} for text in step.texts]
        else:
            content = [{"type": "text", "text": step.text}] if step.text else []
            content += [
                {
                    "type": "tool_use",
                    "id": each.call_id,
                    "name": each.tool_name,
                    "input": orjson.loads(each.arguments_json),
                }
                for each in step.calls
            ]
        role = "user" if isinstance(step, UserStep) else "assistant"
        messages.append({"role": role, "content": content})
    tools = [{"name": "look", "input_schema": SCHEMA}]
    body: Json = {"model": "claude-opus-4-5", "max_tokens": 9, "tools": tools}
    system = {"system": compiled.system} if compiled.system else {}
    return {**body, **system, "messages": messages}


def as_chat(compiled: CompiledContext) -> Json:
    messages: list[Json] = [{"role": "system", "content": compiled.system}]
    for step in compiled.steps:
        if isinstance(step, UserStep):
            messages += [
                {"role": "tool", "tool_call_id": each.call_id, "content": each.text}
                for each in step.results
            ]
            messages += [{"role": "user", "content": text} for text in step.texts]
            continue
        calls = [
            {
                "id": each.call_id,
                "type": "function",
                "function": {"name": each.tool_name, "arguments": each.arguments_json},
            }
            for each in step.calls
        ]
        message: Json = {"role": "assistant", "content": step.text or None}
        messages.append({**message, "tool_calls": calls} if calls else message)
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    return {"model": "gpt-4.1", "messages": messages, "tools": tools}


def as_responses(compiled: CompiledContext) -> Json:
    def items() -> Iterator[Json]:
        for step in compiled.steps:
            if isinstance(step, UserStep):
                for given_back in step.results:
                    answered = {"call_id": given_back.call_id, "output": given_back.text}
                    yield {"type": "function_call_output", **answered}
                for text in step.texts:
                    yield {"role": "user", "content": text}
                continue
            if step.text:
                yield {"role": "assistant", "content": step.text}
            for each in step.calls:
                called = {"name": each.tool_name, "arguments": each.arguments_json}
                yield {"type": "function_call", "call_id": each.call_id, **called}

    return {"model": "gpt-4.1", "instructions": compiled.system, "input": list(items())}


PRINTERS: dict[ApiName, Callable[[CompiledContext], Json]] = {
    "messages": as_messages,
    "chat": as_chat,
    "responses": as_responses,
}


@given(contexts)
def test_no_vendor_refuses_what_was_compiled(messages: list[ContextMessage]) -> None:
    compiled = ContextCompiler(VendorRules()).compile(messages, origin=OWN)
    vendors = Emulator()
    for name, printed in PRINTERS.items():
        body = orjson.loads(orjson.dumps(printed(compiled)))
        vendors.api(name).admit(body)  # raises what the vendor would answer


@pytest.mark.parametrize("name", PRINTERS)
def test_a_result_that_was_lost_would_be_noticed(name: ApiName) -> None:
    """The vendors' rules are really asked."""
    whole = ContextCompiler(VendorRules()).compile(
        [asks("go"), says("", call("a")), gives(result("a"))], origin=OWN
    )
    lost = CompiledContext(
        system="", steps=(*whole.steps[:-1], UserStep(texts=("hm",), text_seqs=(0,)))
    )
    Emulator().api(name).admit(PRINTERS[name](whole))
    with pytest.raises(Rejection):
        Emulator().api(name).admit(PRINTERS[name](lost))
