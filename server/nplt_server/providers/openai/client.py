"""The one that talks: the official SDK for the request, its raw response for the answer.

The SDK makes an object of every chunk, which costs ten times what reading it does; and
it takes a stream that was cut for a whole one. So only its request side is used, without
its retries: whether to ask again is decided by who can tell the user. Importing it takes
most of a second, so that happens at the first call, in a thread.

Nothing of its exceptions goes further: they hold the request, and so the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread

from nplt_server.deltas import ModelOutputDelta
from nplt_server.errors import ConfigurationError, ProviderError, ProviderRefused
from nplt_server.providers.addresses import is_on_this_machine
from nplt_server.providers.failures import failure_of, failure_of_transport, too_slow
from nplt_server.providers.openai.answer_clock import AnswerClock
from nplt_server.providers.openai.blame import with_entries
from nplt_server.providers.openai.dialect import AnswerParser, ApiPath, Rendered
from nplt_server.providers.patience import Patience
from nplt_server.providers.silence import SilenceWatch
from nplt_server.providers.sse import SseParser

if TYPE_CHECKING:
    import httpx2
    import openai

OPENAI_URL = "https://api.openai.com/v1"
_DRAIN_SECONDS = 1.0
_IDLE_CONNECTIONS_MAX = 20


class _RawResponse(Protocol):
    @property
    def http_response(self) -> httpx2.Response: ...


class OpenAIClient:
    def __init__(
        self,
        *,
        api_key: str,
        base_url: str = OPENAI_URL,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        # The HTTP library would refuse such a key too, and quote it.
        if any(not "!" <= character <= "~" for character in api_key):
            raise ConfigurationError(["providers: a key has characters that no key has"])
        self._api_key = api_key
        self._base_url = base_url
        self._headers = dict(headers or {})
        self._patience = patience or Patience()
        self._opening = anyio.Lock()
        self._sdk: openai.AsyncOpenAI | None = None

    async def stream(
        self, path: ApiPath, rendered: Rendered, parser: AnswerParser
    ) -> AsyncGenerator[ModelOutputDelta, None]:
        """Ends where the answer ends, or where the stream does."""
        sdk = await self._opened()
        import httpx2
        import openai

        try:
            async with AsyncExitStack() as stack:
                watch, now = SilenceWatch(), asyncio.get_running_loop().time
                clock = AnswerClock(self._patience, parser, now=now())
                stack.callback(watch.close)
                with watch.until(clock.deadline(now())):
                    response = await stack.enter_async_context(_request(sdk, path, rendered))
                chunks = response.http_response.aiter_bytes()
                events = SseParser()
                while not parser.is_done:
                    with watch.until(clock.deadline(now())):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    for event in events.feed(chunk):
                        for delta in parser.feed(event.data):
                            yield delta
                        if parser.is_done:
                            break
                await _drain(chunks)
        except TimeoutError:
            raise too_slow(before_first_token=not parser.has_spoken) from None
        except openai.APIStatusError as error:
            raise _refusal(error, rendered) from None
        except (
            openai.OpenAIError,
            httpx2.HTTPError,
            httpx2.StreamError,
            httpx2.InvalidURL,
            OSError,
        ) as error:
            raise failure_of_transport(error, before_first_token=not parser.has_spoken) from None

    async def aclose(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.close()

    async def _opened(self) -> openai.AsyncOpenAI:
        if self._sdk is None:
            async with self._opening:
                if self._sdk is None:
                    self._sdk = await anyio.to_thread.run_sync(self._open)
        return self._sdk

    def _open(self) -> openai.AsyncOpenAI:
        import httpx2
        import openai

        connect = self._patience.connect_seconds
        times = httpx2.Timeout(None, connect=connect, pool=connect)
        # Over plain HTTP nobody shows a certificate, and no redirect is followed.
        is_plain = self._base_url.startswith("http://")
        sdk = openai.AsyncOpenAI(
            # Servers at home need none, and the SDK won't do without.
            api_key=self._api_key or "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=times,
            http_client=httpx2.AsyncClient(
                timeout=times,
                verify=not is_plain,
                trust_env=not is_on_this_machine(self._base_url),
                limits=httpx2.Limits(max_keepalive_connections=_IDLE_CONNECTIONS_MAX),
            ),
        )
        # From the environment, where they may belong to another account or server.
        sdk.organization = sdk.project = None
        sdk._custom_headers = self._headers
        return sdk


def _request(
    sdk: openai.AsyncOpenAI, path: ApiPath, rendered: Rendered
) -> AbstractAsyncContextManager[_RawResponse]:
    """As `extra_body` it goes out as it is; as arguments the SDK would walk through it."""
    body = rendered.body
    if path == "/responses":
        return sdk.responses.with_streaming_response.create(stream=True, extra_body=body)
    return sdk.chat.completions.with_streaming_response.create(
        model="", messages=(), stream=True, extra_body=body
    )


def _refusal(error: openai.APIStatusError, rendered: Rendered) -> ProviderError:
    failure = failure_of(
        error.status_code,
        kind=str(error.type or ""),
        code=str(error.code or ""),
        param=str(error.param or ""),
        message=error.message,
        retry_after=error.response.headers.get("retry-after"),
    )
    if isinstance(failure, ProviderRefused):
        return with_entries(failure, error.message, rendered)
    return failure


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """What is left, the end of the body mostly, so that the connection can be used again."""
    import httpx2

    with suppress(httpx2.HTTPError), anyio.move_on_after(_DRAIN_SECONDS):
        async for _ in chunks:
            pass
