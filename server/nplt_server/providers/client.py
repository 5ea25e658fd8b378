"""What all vendors' adapters share: the client, its streams and their time limits.

`VendorProvider` chooses the API, has it render the request and parse the raw stream of the
answer, and sends a refused request again in another form; `VendorClient` sends through the
vendor's SDK. Errors become the server's own (`failures`).
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import orjson
from msgspec import Struct, field, structs

from nplt_protocol import JsonObject, JsonValue
from nplt_server.errors import (
    ConfigurationError,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)
from nplt_server.providers import (
    DeltaStream,
    ModelOutputDelta,
    ModelRequest,
    Patience,
    Stopped,
    UsageReport,
)
from nplt_server.providers.compiler import CompiledContext, ContextCompiler, VendorRules
from nplt_server.providers.failures import (
    VendorError,
    failure_in_stream,
    failure_of,
    failure_of_transport,
    too_slow,
    unreadable,
    without_prompt,
)
from nplt_server.providers.model_lists import read_list
from nplt_server.providers.models import ListedModel

if TYPE_CHECKING:
    import httpx2

    from nplt_server.providers.http_client import ProviderHttpClient


class RenderedRequest(Struct, frozen=True, kw_only=True):
    body: dict[str, Any]
    seqs: tuple[tuple[int, ...], ...]
    """Of each message (or item) in the body: the entries it shows."""
    block_seqs: tuple[tuple[int, ...], ...] = ()
    """Of each block of each message of the user, where blocks are named: its entry, or 0."""
    own_names: Mapping[str, str] = field(default_factory=dict)
    """What the model was told a tool is called → what it is called here."""
    betas: tuple[str, ...] = ()


class AnswerParser(ABC):
    """Events in, deltas out. Raises a `ProviderError` for what can't be an answer."""

    def __init__(self, own_names: Mapping[str, str] | None = None) -> None:
        """`own_names`: our names of tools by those that were sent."""
        self._own_names = own_names or {}
        self.has_spoken = False
        """A piece of the answer was there: from now on nobody else may be asked."""
        self.is_thinking = False
        """The model has begun to think in silence: a long pause is no bad sign."""
        self._has_thought = False
        self.is_done = False
        """Nothing that matters can follow."""

    def deadline(self, patience: Patience, *, began: float, now: float) -> float:
        """Until when something must come. Pings may come before the first piece as they like:
        they don't put it off. Who has begun to think may be silent about it as long again,
        however often."""
        if self.is_thinking:
            self._has_thought = True
            return now + patience.first_token_seconds
        if self._has_thought or self.has_spoken:
            return now + patience.gap_seconds
        return began + patience.first_token_seconds

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        try:
            deltas = list(self._read(json_object_of(data)))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise unreadable(before_first_token=not self.has_spoken) from None
        if not self.has_spoken:
            self.has_spoken = not all(isinstance(each, UsageReport | Stopped) for each in deltas)
        return deltas

    def feed_whole(self, body: bytes) -> list[ModelOutputDelta]:
        """Of a server that does not stream, whatever it is asked: the whole answer."""
        try:
            answer = json_object_of(body)
            if answer.get("error"):
                raise self._failure(answer)
            return list(self._read_whole(answer))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            raise unreadable(before_first_token=True) from None

    def _failure(self, event: JsonObject) -> ProviderError:
        told = VendorError.of(event)
        return failure_in_stream(told, before_first_token=not self.has_spoken)

    @abstractmethod
    def _read(self, event: JsonObject) -> Iterable[ModelOutputDelta]: ...

    @abstractmethod
    def _read_whole(self, answer: Any) -> Iterable[ModelOutputDelta]: ...


class VendorApi(Struct, frozen=True, kw_only=True):
    """The format of one vendor API: renders requests and parses streams."""

    specification: ClassVar[str]
    rules: ClassVar[VendorRules] = VendorRules()

    def render(self, request: ModelRequest, compiled: CompiledContext) -> RenderedRequest:
        raise NotImplementedError

    def parser(self, rendered: RenderedRequest) -> AnswerParser:
        raise NotImplementedError

    def is_needed_by(self, model: str) -> bool:
        """Whether the model is called through this API where the server has another one too."""
        return False

    def instead(self, refusal: ProviderRefused, model: str) -> VendorApi | None:
        """Of an API that servers differ in: the same, as a refusal tells that this one has it."""
        return None


# ------------------------------------------------------------------------------
# Server-sent events, as bytes, as far as model APIs use them
#
# Only an event's data is read, without a copy through `str`: APIs repeat its name there. An
# event without its closing empty line is not given.
#
# https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream

