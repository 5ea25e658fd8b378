"""Servers that speak chat completions and refuse what OpenAI takes: Ollama, llama.cpp,
vLLM, LiteLLM, OpenRouter, Mistral, Groq and DeepSeek.

    async with local_server(OLLAMA_WITHOUT_TOOLS) as server:
        await my_program(server.openai_url)
        assert server.rejections == []

Each preset is a server as users meet it. It holds only the rules in its table and takes
everything else; the strict emulator of OpenAI is `emulator`. Each rule has an address and
a quote; errors have the body their server gives them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import orjson
from tests.vendors.answers import Answer, Call, Script, echo
from tests.vendors.apis import Ids, Vendor
from tests.vendors.caching import Usage
from tests.vendors.chat_answers import ChatApi
from tests.vendors.emulator import Emulator
from tests.vendors.fields import JsonObject
from tests.vendors.http_server import HttpRequest
from tests.vendors.models import GptModel
from tests.vendors.openai_api import OpenAI
from tests.vendors.rejections import Rejection
from tests.vendors.sourced_rules import SourcedRule
from tests.vendors.tokens import canonical, tokens_of

ErrorBody = Literal["openai", "bare", "vllm", "openrouter", "llama.cpp"]
"""`bare`: the fields of the error are those of the body (Mistral)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Where and how a request breaks a rule: the words its message needs."""

    words: Mapping[str, object] = field(default_factory=dict)
    param: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    name: str
    model: str
    error_body: ErrorBody = "openai"
    rules: tuple[ServerRule, ...] = ()
    window_tokens: int = 131_072
    trained_tokens: int = 131_072
    """What the model could take; the server may have been started with less."""
    cuts_silently: bool = False
    """A prompt that is too long loses its oldest messages, and the answer is a 200."""
    needs_key: ServerRule | None = None
    """What it says to another key than its own; without, any key will do."""
    takes_tools: bool = True
    takes_pictures: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRule(SourcedRule):
    finds: Callable[[JsonObject, Preset], Broken | None]


# ------------------------------------------------------------------------------
# What a request has


def _offers_tools(body: JsonObject, preset: Preset) -> Broken | None:
    return Broken(words={"model": preset.model}) if body.get("tools") else None


def _lets_the_model_choose_tools(body: JsonObject, preset: Preset) -> Broken | None:
    chosen = body.get("tool_choice", "auto")
    return Broken() if body.get("tools") and chosen in (None, "auto") else None


def _shows_a_picture(body: JsonObject, preset: Preset) -> Broken | None:
    for place, message in enumerate(body["messages"]):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if part.get("type") == "image_url":
                return Broken(
                    words={"place": place, "model": preset.model},
                    param=f"messages.[{place}].content.[{number}].type",
                )
    return None


def _has_parts(body: JsonObject, roles: tuple[str, ...]) -> Broken | None:
    for place, message in enumerate(body["messages"]):
        if message["role"] in roles and isinstance(message.get("content"), list):
            words = {"place": place, "role": message["role"]}
            return Broken(words=words, param=f"messages[{place}].content")
    return None


def _system_has_parts(body: JsonObject, preset: Preset) -> Broken | None:
    found = _has_parts(body, ("system",))
    return None if found is None else replace(found, param=None)


def _prompt_has_parts(body: JsonObject, preset: Preset) -> Broken | None:
    return _has_parts(body, ("user", "assistant", "tool"))


def _answer_or_result_has_parts(body: JsonObject, preset: Preset) -> Broken | None:
    return _has_parts(body, ("assistant", "tool"))


def _has_developer_role(body: JsonObject, preset: Preset) -> Broken | None:
    for place, message in enumerate(body["messages"]):
        if message["role"] == "developer":
            return Broken(words={"place": place})
    return None


def _call_id_of_another_form(body: JsonObject, preset: Preset) -> Broken | None:
    for message in body["messages"]:
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        for call_id in [*ids, message.get("tool_call_id")]:
            if call_id is not None and re.fullmatch("[a-zA-Z0-9]{9}", call_id) is None:
                return Broken(words={"id": call_id})
    return None


def _prompt_right_after_results(body: JsonObject, preset: Preset) -> Broken | None:
    roles = [message["role"] for message in body["messages"]]
    for before, role in pairwise(roles):
        if before == "tool" and role in ("user", "system"):
            return Broken(words={"role": role, "before": before})
    return None


def _ends_with_an_answer(body: JsonObject, preset: Preset) -> Broken | None:
    last = body["messages"][-1]
    return Broken() if last["role"] == "assistant" and not last.get("prefix") else None


def _roles_that_do_not_alternate(body: JsonObject, preset: Preset) -> Broken | None:
    """With the older template of Mistral's models: no system message either."""
    for place, message in enumerate(body["messages"]):
        if message["role"] != ("user", "assistant")[place % 2]:
            return Broken()
    return None


