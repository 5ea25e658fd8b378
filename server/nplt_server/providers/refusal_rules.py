"""Tells what a refusal is about: the form of the request, or its content.

`FORM_RULES` is the one table from what servers say to the change of form that mends it. Each row
has the address where the sentence was found and the sentence itself; the patterns match these.
`names_fields` is for parameters: whatever field of the request a server says it does not know.
`is_about_content` is for refusals of what was said: only these hide an entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from nplt_server.request_form import RequestForm, TokensField

Body: TypeAlias = Mapping[str, Any]


def _has_tools(body: Body) -> bool:
    return bool(body.get("tools"))


def _messages(body: Body) -> list[Any]:
    messages = body.get("messages") or body.get("input")
    return messages if isinstance(messages, list) else []


def _parts(body: Body) -> Iterator[Any]:
    for message in _messages(body):
        content = message.get("content") if isinstance(message, dict) else None
        yield from content if isinstance(content, list) else ()


def _has_images(body: Body) -> bool:
    kinds = ("image_url", "input_image", "image")
    return any(isinstance(part, dict) and part.get("type") in kinds for part in _parts(body))


def _has_other_content(body: Body) -> bool:
    """Whether the content of a message is no string."""
    return "messages" in body and any(
        not isinstance(message.get("content"), str) for message in _messages(body)
    )


def _has_system_role(body: Body) -> bool:
    return any(message.get("role") == "system" for message in _messages(body))


def _has_other_roles(body: Body) -> bool:
    """Whether there are messages that are neither a prompt nor an answer in words."""
    return _has_calls(body) or _has_system_role(body)


def _has_prompt_after_results(body: Body) -> bool:
    roles = [message.get("role") for message in _messages(body)]
    return ("tool", "user") in pairwise(roles)


def _ends_with_answer(body: Body) -> bool:
    messages = _messages(body)
    return bool(messages) and messages[-1].get("role") == "assistant"


def _has_calls(body: Body) -> bool:
    return any(
        isinstance(message, dict)
        and (message.get("tool_calls") or message.get("type") == "function_call")
        for message in _messages(body)
    )


class FormRule(Struct, frozen=True, kw_only=True):
    words: re.Pattern[str]
    applies: Callable[[Body], bool]
    """Whether the request has what the change leaves out."""
    change: RequestForm
    sources: tuple[tuple[str, str], ...]
    """The addresses where such a sentence was found, each with the sentence."""


FORM_RULES: Final[tuple[FormRule, ...]] = (
    FormRule(
        words=re.compile(
            r"(?i)does not support (?:tools|tool use|tool calling|function calling)\b"
            r"|support tool use|--enable-auto-tool-choice|tools param requires --jinja"
            r"|(?:tools|tool use|tool calling|function calling) (?:is|are) not"
            r" (?:supported|enabled)"
            r"|not support (?:tools|tool use|tool calling|function calling)\b"
        ),
        applies=_has_tools,
        change=RequestForm(without_tools=True),
        sources=(
            (
                "https://github.com/pydantic/pydantic-ai/issues/703",
                "registry.ollama.ai/library/gemma3:4b does not support tools",
            ),
            (
                "https://github.com/vllm-project/vllm/issues/9986",
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to '
                "be set",
            ),
            (
                "https://github.com/evalstate/fast-agent/issues/122",
                "No endpoints found that support tool use. To learn more about provider routing, "
                "visit: https://openrouter.ai/docs/provider-routing",
            ),
            (
                "https://github.com/containers/ramalama/issues/988",
                "tools param requires --jinja flag",
            ),
        ),
    ),
    FormRule(
        words=re.compile(r"(?i)must be a-z, A-Z, 0-9, with a length of 9"),
        applies=_has_calls,
        change=RequestForm(call_ids="9 alphanumeric"),
        sources=(
            (
                "https://github.com/nearai/ironclaw/issues/1241",
                "Tool call id was turn1_0 but must be a-z, A-Z, 0-9, with a length of 9.",
            ),
        ),
    ),
    FormRule(
        words=re.compile(
            r"(?i)unknown variant .?image_url|image_url is only supported by certain models"
            r"|support image input|image input is not supported|does not support images?\b"
            r"|is not a multimodal model|at most 0 image"
            r"|did not match any variant of untagged enum ChatCompletionRequestContent"
        ),
        applies=_has_images,
        change=RequestForm(without_images=True),
        sources=(
            (
                "https://github.com/BenedictKing/ccx/issues/95",
                "Failed to deserialize the JSON body into the target type: messages[11]: unknown "
                "variant `image_url`, expected `text` at line 1 column 53929",
            ),
            (
                "https://github.com/browser-use/browser-use/issues/159",
                "Failed to deserialize the JSON body into the target type: messages[2]: data did "
                "not match any variant of untagged enum ChatCompletionRequestContent at line 1 "
                "column 15700",
            ),
            (
                "https://github.com/JohnnyZ93/oai-compatible-copilot/issues/229",
                "No endpoints found that support image input",
            ),
            (
                "https://github.com/ggml-org/llama.cpp/issues/13566",
                "image input is not supported by this server",
            ),
        ),
    ),
    FormRule(
        words=re.compile(
            r"(?i)content.{0,20}must be a string|content.{0,20}value must be a string"
            r"|invalid type: sequence, expected a string|expected a string, but got an array"
            r"|\bcontent\b.{0,40}input should be a valid string"
        ),
        applies=_has_other_content,
        change=RequestForm(plain_content=True),
        sources=(
            (
                "https://github.com/OpenHands/OpenHands/issues/4643",
                "'messages.0' : for 'role:system' the following must be satisfied"
                "[('messages.0.content' : value must be a string)]",
            ),
            (
                "https://github.com/browser-use/browser-use/issues/54",
                "message[4].content must be a string",
            ),
            (
                "https://github.com/chatboxai/chatbox/issues/1740",
                "Failed to deserialize the JSON body into the target type: messages[2]: invalid "
                "type: sequence, expected a string at line 1 column 2901",
            ),
            (
                "https://github.com/danny-avila/LibreChat/issues/3111",
                "Invalid type for 'messages[0].content': expected a string, but got an array "
                "instead",
            ),
        ),
    ),
    FormRule(
        words=re.compile(r"(?i)system role (?:is )?not supported"),
        applies=_has_system_role,
        change=RequestForm(without_system_role=True),
        sources=(
            (
                "https://github.com/stanfordnlp/dspy/issues/1627",
                "System role not supported",
            ),
        ),
    ),
    FormRule(
        words=re.compile(r"(?i)roles must alternate"),
        applies=_has_other_roles,
        change=RequestForm(two_roles=True),
        sources=(
            (
                "https://github.com/weaviate/Verba/issues/150",
                "Conversation roles must alternate user/assistant/user/assistant/...",
            ),
            (
                "https://github.com/charmbracelet/crush/issues/279",
                "After the optional system message, conversation roles must alternate user and "
                "assistant roles",
            ),
        ),
    ),
    FormRule(
        words=re.compile(r"(?i)unexpected role .user. after role .tool."),
        applies=_has_prompt_after_results,
        change=RequestForm(bridges_results=True),
        sources=(
            (
                "https://github.com/zed-industries/zed/issues/37021",
                "Unexpected role 'user' after role 'tool'",
            ),
        ),
    ),
    FormRule(
        words=re.compile(
            r"(?i)message prefill|expected last role user or tool|must end with a user message"
        ),
        applies=_ends_with_answer,
        change=RequestForm(without_prefill=True),
        sources=(
            (
                "https://github.com/vybestack/llxprt-code/pull/3695",
                "This model does not support assistant message prefill. The conversation must end "
                "with a user message.",
            ),
            (
                "https://github.com/langchain-ai/langchain/pull/28846",
                "Expected last role User or Tool (or Assistant with prefix True) for serving but "
                "got assistant",
            ),
        ),
    ),
)


# ------------------------------------------------------------------------------
# Parameters

_PROTECTED: Final = frozenset({"model", "messages", "input", "stream", "tools", "system"})
"""Fields without which there is no request, or another one."""
_OTHER_TOKENS_FIELD: Final[Mapping[str, TokensField]] = {
    "max_completion_tokens": "max_tokens",
    "max_tokens": "max_completion_tokens",
}
_UNKNOWN: Final = re.compile(
    r"(?i)unsupported|not supported|n't supported|not support|does not accept|unknown|unrecognized"
    r"|extra_forbidden|extra inputs|not permitted|not allowed|unexpected|cannot find field"
    r"|no longer (?:accepted|available)|deprecated|invalid parameter"
)
"""Words with which servers refuse a field:
https://github.com/microsoft/clarity-agent/issues/59
  "Unsupported parameter: 'max_tokens' is not supported with this model. Use
  'max_completion_tokens' instead."
