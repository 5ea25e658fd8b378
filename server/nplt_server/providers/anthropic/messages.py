"""Anthropic's Messages API, and servers that speak it: the parser, the client, the provider.

`render` makes the body of a request.

The parser turns the events of a streamed message into deltas; it is pure, one event at a time.
`Stopped` comes with `message_stop` and at no other time, so an answer that is cut stays
unfinished. The signature of a thinking block is an opaque piece at the end of the block. It can
be sent back only if all that came before it in the answer can, to the letter: once that is no
longer so (a blank text, broken arguments, a block of an unknown type) no further opaque pieces
of this answer are kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import orjson
from msgspec import Struct, field

from nplt_server.digest.text import clean_text
from nplt_server.errors import ProviderRefused
from nplt_server.providers import (
    ModelOutputDelta,
    ModelRequest,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.providers.anthropic.render import abilities_of, render
from nplt_server.providers.client import (
    AnswerParser,
    RawResponse,
    RenderedRequest,
    VendorApi,
    VendorClient,
    json_object_of,
)
from nplt_server.providers.compiler import CompiledContext
from nplt_server.providers.failures import VendorError, failure_in_stream, text_of

if TYPE_CHECKING:
    import anthropic

    from nplt_server.providers.http_client import ProviderHttpClient

_BlockKind: TypeAlias = Literal["text", "thinking", "redacted_thinking", "tool_use", "other"]

_STOP_REASONS = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}


class _Block(Struct):
    kind: _BlockKind
    call: int = 0
    is_blank: bool = True
    signature: str = ""
    arguments: list[str] = field(default_factory=list)
    given_input: object = None
    """Some servers give a call's input whole, where it begins."""