def _reasoning_in_messages(body: JsonObject, preset: Preset) -> Broken | None:
    for place, message in enumerate(body["messages"]):
        if "reasoning_content" in message:
            return Broken(words={"place": place, "role": message["role"]})
    return None


def _is_too_long(body: JsonObject, preset: Preset) -> Broken | None:
    tokens = tokens_of_prompt(body)
    answer = body.get("max_tokens") or body.get("max_completion_tokens") or 0
    window = preset.window_tokens
    if tokens + answer <= window:
        return None
    words = {"tokens": tokens, "window": window, "answer": answer, "all": tokens + answer}
    return Broken(words=words)


def _prompt_is_too_long(body: JsonObject, preset: Preset) -> Broken | None:
    tokens, window = tokens_of_prompt(body), preset.window_tokens
    if tokens < window:
        return None
    words = {"tokens": tokens, "window": window}
    return Broken(words=words, fields={"n_prompt_tokens": tokens, "n_ctx": window})


def _field(name: str) -> Callable[[JsonObject, Preset], Broken | None]:
    def finds(body: JsonObject, preset: Preset) -> Broken | None:
        if name not in body:
            return None
        return Broken(words={"field": name, "input": body[name]})

    return finds


def tokens_of_prompt(body: JsonObject) -> int:
    return tokens_of("\n".join(map(canonical, [body.get("tools"), *body["messages"]])))


# ------------------------------------------------------------------------------
# The servers

OLLAMA_WITHOUT_TOOLS = Preset(
    name="ollama",
    model="gemma3:4b",
    window_tokens=4_096,
    cuts_silently=True,
    takes_tools=False,
    rules=(
        ServerRule(
            id="ollama-no-tools",
            checks="A model whose template has no tools is offered none.",
            finds=_offers_tools,
            message="registry.ollama.ai/library/{model} does not support tools",
            kind="api_error",
            source="https://github.com/louisho5/picobot/issues/6",
            quote='{"error":{"message":"registry.ollama.ai/library/gemma3:4b does not support'
            ' tools","type":"api_error","param":null,"code":null}}',
        ),
    ),
)
"""On /v1 it cuts a prompt at `num_ctx` (4,096) without a word. "Ollama's OpenAI-compatible
endpoint silently ignores both `num_ctx` and `think`. [...] silently truncated, no error":
https://github.com/ralphgrewe/TradingAgents/issues/168"""

OLLAMA = replace(OLLAMA_WITHOUT_TOOLS, model="qwen3:4b", takes_tools=True, rules=())

_LLAMA_CPP_WINDOW = ServerRule(
    id="llama.cpp-window",
    checks="A prompt fits the context the server was started with.",
    finds=_prompt_is_too_long,
    message="request ({tokens} tokens) exceeds the available context size ({window} tokens), try"
    " increasing it",
    kind="exceed_context_size_error",
    source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-context.cpp",
    quote="request (%d tokens) exceeds the available context size (%d tokens), try increasing it",
)
_LLAMA_CPP_PICTURES = ServerRule(
    id="llama.cpp-pictures",
    checks="A server without a projector is shown no pictures.",
    finds=_shows_a_picture,
    message="image input is not supported - hint: if this is unexpected, you may need to provide"
    " the mmproj",
    status=500,
    kind="server_error",
    source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-common.cpp",
    quote='throw std::runtime_error("image input is not supported - hint: if this is unexpected,'
    ' you may need to provide the mmproj");',
)
LLAMA_CPP = Preset(
    name="llama.cpp",
    model="qwen3-8b-q4",
    error_body="llama.cpp",
    window_tokens=8_192,
    rules=(_LLAMA_CPP_PICTURES, _LLAMA_CPP_WINDOW),
)
LLAMA_CPP_WITHOUT_TEMPLATE = replace(
    LLAMA_CPP,
    takes_tools=False,
    rules=(
        ServerRule(
            id="llama.cpp-no-template",
            checks="A server without a Jinja template is offered no tools.",
            finds=_offers_tools,
            message="tools param requires --jinja flag",
            status=500,
            kind="server_error",
            source="https://github.com/containers/ramalama/issues/988",
            quote="'message': 'tools param requires --jinja flag', 'type': 'server_error'}}",
        ),
        *LLAMA_CPP.rules,
    ),
)

