"""The lists of models that providers give.

They are asked for in the background, and kept in memory and in a file with their dates: nobody
waits for one. Entries differ by vendor; all have an `id`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence, Set
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct, structs

from nplt_protocol import JsonObject, JsonValue
from nplt_server.masking import NO_SECRETS, SecretMask
from nplt_server.providers import ProviderClient
from nplt_server.providers.models import KnownModels, ListedModel

log = logging.getLogger(__name__)

_LISTED_MAX: Final = 2_000
_LIST_AGE: Final = timedelta(hours=1)
"""An older list is asked for again, when somebody wants to see it."""
_RETRY_SECONDS: Final = 60.0
_WAIT_SECONDS_MAX: Final = 2.0
"""How long a call waits for a list."""
_LOOK_SECONDS: Final = 10.0
_LOAD_SECONDS_MAX: Final = 60.0
"""How long a call waits for a model to be loaded, as it would wait for it itself."""
_HOLDING_SERVERS: Final = ("ollama", "llama.cpp")
_WINDOW_MIN: Final = 256
"""A smaller number is not the size of a window."""
_WINDOW_FIELDS: Final = ("max_input_tokens", "context_length", "max_model_len", "context_window")
"""The names that Anthropic, OpenRouter and Together, vLLM, and Groq have for the window."""
_NOT_FOR_TALK: Final = re.compile(
    r"(.*[-_/])?(embed|embedding|tts|whisper|dall-e|sora|moderation|realtime|transcribe|audio|"
    r"image|live|rerank|babbage|davinci)"
)


class ModelList(Struct, frozen=True, kw_only=True):
    models: tuple[ListedModel, ...]
    at: datetime


def read_list(response: JsonValue) -> tuple[ListedModel, ...]:
    """Raises `ValueError` if this is no list of models."""
    data = response.get("data") if isinstance(response, dict) else response
    if not isinstance(data, list):
        raise ValueError("a list of models has data")
    models: list[ListedModel] = []
    for entry in data[:_LISTED_MAX]:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(name, str) or not is_model_name(name):
            continue
        models.append(_read_entry(name.removeprefix("models/"), entry))
    return tuple(models)


def _read_entry(name: str, entry: JsonObject) -> ListedModel:
    """OpenRouter's fields: openrouter.ai/docs/models, "`supported_parameters`: Array of supported
    API parameters for this model", "All pricing values are in USD per token/request/unit"."""
    meta, top = (_object(entry.get(key)) for key in ("meta", "top_provider"))
    # A router's first provider may have a smaller window than the model.
    windows = (top.get("context_length"), *map(entry.get, _WINDOW_FIELDS), meta.get("n_ctx"))
    window = next((each for each in windows if _count(each)), None)
    longest = (entry.get("max_tokens"), entry.get("max_output_tokens"))
    most = next((each for each in (*longest, top.get("max_completion_tokens")) if _count(each)), 0)
    inputs = _object(entry.get("architecture")).get("input_modalities")
    parameters, pricing = entry.get("supported_parameters"), _object(entry.get("pricing"))
    return ListedModel(
        name,
        _count(window) or None,
        _count(most) or None,
        ceiling_tokens=_count(meta.get("n_ctx_train")) or None,  # llama.cpp's
        tools="tools" in parameters if isinstance(parameters, list) else None,
        images="image" in inputs if isinstance(inputs, list) else None,
        price_in=_price(pricing.get("prompt")),
        price_out=_price(pricing.get("completion")),
        price_cached=_price(pricing.get("input_cache_read")),
    )


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _count(value: JsonValue) -> int:
    """A number of tokens; 0 if it is none."""
    return value if type(value) is int and value >= _WINDOW_MIN else 0


def _price(value: JsonValue) -> float | None:
    """US dollars per million tokens. OpenRouter writes those per token, as text; below zero it
    says that the price depends."""
    try:
        price = float(value) if isinstance(value, str) else -1.0
    except ValueError:
        return None
    return float(f"{price * 1_000_000:.6g}") if 0 <= price < 1 else None


def is_model_name(name: str) -> bool:
    return re.fullmatch(r"[!-~]{1,128}", name) is not None


