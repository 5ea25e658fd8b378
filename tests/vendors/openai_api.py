"""OpenAI: its manners, and what is asked of parameters in both its APIs.

Documented: bearer keys, errors as `{"error": {"message", "type", "param", "code"}}`.
Assumed: the size of a body (413, as proxies in front of it answer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.vendors.fields import JsonObject, Path, check_range
from tests.vendors.models import GptModel
from tests.vendors.openai_tools import SAY
from tests.vendors.rejections import Rejection
from tests.vendors.wordings import and_list, invalid

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
            raise Rejection(
                "You didn't provide an API key. You need to provide your API key in an"
                " Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
                status=401,
            )
        if given != self._key:
            shown = f"{given[:3]}***{given[-2:]}"
            raise Rejection(
                f"Incorrect API key provided: {shown}.", status=401, code="invalid_api_key"
            )

    def unreadable(self, error: str) -> Rejection:
        return Rejection(
            "We could not parse the JSON body of your request. (HINT: This likely means you"
            " aren't using your HTTP library correctly. The OpenAI API expects a JSON payload,"
            f" but what was sent was not valid JSON: {error})"
        )

    def too_large(self) -> Rejection:
        return Rejection("Request body too large", status=413)

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
        raise Rejection(
            f"The model `{name}` does not exist or you do not have access to it.",
            status=404,
            code="model_not_found",
        )


def check_effort(effort: object, path: Path, model: GptModel) -> None:
    """pydantic-ai issue 7081 has the sentence."""
    if effort is not None and effort not in model.efforts:
        supported = and_list([f"'{each}'" for each in model.efforts])
        raise invalid(
            f"Unsupported value: '{effort}' is not supported with the '{model.name}' model."
            f" Supported values are: {supported}.",
            path,
            code="unsupported_value",
        )


def check_cache_key(body: JsonObject) -> None:
    """llmgateway pull request 3110 has the whole answer, with its code."""
    key = body.get("prompt_cache_key")
    if isinstance(key, str) and len(key) > CACHE_KEY_CHARACTERS_MAX:
        raise invalid(
            "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length"
            f" {CACHE_KEY_CHARACTERS_MAX}, but got a string with length {len(key)} instead.",
            ("prompt_cache_key",),
            code="string_above_max_length",
        )


def check_sampling(body: JsonObject) -> None:
    check_range(body.get("temperature"), ("temperature",), SAY, least=0, most=2)
    check_range(body.get("top_p"), ("top_p",), SAY, least=0, most=1)


def unsupported(name: str, *, instead: str | None = None) -> Rejection:
    hint = f" Use '{instead}' instead." if instead else ""
    return invalid(
        f"Unsupported parameter: '{name}' is not supported with this model.{hint}",
        (name,),
        code="unsupported_parameter",
    )