_VLLM_WINDOW = ServerRule(
    id="vllm-window",
    checks="A prompt and the answer it asks for fit max_model_len.",
    finds=_is_too_long,
    message="This model's maximum context length is {window} tokens. However, you requested {all}"
    " tokens ({tokens} in the messages, {answer} in the completion). Please reduce the length of"
    " the messages or completion.",
    kind="BadRequestError",
    source="https://github.com/ogx-ai/ogx/issues/4534",
    quote="\"This model's maximum context length is 6048 tokens. However, you requested 6616"
    " tokens (568 in the messages, 6048 in the completion). Please reduce the length of the"
    " messages or completion.\", 'type': 'BadRequestError', 'param': None, 'code': 400}",
)
_VLLM_PICTURES = ServerRule(
    id="vllm-pictures",
    checks="A model without a vision tower is shown no pictures.",
    finds=_shows_a_picture,
    message="{model} is not a multimodal model",
    kind="BadRequestError",
    source="https://github.com/vllm-project/vllm/issues/23402",
    quote='[Bug]: vLLM 0.10.1 - Intern-S1 MultiModal LLM - error: "is not a multimodal model"',
)
VLLM = Preset(
    name="vllm",
    model="qwen2.5-7b-instruct",
    error_body="vllm",
    window_tokens=16_384,
    rules=(_VLLM_PICTURES, _VLLM_WINDOW),
)
VLLM_WITHOUT_TOOL_CHOICE = replace(
    VLLM,
    takes_tools=False,
    rules=(
        ServerRule(
            id="vllm-no-tool-choice",
            checks="A server without a tool parser lets no model choose tools.",
            finds=_lets_the_model_choose_tools,
            message='"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'
            " to be set",
            kind="BadRequestError",
            source="https://github.com/langchain4j/langchain4j/issues/3475",
            quote=r'{"object":"error","message":"\"auto\" tool choice requires'
            r' --enable-auto-tool-choice and --tool-call-parser to be set","type":'
            r'"BadRequestError","param":null,"code":400}',
        ),
        *VLLM.rules,
    ),
)
VLLM_WITH_ALTERNATING_ROLES = replace(
    VLLM,
    model="mistral-7b-instruct-v0.2",
    rules=(
        ServerRule(
            id="vllm-alternating-roles",
            checks="Roles alternate, and there is no system message, as the template asks.",
            finds=_roles_that_do_not_alternate,
            message="Conversation roles must alternate user/assistant/user/assistant/...",
            kind="BadRequestError",
            source="https://github.com/weaviate/Verba/issues/150",
            quote='\'{"object":"error","message":"Conversation roles must alternate'
            ' user/assistant/user/assistant/...","type":"BadRequestError","param":null,'
            '"code":400}\'',
        ),
        *VLLM.rules,
    ),
)


def vllm_without_fields(*names: str) -> Preset:
    """An older one, which does not know these parameters."""
    rules = tuple(
        ServerRule(
            id=f"vllm-unknown-{name}",
            checks=f"A server that does not know `{name}` is not sent it.",
            finds=_field(name),
            message="[{{'type': 'extra_forbidden', 'loc': ('body', '{field}'), 'msg': 'Extra inputs"
            " are not permitted', 'input': {input}}}]",
            kind="BadRequestError",
            source="https://github.com/gpustack/gpustack/issues/429",
            quote="[{'type': 'extra_forbidden', 'loc': ('body', 'stream_otpions'), 'msg': 'Extra"
            " inputs are not permitted', 'input': {'include_usage': True}}]",
        )
        for name in names
    )
    return replace(VLLM, rules=(*rules, *VLLM.rules))


