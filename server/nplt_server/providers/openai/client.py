"""The client of OpenAI's two APIs, and of servers that speak one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from nplt_server.providers.client import RawResponse, RenderedRequest, VendorClient

if TYPE_CHECKING:
    import openai

    from nplt_server.providers.http_client import ProviderHttpClient


class OpenAIClient(VendorClient["openai.AsyncOpenAI"]):
    vendor = "OpenAI"
    vendor_url = "https://api.openai.com/v1"

    def _open(self, http: ProviderHttpClient) -> openai.AsyncOpenAI:
        import openai

        self._sdk_error = openai.OpenAIError
        sdk = openai.AsyncOpenAI(
            api_key=self._api_key,
            base_url=self._base_url,
            max_retries=0,
            timeout=http.timeout,
            http_client=http,
        )
        sdk.organization = sdk.project = None
        sdk._custom_headers = self._headers
        return sdk

    async def _pages(self, sdk: openai.AsyncOpenAI) -> AsyncIterator[RawResponse]:
        yield await sdk.models.with_raw_response.list()

    def _address_hint(self, path: str) -> str:
        return "" if "/v1" in path else "it mostly ends in /v1"

    def _request(
        self, sdk: openai.AsyncOpenAI, rendered: RenderedRequest
    ) -> AbstractAsyncContextManager[RawResponse]:
        body = rendered.body
        if "input" in body:
            return sdk.responses.with_streaming_response.create(stream=True, extra_body=body)
        return sdk.chat.completions.with_streaming_response.create(
            model="", messages=(), stream=True, extra_body=body
        )
