"""A conversation with something odd in its record, and both vendors to go on with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
from tests.server.household import Clock, make_household
from tests.server.stage import Stage

from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.thinking import Thinking
from nplt_server.providers.anthropic.provider import AnthropicProvider
from nplt_server.providers.base import Provider
from nplt_server.providers.openai.chat_render import ChatDialect
from nplt_server.providers.openai.client import OpenAIClient
from nplt_server.providers.openai.provider import OpenAIProvider
from nplt_server.providers.openai.responses_render import ResponsesDialect
from nplt_server.testing.vendors.answers import Answer, ApiName, Call, say
from nplt_server.testing.vendors.emulator import Emulator
from nplt_server.testing.vendors.rejections import Rejection
from nplt_server.tools.base import Tool
from nplt_storage.facts.entries import Entry, ModelInputEntry, ModelOutputEntry
from nplt_storage.memory import MemoryStore

MARKER = "POISON"
APIS: tuple[ApiName, ...] = ("chat", "responses", "messages")


def refuses_the_marker(call: Call) -> Answer:
    """As the vendor would: by the place of the message."""
    messages: list[Any] = call.body["input" if call.api == "responses" else "messages"]
    for place, message in enumerate(messages):
        if MARKER in str(message):
            raise _rejection(call.api, place)
    return say("fine")


def _rejection(api: ApiName, place: int) -> Rejection:
    match api:
        case "chat":
            return Rejection(
                f"Invalid 'messages[{place}].content': this can't be taken.",
                param=f"messages.[{place}].content",
            )
        case "responses":
            return Rejection(
                f"Invalid 'input[{place}]': this can't be taken.", param=f"input[{place}]"
            )
        case "messages":
            return Rejection(f"messages.{place}.content: this can't be taken")


@asynccontextmanager
async def provider_for(api: ApiName, vendors: Emulator) -> AsyncIterator[Provider]:
    provider: Provider
    if api == "messages":
        provider = AnthropicProvider(
            models=("claude-opus-4-5",), key=vendors.key, base_url=vendors.anthropic_url
        )
    else:
        client = OpenAIClient(api_key=vendors.key, base_url=vendors.openai_url)
        dialect = ChatDialect() if api == "chat" else ResponsesDialect()
        provider = OpenAIProvider("openai", client, dialect=dialect, models=("gpt-4o-mini",))
    try:
        yield provider
    finally:
        await provider.aclose()


@asynccontextmanager
async def conversation_with(
    entries: Sequence[Entry],
    provider: Provider,
    *,
    thinking: Thinking | None = None,
    tools: tuple[Tool, ...] | None = None,
) -> AsyncIterator[Stage]:
    """What stands in the record is never judged: it happened."""
    clock = Clock()
    store = MemoryStore(clock)
    record = await store.create("s1", user="local")
    for number, entry in enumerate(entries, start=1):
        await record.append(replace(entry, seq=number, id=f"e{number}", timestamp=clock()))
    await record.close()
    async with anyio.create_task_group() as tasks:
        allowed = tuple(tool.description.name for tool in tools or ())
        house = make_household(
            tasks, provider, store=store, thinking=thinking, tools=tools, allowed=allowed
        )
        yield Stage(
            Conversation(
                "s1",
                user="local",
                household=house,
                profile=house.library.default,
                opened=await store.open("s1"),
            )
        )
        tasks.cancel_scope.cancel()


def turn(number: int, prompt: str, *answers: Entry) -> list[Entry]:
    turn_id = f"t{number}"
    said = [replace(answer, turn_id=turn_id) for answer in answers]
    return [ModelInputEntry(turn_id=turn_id, content=prompt), *said]


def plain_turn(number: int) -> list[Entry]:
    return turn(number, f"prompt {number}", ModelOutputEntry(content=f"answer {number}"))