OPENROUTER = Preset(
    name="openrouter",
    model="deepseek/deepseek-r1:free",
    error_body="openrouter",
    rules=(
        ServerRule(
            id="openrouter-pictures",
            checks="A model that no endpoint serves with pictures is shown none.",
            finds=_shows_a_picture,
            message="No endpoints found that support image input",
            status=404,
            source="https://github.com/NousResearch/hermes-agent/pull/23411",
            quote="HTTP 404: No endpoints found that support image input",
        ),
    ),
)
OPENROUTER_WITHOUT_TOOLS = replace(
    OPENROUTER,
    takes_tools=False,
    rules=(
        ServerRule(
            id="openrouter-no-tools",
            checks="A model that no endpoint serves with tools is offered none.",
            finds=_offers_tools,
            message="No endpoints found that support tool use. To learn more about provider"
            " routing, visit: https://openrouter.ai/docs/guides/routing/provider-selection",
            status=404,
            source="https://github.com/bobrware/bobrchat/issues/60",
            quote='{"error":{"message":"No endpoints found that support tool use. To learn more'
            " about provider routing, visit:"
            ' https://openrouter.ai/docs/guides/routing/provider-selection","code":404}}',
        ),
        *OPENROUTER.rules,
    ),
)

MISTRAL = Preset(
    name="mistral",
    model="mistral-large-latest",
    error_body="bare",
    takes_pictures=True,
    rules=(
        ServerRule(
            id="mistral-max-completion-tokens",
            checks="The length of an answer is bounded by `max_tokens`.",
            finds=_field("max_completion_tokens"),
            message='{{"detail":[{{"type":"extra_forbidden","loc":["body","{field}"],"msg":"Extra'
            ' inputs are not permitted","input":{input}}}]}}',
            status=422,
            source="https://github.com/editor-code-assistant/eca/issues/231",
            quote='{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body",'
            '"max_completion_tokens"],"msg":"Extra inputs are not permitted","input":32000}]},'
            '"type":"invalid_request_error","param":null,"code":null}',
        ),
        ServerRule(
            id="mistral-call-ids",
            checks="The id of a call has nine letters and digits.",
            finds=_call_id_of_another_form,
            message="Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.",
            kind="invalid_function_call",
            code="3280",
            source="https://github.com/nearai/ironclaw/issues/1241",
            quote='{"object":"error","message":"Tool call id was turn1_0 but must be a-z, A-Z,'
            ' 0-9, with a length of 9.","type":"invalid_function_call","param":null,'
            '"code":"3280","raw_status_code":400}',
        ),
        ServerRule(
            id="mistral-order",
            checks="An answer stands between the results of tools and the next prompt.",
            finds=_prompt_right_after_results,
            message="Unexpected role '{role}' after role '{before}'",
            kind="invalid_request_message_order",
            code="3230",
            source="https://github.com/avante-corp/avante.nvim/pull/2695",
            quote='{"object":"error","message":"Unexpected role \'user\' after role \'tool\'",'
            '"type":"invalid_request_message_order","param":null,"code":"3230"}',
        ),
        ServerRule(
            id="mistral-last-role",
            checks="The last message is a prompt or results, or an answer marked as a prefix.",
            finds=_ends_with_an_answer,
            message="Expected last role User or Tool (or Assistant with prefix True) for serving"
            " but got assistant",
            source="https://github.com/huggingface/smolagents/issues/757",
            quote="Error code: 400 - {'object': 'error', 'message': 'Expected last role User or"
            " Tool (or Assistant with prefix True) for serving but got assistant', 'type':"
            " 'invalid_request_error', 'param': None, 'code': None}",
        ),
    ),
)

