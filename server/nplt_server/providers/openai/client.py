"""The client of OpenAI's two APIs, and of servers that speak one of them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from nplt_server.errors import ProviderError
from nplt_server.providers.client import RawResponse, RenderedRequest, VendorClient
from nplt_server.providers.failures import failure_of

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

    def _request(
        self, sdk: openai.AsyncOpenAI, rendered: RenderedRequest
    ) -> AbstractAsyncContextManager[RawResponse]:
        body = rendered.body
        if "input" in body:
            return sdk.responses.with_streaming_response.create(stream=True, extra_body=body)
        return sdk.chat.completions.with_streaming_response.create(
            model="", messages=(), stream=True, extra_body=body
        )

    def _failure(self, error: Exception) -> ProviderError | None:
        import openai

        if not isinstance(error, openai.APIStatusError):
            return None
        return failure_of(
            error.status_code,
            kind=str(error.type or ""),
            code=str(error.code or ""),
            param=str(error.param or ""),
            message=error.message,
            retry_after=error.response.headers.get("retry-after"),
        )
