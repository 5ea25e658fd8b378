"""What the minds of all conversations share: counting, what is known of models, rules.

Built once by `app`. The counter is loaded when it is first needed, in a thread:
a vocabulary takes longer to load than a server takes to start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal

import anyio
from anyio import to_thread

from nplt_server.conversations.compression import (
    Compressible,
    Listener,
    OverThreshold,
    begin_epoch_and_summarize,
    tell_listeners,
)
from nplt_server.providers.model_facts import ModelFacts
from nplt_server.tokens.correction import Correction
from nplt_server.tokens.counter import TokenCounter, best_counter
from nplt_server.tools.offer import ToolOffer
from nplt_server.widgets.base import Widget
from nplt_server.widgets.screen import default_widgets

TOOL_TOKENS: Final = 8
"""For the marks around each."""

_widgets_once = cache(default_widgets)
"""Made when they are first needed."""


class Counting:
    """Counts tokens, and learns from what providers say how far off it is."""

    def __init__(self, load: Callable[[], TokenCounter] = best_counter) -> None:
        self._load = load
        self._loading = anyio.Lock()
        self._counter: TokenCounter | None = None
        self._tools: tuple[str, int] = ("", 0)
        self.correction = Correction()

    async def counter(self) -> TokenCounter:
        if self._counter is None:
            async with self._loading:
                if self._counter is None:
                    self._counter = await to_thread.run_sync(self._load)
        return self._counter

    @property
    def now(self) -> TokenCounter:
        """For who has waited for it once."""
        assert self._counter is not None
        return self._counter

    def tokens_of_tools(self, offer: ToolOffer) -> int:
        digest, tokens = self._tools
        if digest != offer.digest:
            tokens = sum(TOOL_TOKENS + self.now.count(text) for text in offer.texts)
            self._tools = (offer.digest, tokens)
        return tokens

    def observe(self, model: str, *, counted: int, real: int) -> None:
        self.correction = self.correction.observe(model, counted, real)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRules:
    policy: Literal["epochs", "newest_live"] = "epochs"
    threshold: float = 0.85
    keep: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    counting: Counting = field(default_factory=Counting)
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    windows: dict[str, int] = field(default_factory=dict)
    """Of models whose providers said, when they refused more, that this fits."""
    rules: ContextRules = ContextRules()
    make_widgets: Callable[[], tuple[Widget, ...]] = _widgets_once
    listeners: tuple[Listener, ...] = (begin_epoch_and_summarize,)
    summarizer: str | None = None
    namer: str | None = None
    """Who finds names for conversations; without one their first words are it."""
    summary_seconds_max: float = 60.0

    @property
    def widgets(self) -> tuple[Widget, ...]:
        return self.make_widgets()

    def learn(self, model: str, *, counted: int, real: int) -> None:
        """From what a provider says that it read."""
        if self.facts(model).counts_tokens:
            self.counting.observe(model, counted=counted, real=real)

    def learn_window(self, model: str, tokens: int) -> bool:
        """Whether that is news: less than was known."""
        is_news = tokens < self.facts(model).context_tokens
        if is_news:
            self.windows[model] = tokens
        return is_news

    def facts(self, model: str) -> ModelFacts:
        known, window = self.models.get(model, ModelFacts()), self.windows.get(model)
        return known if window is None else known.within(window)

    def summary_tokens_max(self, budget_tokens: int) -> int:
        """Of what a new epoch fills, summaries are to take the smaller part."""
        return int(budget_tokens * self.rules.keep / 4)

    async def over_threshold(self, event: OverThreshold, conversation: Compressible) -> None:
        await tell_listeners(self.listeners, event, conversation)
