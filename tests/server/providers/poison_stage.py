"""A conversation with something odd in its record, and both vendors to go on with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from msgspec.structs import replace
from tests.server.conversations import Stage, conversation_of
from tests.server.providers.anthropic_stage import anthropic_provider
from tests.server.services import Clock, make_services
from tests.vendors.answers import Answer, ApiName, Call, say
from tests.vendors.emulator import Emulator
from tests.vendors.rejections import Rejection

from nplt_server.conversations.services import ContextServices
from nplt_server.providers import ProviderClient
from nplt_server.providers.client import VendorProvider
from nplt_server.providers.openai import OpenAIClient
from nplt_server.providers.openai_chat import ChatApi
from nplt_server.providers.openai_responses import ResponsesApi
from nplt_server.tools import Tool
from nplt_storage.entries import Entry, ModelInputEntry, ModelOutputEntry
from nplt_storage.memory import MemoryStore

MARKER = "POISON"
FLAGGED = "your prompt was flagged as potentially violating our usage policy."
"""https://github.com/alan-turing-institute/t0-1/issues/69"""
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
                f"Invalid 'messages[{place}].content': {FLAGGED}",
                param=f"messages.[{place}].content",
            )
        case "responses":
            return Rejection(f"Invalid 'input[{place}]': {FLAGGED}", param=f"input[{place}]")
        case "messages":
            return Rejection(f"messages.{place}.content: {FLAGGED}")


@asynccontextmanager
async def provider_for(api: ApiName, vendors: Emulator) -> AsyncIterator[ProviderClient]:
    provider: ProviderClient
    if api == "messages":
        provider = anthropic_provider(
            models=("claude-opus-4-5",), key=vendors.key, base_url=vendors.anthropic_url
        )
    else:
        client = OpenAIClient(api_key=vendors.key, base_url=vendors.openai_url)
        vendor_api = ChatApi() if api == "chat" else ResponsesApi()
        provider = VendorProvider("openai", client, apis=(vendor_api,), models=("gpt-4o-mini",))
    try:
        yield provider
    finally:
        await provider.aclose()


@asynccontextmanager
async def conversation_with(
    entries: Sequence[Entry],
    provider: ProviderClient,
    *,
    context_services: ContextServices | None = None,
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
        services = make_services(
            tasks,
            provider,
            store=store,
            context_services=context_services,
            tools=tools,
            allowed=allowed,
        )
        yield Stage(
            conversation_of(
                "s1",
                user="local",
                services=services,
                profile=services.histories.default,
                opened=await store.open("s1"),
            )
        )
        tasks.cancel_scope.cancel()


def turn(number: int, prompt: str, *answers: Entry) -> list[Entry]:
    turn_id = f"t{number}"
    drafts = [replace(answer, turn_id=turn_id) for answer in answers]
    return [ModelInputEntry(turn_id=turn_id, content=prompt), *drafts]


def plain_turn(number: int) -> list[Entry]:
    return turn(number, f"prompt {number}", ModelOutputEntry(content=f"answer {number}"))
