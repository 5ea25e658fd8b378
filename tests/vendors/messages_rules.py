"""The rules of Anthropic's Messages API: parameters, messages, marks.

An empty `system` is refused as an empty block is, and so is a request without a token to
generate (`max_tokens` 0, to warm the cache): both are assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.vendors.answer_schemas import check_output_config
from tests.vendors.anthropic_rules import ANTHROPIC
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
            raise SAY.unknown((name,))
    for place, message in enumerate(body["messages"]):
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        for number, block in enumerate(message.get("content") or ()):
            if isinstance(block, dict) and block.get("citations"):
                path = ("messages", place, "content", number, "text", "citations")
                raise SAY.unknown(path)


def check_parameters(body: JsonObject, model: ClaudeModel) -> None:
    wanted = body["max_tokens"]
    check_range(wanted, ("max_tokens",), SAY, least=1)
    if wanted > model.output_tokens_max:
        raise ANTHROPIC["anthropic-answer-length"].at(
            ("max_tokens",), wanted=wanted, most=model.output_tokens_max, model=model.name
        )
    for name in ("temperature", "top_p", "top_k"):
        if name in body and not model.takes_sampling:
            raise ANTHROPIC["anthropic-sampling"].refusal(name=name)
    check_output_config(body, model)
    check_range(body.get("temperature"), ("temperature",), SAY, least=0, most=1)
    check_range(body.get("top_p"), ("top_p",), SAY, least=0, most=1)
    for stop in body.get("stop_sequences", []):
        if not isinstance(stop, str) or not stop.strip():
            raise ANTHROPIC["anthropic-stop"].at(("stop_sequences",))


def check_system(body: JsonObject) -> None:
    system = body.get("system")
    if system is None:
        return
    if isinstance(system, list):
        for place, block in enumerate(system):
            check_block(block, ("system", place))
            check_choice(block["type"], ("system", place, "type"), ("text",), SAY)
    check_texts("system", _with_places(blocks_of(system), ("system",)))


def check_messages(body: JsonObject, model: ClaudeModel) -> None:
    messages = body["messages"]
    if not messages:
        raise ANTHROPIC["anthropic-no-message"].at(("messages",))
    for place, message in enumerate(messages):
        _check_message(message, ("messages", place), final=place == len(messages) - 1)
    if messages[0]["role"] != "user":
        raise ANTHROPIC["anthropic-first-role"].at(("messages",))
    if messages[-1]["role"] == "assistant":
        _check_prefill(messages[-1], model)
    for place, message in enumerate(messages):
        if message["content"]:  # only one may be without, and that was checked
            path: Path = ("messages", place, "content")
            check_texts("messages", _with_places(blocks_of(message["content"]), path))


def check_texts(where: str, blocks: Iterable[tuple[Path, JsonObject]]) -> None:
    for path, block in blocks:
        if block["type"] != "text" or block["text"].strip():
            continue
        if block.get("cache_control") is not None:
            raise ANTHROPIC["anthropic-marked-empty-text"].at((*path, "text"))
        if block["text"]:
            raise ANTHROPIC["anthropic-blank-text"].at((where,))
        raise ANTHROPIC["anthropic-empty-text"].at((where,))


def check_marks(body: JsonObject) -> None:
    check_mark(body, ())
    marked = [(path, each["cache_control"]) for path, each in _marks(body) if _is_marked(each)]
    if len(marked) > MARKS_MAX:
        raise ANTHROPIC["anthropic-marks"].refusal(most=MARKS_MAX, found=len(marked))
    short = False
    for path, mark in marked:
        if short and mark.get("ttl") == "1h":
            raise ANTHROPIC["anthropic-mark-order"].at((*path, "cache_control", "ttl"))
        short = short or mark.get("ttl", "5m") == "5m"


def _is_marked(block: JsonObject) -> bool:
    return block.get("cache_control") is not None


def check_window(tokens: int, body: JsonObject, model: ClaudeModel) -> None:
    if tokens > model.window_tokens:
        raise ANTHROPIC["anthropic-window"].refusal(tokens=tokens, window=model.window_tokens)
    if tokens + body["max_tokens"] > model.window_tokens:
        rule = ANTHROPIC["anthropic-window-with-answer"]
        raise rule.refusal(tokens=tokens, answer=body["max_tokens"], window=model.window_tokens)


def _check_message(message: object, path: Path, *, final: bool) -> None:
    message = check_shape(message, path, MESSAGE, SAY)
    role = message["role"]
    if role == "system":
        raise ANTHROPIC["anthropic-system-role"].at(("messages",))
    check_choice(role, (*path, "role"), ("user", "assistant"), SAY)
    if not message["content"] and not (final and role == "assistant"):
        raise ANTHROPIC["anthropic-empty-message"].at(path)
    if isinstance(message["content"], str):
        return
    for place, block in enumerate(message["content"]):
        kind = check_block(block, (*path, "content", place))["type"]
        if kind not in (OF_USER if role == "user" else OF_ASSISTANT):
            owner = "assistant" if role == "user" else "user"
            raise ANTHROPIC["anthropic-owner"].at(path, kind=kind, owner=owner)


def _check_prefill(message: JsonObject, model: ClaudeModel) -> None:
    blocks = blocks_of(message["content"])
    if blocks and blocks[-1]["type"] == "tool_use":
        return  # a call without its result: another rule, another sentence
    if not model.takes_prefill:
        raise ANTHROPIC["anthropic-prefill"].refusal()
    if (
        blocks
        and blocks[-1]["type"] == "text"
        and blocks[-1]["text"] != blocks[-1]["text"].rstrip()
    ):
        raise ANTHROPIC["anthropic-prefill-ends-blank"].at(("messages",))


def _with_places(blocks: list[JsonObject], path: Path) -> Iterator[tuple[Path, JsonObject]]:
    """And what is inside a result."""
    for number, block in enumerate(blocks):
        yield (*path, number), block
        if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            yield from _with_places(block["content"], (*path, number, "content"))


def _marks(body: JsonObject) -> Iterator[tuple[Path, JsonObject]]:
    yield from _with_places(body.get("tools", []), ("tools",))
    yield from _with_places(blocks_of(body.get("system", "")), ("system",))
    for place, message in enumerate(body["messages"]):
        yield from _with_places(blocks_of(message["content"]), ("messages", place, "content"))
    yield (), body
