"""Asks servers for more than their list of models says: windows, tools, pictures, prices.

A list of models mostly has names alone. Which server gave it is seen in the list itself
(`owned_by`), and then its own endpoints are asked, by a `Fetch` that the caller brings:

    server      asked               window
    ----------  ------------------  ----------------------------------------------------------
    Ollama      GET /api/ps         `context_length` of a model that is loaded
                POST /api/show      `num_ctx` of its parameters; else only a ceiling
    llama.cpp   GET /props          `n_ctx` of a slot, in `default_generation_settings`
    LM Studio   GET /api/v0/models  `loaded_context_length`; `max_context_length` is a ceiling
    LiteLLM     GET /model/info     `max_input_tokens`, with the prices

What can't be asked or read is left as it was in the list.

Sources:

* Ollama: github.com/ollama/ollama docs/openapi.yaml, `Ps`: "context_length: … Context length for
  the running model"; docs.ollama.com/context-length: "Ollama defaults to the following context
  lengths based on VRAM: - < 24 GiB VRAM: 4k context"; github.com/ollama/ollama docs/api.md: "If
  an empty prompt is provided, the model will be loaded into memory."
* llama.cpp: github.com/ggml-org/llama.cpp tools/server/README.md, GET /props:
  "`default_generation_settings` - the default generation settings for the `/completion`
  endpoint, which has the same fields as the `generation_settings` response object".
* LiteLLM 1.x: the replies of its proxy, run here; its lists have a `created` of 1677610602.
* LM Studio: github.com/lmstudio-ai/docs 0_app/4_api/2_rest/v0.md, GET /api/v0/models: `"type":
  "vlm"`, `"max_context_length": 32768`; github.com/zed-industries/zed/pull/25606: "additional
  `loaded_context_length` for any `loaded` model"; its lists have, as
  github.com/lmstudio-ai/lmstudio-bug-tracker/issues/2139 shows, `"owned_by":
  "organization_owner"`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeGuard

import anyio
from msgspec import structs

from nplt_protocol import JsonObject, JsonValue
from nplt_server.providers.model_lists import read_list
from nplt_server.providers.models import ListedModel

Fetch: TypeAlias = Callable[[str, JsonObject | None], Awaitable[JsonValue]]
"""Asks a path below the server's root, by POST if there is a body. Raises what goes wrong."""

_LITELLM_CREATED: Final = 1_677_610_602
_SHOWN_MAX: Final = 64
"""How many of Ollama's models are asked for one by one."""
_AT_ONCE: Final = 4
_OLLAMA_WINDOW: Final = 4_096
"""The smallest of Ollama's defaults, for a model that is not loaded."""
_NUM_CTX: Final = re.compile(r"(?m)^num_ctx\s+(\d{1,9})\b")
_PER_MILLION: Final = 1_000_000


async def read_with_details(answer: JsonValue, fetch: Fetch) -> tuple[ListedModel, ...]:
    """Reads a list of models, and what its server says of them elsewhere. Raises `ValueError`
    if it is no list of models."""
    models = read_list(answer)
    try:
        match server_of(answer):
            case "ollama":
                return await _of_ollama(models, fetch)
            case "llama.cpp":
                return tuple([await _of_llama(model, fetch) for model in models[:1]]) + models[1:]
            case "litellm":
                return _of_litellm(models, await fetch("/model/info", None))
            case "lmstudio":
                return _of_lm_studio(models, await fetch("/api/v0/models", None))
            case _:
                return models
    except Exception:  # whatever it is, there is the list without it
        return models


async def read_now(model: ListedModel, fetch: Fetch) -> ListedModel:
    """The same model as its server has it at this moment, right before a call. Ollama loads a
    model that is not loaded, as the call would: only then it says how large the window is."""
    match model.server:
        case "ollama":
            windows = _running(await fetch("/api/ps", None))
            if model.name not in windows:
                await fetch("/api/generate", {"model": model.name, "stream": False})
                windows = _running(await fetch("/api/ps", None))
            return _loaded(model, windows)
        case "llama.cpp":
            return await _of_llama(model, fetch)
        case _:
            return model


