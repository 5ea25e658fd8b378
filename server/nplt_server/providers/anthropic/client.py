"""The one door to the vendor: the official SDK, and bytes out of it.

The SDK is imported when it is first needed, and not on the event loop: it takes more
than a second. Its streaming objects are not used, because they take a cut stream for a
complete one. Nothing of its own errors leaves this file, neither as text nor as a cause:
they quote requests, and may quote a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio import to_thread

from nplt_server.errors import ConfigurationError, ProviderRefused
from nplt_server.providers.addresses import is_on_this_machine
from nplt_server.providers.anthropic.wire import Json
from nplt_server.providers.failures import failure_of, failure_of_transport, too_slow
from nplt_server.providers.patience import Patience
from nplt_server.providers.silence import SilenceWatch

if TYPE_CHECKING:
    import anthropic
    import httpx2

_NO_KEY = "none"
"""Servers of one's own often ask for none; the SDK does."""
_BASE_URL = "https://api.anthropic.com"
_FAREWELL_SECONDS = 1.0
"""For the end of a stream whose answer is complete: then the connection is used again."""


class Progress(Protocol):
    """How far the answer is, as whoever reads the bytes knows."""

    @property
    def has_begun(self) -> bool: ...

    @property
    def is_done(self) -> bool: ...


class MessagesClient:
    def __init__(
        self, *, key: str, base_url: str | None = None, patience: Patience | None = None
    ) -> None:
        # The HTTP library would say so too, and quote it.
        if not key.isascii() or any(not "!" <= character <= "~" for character in key):
            raise ConfigurationError(["providers: a key has characters that no key has"])
        self._key = key or _NO_KEY
        self._base_url = base_url or _BASE_URL
        self._patience = patience or Patience()
        self._sdk: anthropic.AsyncAnthropic | None = None
        self._opening = anyio.Lock()

    async def stream(
        self, body: Json, *, betas: tuple[str, ...] = (), progress: Progress
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of the answer as they come."""
        sdk = await self._opened()
        watch, now = SilenceWatch(), asyncio.get_running_loop().time
        first_by = now() + self._patience.first_token_seconds
        try:
            with watch.until(first_by):
                response = await self._asked(sdk, body, betas)
        except Exception as error:
            watch.close()
            raise _translated(error, before_first_token=True) from None
        try:
            async with aclosing(_bytes_of(response)) as chunks:
                while not progress.is_done:
                    gap_by = now() + self._patience.gap_seconds
                    with watch.until(gap_by if progress.has_begun else first_by):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    yield chunk
                with anyio.move_on_after(_FAREWELL_SECONDS), suppress(Exception):
                    await anext(chunks, None)
        except Exception as error:
            raise _translated(error, before_first_token=not progress.has_begun) from None
        finally:
            watch.close()
            with anyio.move_on_after(_FAREWELL_SECONDS, shield=True):
                await response.aclose()

    async def aclose(self) -> None:
        if self._sdk is not None:
            sdk, self._sdk = self._sdk, None
            await sdk.close()

    async def _asked(
        self, sdk: anthropic.AsyncAnthropic, body: Json, betas: tuple[str, ...]
    ) -> httpx2.Response:
        # All of it as `extra_body`: the SDK sends it as it is, fields it has dropped too.
        asking = sdk.messages.with_streaming_response.create(
            model=body["model"],
            max_tokens=body["max_tokens"],
            messages=[],
            stream=True,
            extra_body=body,
            extra_headers={"anthropic-beta": ",".join(betas)} if betas else None,
        )
        return (await asking.__aenter__()).http_response

    async def _opened(self) -> anthropic.AsyncAnthropic:
        async with self._opening:
            if self._sdk is None:
                try:
                    self._sdk = await to_thread.run_sync(self._open)
                except ImportError:
                    raise ProviderRefused("Anthropic's SDK is not installed here") from None
            return self._sdk

    def _open(self) -> anthropic.AsyncAnthropic:
        import anthropic
        import httpx2

        connect = self._patience.connect_seconds
        # How long an answer may be waited for is watched here: the HTTP library knows
        # nothing of first words.
        times = httpx2.Timeout(None, connect=connect, pool=connect)
        # No certificates are loaded where none can be asked for: nothing is redirected.
        plain = self._base_url.startswith("http://")
        sdk = anthropic.AsyncAnthropic(
            api_key=self._key,
            base_url=self._base_url,
            max_retries=0,
            timeout=times,
            open_telemetry=False,
            http_client=httpx2.AsyncClient(
                timeout=times,
                verify=not plain,
                trust_env=not is_on_this_machine(self._base_url),
            ),
        )
        # From the environment, where they may belong to another account or server.
        sdk._custom_headers = {}
        return sdk


def _bytes_of(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    chunks = response.aiter_bytes()
    assert isinstance(chunks, AsyncGenerator)
    return chunks


def _translated(error: Exception, *, before_first_token: bool) -> Exception:
    import anthropic
    import httpx2

    match error:
        case TimeoutError():
            return too_slow(before_first_token=before_first_token)
        case anthropic.APIStatusError():
            return failure_of(
                error.status_code,
                kind=error.type or "",
                message=error.api_message or "",
                retry_after=error.response.headers.get("retry-after"),
            )
        case (
            anthropic.AnthropicError()
            | httpx2.HTTPError()
            | httpx2.StreamError()
            | httpx2.InvalidURL()
            | OSError()
        ):
            return failure_of_transport(error, before_first_token=before_first_token)
        case _:
            return error  # a bug of ours
