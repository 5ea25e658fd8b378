"""The requests that are sent are those of the vendors' SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from tests.server.providers import anthropic_stage
from tests.server.providers.openai_stage import CHAT, RESPONSES, deltas_of, request
from tests.support.vendor_models import rendered_in
from tests.vendors.emulator import Emulator, Received, emulator

from nplt_server.context.messages import ModelInputMessage, ModelOutputMessage, SystemMessage
from nplt_server.errors import ProviderError
from nplt_server.providers import LlmRequest
from nplt_server.providers.client import VendorProvider
from nplt_server.providers.openai import OpenAIClient
from nplt_server.providers.vendor_api import VendorApi

DIFFERENT: Mapping[str, str] = {
    "content-length": "the SDKs write the same JSON in another way",
    "x-api-key": "gateways look for the key there or in authorization, so both are sent",
    "x-stainless-read-timeout": "the deadlines of a call are ours",
    "x-stainless-timeout": "the deadlines of a call are ours",
}
"""The headers that are not those of the SDK, and why."""

CONTEXT = (
    SystemMessage(instruction="Be brief."),
    ModelInputMessage(content="Grüße, 世界 👋\n", seq=1),
    ModelOutputMessage(content="hello", seq=2),
    ModelInputMessage(content="and now?", seq=3),
)


@pytest.fixture
async def vendors() -> AsyncIterator[Emulator]:
    async with emulator() as opened:
        yield opened


@pytest.mark.parametrize("path", ["v1", "openai/v1"], ids=["OpenAI", "Azure"])
@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=["chat", "responses"])
async def test_a_request_to_openai_is_the_sdks(
    vendors: Emulator, api: VendorApi, path: str
) -> None:
    import openai

    base_url = f"{vendors.url}/{path}"
    asked = request(*CONTEXT, vendor_api=api, options={"temperature": 0.5, "effort": "low"})
    client = OpenAIClient(api_key=vendors.key, base_url=base_url)
    await _ask(VendorProvider("openai", client, apis=(api,), models=()), asked)
    body: Any = rendered_in(api, asked).body
    async with openai.AsyncOpenAI(base_url=base_url, api_key=vendors.key, max_retries=0) as sdk:
        try:
            await (sdk.chat.completions if api is CHAT else sdk.responses).create(**body)
        except openai.APIStatusError:
            assert path != "v1"  # the emulator has nothing there
    _check_same(*vendors.received)


@pytest.mark.parametrize("effort", ["low", "none"], ids=["with a beta", "without"])
async def test_a_request_to_anthropic_is_the_sdks(vendors: Emulator, effort: str) -> None:
    import anthropic

    asked = anthropic_stage.request(*CONTEXT, options={"effort": effort})
    rendered = anthropic_stage.rendered(asked)
    provider = anthropic_stage.anthropic_provider(
        models=(), key=vendors.key, base_url=vendors.anthropic_url
    )
    await _ask(provider, asked)
    betas = {"anthropic-beta": ",".join(rendered.betas)} if rendered.betas else {}
    body: Any = rendered.body
    async with anthropic.AsyncAnthropic(
        base_url=vendors.anthropic_url, api_key=vendors.key, max_retries=0
    ) as sdk:
        await sdk.messages.create(**body, extra_headers=betas)
    _check_same(*vendors.received)


async def _ask(provider: VendorProvider, asked: LlmRequest) -> None:
    try:
        await deltas_of(provider, asked, [])
    except ProviderError:
        pass  # the emulator has nothing there
    finally:
        await provider.aclose()


def _check_same(ours: Received, theirs: Received) -> None:
    assert ours.path == theirs.path
    assert ours.body == theirs.body
    headers = [
        {name: value for name, value in each.headers.items() if name not in DIFFERENT}
        for each in (ours, theirs)
    ]
    assert headers[0] == headers[1]
    assert {"authorization", "x-api-key"} & ours.headers.keys()
