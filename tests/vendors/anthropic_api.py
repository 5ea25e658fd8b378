"""Anthropic: its manners, and `POST /v1/messages`.

Documented: `x-api-key` (or, as the SDKs of 2026-10-21 send it, `Authorization: Bearer`) and
`anthropic-version` headers, errors as
`{"type": "error", "error": {"type", "message"}, "request_id"}`, 32 MB for a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.vendors import messages_rules as rules
from tests.vendors.answers import Answer, ApiName
from tests.vendors.anthropic_rules import ANTHROPIC
from tests.vendors.apis import Ids, Vendor
from tests.vendors.caching import Block, MarkedPrefixes, Usage
from tests.vendors.faults import ErrorEvent
from tests.vendors.fields import JsonObject, check_shape
from tests.vendors.messages_answers import AnsweredMessage
from tests.vendors.messages_shapes import COUNT_REQUEST, REQUEST, SAY, blocks_of
from tests.vendors.messages_thinking import check_thinking_asked, check_thinking_sent
from tests.vendors.messages_tools import check_calls, check_tools
from tests.vendors.models import ClaudeModel
from tests.vendors.rejections import Rejection
from tests.vendors.seals import Seals
from tests.vendors.sse import Event, Wire
from tests.vendors.tokens import canonical, tokens_of

LISTED_MAX = 1_000
_FAILURES = {
    429: ("rate_limit_error", "This request would exceed your organization's rate limit."),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}


class Anthropic:
    request_id_header = "request-id"

    def __init__(self, *, key: str, models: Sequence[ClaudeModel]) -> None:
        self._key = key
        self._models = models
        self.page_models_max = LISTED_MAX

    def authenticate(self, headers: Mapping[str, str]) -> None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = headers.get("x-api-key") or bearer
        if not given:
            raise ANTHROPIC["anthropic-no-key"].refusal()
        if given != self._key:
            raise ANTHROPIC["anthropic-wrong-key"].refusal()
        version = headers.get("anthropic-version")
        if version is None:
            raise ANTHROPIC["anthropic-no-version"].refusal()
        if version not in (rules.VERSION, rules.FORMER_VERSION):
            raise ANTHROPIC["anthropic-version"].refusal(version=version)

    def unreadable(self, error: str) -> Rejection:
        return ANTHROPIC["anthropic-json"].refusal(error=error)

    def too_large(self, bytes_max: int) -> Rejection:
        return ANTHROPIC["anthropic-size"].refusal()

    def failure(self, status: int) -> Rejection:
        kind, message = _FAILURES.get(status, ("api_error", "Internal server error"))
        return Rejection(message, status=status, kind=kind)

    def error_body(self, rejection: Rejection, request_id: str) -> JsonObject:
        error = {"type": rejection.kind, "message": rejection.message}
        return {"type": "error", "error": error, "request_id": request_id}

    def models(self, query: Mapping[str, str]) -> JsonObject:
        """docs.anthropic.com/en/api/models-list: pages of `limit` (20 if nothing is said, 1 to
        1,000), each after the model `after_id`; `has_more` says whether another follows."""
        limit = query.get("limit", "20")
        if not limit.isdecimal() or not 1 <= int(limit) <= LISTED_MAX:
            raise ANTHROPIC["anthropic-limit"].refusal(most=LISTED_MAX)
        names = [model.name for model in self._models]
        after = query.get("after_id")
        first = names.index(after) + 1 if after in names else 0
        page = self._models[first : first + min(int(limit), self.page_models_max)]
        listed = [
            {
                "type": "model",
                "id": model.name,
                "display_name": model.name,
                "created_at": "2026-01-01T00:00:00Z",
                "lifecycle": "active",
                "max_input_tokens": model.window_tokens,
                "max_tokens": model.output_tokens_max,
            }
            for model in page
        ]
        ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
        return {"data": listed, "has_more": first + len(page) < len(names), **ends}

    def model(self, name: str) -> ClaudeModel:
        for model in self._models:
            if model.name == name:
                return model
        raise ANTHROPIC["anthropic-model"].refusal(name=name)


class MessagesApi:
    name: ApiName = "messages"
    stranger = Event(name="surprise", data={"type": "surprise", "index": 0})
    ping: Event | None = Event(name="ping", data={"type": "ping"})

    def __init__(
        self, anthropic: Anthropic, *, ids: Ids, seals: Seals, cached_tokens_min: int
    ) -> None:
        self.vendor: Vendor = anthropic
        self._anthropic = anthropic
        self._ids, self._seals = ids, seals
        self._cache = MarkedPrefixes(tokens_min=cached_tokens_min)

    def admit(self, body: object, version: str = rules.VERSION) -> Usage:
        request = check_shape(body, (), REQUEST, SAY)
        model = self._anthropic.model(request["model"])
        rules.check_version(request, version)
        rules.check_parameters(request, model)
        blocks = self._check_prompt(request, model)
        rules.check_window(sum(tokens_of(block.text) for block in blocks), request, model)
        return self._cache.take(model.name, blocks)

    def count(self, body: object, version: str = rules.VERSION) -> int:
        """For `POST /v1/messages/count_tokens`: the rules of the prompt hold there too."""
        request = check_shape(body, (), COUNT_REQUEST, SAY)
        rules.check_version(request, version)
        blocks = self._check_prompt(request, self._anthropic.model(request["model"]))
        return sum(tokens_of(block.text) for block in blocks)

    def whole(self, body: JsonObject, answer: Answer, usage: Usage) -> JsonObject:
        return self._answered(body, answer, usage).whole()

    def events(self, body: JsonObject, answer: Answer, usage: Usage, wire: Wire) -> list[Event]:
        return self._answered(body, answer, usage).events(wire)

    def error_event(self, fault: ErrorEvent) -> Event:
        overloaded = self._anthropic.failure(529)
        return Event(name="error", data=self._anthropic.error_body(overloaded, "req_stream"))

    def _check_prompt(self, request: JsonObject, model: ClaudeModel) -> list[Block]:
        check_tools(request)
        rules.check_system(request)
        rules.check_messages(request, model)
        check_calls(request)
        check_thinking_asked(request, model)
        check_thinking_sent(request, self._seals)
        rules.check_marks(request)
        return cached_blocks(request)

    def _answered(self, body: JsonObject, answer: Answer, usage: Usage) -> AnsweredMessage:
        model = self._anthropic.model(body["model"])
        return AnsweredMessage(body, answer, usage, ids=self._ids, seals=self._seals, model=model)


def cached_blocks(request: JsonObject) -> list[Block]:
    """In the order they are cached in. Another choice of tools or way of thinking
    leaves tools and system cached, and messages not (documented)."""
    listed = [*request.get("tools", []), *blocks_of(request.get("system") or [])]
    blocks = [_block(each, "") for each in listed]
    condition = canonical([request.get("thinking"), request.get("tool_choice")])
    for message in request["messages"]:
        for each in blocks_of(message["content"]):
            blocks.append(_block(each, condition + message["role"]))
    if request.get("cache_control") and blocks:
        last = blocks.pop()
        blocks.append(Block(text=last.text, marked=True, condition=last.condition))
    return blocks


def _block(block: JsonObject, condition: str) -> Block:
    inner = block.get("content") if block.get("type") == "tool_result" else None
    marked = block.get("cache_control") is not None or (
        isinstance(inner, list) and any(each.get("cache_control") for each in inner)
    )
    return Block(text=canonical(block), marked=marked, condition=condition)