https://github.com/dnakov/anon-kode/issues/53 (Mistral)
  {"type":"extra_forbidden","loc":["body","stream_options","include_usage"],
  "msg":"Extra inputs are not permitted"}
https://github.com/vercel/ai/pull/1578 (Groq)
  "property 'stream_options' is unsupported, did you mean 'stream'?"
https://github.com/cline/cline/issues/2764 (xAI)
  "Argument not supported: stream_options"
https://github.com/MinLL/SkyrimNet-GamePlugin/issues/77 (Gemini)
  Invalid JSON payload received. Unknown name "frequency_penalty": Cannot find field.
"""


def names_fields(words: str, param: str, body: Body) -> tuple[str, ...]:
    """The fields of the request that a server refuses. A name that is an ordinary word counts
    only where it stands in quotes, as a path, or as `param`."""
    if not _UNKNOWN.search(words):
        return ()
    found: list[str] = []
    for name in (*body, "strict"):
        if name in _PROTECTED:
            continue
        is_quoted = re.search(rf"['\"`]{name}['\"`.]|\bbody\.{name}\b|(?:^|: ?){name}\b", words)
        is_named = ("_" in name or name == "strict") and re.search(rf"\b{name}\b", words)
        if is_quoted or is_named or re.split(r"[.\[]", param)[0] == name:
            found.append(name)
    instead = re.search(r"(?i)\buse ['\"`]?(\w+)['\"`]? instead", words)
    return tuple(name for name in found if instead is None or name != instead[1])


def change_for(words: str, param: str, body: Body) -> RequestForm | None:
    """The change of form that a refusal in these words asks for; `None`: it is about something
    else."""
    for rule in FORM_RULES:
        if rule.words.search(words) and rule.applies(body):
            return rule.change
    fields = names_fields(words, param, body)
    if not fields:
        if is_about_shape(words) and _has_calls(body) and _NAMED_CALLS.search(words):
            return RequestForm(calls_as_text=True)
        return None
    change = RequestForm(without=tuple(name for name in fields if name not in _OTHER_TOKENS_FIELD))
    for one, other in _OTHER_TOKENS_FIELD.items():
        if one in fields:
            change = change.changed(RequestForm(tokens_field=other))
    return change


_NAMED_CALLS: Final = re.compile(
    r"(?i)tool_call|tool call|function.(?:call|response)|role.{0,3}.?tool\b|role: input should be"
)
"""Words of complaints about earlier calls:
https://github.com/camel-ai/owl/issues/532 (LiteLLM, of a request without tools)
  "Anthropic doesn't support tool calling without `tools=` param specified"