@runtime_checkable
class ModelLister(ProviderClient, Protocol):
    """A provider that can be asked which models it has."""

    @property
    def address(self) -> str:
        """Lists are kept by address: two providers at one address have the same models."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether models may be named that are not in the settings."""
        ...

    async def list_models(self) -> tuple[ListedModel, ...]:
        """Raises whatever goes wrong; the caller logs only the type of the exception."""
        ...

    async def model_now(self, model: ListedModel) -> ListedModel:
        """The model as its server has it loaded. Raises likewise."""
        ...


class ModelLists:
    """The lists, by the provider's id. One task at a time asks for them."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        secrets: SecretMask = NO_SECRETS,
    ) -> None:
        self._secrets = secrets
        self._path: Path | None = None
        self._known: KnownModels | None = None
        self._clock = clock
        self._listers: dict[str, ModelLister] = {}
        self._by_address: dict[str, ModelList] = {}
        self._is_loaded = False
        self._tried: dict[str, datetime] = {}
        self._unlisted: set[str] = set()
        """The models for which a call has waited for a list, by whole name."""
        self._looked: dict[str, datetime] = {}
        """The time at which a server was asked what is loaded, by the model's whole name."""
        self._asking: set[str] = set()

    def keep_in(self, path: Path, known: KnownModels | None) -> None:
        """Keeps the lists in a file over a restart. `known` learns the windows."""
        self._path, self._known = path, known

    def add(self, lister: ModelLister) -> None:
        self._listers[lister.id] = lister

    def of(self, provider_id: str) -> ModelList | None:
        lister = self._listers.get(provider_id)
        return None if lister is None else self._by_address.get(lister.address)

    def may_have(self, provider_id: str, model: str) -> bool:
        """Whether the provider may know the model: its list says so, also by the beginning of a
        name (`claude-opus-4-5` is listed with its date); or there is no list."""
        known = self.of(provider_id)
        return known is None or any(
            each.name == model or each.name.startswith(f"{model}-") for each in known.models
        )

    def has(self, provider_id: str, model: str) -> bool:
        """Whether the provider's list has just this name."""
        known = self.of(provider_id)
        return known is not None and any(each.name == model for each in known.models)

    def as_json(self) -> JsonObject:
        """The list of each provider, when it was made, and whether it is being asked for."""
        listed: JsonObject = {}
        for id_ in (*self._listers, *(self._asking - self._listers.keys())):
            one: JsonObject = {}
            lister = self._listers.get(id_)
            # Of a provider with `models` in the settings nothing else can be called.
            if (known := self.of(id_)) is not None and lister is not None and lister.is_open:
                names = (model.name for model in known.models)
                one["models"] = [each for each in names if not _NOT_FOR_TALK.match(each.lower())]
                one["at"] = known.at.isoformat(timespec="seconds")
            if id_ in self._asking:
                one["asking"] = True
            listed[id_] = one
        return listed

    @property
    def names(self) -> Iterator[str]:
        """The whole names of the models that are listed for people."""
        for id_ in self._listers:
            known = self.of(id_)
            for model in () if known is None else known.models:
                if not _NOT_FOR_TALK.match(model.name.lower()):
                    yield f"{id_}/{model.name}"

    def begin(self) -> list[ModelLister]:
        """The providers whose list is missing or old and that are not being asked. From now on
        they count as being asked; the caller passes them to `update`."""
        now = self._clock()
        due = [
            each
            for each in self._listers.values()
            if self._may_ask(each.id, _RETRY_SECONDS)
            and ((known := self.of(each.id)) is None or (now - known.at) > _LIST_AGE)
        ]
        self._asking.update(each.id for each in due)
        return due

    def begin_to_ask(self, ids: Set[str], *, again_seconds: float) -> set[str]:
        """The ids of those that are not being asked and were not asked in the last
        `again_seconds`. From now on they count as being asked, until `asked` is called."""
        due = {id_ for id_ in ids if self._may_ask(id_, again_seconds)}
        self._tried |= dict.fromkeys(due, self._clock())
        self._asking |= due
        return due

    def _may_ask(self, provider_id: str, again_seconds: float) -> bool:
        tried = self._tried.get(provider_id)
        return provider_id not in self._asking and (
            tried is None or (self._clock() - tried).total_seconds() >= again_seconds
        )

    def asked(self, provider_id: str) -> None:
        self._asking.discard(provider_id)

    async def update(self, due: Sequence[ModelLister]) -> None:
        try:
            await self.load()
            async with anyio.create_task_group() as asking:
                for lister in due:
                    asking.start_soon(self._ask, lister)
        finally:
            self._asking.difference_update(each.id for each in due)
        if due and self._path is not None:
            data = msgspec.json.encode(self._by_address)
            await anyio.to_thread.run_sync(self._write, self._path, data)

    async def _ask(self, lister: ModelLister) -> None:
        self._tried[lister.id] = self._clock()
        try:
            self.take(lister, await lister.list_models())
        except Exception as error:
            # Not the exception's text, which may contain a key.
            log.info("%s gave no list of its models: %s", lister.id, type(error).__name__)
        finally:
            self.asked(lister.id)

    def take(self, lister: ModelLister, models: tuple[ListedModel, ...]) -> None:
        """Leaves out a model whose name holds a secret: it can't be called by its masked name."""
        models = tuple(each for each in models if self._secrets.mask(each.name) == each.name)
        self._by_address[lister.address] = ModelList(models=models, at=self._clock())
        self._tell(lister.id, models)

    def forget(self, provider_id: str) -> None:
        """Drops the list of a server that is gone."""
        lister = self._listers.pop(provider_id, None)
        if lister is not None:
            self._by_address.pop(lister.address, None)

    def refresh(self, name: str) -> None:
        """Applies what refusals of the model have shown to the facts about it."""
        if self._known is not None:
            self._known.refresh(name)

    async def before_call(self, provider_id: str, model: str, *, is_window_known: bool) -> None:
        """Finds out the window of a model that is about to be called. A server that holds its
        models itself is asked each time what is loaded, if the answer is older than a few
        seconds; another one is asked for its list, once, if the window is not known. The wait
        is short; a failure is not the call's."""
        lister = self._listers.get(provider_id)
        if lister is None:
            return
        await self.load()
        found = self._model(provider_id, model)
        key = f"{provider_id}/{model}"
        self.refresh(key)
        is_new = key not in self._unlisted
        if found is None and is_new and not is_window_known and self._may_ask(provider_id, 0.0):
            if len(self._unlisted) >= _LISTED_MAX:
                self._unlisted.clear()
            self._unlisted.add(key)
            self._asking.add(provider_id)
            with anyio.move_on_after(_WAIT_SECONDS_MAX):
                await self._ask(lister)
            found = self._model(provider_id, model)
        asked = self._looked.get(key)
        is_old = asked is None or (self._clock() - asked).total_seconds() >= _LOOK_SECONDS
        if found is None or found.server not in _HOLDING_SERVERS or not is_old:
            return
        self._looked[key] = self._clock()
        try:
            with anyio.move_on_after(_LOAD_SECONDS_MAX):
                now = await lister.model_now(found)
                if now != found and (known := self.of(provider_id)) is not None:
                    others = (now if each is found else each for each in known.models)
                    self._by_address[lister.address] = structs.replace(known, models=tuple(others))
                    self._tell(provider_id, (now,))
        except Exception as error:
            log.info("%s does not say what is loaded: %s", provider_id, type(error).__name__)

    def _model(self, provider_id: str, model: str) -> ListedModel | None:
        known = self.of(provider_id)
        models = () if known is None else known.models
        return next((each for each in models if model in _names_of(each)), None)

    def _tell(self, provider_id: str, models: tuple[ListedModel, ...]) -> None:
        if self._known is not None:
            for model in models:
                for name in _names_of(model):
                    self._known.listed(f"{provider_id}/{name}", model)

    async def load(self) -> None:
        """Reads the file, once. A list that was asked for since the start is newer. A file
        that can't be read is replaced by the next `update`."""
        if self._is_loaded or self._path is None:
            return
        try:
            data = await anyio.to_thread.run_sync(self._path.read_bytes)
            kept = msgspec.json.decode(data, type=dict[str, ModelList])
        except (OSError, ValueError, msgspec.MsgspecError):
            kept = {}
        self._is_loaded, self._by_address = True, kept | self._by_address
        for id_ in self._listers:
            if (known := self.of(id_)) is not None:
                self._tell(id_, known.models)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        draft = path.with_suffix(f".{os.getpid()}.new")
        try:
            draft.write_bytes(data)
            draft.replace(path)
        except OSError as error:
            log.warning("the lists of models can't be kept in %s: %s", path, error.strerror)


def _names_of(model: ListedModel) -> tuple[str, ...]:
    """The names that a model may be called by: Ollama's without a tag is the latest."""
    short = model.name.removesuffix(":latest")
    is_ollama = model.server == "ollama"
    return (model.name, short) if is_ollama and short != model.name else (model.name,)