class MessageParser(AnswerParser):
    def __init__(self, own_names: Mapping[str, str] | None = None) -> None:
        super().__init__(own_names)
        self._blocks: dict[int, _Block] = {}
        self._last_kind: _BlockKind | None = None
        self._call_ids: list[str] = []
        self._calls_told = 0
        self._is_verbatim = True
        self._has_said = False
        self._usage: dict[str, int] = {}
        self._stop_reason: str | None = None

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        return [] if self.is_done else super().feed(data)

    def _read(self, event: dict[str, Any]) -> list[ModelOutputDelta]:
        match event["type"]:
            case "content_block_delta":
                block = self._blocks.get(event["index"])
                return [] if block is None else self._piece(block, event["delta"])
            case "content_block_start":
                self.has_spoken = True
                return self._open(event["index"], event["content_block"])
            case "content_block_stop":
                block = self._blocks.pop(event["index"], None)
                return [] if block is None else self._close(block)
            case "message_start":
                return self._count(event["message"].get("usage") or {})
            case "message_delta":
                return self._wind_up(event["delta"], event.get("usage") or {})
            case "message_stop":
                return self._end()
            case "error":
                failed = VendorError.of(event)
                raise failure_in_stream(failed, before_first_token=not self.has_spoken)
            case _:
                return []

    def _read_whole(self, answer: Any) -> list[ModelOutputDelta]:
        deltas = self._count(answer.get("usage") or {})
        for index, block in enumerate(answer["content"]):
            for kind in ("content_block_start", "content_block_stop"):
                deltas += self._read({"type": kind, "index": index, "content_block": block})
        return [*deltas, *self._wind_up(answer, {}), *self._end()]

    def _open(self, index: int, opened: dict[str, Any]) -> list[ModelOutputDelta]:
        block = _Block(kind=_kind(opened["type"]))
        self._blocks[index] = block
        follows, self._last_kind = self._last_kind, block.kind
        match block.kind:
            case "text":
                begin = self._kept({"next": "text"}) if follows == "text" else []
                return begin + self._piece(block, {"type": "text_delta", **opened})
            case "thinking":
                begin = self._reported_call_ids()
                return begin + self._piece(block, {"type": "thinking_delta", **opened})
            case "redacted_thinking":
                return self._reported_call_ids() + self._kept({"redacted_thinking": opened["data"]})
            case "tool_use":
                block.call = len(self._call_ids)
                block.given_input = opened.get("input")
                self._call_ids.append(text_of(opened.get("id")))
                name = text_of(opened["name"])
                return [ToolCallPiece(index=block.call, tool_name=self._own_names.get(name, name))]
            case "other":
                self._is_verbatim = False
                return []

    def _piece(self, block: _Block, delta: dict[str, Any]) -> list[ModelOutputDelta]:
        match delta["type"], block.kind:
            case (("text_delta" | "text"), "text"):
                text = self._heard(delta.get("text"))
                block.is_blank = block.is_blank and not text.strip()
                self._has_said = self._has_said or not block.is_blank
                return [TextPiece(text=text)] if text else []
            case (("thinking_delta" | "thinking"), "thinking"):
                text = self._heard(delta.get("thinking"))
                block.signature += text_of(delta.get("signature"))
                return [ReasoningPiece(text=text)] if text else []
            case "signature_delta", "thinking":
                block.signature += delta["signature"]
                return []
            case "input_json_delta", "tool_use":
                arguments = self._heard(delta["partial_json"])
                block.arguments.append(arguments)
                return [ToolCallPiece(index=block.call, arguments=arguments)] if arguments else []
            case _:
                return []

    def _close(self, block: _Block) -> list[ModelOutputDelta]:
        match block.kind:
            case "thinking":
                if block.signature:
                    return self._kept({"signature": block.signature})
                self._is_verbatim = False
            case "text":
                self._is_verbatim = self._is_verbatim and not block.is_blank
            case "tool_use":
                return self._close_call(block)
            case _:
                pass
        return []

    def _close_call(self, block: _Block) -> list[ModelOutputDelta]:
        arguments = "".join(block.arguments)
        if not arguments and block.given_input:
            arguments = orjson.dumps(block.given_input).decode()
            return [ToolCallPiece(index=block.call, arguments=arguments)]
        self._is_verbatim = self._is_verbatim and _is_object(arguments or "{}")
        return []

    def _reported_call_ids(self) -> list[ModelOutputDelta]:
        """Thinking after a call knows it by the vendor's id, and ours is another."""
        told, self._calls_told = self._call_ids[self._calls_told :], len(self._call_ids)
        return self._kept({"call_ids": [*told]}) if told else []

    def _kept(self, data: dict[str, Any]) -> list[ModelOutputDelta]:
        return [OpaquePiece(data=data)] if self._is_verbatim else []

    def _heard(self, text: object) -> str:
        heard = text_of(text)
        if clean_text(heard) != heard:
            self._is_verbatim = False  # it will be written down otherwise
        return heard

    def _count(self, usage: dict[str, Any]) -> list[ModelOutputDelta]:
        """Counts are cumulative; what a later report leaves out is still so."""
        self._usage |= {name: count for name, count in usage.items() if isinstance(count, int)}
        count = self._usage.get
        cached = count("cache_read_input_tokens", 0)
        kept = count("cache_creation_input_tokens", 0)
        sent = count("input_tokens", 0) + cached + kept
        if not sent:
            return []
        said = count("output_tokens", 0)
        report = UsageReport(
            input_tokens=sent, output_tokens=said, cached_tokens=cached, cache_write_tokens=kept
        )
        return [report]

    def _wind_up(self, delta: dict[str, Any], usage: dict[str, Any]) -> list[ModelOutputDelta]:
        reason = delta.get("stop_reason")
        if reason is not None:
            self._stop_reason = _STOP_REASONS.get(reason, text_of(reason))
        deltas = self._count(usage)
        if reason == "refusal":
            why = text_of((delta.get("stop_details") or {}).get("explanation"))
            if why.strip():
                deltas.append(TextPiece(text=f"\n\n{why}" if self._has_said else why))
                self._has_said = True
        return deltas

    def _end(self) -> list[ModelOutputDelta]:
        self.is_done = True
        deltas = [each for block in self._blocks.values() for each in self._close(block)]
        if self._stop_reason == "refusal" and not self._has_said and not self._call_ids:
            raise ProviderRefused("the model declined to answer")
        if self._stop_reason is not None:
            deltas.append(Stopped(reason=self._stop_reason))
        return deltas


def _kind(name: str) -> _BlockKind:
    match name:
        case "text" | "thinking" | "redacted_thinking" | "tool_use":
            return name
        case _:
            return "other"


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False


_PAGE_MODELS = 1_000
"""As many as may be asked for at once."""
_PAGES_MAX = 10


class MessagesClient(VendorClient):
    vendor = "Anthropic"
    vendor_url = "https://api.anthropic.com"

    def _open(self, http: ProviderHttpClient) -> anthropic.AsyncAnthropic:
        import anthropic

        self._sdk_error = anthropic.AnthropicError
        sdk = anthropic.AsyncAnthropic(
            api_key=self._api_key,
            base_url=self.address,
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


class MessagesApi(VendorApi, frozen=True, kw_only=True):
    specification: ClassVar[str] = "anthropic-messages"

    def render(self, request: ModelRequest, compiled: CompiledContext) -> RenderedRequest:
        return render(request, compiled, abilities_of(request.invocation.model))

    def parser(self, rendered: RenderedRequest) -> MessageParser:
        return MessageParser(rendered.own_names)
