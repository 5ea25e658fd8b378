"""`POST /v1/responses` as the server sees it."""

from __future__ import annotations

from tests.vendors.answers import Answer, ApiName
from tests.vendors.apis import Ids, Vendor
from tests.vendors.caching import SteppedPrefixes, Usage
from tests.vendors.faults import ErrorEvent
from tests.vendors.fields import JsonObject, check_shape
from tests.vendors.openai_api import SERVER_ERROR, OpenAI
from tests.vendors.openai_tools import SAY
from tests.vendors.responses_answers import AnsweredResponse
from tests.vendors.responses_rules import check_input, check_parameters, check_window
from tests.vendors.responses_shapes import REQUEST
from tests.vendors.seals import Seals
from tests.vendors.sse import Event, Wire
from tests.vendors.tokens import canonical, tokens_of


class ResponsesApi:
    name: ApiName = "responses"
    stranger = Event(
        name="response.surprise", data={"type": "response.surprise", "sequence_number": 0}
    )
    ping: Event | None = None

    def __init__(self, openai: OpenAI, *, ids: Ids, seals: Seals, cached_tokens_min: int) -> None:
        self.vendor: Vendor = openai
        self._openai = openai
        self._ids, self._seals = ids, seals
        self._cache = SteppedPrefixes(tokens_min=cached_tokens_min)
        self._led_to: dict[str, str] = {}

    def admit(self, body: object) -> Usage:
        request = check_shape(body, (), REQUEST, SAY)
        model = self._openai.model(request["model"])
        check_parameters(request, model)
        check_input(request, self._seals, self._led_to)
        given = request["input"]
        items = [given] if isinstance(given, str) else given
        listed = [request.get("tools"), request.get("instructions"), *items]
        prompt = "\n".join(map(canonical, listed))
        check_window(tokens_of(prompt), model)
        return self._cache.take(model.name, prompt, counts_writes=model.charges_cache_writes)

    def whole(self, body: JsonObject, answer: Answer, usage: Usage) -> JsonObject:
        return self._answered(body, answer, usage).whole()

    def events(self, body: JsonObject, answer: Answer, usage: Usage, wire: Wire) -> list[Event]:
        return self._answered(body, answer, usage).events()

    def error_event(self, fault: ErrorEvent) -> Event:
        """An `error` as it was seen on the wire (the reference shows its fields one level
        higher), or the response that failed."""
        number = {"sequence_number": fault.after}
        if fault.failed:
            failed = {
                "id": "resp_failed",
                "object": "response",
                "status": "failed",
                "error": {"code": "server_error", "message": SERVER_ERROR},
                "output": [],
            }
            data: JsonObject = {"type": "response.failed", "response": failed, **number}
            return Event(name="response.failed", data=data)
        error = self._openai.error_body(self._openai.failure(500), "")
        return Event(name="error", data={"type": "error", **number, **error})

    def _answered(self, body: JsonObject, answer: Answer, usage: Usage) -> AnsweredResponse:
        answered = AnsweredResponse(body, answer, usage, ids=self._ids, seals=self._seals)
        answered.note_reasoning(self._led_to)
        return answered