_EVENT_BYTES_MAX = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class SseParser:
    def __init__(self, *, event_bytes_max: int = _EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._tail: list[bytes] = []
        """A line that has not ended yet, in pieces: joining them each time is quadratic."""
        self._held_bytes = 0
        self._data: list[bytes] = []
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events these bytes complete. Raises if one is larger than any should be."""
        if self._after_cr and chunk:
            # The CR at the end of the last chunk may have been half of a CRLF.
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._held_bytes += len(chunk)
        if b"\n" not in chunk:
            self._tail.append(chunk)
            events = []
        else:
            lines = b"".join((*self._tail, chunk)).split(b"\n")
            tail = lines.pop()
            self._tail = [tail] if tail else []
            events = self._take(lines)
            if events or not self._data:
                self._held_bytes = len(tail) + sum(map(len, self._data))
        if self._held_bytes > self._event_bytes_max:
            raise ProviderUnavailable(
                "the provider sent something too large to be read", before_first_token=False
            )
        return events

    def _take(self, lines: list[bytes]) -> list[bytes]:
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif line == b"data":
                self._data.append(b"")
        return events


def json_object_of(data: bytes) -> JsonObject:
    """Raises `ValueError`: it is none. Half an emoji, escaped, is JSON to Python's own parser
    alone."""
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            parsed = json.loads(data)
        except RecursionError:
            raise ValueError("nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError("not an object")
    return parsed


# ------------------------------------------------------------------------------
# Entries a refusal is about
#
# A refusal names a message (and a block of it) by its place, or an item or a call by its id.

_IDS = ("id", "call_id", "tool_call_id")
_ID = re.compile(r"(?=[\w-]*\d)[\w-]{8,}")
"""As a whole. What is shorter or has no digit is as likely a word of the provider's own."""


def with_entries(
    refusal: ProviderRefused, words: str, rendered: RenderedRequest
) -> ProviderRefused:
    index, block = refusal.message_index, refusal.block_index
    if index is None and refusal.content_refused:
        index = _place_by_id(words, rendered)
    if index is None or index >= len(rendered.seqs):
        return refusal
    refusal.message_index, refusal.entry_seqs = index, rendered.seqs[index]
    blocks = rendered.block_seqs[index] if rendered.block_seqs else ()
    if block is not None and block < len(blocks) and blocks[block]:
        refusal.entry_seqs = (blocks[block],)
    return refusal


def _place_by_id(words: str, rendered: RenderedRequest) -> int | None:
    messages = rendered.body.get("input") or rendered.body["messages"]
    told = set(_ID.findall(words))
    places = (n for n, message in enumerate(messages) if not told.isdisjoint(_ids_of(message)))
    return next(places, None)


def _ids_of(message: JsonObject) -> list[JsonValue]:
    nested: Any = message.get("tool_calls") or ()
    ids = [message[name] for name in _IDS if message.get(name)]
    return [*ids, *(each for call in nested for each in _ids_of(call))]


# ------------------------------------------------------------------------------
# The client: the official SDK for the request, its raw response for the answer
#
# The SDKs make an object of every chunk, which costs ten times what reading it does, and
# return a cut stream as complete. So only their request side is used, without retries. They
# are imported at the first call, in a thread: that takes a second.
#
# Their exceptions do not leave this file: they contain the request, and so the key.

_DRAIN_SECONDS = 1.0
_LIST_SECONDS_MAX = 10.0
_BODY_BYTES_MAX = 32 * 1024 * 1024
"""Of an answer that is not streamed."""


class RawResponse(Protocol):
    @property
    def http_response(self) -> httpx2.Response: ...


class VendorClient(ABC):
    vendor: ClassVar[str]
    vendor_url: ClassVar[str]

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        # The HTTP library would refuse such a key too, and quote it.
        if any(not "!" <= character <= "~" for character in api_key):
            raise ConfigurationError(["providers: a key has characters that no key has"])
        # Servers of one's own often need none, and the SDKs won't do without.
        self._api_key = api_key or "none"
        self.address = base_url or self.vendor_url
        # Gateways look for it in either place.
        is_elsewhere = api_key and self.address != self.vendor_url
        self._headers = {**({"x-api-key": api_key} if is_elsewhere else {}), **(headers or {})}
        self._patience = patience or Patience()
        self._opening = anyio.Lock()
        self._sdk: Any = None
        self._sdk_error: type[Exception] = OSError

    @abstractmethod
    def _open(self, http: ProviderHttpClient) -> Any:
        """Imports the SDK and sets `_sdk_error`. What the SDK reads from the environment is
        taken out of it: it may belong to another account or server."""

    @abstractmethod
    def _request(
        self, sdk: Any, rendered: RenderedRequest
    ) -> AbstractAsyncContextManager[RawResponse]:
        """With the body as `extra_body` it goes out as it is; as arguments the SDK would walk
        through it."""

    @abstractmethod
    def _pages(self, sdk: Any) -> AsyncIterator[RawResponse]:
        """Of the list of models."""

    @abstractmethod
    def _address_hint(self, path: str) -> str:
        """What may be wrong with the path of `base_url`, where nothing was found."""

    async def list_models(self) -> tuple[ListedModel, ...]:
        """Raises whatever goes wrong; the caller tells no more of it than its type."""
        sdk = await self._opened()
        models: list[ListedModel] = []
        with anyio.fail_after(_LIST_SECONDS_MAX):  # what is imported first takes its time
            async for page in self._pages(sdk):
                models += read_list(json_object_of(page.http_response.content))
        return tuple(models)

    async def stream(
        self, rendered: RenderedRequest, parser: AnswerParser
    ) -> AsyncGenerator[ModelOutputDelta, None]:
        """Ends where the answer ends, or where the stream does."""
        sdk = await self._opened()
        import httpx2

        try:
            async with AsyncExitStack() as stack:
                began = asyncio.get_running_loop().time()
                async with self._in_time(parser, began):
                    response = await stack.enter_async_context(self._request(sdk, rendered))
                chunks = response.http_response.aiter_bytes()
                kind = response.http_response.headers.get("content-type", "")
                if kind.startswith("application/json"):
                    async with self._in_time(parser, began):
                        body = await _whole(chunks)
                    for delta in parser.feed_whole(body):
                        yield delta
                    return
                events = SseParser()
                was_silent = True
                while not parser.is_done:
                    async with self._in_time(parser, began):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    for event in events.feed(chunk):
                        for delta in parser.feed(event):
                            yield delta
                        if parser.is_done:
                            break
                    if was_silent and parser.has_spoken:
                        # The first token is on its way before the next is waited for, which
                        # takes as long: one tick to merge it with others, one to write it.
                        was_silent = False
                        await asyncio.sleep(0)
                        await asyncio.sleep(0)
                await _drain(chunks)
        except ProviderError as failure:
            raise self._explained(failure, "", rendered) from None
        except TimeoutError:
            raise too_slow(before_first_token=not parser.has_spoken) from None
        except (
            self._sdk_error,
            httpx2.HTTPError,
            httpx2.StreamError,
            httpx2.InvalidURL,
            OSError,
        ) as error:
            raise self._failure_of(error, parser, rendered) from None

    def _in_time(self, parser: AnswerParser, began: float) -> asyncio.Timeout:
        now = asyncio.get_running_loop().time()
        return asyncio.timeout_at(parser.deadline(self._patience, began=began, now=now))

    def _failure_of(
        self, error: Exception, parser: AnswerParser, rendered: RenderedRequest
    ) -> ProviderError:
        import httpx2

        response = getattr(error, "response", None)
        if not isinstance(response, httpx2.Response):
            return failure_of_transport(error, before_first_token=not parser.has_spoken)
        told = VendorError.of_body(response.content)
        retry_after = response.headers.get("retry-after")
        failure = failure_of(response.status_code, told, retry_after=retry_after)
        hint = self._address_hint(urlsplit(self.address).path)
        if hint and isinstance(failure, ProviderRefused) and failure.wrong_api:
            failure.sentence = f"{failure.sentence}: {hint}"
        return self._explained(failure, told.message, rendered)

    def _explained(
        self, failure: ProviderError, message: str, rendered: RenderedRequest
    ) -> ProviderError:
        """With the entries it is about, and without the key and the prompt in its words."""
        if failure.vendor is not None:
            failure.vendor = without_prompt(failure.vendor, rendered.body, self._api_key)
        if isinstance(failure, ProviderRefused):
            return with_entries(failure, message, rendered)
        return failure

    async def aclose(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.close()

    async def _opened(self) -> Any:
        def open_with_http() -> Any:
            from nplt_server.providers.http_client import ProviderHttpClient

            connect_seconds = self._patience.connect_seconds
            return self._open(ProviderHttpClient(self.address, connect_seconds=connect_seconds))

        async with self._opening:
            if self._sdk is None:
                try:
                    self._sdk = await anyio.to_thread.run_sync(open_with_http)
                except ImportError:
                    raise ProviderRefused(f"{self.vendor}'s SDK is not installed here") from None
            return self._sdk


async def _whole(chunks: AsyncIterator[bytes]) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > _BODY_BYTES_MAX:
            raise ProviderRefused("the provider sent an answer that is too large to be read")
    return bytes(body)


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """What is left, the end of the body mostly, so that the connection can be used again."""
    import httpx2

    with suppress(httpx2.HTTPError), anyio.move_on_after(_DRAIN_SECONDS):
        async for _ in chunks:
            pass


_OF_SCHEMAS = re.compile(
    r"(?i)response_format|text\.format|output_config|output_format|json_schema|schema|grammar"
    r"|mime type"
)
"""In a refusal: what it is about."""
_REFUSED_SCHEMAS_MAX = 1_000


class VendorProvider:
    def __init__(
        self,
        provider_id: str,
        client: VendorClient,
        *,
        apis: Sequence[VendorApi],
        models: tuple[str, ...],
        extra_bodies: Mapping[str, Mapping[str, Any]] | None = None,
        is_open: bool = False,
    ) -> None:
        """`apis`: one API of the server, or two. A model that is refused through the one is
        called through the other, once; the one that answers is remembered for it. So is whether
        a model wants its reasoning back."""
        self.id = provider_id
        self.models = models
        self.is_open = is_open
        self._client = client
        self._extra_bodies = extra_bodies or {}
        """By model: fields that its requests get as they are."""
        self._apis = tuple(apis)
        self._api_by_model: dict[str, VendorApi] = {}
        """Of models that have answered."""
        self._refused_schemas: set[tuple[str, int]] = set()
        """By model: schemas that the vendor refused to enforce."""
        self._compilers = {api.specification: ContextCompiler(api.rules) for api in self._apis}

    def specification_of(self, model: str) -> str:
        return self._api_of(model).specification

    def call_model(self, request: ModelRequest) -> DeltaStream:
        return aclosing(self._stream(request))

    @property
    def address(self) -> str:
        return self._client.address

    async def list_models(self) -> tuple[ListedModel, ...]:
        return await self._client.list_models()

    async def aclose(self) -> None:
        await self._client.aclose()

    def _api_of(self, model: str) -> VendorApi:
        learned = self._api_by_model.get(model)
        if learned is not None:
            return learned
        return next((api for api in self._apis if api.is_needed_by(model)), self._apis[0])

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        """A request that is refused is sent again, as the refusal tells: without a schema that
        the vendor does not enforce (the context tells the model, and the answer is checked),
        or, once, through another API."""
        model, api = request.invocation.model, self._api_of(request.invocation.model)
        schema = (model, hash(orjson.dumps(request.schema)))
        if schema in self._refused_schemas:
            request = _without_schema(request)
        first: ProviderRefused | None = None
        while True:
            compiler = self._compilers[api.specification]
            compiled = compiler.compile(request.context, origin=request.invocation)
            rendered = api.render(request, compiled)
            rendered.body.update(self._extra_bodies.get(model, {}))
            try:
                async with aclosing(self._client.stream(rendered, api.parser(rendered))) as deltas:
                    async for delta in deltas:
                        self._api_by_model[model] = api
                        yield delta
                return
            except ProviderRefused as refusal:
                if request.schema is not None and _is_about_schema(refusal):
                    if len(self._refused_schemas) >= _REFUSED_SCHEMAS_MAX:
                        self._refused_schemas.clear()
                    self._refused_schemas.add(schema)
                    request = _without_schema(request)
                    continue
                if first is not None:
                    is_no_better = refusal.wrong_api or refusal.wrong_reasoning
                    raise (first if is_no_better else refusal) from None
                other = self._instead(refusal, api, model)
                if other is None:
                    raise
                first, api = refusal, other
            invocation = structs.replace(request.invocation, specification=api.specification)
            request = structs.replace(request, invocation=invocation)

    def _instead(self, refusal: ProviderRefused, api: VendorApi, model: str) -> VendorApi | None:
        """What the refused request is to be sent through, once."""
        if refusal.wrong_reasoning:
            return api.instead(refusal, model)
        if not refusal.wrong_api or len(self._apis) == 1 or model in self._api_by_model:
            return None
        return next(each for each in self._apis if each is not api)


def _without_schema(request: ModelRequest) -> ModelRequest:
    plain = {name: value for name, value in request.options.items() if name != "schema"}
    return structs.replace(request, options=plain)


def _is_about_schema(refusal: ProviderRefused) -> bool:
    said = refusal.vendor
    return said is not None and _OF_SCHEMAS.search(f"{said.param} {said.message}") is not None
