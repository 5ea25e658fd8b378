"""`/v1/models`: the models that can be called, by their whole names.

A name contains a slash (`openai/gpt-5.2`), which clients send as it is or as `%2F`.
"""

from __future__ import annotations

import time
from typing import Final

from starlette.responses import Response
from starlette.routing import BaseRoute

from nplt_gateway.api_request import ApiRequest, api_route
from nplt_gateway.bodies import JsonResponse
from nplt_gateway.errors import ApiError
from nplt_protocol import JsonObject, RequestError


async def list_models(call: ApiRequest) -> Response:
    router = call.server.services.router
    await router.lists.load()
    # In the background, because a provider may be slow or unreachable.
    call.server.services.spawn(router.begin_lists())
    names = dict.fromkeys((router.default_model, *router.models, *router.lists.names))
    return JsonResponse({"object": "list", "data": [_as_json(call, name) for name in names]})


async def get_model(call: ApiRequest) -> Response:
    wanted = call.request.path_params["model"]
    try:
        name = call.server.services.router.check(wanted)
    except RequestError as error:
        raise ApiError(404, error.message, code="model_not_found", param="model") from None
    return JsonResponse(_as_json(call, name))


def _as_json(call: ApiRequest, name: str) -> JsonObject:
    facts = call.server.services.context.models.facts(name)
    return {
        "id": name,
        "object": "model",
        # When a vendor made the model is not known here.
        "created": int(time.time() - (time.monotonic() - call.server.started_at)),
        "owned_by": name.partition("/")[0],
        "context_length": facts.context_tokens,
    }


ROUTES: Final[tuple[BaseRoute, ...]] = (
    api_route("GET", "/v1/models", list_models),
    api_route("GET", "/v1/models/{model:path}", get_model),
)
