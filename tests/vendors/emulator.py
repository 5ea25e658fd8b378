"""Both vendors on one loopback port: real HTTP, the vendors' rules, scripted answers.

    async with emulator(script) as vendors:
        AsyncOpenAI(base_url=vendors.openai_url, api_key=vendors.key, max_retries=0)
        AsyncAnthropic(base_url=vendors.anthropic_url, api_key=vendors.key, max_retries=0)

Rules come before faults, so that no fault hides a request that should not have been
sent; everything that was received is kept, with what became of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
from tests.vendors.answers import ApiName, Call, Script, echo
from tests.vendors.anthropic_api import Anthropic, MessagesApi
from tests.vendors.apis import Api, Ids, Vendor
from tests.vendors.caching import Usage
from tests.vendors.chat_answers import ChatApi
from tests.vendors.delivery import Delivery
from tests.vendors.faults import Fault, Status
from tests.vendors.fields import JsonObject
from tests.vendors.http_server import HttpRequest, HttpServer, Reply
from tests.vendors.models import CLAUDE_MODELS, GPT_MODELS, ClaudeModel, GptModel
from tests.vendors.openai_api import OpenAI
from tests.vendors.openai_rules import OPENAI
from tests.vendors.rejections import Rejection
from tests.vendors.responses_api import ResponsesApi
from tests.vendors.seals import Seals
from tests.vendors.sse import Wire

_MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`cached_tokens_min`: shorter prefixes are not cached (1,024 with both vendors;
    with some of Anthropic's models more)."""

    claude_models: Sequence[ClaudeModel] = CLAUDE_MODELS
    gpt_models: Sequence[GptModel] = GPT_MODELS
    cached_tokens_min: int = 1024
    body_bytes_max: int = 32 * _MEGABYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: object  # parsed; none where that was not possible
    api: ApiName | None = None
    usage: Usage | None = None  # none: not admitted
    rejection: Rejection | None = None


