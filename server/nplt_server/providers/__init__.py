"""The provider port: requests to a model, and the deltas that come back.

`ProviderClient` is what every vendor implements. A request is a list of context messages; an
answer is a stream of `ModelOutputDelta`. `router` finds the provider of a model, `build`
makes them from the settings. A vendor's SDK is imported at its first call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from msgspec import Struct, field, structs

from nplt_protocol import ErrorCode, JsonObject, JsonValue, RequestError
from nplt_server.context.messages import ContextMessage, KeptRenderings
from nplt_server.request_form import RequestForm
from nplt_server.tools import ToolDescription
from nplt_server.usage import ModelPrices
from nplt_storage.entries import ModelInvocationDescriptor


class TextPiece(Struct, frozen=True, kw_only=True):
    text: str


class ReasoningPiece(Struct, frozen=True, kw_only=True):
    text: str


class ToolCallPiece(Struct, frozen=True, kw_only=True):
    """Pieces with the same `index` belong to one tool call. Their arguments are raw text until
    the tool call is complete, because models stream JSON in fragments."""

    index: int
    tool_name: str = ""
    arguments: str = ""


class OpaquePiece(Struct, frozen=True, kw_only=True):
    """Data of one vendor that belongs at this place of the answer: a signature of the reasoning
    before it, an item's id. It goes back to the model it came from, at the same place, and
    nobody else reads it."""

    data: Mapping[str, JsonValue]


class UsageReport(Struct, frozen=True, kw_only=True):
    """Usage of one call; a later report of the same call replaces an earlier one."""

    input_tokens: int
    """All input tokens, those served from a cache included."""
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    """Input tokens that were written to the cache."""
    estimated: bool = False
    """Whether they were counted by us, at least in part, because the call was cut off."""
    raw: Mapping[str, JsonValue] | None = None
    """The vendor's own object, for the record."""

    def as_json(self) -> dict[str, int]:
        """The counts; those of the cache only if they are not 0."""
        counts = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        if self.cached_tokens:
            counts["cached_tokens"] = self.cached_tokens
        if self.cache_write_tokens:
            counts["cache_write_tokens"] = self.cache_write_tokens
        return counts

    def in_range(self, tokens_max: int) -> UsageReport:
        counts = self.as_json().items()
        in_range = {name: min(max(count, 0), tokens_max) for name, count in counts}
        return structs.replace(self, **in_range)


class Stopped(Struct, frozen=True, kw_only=True):
    """The provider reported the end of the output. A stream without it was cut."""

    reason: str


ModelOutputDelta: TypeAlias = (
    TextPiece | ReasoningPiece | ToolCallPiece | OpaquePiece | UsageReport | Stopped
)
"""A piece of an output in flight; every provider gives these six."""
DeltaStream: TypeAlias = AbstractAsyncContextManager[AsyncIterator[ModelOutputDelta]]
"""Leaving it closes the provider's stream at once."""


