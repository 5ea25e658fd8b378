"""Each preset refuses what its server refuses, in its words, and takes everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from tests.vendors import local_servers as servers
from tests.vendors.answers import Answer, Call, say
from tests.vendors.local_servers import PRESETS, LocalServer, Preset, ServerRule, local_server

Json = dict[str, Any]

TOOL: Json = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
PROMPT: Json = {"role": "user", "content": "hello"}
ANSWER: Json = {"role": "assistant", "content": "hi"}
PICTURE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TEXT: Json = {"type": "text", "text": "hello"}


def call(call_id: str) -> Json:
    function = {"name": "look", "arguments": "{}"}
    made = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def result(call_id: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "seen"}


@dataclass(frozen=True, kw_only=True)
class Example:
    preset: Preset
    rule: str
    broken: Json


def example(preset: Preset, rule: str, *messages: Json, **fields: object) -> Example:
    body = {"messages": list(messages) or [PROMPT], **fields}
    return Example(preset=preset, rule=rule, broken=body)


OLDER_VLLM = servers.vllm_without_fields("stream_options", "parallel_tool_calls")
SHOWN = {"role": "user", "content": [TEXT, PICTURE]}
LONG = {"role": "user", "content": "word " * 20_000}
EXAMPLES = (
    example(servers.OLLAMA_WITHOUT_TOOLS, "ollama-no-tools", tools=[TOOL]),
    example(servers.LLAMA_CPP_WITHOUT_TEMPLATE, "llama.cpp-no-template", tools=[TOOL]),
    example(servers.LLAMA_CPP, "llama.cpp-pictures", SHOWN),
    example(servers.LLAMA_CPP, "llama.cpp-window", LONG),
    example(servers.VLLM_WITHOUT_TOOL_CHOICE, "vllm-no-tool-choice", tools=[TOOL]),
    example(servers.VLLM, "vllm-pictures", SHOWN),
    example(servers.VLLM, "vllm-window", LONG, max_tokens=100),
    example(servers.VLLM_WITH_ALTERNATING_ROLES, "vllm-alternating-roles", PROMPT, PROMPT),
    example(OLDER_VLLM, "vllm-unknown-stream_options", stream_options={"include_usage": True}),
    example(OLDER_VLLM, "vllm-unknown-parallel_tool_calls", parallel_tool_calls=True),
    example(servers.OPENROUTER_WITHOUT_TOOLS, "openrouter-no-tools", tools=[TOOL]),
    example(servers.OPENROUTER, "openrouter-pictures", SHOWN),
    example(servers.MISTRAL, "mistral-max-completion-tokens", max_completion_tokens=10),
    example(servers.MISTRAL, "mistral-call-ids", PROMPT, call("call_1"), result("call_1")),
    example(
        servers.MISTRAL, "mistral-order", PROMPT, call("abcdefgh1"), result("abcdefgh1"), PROMPT
    ),
    example(servers.MISTRAL, "mistral-last-role", PROMPT, ANSWER),
    example(servers.GROQ, "groq-unknown-property", store=False),
    example(
        servers.GROQ,
        "groq-reasoning-in-messages",
        PROMPT,
        {**ANSWER, "reasoning_content": "hm"},
        PROMPT,
    ),
    example(servers.GROQ, "groq-system-is-a-string", {"role": "system", "content": [TEXT]}, PROMPT),
    example(servers.GROQ, "groq-content-is-a-string", {"role": "user", "content": [TEXT]}),
    example(
        servers.DEEPSEEK, "deepseek-developer-role", {"role": "developer", "content": "x"}, PROMPT
    ),
    example(servers.DEEPSEEK, "deepseek-pictures", SHOWN),
    example(
        servers.DEEPSEEK,
        "deepseek-content-is-a-string",
        PROMPT,
        {"role": "assistant", "content": [TEXT]},
        PROMPT,
    ),
    example(servers.OPENAI_WITHOUT_PICTURES, "openai-pictures", SHOWN),
)


def rules_of(preset: Preset) -> dict[str, ServerRule]:
    return {rule.id: rule for rule in preset.rules}


async def ask(server: LocalServer, body: Json) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=server.openai_url, timeout=30) as client:
        return await client.post("/chat/completions", json={"model": server.model, **body})


@pytest.mark.parametrize("tried", EXAMPLES, ids=lambda tried: tried.rule)
async def test_a_preset_refuses_what_its_rule_forbids_with_the_servers_status(
    tried: Example,
) -> None:
    rule = rules_of(tried.preset)[tried.rule]
    async with local_server(tried.preset) as server:
        response = await ask(server, tried.broken)
        (rejection,) = server.rejections
    assert response.status_code == rule.status
    assert rejection.kind == rule.kind
    assert rule.message.partition("{")[0] in rejection.message
    assert "error" in response.json() or response.json()["object"] == "error"


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.model)
def test_every_rule_has_an_address_and_a_quote_that_has_its_words(preset: Preset) -> None:
    rules = preset.rules if preset.needs_key is None else (*preset.rules, preset.needs_key)
    for rule in rules:
        assert rule.source.startswith("https://")
        assert rule.quotes_message(), rule.id


def test_every_rule_has_an_example() -> None:
    tried = {each.rule for each in EXAMPLES}
    assert {rule.id for preset in PRESETS for rule in preset.rules} == tried


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.model)
async def test_a_preset_answers_a_plain_prompt_whole_and_streamed(preset: Preset) -> None:
    async with local_server(preset) as server:
        headers = {"authorization": f"Bearer {server.key}"}
        async with httpx2.AsyncClient(base_url=server.openai_url, headers=headers) as client:
            body = {"model": server.model, "messages": [PROMPT]}
            whole = (await client.post("/chat/completions", json=body)).json()
            streamed = (await client.post("/chat/completions", json={**body, "stream": True})).text
        assert whole["choices"][0]["message"]["content"] == "hello"
        assert "data: [DONE]" in streamed
        assert server.rejections == []


async def test_litellm_without_a_database_refuses_another_key_with_400() -> None:
    async with local_server(servers.LITELLM) as server:
        response = await ask(server, {"messages": [PROMPT]})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "No connected db."


async def test_llama_cpp_says_the_figures_of_its_window_in_fields_too() -> None:
    async with local_server(servers.LLAMA_CPP) as server:
        error = (await ask(server, {"messages": [LONG]})).json()["error"]
    assert error["n_ctx"] == 8_192 < error["n_prompt_tokens"]
    assert f"({error['n_prompt_tokens']} tokens)" in error["message"]


async def test_ollama_cuts_the_oldest_messages_and_says_nothing() -> None:
    seen: list[list[Json]] = []

    def script(call: Call) -> Answer:
        seen.append(call.body["messages"])
        return say("fine")

    system = {"role": "system", "content": "be brief"}
    async with local_server(servers.OLLAMA, script) as server:
        response = await ask(server, {"messages": [system, LONG, ANSWER, PROMPT]})
    assert response.status_code == 200
    assert seen == [[system, ANSWER, PROMPT]]
    assert response.json()["usage"]["prompt_tokens"] == 4_096


@pytest.mark.parametrize(
    ("preset", "method", "path", "window"),
    [
        (servers.OLLAMA, "GET", "/api/ps", 4_096),
        (servers.OLLAMA, "POST", "/api/show", 131_072),
        (servers.LLAMA_CPP, "GET", "/props", 8_192),
        (servers.VLLM, "GET", "/v1/models", 16_384),
        (servers.OPENROUTER, "GET", "/v1/models", 131_072),
        (servers.LITELLM, "GET", "/model/info", 131_072),
    ],
)
async def test_an_emulated_local_server_reports_its_window_where_the_real_one_does(
    preset: Preset, method: str, path: str, window: int
) -> None:
    async with local_server(preset) as server, httpx2.AsyncClient(base_url=server.url) as client:
        headers = {"authorization": f"Bearer {server.key}"}
        response = await client.request(method, path, headers=headers)
    assert response.status_code == 200
    assert f":{window}" in response.text
