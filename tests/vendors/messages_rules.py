"""The rules of Anthropic's Messages API: parameters, messages, marks.

Sentences are those of the real API as users have reported them. Assumed where nothing
was found: an empty `system` is refused as an empty block is; a request without a token
to generate (`max_tokens` 0, to warm the cache) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.vendors.answer_schemas import check_output_config
from tests.vendors.fields import (
    JsonObject,
    Path,
    check_choice,
    check_range,
    check_shape,
)
from tests.vendors.messages_shapes import (
    MESSAGE,
    OF_ASSISTANT,
    OF_USER,
    SAY,
    blocks_of,
    check_block,
    check_mark,
)
from tests.vendors.models import ClaudeModel
from tests.vendors.rejections import Rejection
from tests.vendors.wordings import at

MARKS_MAX = 4
VERSION = "2026-10-21"
FORMER_VERSION = "2023-06-01"


def check_version(body: JsonObject, version: str) -> None:
    """ "Migrating to API version 2026-10-21", Breaking changes, Messages API: sampling
    parameters are removed, and are an error even at their defaults, on every model; so are
    citations on text blocks of the user, and document blocks in messages of the assistant
    (which no version is allowed here). The sentences are assumed."""
    if version < VERSION:
        return
    for name in ("temperature", "top_p", "top_k"):
        if name in body:
            raise at((name,), "Extra inputs are not permitted")
    for place, message in enumerate(body["messages"]):
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        for number, block in enumerate(message.get("content") or ()):
            if isinstance(block, dict) and block.get("citations"):
                path = ("messages", place, "content", number, "text", "citations")
                raise at(path, "Extra inputs are not permitted")


def check_parameters(body: JsonObject, model: ClaudeModel) -> None:
    wanted = body["max_tokens"]
    check_range(wanted, ("max_tokens",), SAY, least=1)
    if wanted > model.output_tokens_max:
        raise at(
            ("max_tokens",),
            f"{wanted} > {model.output_tokens_max}, which is the maximum allowed number of"
            f" output tokens for {model.name}",
        )
    for name in ("temperature", "top_p", "top_k"):
        if name in body and not model.takes_sampling:
            raise Rejection(f"`{name}` is deprecated for this model.")
    check_output_config(body, model)
    check_range(body.get("temperature"), ("temperature",), SAY, least=0, most=1)
    check_range(body.get("top_p"), ("top_p",), SAY, least=0, most=1)
    for stop in body.get("stop_sequences", []):
        if not isinstance(stop, str) or not stop.strip():
            raise at(("stop_sequences",), "each stop sequence must contain non-whitespace")


def check_system(body: JsonObject) -> None:
    system = body.get("system")
    if system is None:
        return
    if isinstance(system, list):
        for place, block in enumerate(system):
            check_block(block, ("system", place))
            check_choice(block["type"], ("system", place, "type"), ("text",), SAY)
    check_texts("system", blocks_of(system))


def check_messages(body: JsonObject, model: ClaudeModel) -> None:
    messages = body["messages"]
    if not messages:
        raise at(("messages",), "at least one message is required")
    for place, message in enumerate(messages):
        _check_message(message, ("messages", place), final=place == len(messages) - 1)
    if messages[0]["role"] != "user":
        raise at(("messages",), 'first message must use the "user" role')
    if messages[-1]["role"] == "assistant":
        _check_prefill(messages[-1], model)
    for message in messages:
        if message["content"]:  # only one may be without, and that was checked
            check_texts("messages", list(_with_inner(blocks_of(message["content"]))))


def check_texts(where: str, blocks: list[JsonObject]) -> None:
    for block in blocks:
        if block["type"] != "text" or block["text"].strip():
            continue
        if block.get("cache_control") is not None:
            raise at((where,), "cache_control cannot be set for empty text blocks")
        if block["text"]:
            raise at((where,), "text content blocks must contain non-whitespace text")
        raise at((where,), "text content blocks must be non-empty")


def check_marks(body: JsonObject) -> None:
    check_mark(body, ())
    marks = [mark for mark in _marks(body) if mark is not None]
    if len(marks) > MARKS_MAX:
        raise Rejection(
            f"A maximum of {MARKS_MAX} blocks with cache_control may be provided."
            f" Found {len(marks)}."
        )
    lives = [mark.get("ttl", "5m") for mark in marks]
    if "5m" in lives and "1h" in lives[lives.index("5m") :]:
        raise Rejection(
            "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control"
            " block. Note that blocks are processed in the following order: `tools`,"
            " `system`, `messages`."
        )


def check_window(tokens: int, body: JsonObject, model: ClaudeModel) -> None:
    if tokens > model.window_tokens:
        raise Rejection(f"prompt is too long: {tokens} tokens > {model.window_tokens} maximum")
    if tokens + body["max_tokens"] > model.window_tokens:
        raise Rejection(
            f"input length and `max_tokens` exceed context limit: {tokens} +"
            f" {body['max_tokens']} > {model.window_tokens}, decrease input length or"
            " `max_tokens` and try again"
        )


def _check_message(message: object, path: Path, *, final: bool) -> None:
    message = check_shape(message, path, MESSAGE, SAY)
    role = message["role"]
    if role == "system":
        raise at(
            ("messages",),
            'Unexpected role "system". The Messages API accepts a top-level `system`'
            ' parameter, not "system" as an input message role.',
        )
    check_choice(role, (*path, "role"), ("user", "assistant"), SAY)
    if not message["content"] and not (final and role == "assistant"):
        raise at(
            path,
            "all messages must have non-empty content except for the optional final"
            " assistant message",
        )
    if isinstance(message["content"], str):
        return
    for place, block in enumerate(message["content"]):
        kind = check_block(block, (*path, "content", place))["type"]
        if kind not in (OF_USER if role == "user" else OF_ASSISTANT):
            owner = "assistant" if role == "user" else "user"
            raise at(path, f"`{kind}` blocks can only be in `{owner}` messages")


def _check_prefill(message: JsonObject, model: ClaudeModel) -> None:
    blocks = blocks_of(message["content"])
    if blocks and blocks[-1]["type"] == "tool_use":
        return  # a call without its result: another rule, another sentence
    if not model.takes_prefill:
        raise Rejection(
            "This model does not support assistant message prefill. The conversation must"
            " end with a user message."
        )
    if (
        blocks
        and blocks[-1]["type"] == "text"
        and blocks[-1]["text"] != blocks[-1]["text"].rstrip()
    ):
        raise at(("messages",), "final assistant content cannot end with trailing whitespace")


def _with_inner(blocks: list[JsonObject]) -> Iterator[JsonObject]:
    for block in blocks:
        yield block
        if block["type"] == "tool_result" and isinstance(block.get("content"), list):
            yield from block["content"]


def _marks(body: JsonObject) -> Iterator[JsonObject | None]:
    for tool in body.get("tools", []):
        yield tool.get("cache_control")
    for block in blocks_of(body.get("system", "")):
        yield block.get("cache_control")
    for message in body["messages"]:
        for block in _with_inner(blocks_of(message["content"])):
            yield block.get("cache_control")
    yield body.get("cache_control")