class LlmRequest(Struct, frozen=True, kw_only=True):
    invocation: ModelInvocationDescriptor
    context: Sequence[ContextMessage]
    """A tuple, or the `Beginning` of a list that grows: providers can't change it."""
    renderings: KeptRenderings = field(default_factory=KeptRenderings)
    """The context as it was rendered for earlier calls."""
    tools: tuple[ToolDescription, ...] = ()
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    """The options of the prompt: `temperature`, `output_tokens`, `effort`, `schema`, `top_p`,
    `stop`, `seed`, `tool_choice`, `parallel_tool_calls`. A provider ignores those it does not
    have; `options_not_taken` names them."""
    answer_tokens_max: int | None = None
    """How long the answer may be, unless the options say less."""
    answer_only: bool = False
    """The model has been asked to mend its answer: it need not call tools."""
    cache_key: str | None = None
    """The same for all calls of a conversation, so that a provider finds what it has cached."""
    continues: bool = False
    """The last message asks the model to go on with its answer before it. A vendor that takes the
    beginning of an answer is sent that answer instead of the request."""
    is_retry: bool = False
    """The same request failed a moment ago, for a reason that may have passed."""
    form: RequestForm | None = None
    """The form that the refusal of this request asked for (`ProviderRefused.instead`)."""

    @property
    def schema(self) -> JsonObject | None:
        """The schema of the answer. The context tells the model of it; a vendor's own way to
        enforce it is used where there is one."""
        schema = self.options.get("schema")
        return schema if isinstance(schema, dict) else None

    @property
    def output_tokens(self) -> int | None:
        """The less of what the prompt and the settings say."""
        wanted = self.options.get("output_tokens")
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
            return self.answer_tokens_max
        return min(wanted, self.answer_tokens_max or wanted)

    @property
    def top_p(self) -> float | None:
        wanted = self.options.get("top_p")
        if isinstance(wanted, bool) or not isinstance(wanted, int | float):
            return None
        return float(wanted)

    @property
    def stop(self) -> list[JsonValue]:
        """The texts at which the answer ends."""
        wanted = self.options.get("stop")
        if isinstance(wanted, str):
            return [wanted]
        return [*wanted] if isinstance(wanted, list) else []

    @property
    def seed(self) -> int | None:
        wanted = self.options.get("seed")
        return wanted if isinstance(wanted, int) and not isinstance(wanted, bool) else None

    @property
    def tool_choice(self) -> str | None:
        """`auto`, `none` or `required`; `None` if nothing was chosen, or a tool by name."""
        choice = self.options.get("tool_choice")
        return choice if self.tools and isinstance(choice, str) else None

    @property
    def chosen_tool(self) -> str | None:
        """The name of the tool that must be called."""
        choice = self.options.get("tool_choice")
        name = choice.get("name") if isinstance(choice, dict) else None
        is_offered = any(tool.name == name for tool in self.tools)
        return name if isinstance(name, str) and is_offered else None

    @property
    def parallel_tool_calls(self) -> bool | None:
        """Whether one output may call several tools; `None` leaves it to the vendor."""
        wanted = self.options.get("parallel_tool_calls")
        return wanted if self.tools and isinstance(wanted, bool) else None

    def temperature(self, most: float) -> float | None:
        """The value that the prompt asks for, within the vendor's limits."""
        wanted = self.options.get("temperature")
        if not isinstance(wanted, int | float) or isinstance(wanted, bool) or wanted != wanted:
            return None
        return min(max(float(wanted), 0.0), most)


_TEMPERATURE_MAX = 2.0


_STOPS_MAX = 4
_STOP_CHARACTERS_MAX = 1_000
_TOOL_CHOICES = ("auto", "none", "required")
_NOT_TAKEN: Mapping[str, tuple[str, ...]] = {
    "openai-responses": ("stop", "seed"),
    "anthropic-messages": ("seed",),
    "offline": ("top_p", "stop", "seed", "tool_choice", "parallel_tool_calls"),
}


def options_not_taken(specification: str, options: Mapping[str, JsonValue]) -> list[str]:
    """The options that a request by this API would leave out, for callers that must refuse what
    they can't pass on."""
    return [name for name in _NOT_TAKEN.get(specification, ()) if options.get(name) is not None]


def _check_sampling(options: Mapping[str, JsonValue], refuse: Callable[[str, str], None]) -> None:
    """Checks the options that say how an answer is chosen. `refuse` raises."""
    top_p, seed = options.get("top_p"), options.get("seed")
    if top_p is not None and not (type(top_p) in (int, float) and 0 <= float(str(top_p)) <= 1):
        refuse("top_p", "a number from 0 to 1")
    if seed is not None and type(seed) is not int:
        refuse("seed", "a whole number")
    stop = options.get("stop")
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    are_texts = all(isinstance(s, str) and 0 < len(s) <= _STOP_CHARACTERS_MAX for s in stops)
    if not are_texts or len(stops) > _STOPS_MAX:
        refuse("stop", f"a text, or a list of at most {_STOPS_MAX} texts")
    choice = options.get("tool_choice")
    is_named = isinstance(choice, dict) and isinstance(choice.get("name"), str)
    if choice is not None and choice not in _TOOL_CHOICES and not is_named:
        refuse("tool_choice", f"{', '.join(_TOOL_CHOICES)}, or an object with the `name` of a tool")
    if not isinstance(options.get("parallel_tool_calls", False), bool | None):
        refuse("parallel_tool_calls", "true or false")