https://github.com/BerriAI/litellm/issues/11665 (Perplexity)
  "At body -> messages -> 1 -> role: Input should be 'system', 'user' or 'assistant'"
https://github.com/google-gemini/gemini-cli/issues/26486 (Gemini)
  "Please ensure that function call turn comes immediately after a user turn or after a function
  response turn."
"""


# ------------------------------------------------------------------------------
# Form or content

_CONTENT: Final = re.compile(
    r"(?i)content.?filter|content.?(?:management.?)?polic|usage polic|moderation|flagged"
    r"|\bsafety\b|guardrail|prohibited|inappropriate|invalid_prompt|violat(?:es|ed|ing|ion)"
    r"|harmful|content exists risk|data_inspection"
)
"""Words of refusals of a message's content:
https://github.com/alan-turing-institute/t0-1/issues/69 (OpenAI, code invalid_prompt)
  "Invalid prompt: your prompt was flagged as potentially violating our usage policy."
https://github.com/deepseek-ai/DeepSeek-V2/issues/30
  "Content Exists Risk"
"""
_BAD_PICTURE: Final = re.compile(
    r"(?i)could not process image|invalid image|invalid base64|image cannot be empty"
    r"|image does not match the provided media type|unable to process (?:input )?image"
    r"|failed to (?:process|decode|load|parse) (?:the )?image|unsupported image"
    r"|not represent a valid image"
    r"|image.{0,40}(?:could not|cannot|can't|failed to) be (?:processed|decoded|read|parsed|loaded)"
)
"""Words of refusals of a picture; they need not name its message:
https://github.com/anthropics/claude-code/issues/56511
  "Could not process image"
https://github.com/anthropics/claude-code/issues/12750
  "messages.118.content.4.image.source.base64: image cannot be empty"
https://github.com/anthropics/claude-code/issues/15746
  "messages.6.content.5.image.source.base64.data: Image does not match the provided media type"
"""
_SHAPE: Final = re.compile(
    r"(?i)\bmust (?:be|have|contain|not|alternate|start|end|follow|match|precede)"
    r"|should (?:be|have|match)|expected|invalid.type|missing|required|unknown|unsupported"
    r"|not support|unrecognized|extra.?(?:inputs|forbidden)|not permitted|not allowed|alternat"
    r"|\broles?\b|too (?:long|many|large|short|few|big)|at (?:least|most)|maximum|minimum|exceed"
    r"|duplicate|unique|untagged|variant|deserialize|schema|non-empty|cannot find field|template"
    r"|valid (?:string|list|dictionary|integer|json)|pattern|tool_use|tool_result|tool_call"
    r"|function.(?:call|response)|please ensure"
)


def is_about_content(words: str) -> bool:
    return _CONTENT.search(words) is not None or _BAD_PICTURE.search(words) is not None


def refused_part(words: str) -> Literal["", "pictures"]:
    """The part of a message that is refused: of one with a picture often not the text."""
    return "pictures" if _BAD_PICTURE.search(words) else ""


def is_about_shape(words: str) -> bool:
    """Whether it is about how the request is written, or how much it holds."""
    return not is_about_content(words) and _SHAPE.search(words) is not None


def is_about_form(words: str) -> bool:
    """Whether a row of the table is about it, whatever the status."""
    return any(rule.words.search(words) for rule in FORM_RULES)