GROQ = Preset(
    name="groq",
    model="openai/gpt-oss-120b",
    rules=(
        ServerRule(
            id="groq-unknown-property",
            checks="A parameter that OpenAI alone has is not sent.",
            finds=_field("store"),
            message="property '{field}' is unsupported",
            source="https://github.com/fanenr/chatbot/issues/21",
            quote="\"message\": \"property 'store' is unsupported, did you mean 'stop'?\"",
        ),
        ServerRule(
            id="groq-reasoning-in-messages",
            checks="Reasoning is not sent back.",
            finds=_reasoning_in_messages,
            message="'messages.{place}' : for 'role:{role}' the following must be satisfied"
            "[('messages.{place}' : property 'reasoning_content' is unsupported)]",
            source="https://github.com/janhq/jan/issues/8136",
            quote="'messages.1' : for 'role:assistant' the following must be satisfied"
            "[('messages.1' : property 'reasoning_content' is unsupported)]",
        ),
        ServerRule(
            id="groq-system-is-a-string",
            checks="The content of a system message is a string.",
            finds=_system_has_parts,
            message="'messages.{place}' : for 'role:{role}' the following must be satisfied"
            "[('messages.{place}.content' : value must be a string)]",
            source="https://github.com/OpenHands/OpenHands/issues/4643",
            quote="Error code: 400 - {'error': {'message': \"'messages.0' : for 'role:system' the"
            " following must be satisfied[('messages.0.content' : value must be a string)]\","
            " 'type': 'invalid_request_error'}}",
        ),
        ServerRule(
            id="groq-content-is-a-string",
            checks="The content of every other message is a string.",
            finds=_prompt_has_parts,
            message="messages[{place}].content must be a string",
            source="https://github.com/sam3gp8/jarvis-aio/issues/17",
            quote="'message': 'messages[1].content must be a string', 'type':"
            " 'invalid_request_error', 'param': 'messages[1].content'",
        ),
    ),
)

DEEPSEEK = Preset(
    name="deepseek",
    model="deepseek-chat",
    window_tokens=131_072,
    rules=(
        ServerRule(
            id="deepseek-developer-role",
            checks="Instructions come from `system`.",
            finds=_has_developer_role,
            message="Failed to deserialize the JSON body into the target type:"
            " messages[{place}].role: unknown variant `developer`, expected one of `system`,"
            " `user`, `assistant`, `tool`, `latest_reminder`",
            code="invalid_request_error",
            source="https://github.com/theopenco/llmgateway/pull/3462",
            quote='{"error":{"message":"Failed to deserialize the JSON body into the target type:'
            " messages[0].role: unknown variant `developer`, expected one of `system`, `user`,"
            ' `assistant`, `tool`, `latest_reminder` at line 1 column 58","type":'
            '"invalid_request_error","code":"invalid_request_error"}}',
        ),
        ServerRule(
            id="deepseek-pictures",
            checks="There are no pictures.",
            finds=_shows_a_picture,
            message="Failed to deserialize the JSON body into the target type:"
            " messages[{place}]: unknown variant `image_url`, expected `text`",
            code="invalid_request_error",
            source="https://github.com/ChatLunaLab/chatluna/issues/867",
            quote="Failed to deserialize the JSON body into the target type: messages[3]: unknown"
            " variant `image_url`, expected `text` at line 1 column 173667",
        ),
        ServerRule(
            id="deepseek-content-is-a-string",
            checks="The content of an answer and of a result is a string.",
            finds=_answer_or_result_has_parts,
            message="Failed to deserialize the JSON body into the target type:"
            " messages[{place}]: invalid type: sequence, expected a string",
            code="invalid_request_error",
            source="https://github.com/tailcallhq/forgecode/issues/2008",
            quote='{"error":{"message":"Failed to deserialize the JSON body into the target type:'
            ' messages[9]: invalid type: sequence, expected a string at line 1 column 45446",'
            '"type":"invalid_request_error","param":null,"code":"invalid_request_error"}}',
        ),
    ),
)

LITELLM = Preset(
    name="litellm",
    model="chatgpt",
    takes_pictures=True,
    needs_key=ServerRule(
        id="litellm-no-database",
        checks="Without a database, the only key is the master key.",
        finds=lambda body, preset: None,
        message="No connected db.",
        kind="no_db_connection",
        code="400",
        source="https://github.com/BerriAI/litellm/issues/12273",
        quote='{"error":{"message":"No connected db.","type":"no_db_connection","param":null,'
        '"code":"400"}}',
    ),
)