async def check_options(options: Mapping[str, JsonValue]) -> None:
    """Raises an error for a known option that makes no sense; others are for other servers."""

    def refuse(name: str, expected: str) -> None:
        message = f"{name} is {expected}"
        raise RequestError(ErrorCode.MALFORMED, message, field=f"options.{name}")

    if (effort := options.get("effort")) is not None:
        from nplt_protocol.messages import EFFORTS  # slow to load, and not needed to start

        if effort not in EFFORTS:
            refuse("effort", f"one of {', '.join(EFFORTS)}")
    if (warmth := options.get("temperature")) is not None and not (
        type(warmth) in (int, float) and 0 <= float(str(warmth)) <= _TEMPERATURE_MAX
    ):
        refuse("temperature", f"a number from 0 to {_TEMPERATURE_MAX:g}")
    if (tokens := options.get("output_tokens")) is not None and not (
        type(tokens) is int and tokens >= 1
    ):
        refuse("output_tokens", "a number of tokens, 1 or more")
    for name in ("cut", "use_history"):
        if not isinstance(options.get(name, False), bool):
            refuse(name, "true or false")
    _check_sampling(options, refuse)
    denied = options.get("deny_tools")
    if denied is not None and not (
        isinstance(denied, list) and all(isinstance(name, str) and name for name in denied)
    ):
        refuse("deny_tools", "a list of tools' names")
    if (schema := options.get("schema")) is not None:
        from nplt_server.providers.schemas import check_schema

        await check_schema(schema)


class ProviderClient(Protocol):
    """A provider only reads the request. It fails with a `ProviderError`; any other exception is
    a bug of the provider and also ends the turn as `failed`."""

    @property
    def id(self) -> str: ...

    def specification_of(self, model: str) -> str:
        """The wire format spoken behind the port, e.g. `openai-chat`."""
        ...

    @property
    def models(self) -> tuple[str, ...]: ...

    def call_model(self, request: LlmRequest) -> DeltaStream: ...

    async def aclose(self) -> None:
        """Called when the server stops and no call runs any more."""
        ...


CONTEXT_TOKENS = 128_000
"""The window of a model without settings and without a known name."""
OFFLINE_CONTEXT_TOKENS = 16_000_000
"""The window of `offline/echo`: whatever fits into a message fits into it."""
_OUTPUT_TOKENS = 8_192
_OUTPUT_TOKENS_OF_LARGE = 16_384
_LARGE_CONTEXT_TOKENS = 200_000
"""Models with windows of this size think before they answer, and that counts as output."""
_CONTEXT_TOKENS_MIN = 1_024
_ANSWER_TOKENS_MIN = 256
"""No model is too small for this many: a provider that refuses them has another reason."""