def server_of(answer: JsonValue) -> str:
    """Which software gave the list; empty if that is not known, or does not matter."""
    data = answer.get("data") if isinstance(answer, dict) else None
    entries = [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []
    owners = {str(each.get("owned_by")) for each in entries}
    if "llamacpp" in owners:
        return "llama.cpp"
    if "library" in owners:
        return "ollama"
    if "organization_owner" in owners:
        return "lmstudio"
    if entries and all(each.get("created") == _LITELLM_CREATED for each in entries):
        return "litellm"
    return ""


# ------------------------------------------------------------------------------
# Ollama


async def _of_ollama(models: tuple[ListedModel, ...], fetch: Fetch) -> tuple[ListedModel, ...]:
    windows = _running(await fetch("/api/ps", None))
    described: dict[str, ListedModel] = {}
    places = anyio.CapacityLimiter(_AT_ONCE)

    async def describe(model: ListedModel) -> None:
        async with places:
            try:
                shown = _shown(model, await fetch("/api/show", {"model": model.name}))
            except Exception:  # of this one nothing more is known
                shown = _shown(model, {})
            described[model.name] = _loaded(shown, windows)

    async with anyio.create_task_group() as tasks:
        for model in models[:_SHOWN_MAX]:
            tasks.start_soon(describe, model)
    return tuple(described.get(model.name, model) for model in models)


def _shown(model: ListedModel, answer: JsonValue) -> ListedModel:
    described: Any = answer if isinstance(answer, dict) else {}
    info = described.get("model_info")
    lengths = (
        length
        for key, length in (info.items() if isinstance(info, dict) else ())
        if key.endswith(".context_length")
    )
    ceiling = next((each for each in lengths if _is_count(each)), None)
    parameters = described.get("parameters")
    num_ctx = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    window = int(num_ctx[1]) if num_ctx else min(_OLLAMA_WINDOW, ceiling or _OLLAMA_WINDOW)
    abilities = described.get("capabilities")
    can = abilities if isinstance(abilities, list) else None
    return structs.replace(
        model,
        server="ollama",
        context_tokens=window,
        ceiling_tokens=ceiling,
        tools=None if can is None else "tools" in can,
        images=None if can is None else "vision" in can,
        source="num_ctx in Ollama's /api/show" if num_ctx else "Ollama's default; not loaded",
        abilities_source="Ollama's /api/show",
    )


def _running(answer: JsonValue) -> dict[str, int]:
    """The windows of the models that are loaded, by name."""
    found: dict[str, int] = {}
    listed = answer.get("models") if isinstance(answer, dict) else None
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and _is_count(window := each.get("context_length")):
            found |= dict.fromkeys((str(each.get("name")), str(each.get("model"))), window)
    return found


def _loaded(model: ListedModel, windows: dict[str, int]) -> ListedModel:
    window = windows.get(model.name) or windows.get(f"{model.name}:latest")
    if window is None:
        return model
    return structs.replace(model, context_tokens=window, source="Ollama's /api/ps")


# ------------------------------------------------------------------------------
# llama.cpp, LiteLLM, LM Studio


async def _of_llama(model: ListedModel, fetch: Fetch) -> ListedModel:
    props: Any = await fetch("/props", None)
    window = props["default_generation_settings"].get("n_ctx")
    sees = props.get("modalities", {}).get("vision")
    calls = props.get("chat_template_caps", {}).get("supports_tools")
    return structs.replace(
        model,
        server="llama.cpp",
        context_tokens=window if _is_count(window) else model.context_tokens,
        images=sees if isinstance(sees, bool) else model.images,
        tools=calls if isinstance(calls, bool) else model.tools,
        source="llama.cpp's /props" if _is_count(window) else model.source,
    )


def _of_litellm(models: tuple[ListedModel, ...], answer: JsonValue) -> tuple[ListedModel, ...]:
    data: Any = answer["data"] if isinstance(answer, dict) else []
    infos: dict[str, Any] = {each["model_name"]: each.get("model_info") or {} for each in data}

    def described(model: ListedModel) -> ListedModel:
        info = infos.get(model.name)
        if info is None:
            return model
        window, most = info.get("max_input_tokens"), info.get("max_output_tokens")
        calls, sees = info.get("supports_function_calling"), info.get("supports_vision")
        return structs.replace(
            model,
            server="litellm",
            context_tokens=window if _is_count(window) else model.context_tokens,
            output_tokens=most if _is_count(most) else model.output_tokens,
            # It has no fact where its table has no such model, and writes that as null.
            tools=True if calls is True else model.tools,
            images=sees if isinstance(sees, bool) else model.images,
            price_in=_per_million(info.get("input_cost_per_token")),
            price_out=_per_million(info.get("output_cost_per_token")),
            price_cached=_per_million(info.get("cache_read_input_token_cost")),
            source="LiteLLM's /model/info",
        )

    return tuple(map(described, models))


def _of_lm_studio(models: tuple[ListedModel, ...], answer: JsonValue) -> tuple[ListedModel, ...]:
    data: Any = answer["data"] if isinstance(answer, dict) else []
    entries: dict[str, Any] = {each["id"]: each for each in data}

    def described(model: ListedModel) -> ListedModel:
        entry = entries.get(model.name)
        if entry is None:
            return model
        window, most = entry.get("loaded_context_length"), entry.get("max_context_length")
        return structs.replace(
            model,
            server="lmstudio",
            context_tokens=window if _is_count(window) else model.context_tokens,
            ceiling_tokens=most if _is_count(most) else None,
            images=entry.get("type") == "vlm",
            source="LM Studio's /api/v0/models" if _is_count(window) else model.source,
        )

    return tuple(map(described, models))


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _per_million(price: object) -> float | None:
    """A price per token as one per million, without the rounding errors of the product."""
    if isinstance(price, bool) or not isinstance(price, int | float) or price < 0:
        return None
    return float(f"{price * _PER_MILLION:.6g}")