OPENAI_WITHOUT_PICTURES = Preset(
    name="openai",
    model="gpt-3.5-turbo",
    window_tokens=16_385,
    rules=(
        ServerRule(
            id="openai-pictures",
            checks="A model without vision is shown no pictures.",
            finds=_shows_a_picture,
            message="Invalid content type. image_url is only supported by certain models.",
            source="https://github.com/browser-use/web-ui/issues/274",
            quote="Error code: 400 - {'error': {'message': 'Invalid content type. image_url is"
            " only supported by certain models.', 'type': 'invalid_request_error', 'param':"
            " 'messages.[1].content.[1].type', 'code': None}}",
        ),
    ),
)

PRESETS = (
    OLLAMA,
    OLLAMA_WITHOUT_TOOLS,
    LLAMA_CPP,
    LLAMA_CPP_WITHOUT_TEMPLATE,
    VLLM,
    VLLM_WITHOUT_TOOL_CHOICE,
    VLLM_WITH_ALTERNATING_ROLES,
    vllm_without_fields("stream_options", "parallel_tool_calls"),
    OPENROUTER,
    OPENROUTER_WITHOUT_TOOLS,
    MISTRAL,
    GROQ,
    DEEPSEEK,
    LITELLM,
    OPENAI_WITHOUT_PICTURES,
)


# ------------------------------------------------------------------------------
# The server


class LocalServer(Emulator):
    def __init__(self, preset: Preset, script: Script = echo, *, key: str = "sk-emulated") -> None:
        self.preset = preset
        super().__init__(self._shown(script), key=key)
        self._local = _LocalVendor(preset, key=key)
        self._apis = {"/v1/chat/completions": _LocalChat(self._local, ids=self._ids)}

    @property
    def model(self) -> str:
        return self.preset.model

    def _shown(self, script: Script) -> Script:
        """The script sees what is left of a prompt that was cut."""

        def shown(call: Call) -> Answer:
            return script(replace(call, body=_cut(call.body, self.preset)))

        return shown if self.preset.cuts_silently else script

    def _vendor(self, request: HttpRequest) -> Vendor:
        return self._local

    def _is_list(self, request: HttpRequest) -> bool:
        return super()._is_list(request) or (self.preset.name, request.path) in _PAGES

    def _list(self, request: HttpRequest, vendor: Vendor) -> JsonObject:
        page = _PAGES.get((self.preset.name, request.path))
        return vendor.models(request.query) if page is None else page(self.preset)


@asynccontextmanager
async def local_server(
    preset: Preset, script: Script = echo, *, key: str = "sk-emulated"
) -> AsyncIterator[LocalServer]:
    server = LocalServer(preset, script, key=key)
    await server.open()
    try:
        yield server
    finally:
        await server.close()


class _LocalVendor(OpenAI):
    def __init__(self, preset: Preset, *, key: str) -> None:
        super().__init__(key=key, models=[])
        self.preset = preset

    def authenticate(self, headers: Mapping[str, str]) -> None:
        rule = self.preset.needs_key
        if rule is not None and headers.get("authorization") != f"Bearer {self._key}":
            raise rule.refusal()

    def error_body(self, rejection: Rejection, request_id: str) -> JsonObject:
        common = {
            "message": rejection.message,
            "type": rejection.kind,
            "param": rejection.param,
            "code": rejection.code,
            **rejection.fields,
        }
        match self.preset.error_body:
            case "bare":  # where pydantic refuses, the message is the list itself
                detailed = rejection.message.startswith("{")
                message = orjson.loads(rejection.message) if detailed else rejection.message
                return {"object": "error", **common, "message": message}
            case "vllm":
                return {"object": "error", **common, "code": rejection.status}
            case "openrouter":
                return {"error": {"message": rejection.message, "code": rejection.status}}
            case "llama.cpp":
                without = {name: value for name, value in common.items() if name != "param"}
                return {"error": {**without, "code": rejection.status}}
            case _:
                return {"error": common}

    def models(self, query: Mapping[str, str]) -> JsonObject:
        model: JsonObject = {"id": self.preset.model, "object": "model", "created": 1_767_225_600}
        match self.preset.name:
            case "vllm":
                model["max_model_len"] = self.preset.window_tokens
            case "openrouter":
                model |= _openrouter_model(self.preset)
            case "llama.cpp":
                model["meta"] = {"n_ctx_train": self.preset.trained_tokens}
        return {"object": "list", "data": [model]}

    def model(self, name: str) -> GptModel:
        return GptModel(name=name, window_tokens=self.preset.window_tokens)


