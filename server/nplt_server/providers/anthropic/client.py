"""Anthropic's Messages API, and servers that speak it: the provider and its client.

`render` makes the body of a request, `parse` reads the events of an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, ClassVar

from nplt_server.providers import ModelRequest, Patience
from nplt_server.providers.anthropic.parse import MessageParser
from nplt_server.providers.anthropic.render import RULES, abilities_of, render
from nplt_server.providers.client import RawResponse, RenderedRequest, VendorClient, VendorProvider
from nplt_server.providers.compiler import CompiledContext, VendorRules
from nplt_server.providers.sse import json_object_of

if TYPE_CHECKING:
    import anthropic

    from nplt_server.providers.http_client import ProviderHttpClient


_PAGE_MODELS = 1_000
"""As many as may be asked for at once."""
_PAGES_MAX = 10


class MessagesClient(VendorClient["anthropic.AsyncAnthropic"]):
    vendor = "Anthropic"
    vendor_url = "https://api.anthropic.com"

    def _open(self, http: ProviderHttpClient) -> anthropic.AsyncAnthropic:
        import anthropic

        self._sdk_error = anthropic.AnthropicError
        sdk = anthropic.AsyncAnthropic(
            api_key=self._api_key,
            base_url=self._base_url,
            max_retries=0,
            timeout=http.timeout,
            open_telemetry=False,
            http_client=http,
        )
        sdk._custom_headers = self._headers
        return sdk

    def _address_hint(self, path: str) -> str:
        return "without /v1, which is added" if path.rstrip("/").endswith("/v1") else ""

    def _request(
        self, sdk: anthropic.AsyncAnthropic, rendered: RenderedRequest
    ) -> AbstractAsyncContextManager[RawResponse]:
        body, betas = rendered.body, rendered.betas
        return sdk.messages.with_streaming_response.create(
            model=body["model"],
            max_tokens=body["max_tokens"],
            messages=[],
            stream=True,
            extra_body=body,
            extra_headers={"anthropic-beta": ",".join(betas)} if betas else None,
        )

    async def _pages(self, sdk: anthropic.AsyncAnthropic) -> AsyncIterator[RawResponse]:
        after: str | None = None
        for _ in range(_PAGES_MAX):
            query = {"after_id": after} if after else None
            page = await sdk.models.with_raw_response.list(limit=_PAGE_MODELS, extra_query=query)
            yield page
            told = json_object_of(page.http_response.content) or {}
            after = last if isinstance(last := told.get("last_id"), str) else None
            if told.get("has_more") is not True or after is None:
                return


class MessagesApi:
    specification: ClassVar[str] = "anthropic-messages"
    rules: ClassVar[VendorRules] = RULES

    def render(self, request: ModelRequest, compiled: CompiledContext) -> RenderedRequest:
        return render(request, compiled, abilities_of(request.invocation.model))

    def parser(self, rendered: RenderedRequest) -> MessageParser:
        return MessageParser(rendered.own_names)


class AnthropicProvider(VendorProvider):
    def __init__(
        self,
        provider_id: str = "anthropic",
        *,
        models: tuple[str, ...],
        key: str,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        client = MessagesClient(api_key=key, base_url=base_url, headers=headers, patience=patience)
        super().__init__(provider_id, client, vendor_api=MessagesApi(), models=models)