class ModelFacts(Struct, frozen=True, kw_only=True):
    context_tokens: int = CONTEXT_TOKENS
    output_tokens: int | None = None
    output_tokens_max: int | None = None
    """The longest answer the model can give, where that is known: an answer may be as long if
    the context leaves room for it. `output_tokens` is kept free for it in any case."""
    prices: ModelPrices | None = None
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    """The options in the settings, for prompts that give none."""
    counts_tokens: bool = True
    """Whether the usage it reports is in tokens. From one that counts words nothing is learned."""
    takes_images: bool = False
    takes_pdfs: bool = False
    """Whether it reads PDFs itself. Others are shown the text of a PDF."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The source of each fact, in a few words: of `context_tokens`, `prices`, `tools`, `images`.
    A fact without a source is assumed."""
    ceiling_tokens: int | None = None
    """The largest window that the model could be loaded with, if that is known."""
    takes_tools: bool = True
    """Whether it is offered tools. If not, they take no room in its window."""

    @property
    def answer_tokens(self) -> int:
        """How long an answer may be, with all the thinking before it."""
        if self.output_tokens:
            return self.output_tokens
        is_large = self.context_tokens >= _LARGE_CONTEXT_TOKENS
        most = _OUTPUT_TOKENS_OF_LARGE if is_large else _OUTPUT_TOKENS
        return min(most, self.context_tokens // 4)

    def room_for_answer(self, context_tokens: int) -> int:
        """How long an answer to a context of that size may be. An eighth is kept for what the
        provider counts otherwise than we do."""
        room = self.context_tokens - context_tokens - context_tokens // 8
        return max(self.answer_tokens, min(self.output_tokens_max or 0, room))

    @property
    def budget_tokens(self) -> int:
        """The tokens that may be sent: the window without the room for the answer."""
        # A setting that leaves nothing to send is a mistake no call can mend.
        return max(self.context_tokens - self.answer_tokens, self.context_tokens // 8)

    def as_json(self) -> JsonObject:
        """The facts for people, and the source of each."""
        facts: JsonObject = {
            "context_tokens": self.context_tokens,
            "tools": self.takes_tools,
            "images": self.takes_images,
            "pdfs": self.takes_pdfs,
            "sources": {**self.sources},
        }
        if self.ceiling_tokens is not None:
            facts["ceiling_tokens"] = self.ceiling_tokens
        if self.prices is not None:
            facts["price_in"] = float(self.prices.price_in)
            facts["price_out"] = float(self.prices.price_out)
        return facts

    def within(self, window_tokens: int) -> ModelFacts:
        """The same model, after its window turned out to be smaller than was known."""
        room = window_tokens // 4
        return structs.replace(
            self,
            context_tokens=min(self.context_tokens, window_tokens),
            output_tokens=None if self.output_tokens is None else min(self.output_tokens, room),
        )


class ModelCatalog:
    """The facts about each model, with a window as small as a refused request has shown."""

    def __init__(self, known: Mapping[str, ModelFacts] | None = None) -> None:
        self._known = {} if known is None else known
        self._windows: dict[str, int] = {}
        """Window sizes in tokens that providers named when they refused a longer request."""

    def facts(self, model: str) -> ModelFacts:
        try:
            known = self._known[model]  # it may find out
        except KeyError:
            known = _UNKNOWN_MODEL
        window = self._windows.get(model)
        if window is None or window >= known.context_tokens:
            return known
        sources = {**known.sources, "context_tokens": "the provider's refusal"}
        return structs.replace(known.within(window), sources=sources)

    def learn_window(self, model: str, tokens: int) -> bool:
        """Notes a window that is smaller than the known one. False: it is not smaller."""
        is_news = tokens < self.facts(model).context_tokens
        if is_news:
            self._windows[model] = tokens
        return is_news


_UNKNOWN_MODEL = ModelFacts()


class CallRoom(Struct, frozen=True, kw_only=True):
    """The share of a model's window that one call may take, for its context and its answer."""

    context_tokens: int
    answer_tokens: int

    def shortened(self, share: float) -> CallRoom:
        """Shortens both, because providers refuse their sum."""
        return CallRoom(
            context_tokens=max(int(self.context_tokens * share), _CONTEXT_TOKENS_MIN),
            answer_tokens=max(int(self.answer_tokens * share), _ANSWER_TOKENS_MIN),
        )

    def within(self, other: CallRoom | None) -> CallRoom:
        if other is None:
            return self
        return CallRoom(
            context_tokens=min(self.context_tokens, other.context_tokens),
            answer_tokens=min(self.answer_tokens, other.answer_tokens),
        )


class Patience(Struct, frozen=True, kw_only=True):
    """Time limits, the same for all vendors."""

    connect_seconds: float = 5.0
    first_token_seconds: float = 120.0
    gap_seconds: float = 60.0
    """The longest pause between two pieces of an answer, pings included."""