class Emulator:
    def __init__(
        self, script: Script = echo, *, key: str = "sk-emulated", limits: Limits | None = None
    ) -> None:
        limits = limits or Limits()
        self.script = script
        self.key = key
        self.wire = Wire()
        self.received: list[Received] = []
        self.asked_for_lists: list[HttpRequest] = []
        self.lists_stall = False
        self.open_lists = False  # as servers of one's own have them: without a key
        self.port = 0
        self._faults: deque[Fault] = deque()
        self._released = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ids, seals = Ids(), Seals(b"only this server")
        self._openai = OpenAI(key=key, models=limits.gpt_models)
        self._anthropic = Anthropic(key=key, models=limits.claude_models)
        cached = limits.cached_tokens_min
        self._messages = MessagesApi(
            self._anthropic, ids=self._ids, seals=seals, cached_tokens_min=cached
        )
        self._apis: dict[str, Api] = {
            "/v1/chat/completions": ChatApi(self._openai, ids=self._ids, cached_tokens_min=cached),
            "/v1/responses": ResponsesApi(
                self._openai, ids=self._ids, seals=seals, cached_tokens_min=cached
            ),
            "/v1/messages": self._messages,
        }
        self._body_bytes_max = limits.body_bytes_max
        self._http = HttpServer(self._handle, body_bytes_max=limits.body_bytes_max)

    def page_lists(self, models: int) -> None:
        """No page of Anthropic's list has more than that."""
        self._anthropic.page_models_max = models

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        return self.url

    def api(self, name: ApiName) -> Api:
        """To ask its rules without a connection."""
        return next(api for api in self._apis.values() if api.name == name)

    @property
    def rejections(self) -> list[Rejection]:
        return [each.rejection for each in self.received if each.rejection is not None]

    def fail_next(self, *faults: Fault) -> None:
        """One for each of the next requests that are admitted."""
        self._faults.extend(faults)

    def release(self) -> None:
        """Whatever stalls goes on. May be called from any thread."""
        assert self._loop is not None
        stalled, self._released = self._released, asyncio.Event()
        self._loop.call_soon_threadsafe(stalled.set)

    async def open(self, port: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self.port = await self._http.open(port or self.port)

    async def close(self) -> None:
        """From now on connections are refused; `open` takes the same port again.

        If a script has crashed, this is where it is told."""
        await self._http.close()
        if self._http.crashes:
            raise self._http.crashes.pop()

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        vendor = self._vendor(request)
        request_id = self._ids.new("req_")
        headers = {vendor.request_id_header: request_id, "content-type": "application/json"}
        try:
            is_list = self._is_list(request)
            if not (is_list and self.open_lists):
                vendor.authenticate(request.headers)
            if is_list:
                self.asked_for_lists.append(request)
                if self.lists_stall:
                    await self._released.wait()
                listed = self._list(request, vendor)
                await reply.whole(200, orjson.dumps(listed), headers)
                return
            await self._answer(request, reply, vendor, headers)
        except Rejection as rejection:
            self._note_rejection(request, rejection)
            body = orjson.dumps(vendor.error_body(rejection, request_id))
            await reply.whole(rejection.status, body, headers)

    async def _answer(
        self, request: HttpRequest, reply: Reply, vendor: Vendor, headers: dict[str, str]
    ) -> None:
        body = _parsed(request, vendor, self._body_bytes_max)
        if request.path == "/v1/messages/count_tokens":
            version = request.headers["anthropic-version"]
            counted = {"input_tokens": self._messages.count(body, version)}
            await reply.whole(200, orjson.dumps(counted), headers)
            return
        api = self._apis.get(request.path)
        if api is None or request.method != "POST":
            raise OPENAI["openai-url"].refusal(method=request.method, path=request.path)
        if api is self._messages:
            usage = self._messages.admit(body, request.headers["anthropic-version"])
        else:
            usage = api.admit(body)
        assert isinstance(body, dict)
        number = len(self.received) + 1
        answer = self.script(Call(api=api.name, body=body, headers=request.headers, number=number))
        self.received.append(
            Received(
                path=request.path, headers=request.headers, body=body, api=api.name, usage=usage
            )
        )
        fault = self._faults.popleft() if self._faults else answer.fault
        if isinstance(fault, Status):
            await _fail(fault, reply, vendor, headers)
            return
        delivery = Delivery(api, reply, wire=self.wire, fault=fault, released=self._released)
        if body.get("stream") and not self.wire.never_streams:
            events = api.events(body, answer, usage, self.wire)
            await delivery.streamed(events, headers)
        else:
            await delivery.whole(api.whole(body, answer, usage), headers)

    def _is_list(self, request: HttpRequest) -> bool:
        return request.method == "GET" and request.path == "/v1/models"

    def _list(self, request: HttpRequest, vendor: Vendor) -> JsonObject:
        return vendor.models(request.query)

    def _vendor(self, request: HttpRequest) -> Vendor:
        """The list of models has one path for both; only one of them knows this header."""
        if request.path.startswith("/v1/messages"):
            return self._anthropic
        if request.path == "/v1/models" and "anthropic-version" in request.headers:
            return self._anthropic
        return self._openai

    def _note_rejection(self, request: HttpRequest, rejection: Rejection) -> None:
        try:
            body: object = orjson.loads(request.body or b"")
        except orjson.JSONDecodeError:
            body = None
        api = self._apis.get(request.path)
        self.received.append(
            Received(
                path=request.path,
                headers=request.headers,
                body=body,
                api=None if api is None else api.name,
                rejection=rejection,
            )
        )


@asynccontextmanager
async def emulator(
    script: Script = echo, *, key: str = "sk-emulated", limits: Limits | None = None
) -> AsyncIterator[Emulator]:
    vendors = Emulator(script, key=key, limits=limits)
    await vendors.open()
    try:
        yield vendors
    finally:
        await vendors.close()


async def _fail(fault: Status, reply: Reply, vendor: Vendor, headers: Mapping[str, str]) -> None:
    body = vendor.error_body(vendor.failure(fault.status), headers[vendor.request_id_header])
    if fault.retry_after is not None:
        headers = {**headers, "retry-after": fault.retry_after}
    await reply.whole(fault.status, orjson.dumps(body), headers)


def _parsed(request: HttpRequest, vendor: Vendor, bytes_max: int) -> object:
    if request.body is None:
        raise vendor.too_large(bytes_max)
    try:
        parsed: object = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        # Python's own parser, which Anthropic quotes, has this sentence for it.
        text = str(error)
        lone = "surrogate" in text
        raise vendor.unreadable(
            text.replace(error.msg.split(":")[0], "no low surrogate in string") if lone else text
        ) from None
    return parsed
