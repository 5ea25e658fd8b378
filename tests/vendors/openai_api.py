"""OpenAI: its manners, and what is asked of parameters in both its APIs.

Documented: bearer keys, errors as `{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.vendors.fields import JsonObject, Path, check_range
from tests.vendors.models import GptModel
from tests.vendors.openai_rules import OPENAI
from tests.vendors.openai_tools import SAY
from tests.vendors.rejections import Rejection
from tests.vendors.wordings import and_list, bracketed

CACHE_KEY_CHARACTERS_MAX = 64
SERVER_ERROR = "The server had an error while processing your request. Sorry about that!"
_FAILURES = {
    429: ("requests", "Rate limit reached for requests", "rate_limit_exceeded"),
    503: ("server_error", "The engine is currently overloaded, please try again later", None),
}


class OpenAI:
    request_id_header = "x-request-id"

    def __init__(self, *, key: str, models: Sequence[GptModel]) -> None:
        self._key = key
        self._models = models

    def authenticate(self, headers: Mapping[str, str]) -> None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not given:
            raise OPENAI["openai-no-key"].refusal()
        if given != self._key:
            shown = f"{given[:3]}***{given[-2:]}"
            raise OPENAI["openai-wrong-key"].refusal(shown=shown)

    def unreadable(self, error: str) -> Rejection:
        return OPENAI["openai-json"].refusal()

    def too_large(self, bytes_max: int) -> Rejection:
        return OPENAI["openai-size"].refusal(most=bytes_max, size=bytes_max + 1)

    def failure(self, status: int) -> Rejection:
        kind, message, code = _FAILURES.get(status, ("server_error", SERVER_ERROR, None))
        return Rejection(message, status=status, kind=kind, code=code)

    def error_body(self, rejection: Rejection, request_id: str) -> JsonObject:
        return {
            "error": {
                "message": rejection.message,
                "type": rejection.kind,
                "param": rejection.param,
                "code": rejection.code,
            }
        }

    def models(self, query: Mapping[str, str]) -> JsonObject:
        """ "List models" in the API reference: all at once, without parameters."""
        listed = [
            {"id": model.name, "object": "model", "created": 1_767_225_600, "owned_by": "openai"}
            for model in self._models
        ]
        return {"object": "list", "data": listed}

    def model(self, name: str) -> GptModel:
        for model in self._models:
            if model.name == name:
                return model
        raise OPENAI["openai-model"].refusal(name=name)


def check_effort(effort: object, path: Path, model: GptModel) -> None:
    if effort is not None and effort not in model.efforts:
        supported = and_list([f"'{each}'" for each in model.efforts])
        raise OPENAI["openai-effort"].refusal(
            param=bracketed(path), effort=effort, model=model.name, supported=supported
        )


def check_cache_key(body: JsonObject) -> None:
    key = body.get("prompt_cache_key")
    if isinstance(key, str) and len(key) > CACHE_KEY_CHARACTERS_MAX:
        raise SAY.too_long(("prompt_cache_key",), len(key), CACHE_KEY_CHARACTERS_MAX)


def check_sampling(body: JsonObject) -> None:
    check_range(body.get("temperature"), ("temperature",), SAY, least=0, most=2)
    check_range(body.get("top_p"), ("top_p",), SAY, least=0, most=1)


def unsupported(name: str, *, instead: str | None = None) -> Rejection:
    if instead is None:
        return OPENAI["openai-unsupported"].refusal(param=name, name=name)
    rule = OPENAI["openai-unsupported-for-another"]
    return rule.refusal(param=name, name=name, instead=instead)
