"""An error that came as an event, after the server had said 200."""

from __future__ import annotations

from nplt_protocol.json_values import JsonObject
from nplt_server.errors import ProviderError
from nplt_server.providers.failures import failure_in_stream
from nplt_server.providers.openai.fields import word_of


def failure_of_event(event: JsonObject, *, before_first_token: bool) -> ProviderError:
    """Its fields stand under `error`, or, as the reference of responses shows, beside it."""
    error = event.get("error")
    told = error if isinstance(error, dict) else event
    code = told.get("code")
    return failure_in_stream(
        kind=word_of(told.get("type")),
        code=word_of(code),
        message=word_of(told.get("message")),
        status=code if isinstance(code, int) else None,  # as routers to other servers do
        before_first_token=before_first_token,
    )