class _LocalChat(ChatApi):
    def __init__(self, vendor: _LocalVendor, *, ids: Ids) -> None:
        super().__init__(vendor, ids=ids, cached_tokens_min=1024)
        self._preset = vendor.preset

    def admit(self, body: object) -> Usage:
        assert isinstance(body, dict)
        for rule in self._preset.rules:
            broken = rule.finds(body, self._preset)
            if broken is not None:
                raise rule.refusal(param=broken.param, fields=broken.fields, **broken.words)
        return Usage(input_tokens=min(tokens_of_prompt(body), self._preset.window_tokens))


def _cut(body: JsonObject, preset: Preset) -> JsonObject:
    """Without the oldest messages that are no instruction."""
    kept: list[JsonObject] = list(body["messages"])
    while tokens_of_prompt({**body, "messages": kept}) > preset.window_tokens:
        oldest = next((each for each in kept[:-1] if each["role"] != "system"), None)
        if oldest is None:
            break
        kept.remove(oldest)
    return {**body, "messages": kept}


# ------------------------------------------------------------------------------
# What they tell about their models


def _openrouter_model(preset: Preset) -> JsonObject:
    """https://openrouter.ai/docs/models, Model Object Schema."""
    tools = ["tools", "tool_choice"] if preset.takes_tools else []
    return {
        "canonical_slug": preset.model,
        "context_length": preset.window_tokens,
        "architecture": {
            "input_modalities": ["text", "image"] if preset.takes_pictures else ["text"],
            "output_modalities": ["text"],
        },
        "pricing": {"prompt": "0.0000005", "completion": "0.000002"},
        "top_provider": {"context_length": preset.window_tokens, "max_completion_tokens": 8_192},
        "supported_parameters": ["max_tokens", "temperature", *tools],
    }


def _ollama_running(preset: Preset) -> JsonObject:
    """https://docs.ollama.com/api/ps.md: "Models currently loaded into memory"."""
    running = {
        "name": preset.model,
        "model": preset.model,
        "size": 6_591_830_464,
        "details": {"format": "gguf"},
        "size_vram": 5_333_539_264,
        "context_length": preset.window_tokens,
    }
    return {"models": [running]}


def _ollama_model(preset: Preset) -> JsonObject:
    """`POST /api/show`: what the model was trained for, not what it runs with."""
    able = ["completion"]
    able += ["tools"] if preset.takes_tools else []
    able += ["vision"] if preset.takes_pictures else []
    info = {"general.architecture": "gemma3", "gemma3.context_length": preset.trained_tokens}
    return {"capabilities": able, "model_info": info}


def _llama_cpp_properties(preset: Preset) -> JsonObject:
    """https://mvysny.github.io/llama-server-endpoints/: "GET /props"."""
    return {
        "default_generation_settings": {"n_ctx": preset.window_tokens},
        "total_slots": 4,
        "model_alias": preset.model,
        "modalities": {"vision": preset.takes_pictures, "audio": False},
        "chat_template_caps": {"supports_tools": preset.takes_tools},
        "build_info": "b8681-Debian",
    }


def _litellm_models(preset: Preset) -> JsonObject:
    """https://github.com/BerriAI/litellm/issues/16878 shows one."""
    info = {
        "max_input_tokens": preset.window_tokens,
        "max_output_tokens": 8_192,
        "input_cost_per_token": 5e-07,
        "output_cost_per_token": 2e-06,
        "supports_function_calling": preset.takes_tools,
        "supports_vision": preset.takes_pictures,
    }
    return {"data": [{"model_name": preset.model, "model_info": info}]}


_PAGES: dict[tuple[str, str], Callable[[Preset], dict[str, Any]]] = {
    ("ollama", "/api/ps"): _ollama_running,
    ("ollama", "/api/show"): _ollama_model,
    ("llama.cpp", "/props"): _llama_cpp_properties,
    ("litellm", "/model/info"): _litellm_models,
    ("litellm", "/v1/model/info"): _litellm_models,
}
