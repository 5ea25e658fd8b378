"""Calls the model of a turn and reads its output to the end: `ModelCaller.call`.

A call that fails before any text of its answer was sent is recovered by the first remedy that
applies; also if the model had begun to think or to call a tool, because no tool has run. The
first row is `RequestForms`, which `call` asks first; the others are `_REMEDIES`, in this order.
If none applies the error ends the turn.

    the call failed because             remedy       at most
    ----------------------------------  -----------  -----------------------------------------
    the server does not take this       other form   each form once in a call, at once and
    form of the request                              without an event
    the provider was unreachable,       retry        `retries_max` times in a call, after a
    busy, or broke off                               wait
    the reason is one of                fail over    each fallback model once, in the first
    `fallback_on`                                    call of the turn: the model is fixed after
    the request is too large            shorten      three times in a turn with one model
    the model's sealed reasoning is     new epoch    once in a turn
    refused
    it is refused, and it is unclear    repeat       once in a call, unchanged
    whether for its content
    content is refused                  quarantine   three times in a turn

A `retrying` event announces each of `_REMEDIES`. A call whose text was sent is not repeated.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile
from time import monotonic
from typing import Final

import anyio
from msgspec.structs import replace

from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_server import logs
from nplt_server.context.messages import ModelInputMessage, ModelOutputMessage
from nplt_server.context.selection import ContextView
from nplt_server.conversations.context_manager import ContextManager
from nplt_server.conversations.prompt_size import cut_prompt
from nplt_server.conversations.refusals import Refusals
from nplt_server.conversations.services import Compressible, Services
from nplt_server.conversations.turn_events import TurnEvents
from nplt_server.errors import (
    AnswerCut,
    ProviderError,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
    WindowTooSmall,
)
from nplt_server.providers import (
    CallRoom,
    LlmRequest,
    ReasoningPiece,
    TextPiece,
    UsageReport,
)
from nplt_server.providers.accumulator import ModelOutputAccumulator, cleaned, usage_as_json
from nplt_server.providers.retries import RequestForms
from nplt_server.providers.route import ModelRoute
from nplt_server.request_form import RequestForm
from nplt_storage.entries import (
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
)

log = logging.getLogger(__name__)

_SHORTENED: Final = (0.6, 0.3, 0.2)
"""Fractions to which a request is shortened when the provider does not say how much fits.
All three leave about a thirtieth; a provider that refuses that has another reason."""
_PAUSES_MAX: Final = 5
"""A provider that pauses an answer more often leaves it unfinished."""
GO_ON: Final = (
    "Your last answer was cut off. Go on with it exactly where it stops, beginning with its very "
    "next character. Repeat nothing, and say nothing about having been cut off."
)
"""The request to go on with an answer, unless the prompt says more."""
_FILLED_SHARE: Final = 0.95
"""How much of the window is used, where the provider has said how it counts: a shorter text has
not the same tokens for each character."""
_QUARANTINES_MAX: Final = 3
"""Calls repeated with more entries quarantined, in one turn. The next turn may try others."""


@dataclass(slots=True, kw_only=True, eq=False)
class CallOutcome:
    """One call: its output so far, and the context that was sent."""

    route: ModelRoute
    view: ContextView
    output: ModelOutputAccumulator
    fallback_from: JsonObject | None = None

    @property
    def invocation(self) -> ModelInvocationDescriptor:
        return self.route.invocation

    @property
    def usage(self) -> JsonObject | None:
        return usage_as_json(self.output.usage)

    def entry(self, turn_id: str, call: int, new_call_id: Callable[[], str]) -> ModelOutputEntry:
        """The entry of a complete output."""
        return self._entry(turn_id, call, new_call_id)

    def cut_entry(self, turn_id: str, call: int) -> ModelOutputEntry:
        """The entry of an output that was cut off, without its tool calls."""
        return self._entry(turn_id, call, None)

    def _entry(
        self, turn_id: str, call: int, new_call_id: Callable[[], str] | None
    ) -> ModelOutputEntry:
        entry = self.output.entry(
            turn_id=turn_id,
            call=call,
            invocation=self.invocation,
            new_call_id=new_call_id,
            sent=self.view.sent,
        )
        return replace(entry, fallback_from=self.fallback_from)


@dataclass(slots=True, kw_only=True)
class _Tries:
    """How often each remedy was used in this turn."""

    models: list[str]
    retries: int = 0
    """The retries of the current call."""
    too_large: list[RequestTooLarge] = field(default_factory=list)
    has_dropped_reasoning: bool = False
    has_repeated: bool = False
    """Whether the current call was repeated although it was refused."""
    quarantines: int = 0


def _why_empty(output: ModelOutputAccumulator) -> str:
    match output.stop_reason:
        case "length":
            spent = "on thinking " if output.reasoning else ""
            return (
                f"the model used up the length of its answer {spent}before it answered; allow "
                "a longer one (--output-tokens, or output_tokens of the model) or less effort"
            )
        case "window":
            return "the model's window was full before it answered; compact the conversation"
        case "filter":
            return "the provider's content filter held the answer back; ask in other words"
        case "refusal":
            return "the model declined to answer"
        case _:
            return "the model gave an empty answer; ask again, or choose another model"


class ModelCaller:
    """Makes the model calls of one turn, one after the other. The model is the one that the
    turn begins with, or a fallback if its first call fails."""

    def __init__(
        self,
        prompt: ModelInputEntry,
        model: str,
        *,
        context: ContextManager,
        compressible: Compressible,
        events: TurnEvents,
        services: Services,
    ) -> None:
        self._prompt = prompt
        self._turn_id = prompt.turn_id or ""
        self._context = context
        self._record = context.record
        self._compressible = compressible
        self._events = events
        self._services = services
        self._router = services.router
        self._limits = services.limits
        self._refusals: Refusals | None = None
        """Made when a call is refused for its content."""
        self._tries = _Tries(models=[model])
        self._room: CallRoom | None = None
        self._said_without_tools = False
        self._noticed: set[str] = set()
        self._call = 0
        self.fallback_from: JsonObject | None = None
        """The model that was to answer, and why another one was asked instead."""
        self.usage: dict[str, int] = {}
        """The tokens that the calls of the turn have used so far."""
        self.cut: JsonObject | None = None
        """How much of the prompt was shown, if not all of it."""
        self._use(model)
        self._view: ContextView | None = None
        self.outcome: CallOutcome | None = None
        """The output of the running or last call. It is kept here because a call that failed or was
        cancelled can't return it."""

    def _use(self, model: str) -> None:
        self.model = model
        self.route: ModelRoute = self._router.route_of(model)

    async def call(self, number: int, *, answer_only: bool = False) -> CallOutcome:
        """Makes call number `number` of the turn, with retries. Returns when the output is
        complete. Raises `ProviderError` if the call failed for good; `outcome` then
        holds what was received. `answer_only`: the model must not call tools."""
        self._call, self._tries.retries = number, 0
        self._tries.has_repeated = False
        self.outcome = self._view = None
        self._events.begin_call(number)
        forms = RequestForms()
        try:
            while True:
                try:
                    if self.route.is_listed:
                        await self._learn_window()
                    outcome = await self._ask(forms.form, answer_only=answer_only)
                    if self._refusals is not None:
                        self._refusals.confirm_quarantined()
                    return outcome
                except ProviderError as failure:
                    if self.outcome is not None and self.outcome.output.text_length:
                        raise
                    error = forms.after(failure)
                    if error is not None:
                        await self._recover_from(error)
                    elif isinstance(failure, ProviderRefused):
                        self._announce_form(failure)
        except anyio.get_cancelled_exc_class():
            self._estimate_usage()
            if self.outcome is None or not self.outcome.output.has_begun:
                with anyio.CancelScope(shield=True):
                    await self._release_guesses()
            raise
        finally:
            if self.outcome is not None:
                if self.outcome.output.has_begun:
                    self._estimate_usage()
                self._count_usage(self.outcome)

    def take_outcome(self) -> CallOutcome | None:
        """Returns the outcome of the last call and drops it, because the caller stores it."""
        made, self.outcome = self.outcome, None
        self._events.end_output()
        return made

    def _estimate_usage(self) -> None:
        """Estimates the usage of a call that was cut off: providers charge for what was sent and
        for what was written until then, and mostly don't report it."""
        made, services = self.outcome, self._services.context
        if made is None or made.output.stop_reason is not None:
            return
        if not services.models.facts(self.model).counts_tokens:
            return
        output = made.output
        written = services.counting.estimate(output.text + output.reasoning)
        if output.usage is None:
            sent = services.counting.correction.corrected(self.model, made.view.tokens)
            output.usage = UsageReport(input_tokens=sent, output_tokens=written, estimated=True)
        elif written > output.usage.output_tokens:
            output.usage = replace(output.usage, output_tokens=written, estimated=True)

    def seconds_to_hold(self, error: Exception) -> float | None:
        """How long the prompt is to wait because the model is rate-limited, if its provider has
        `on_limit: hold` and the model has begun nothing."""
        if not isinstance(error, ProviderUnavailable) or error.reason != "rate_limited":
            return None
        has_begun = self.outcome is not None and self.outcome.output.has_begun
        holds = self.route.invocation.provider in self._router.holding
        return error.retry_after if holds and not has_begun else None

    def add_usage(self, counts: Mapping[str, int]) -> None:
        for name, tokens in counts.items():
            self.usage[name] = self.usage.get(name, 0) + tokens

    def _count_usage(self, made: CallOutcome) -> None:
        """Adds the usage of a call, even of one that failed."""
        usage = made.output.usage
        if usage is None:
            return
        if usage.estimated:
            self.usage["estimated"] = True
        else:
            self._learn_from(usage, counted=made.view.tokens)
        self.add_usage(usage.as_json())

    def _learn_from(self, usage: UsageReport, *, counted: int) -> None:
        """Corrects our count of tokens by what the provider reports."""
        services = self._services.context
        if services.models.facts(self.model).counts_tokens:
            services.counting.learn(self.model, counted=counted, real=usage.input_tokens)
        if logs.tokens.on:
            logs.tokens("billed", model=self.model, counted=counted, **usage.as_json())

    async def _learn_window(self) -> None:
        """Asks the provider about the model, if that may tell its window."""
        sources = self._services.context.models.facts(self.model).sources
        await self._router.before_call(self.model, is_window_known="context_tokens" in sources)

    # One request

    async def _ask(self, form: RequestForm | None, *, answer_only: bool) -> CallOutcome:
        room, limits = self._room, self._limits
        view = self._view = await self._context.prepare(
            self._prompt,
            self.model,
            self._compressible,
            tokens_max=None if room is None else room.context_tokens,
        )
        if view.is_trimmed:
            self._note_cut(view)
        if view.shortened is not None:
            self._note_shortened(view.shortened)
        invocation = self.route.invocation
        output = ModelOutputAccumulator(answer_bytes_max=limits.answer_bytes_max)
        made = CallOutcome(
            route=self.route, view=view, output=output, fallback_from=self.fallback_from
        )
        self.outcome = made
        self._events.begin_output(output)
        await self._record.check_owned()
        request = self._request(
            invocation, view, self._record.options, form=form, answer_only=answer_only
        )
        self._announce_left_out(view)
        self._remind_without_tools(view)
        await self._stream(request, made)
        if output.stop_reason == "pause":
            await self._go_on_after_pauses(request, made)
        if output.is_empty:
            raise ProviderRefused(_why_empty(output))
        if room is not None:
            self._context.learn_ceiling(self.model, room)
        if self.route.is_listed:  # the call may have taught something
            self._router.lists.refresh(self.model)
        return made

    def _note_shortened(self, shortened: JsonObject) -> None:
        self.cut = {**(self.cut or {"model": self.model}), **shortened}
        counts = (shortened["shortened_turns"], shortened["omitted_turns"])
        self._events.send_status(
            "cut",
            f"to make room, {self.model} is shown older turns in less detail from now on: "
            f"{counts[0]} shortened, {counts[1]} left out (nplt context lists them)",
        )

    def _note_cut(self, view: ContextView) -> None:
        shown = cut_prompt(view, self._prompt.seq)
        if shown is None or "tokens" in (self.cut or {}):
            return
        tokens = self._context.state.measure.text(self._prompt.content)
        cut: JsonObject = {"tokens": tokens, "shown_tokens": shown, "model": self.model}
        self.cut = {**(self.cut or {}), **cut}
        self._events.send_status(
            "cut",
            f"the prompt was cut in the middle: {self.model} is shown about {shown:,} "
            f"of its {tokens:,} tokens",
        )

    async def _go_on_after_pauses(self, request: LlmRequest, made: CallOutcome) -> None:
        """Has the model go on with an answer that its provider paused, and appends the rest."""
        output = made.output
        for _ in range(_PAUSES_MAX):
            if output.stop_reason != "pause" or output.has_calls or not output.text.strip():
                return
            so_far = ModelOutputMessage(content=output.text, invocation=made.invocation)
            rest = replace(
                request,
                context=(*request.context, so_far, ModelInputMessage(content=GO_ON)),
                continues=True,
            )
            usage, output.stop_reason = output.usage, None
            await self._stream(rest, made)
            output.add_usage(usage)

    async def _stream(self, request: LlmRequest, made: CallOutcome) -> None:
        """Sends the request, and adds what comes to the output of the call."""
        output, limits = made.output, self._limits
        try:
            with anyio.CancelScope(deadline=monotonic() + limits.call_seconds_max) as in_time:
                async with self.route.call_model(request) as deltas:
                    async for delta in deltas:
                        clean = cleaned(delta)
                        # Applied before it is sent: a replay covers all that was sent.
                        output.apply(clean)
                        if isinstance(clean, TextPiece):
                            self._events.add("text", clean.text)
                        elif isinstance(clean, ReasoningPiece):
                            self._events.add("reasoning", clean.text)
        finally:
            self._events.flush()
            if logs.provider.on:
                self._log(made)
        if in_time.cancelled_caught:
            self.route.metrics.failures["timed_out"] += 1
            late = f"the model did not finish within {limits.call_seconds_max:g} s"
            raise ProviderUnavailable(late, timed_out=True)
        if output.stop_reason is None:
            raise AnswerCut

    def _announce_left_out(self, view: ContextView) -> None:
        """Announces, before the model is called, which of the prompt's files it is not shown.
        Each notice is sent once in a turn."""
        if not self._prompt.attachments:
            return
        # A long context is not searched: the prompt is near its end.
        newest = takewhile(
            lambda each: not 0 < each.seq < self._prompt.seq, reversed(view.messages)
        )
        for prompt in (each for each in newest if each.seq == self._prompt.seq):
            for file in prompt.attachments if isinstance(prompt, ModelInputMessage) else ():
                if (notice := file.notice) is not None and notice not in self._noticed:
                    self._noticed.add(notice)
                    self._events.send_status("notice", notice)

    def _request(
        self,
        invocation: ModelInvocationDescriptor,
        view: ContextView,
        options: Mapping[str, JsonValue],
        *,
        form: RequestForm | None,
        answer_only: bool,
    ) -> LlmRequest:
        answer_tokens_max = self._context.answer_tokens_max(self.model, view.tokens)
        facts = self._services.context.models.facts(self.model)
        if self._room is not None:
            answer_tokens_max = min(answer_tokens_max, self._room.answer_tokens)
        return LlmRequest(
            invocation=invocation,
            context=view.messages,
            renderings=view.renderings,
            tools=view.call_budget.offer.descriptions if facts.takes_tools else (),
            options={**facts.options, **options, **self._own_options()},
            answer_tokens_max=answer_tokens_max,
            answer_only=answer_only,
            is_retry=self._tries.retries > 0,
            continues=self._call == 0 and self._prompt.continues is not None,
            # The id itself may be a name that somebody chose.
            cache_key=sha256(f"nplt {self._record.session_id}".encode()).hexdigest()[:32],
            form=form,
        )

    def _own_options(self) -> Mapping[str, JsonValue]:
        """The options of the prompt. A call that must be made is made once in the turn, because the
        model has to be able to answer."""
        options = self._prompt.options
        if self._call and options.get("tool_choice") not in (None, "none"):
            return {name: value for name, value in options.items() if name != "tool_choice"}
        return options

    def _log(self, made: CallOutcome) -> None:
        logs.provider(
            "call ended",
            turn=self._turn_id,
            call=self._call,
            provider=self.route.invocation.provider,
            model=self.route.invocation.model,
            stop=made.output.stop_reason,
            characters=made.output.text_length,
            **(made.output.usage.as_json() if made.output.usage else {}),
        )

    # Recovery of a call that failed before its first words

    async def _recover_from(self, error: ProviderError) -> None:
        """Returns if the call is to be made again; raises the error if nothing helps."""
        for kinds, remedy in _REMEDIES:
            if isinstance(error, kinds) and await remedy(self, error):
                return
        await self._release_guesses()
        if self._tries.too_large and isinstance(error, WindowTooSmall):
            error = self._tries.too_large[-1]  # the request can't be shortened further
        if isinstance(error, RequestTooLarge):
            setting = f"models.{self.model}.context_tokens"
            sentence = f"{error.sentence}; how much it takes can be set: {setting}"
            raise dataclasses.replace(error, sentence=sentence) from None
        raise error

    async def _retry(self, error: ProviderError) -> bool:
        policy, tries = self._router.retries, self._tries
        seconds = policy.wait_before_retry(error, retries=tries.retries)
        if seconds is None:
            return False
        self._announce_retry(
            f"{error}; {self.model} is asked again in {seconds:.1f} s "
            f"(attempt {tries.retries + 2} of {policy.retries_max + 1})"
        )
        self.route.metrics.retries += 1
        await policy.sleep(seconds)
        tries.retries += 1
        return True

    async def _fail_over(self, error: ProviderError) -> bool:
        tries = self._tries
        is_too_small = isinstance(error, WindowTooSmall) and len(tries.models) > 1
        is_wanted = error.reason in self._router.fallback_on or is_too_small
        if self._call != 0 or not is_wanted:
            return False
        affects_all_models = error.of_provider or isinstance(error, ProviderUnauthorized)
        avoided = self.route.invocation.provider if affects_all_models else None
        other = self._router.instead_of(tries.models, avoid=avoided)
        if other is None:
            return False
        self.route.metrics.fail_overs += 1
        self._note_fallback(error)
        self._announce_retry(f"{self.model}: {error}; {other} is asked instead")
        tries.models.append(other)
        tries.retries, tries.too_large = 0, []
        self._room = None
        self._use(other)
        return True

    def _note_fallback(self, error: ProviderError) -> None:
        """Notes which model was to answer, and why it did not."""
        log.info("%s is not asked: %s", self.model, error)
        if self.fallback_from is None:
            self.fallback_from = {
                "model": self.model,
                "reason": error.reason,
                "message": error.sentence,
            }

    async def _shorten(self, error: ProviderError) -> bool:
        """Shortens the next request to the window the provider named, as the provider counts,
        if that is shorter than what was sent; otherwise by a fixed fraction."""
        tries, view = len(self._tries.too_large), self._view
        if not isinstance(error, RequestTooLarge) or view is None or tries == len(_SHORTENED):
            return False
        self._tries.too_large.append(error)
        services = self._services.context
        window, sent = error.window_tokens, error.sent_tokens
        is_shorter = window is not None and services.models.learn_window(self.model, window)
        facts = services.models.facts(self.model)
        if sent is not None and sent > facts.budget_tokens:
            services.counting.learn(self.model, counted=view.tokens, real=sent, at_once=True)
            # As the provider counts, also where it differs more than a correction may.
            share = _FILLED_SHARE * facts.budget_tokens / sent
            answer_tokens = self._context.answer_tokens_max(self.model, 0)
            self._room = CallRoom(
                context_tokens=int(view.tokens * share), answer_tokens=answer_tokens
            ).within(self._room)
        elif not is_shorter:
            room = CallRoom(
                context_tokens=view.tokens,
                answer_tokens=self._context.answer_tokens_max(self.model, view.tokens),
            ).within(self._room)
            self._room = room.shortened(_SHORTENED[tries])
        self._announce_retry(
            f"{error}; {self.model} is asked again and shown less of what came before"
        )
        return True

    async def _drop_reasoning(self, error: ProviderError) -> bool:
        """Begins an epoch, which drops the reasoning that the model sealed before it."""
        refused = isinstance(error, ProviderRefused) and error.reasoning_refused
        if not refused or self._tries.has_dropped_reasoning:
            return False
        self._tries.has_dropped_reasoning = True
        await self._context.begin_epoch_for(
            "reasoning", self._context.call_budget(self.model, prompt=self._prompt)
        )
        self._announce_retry(f"{error}; {self.model} is asked again without what it had thought")
        return True

    async def _repeat(self, error: ProviderError) -> bool:
        """Sends the same request again: a server that refuses only some of the requests of a kind
        does not refuse them for what they say."""
        names_message = isinstance(error, ProviderRefused) and error.message_index is not None
        is_unclear = isinstance(error, ProviderRefused) and error.cause_unclear
        is_content = isinstance(error, ProviderRefused) and error.content_refused
        if is_content or self._tries.has_repeated or not (is_unclear or names_message):
            return False
        self._tries.has_repeated = True
        self._announce_retry(f"{error}; {self.model} is asked the same once more")
        return True

    async def _quarantine(self, error: ProviderError) -> bool:
        if not isinstance(error, ProviderRefused) or isinstance(error, RequestTooLarge):
            return False
        if self._refusals is None:
            self._refusals = Refusals(self._record, self._prompt)
        quarantined = await self._refusals.quarantine_for(
            error,
            self._view,
            self.route.invocation,
            may_repeat=self._tries.quarantines < _QUARANTINES_MAX,
        )
        if not quarantined:
            return False
        self._tries.quarantines += 1
        which = ", ".join(map(str, quarantined))
        self._announce_retry(
            f"{error}; {self.model} is asked again without what it refuses ({which})"
        )
        provider, pictures = self.route.invocation.provider, error.refused_part == "pictures"
        self._events.send_status(
            "notice",
            f"{provider} refuses {'the pictures of ' if pictures else ''}entry {which} "
            f"({error.vendor}): its models are not shown that any more; to show it again: "
            f"nplt context --unhide {quarantined[0]}",
        )
        return True

    async def _release_guesses(self) -> None:
        if self._refusals is not None:
            await self._refusals.release_guesses()

    def _announce_form(self, refusal: ProviderRefused) -> None:
        """Announces what the model is not shown from now on. Other forms make no difference to
        people."""
        change = refusal.change
        if change is not None and change.without_tools:
            self._say_without_tools(str(refusal.vendor or ""))
        elif change is not None and (change.without_images or change.plain_content):
            self._events.send_status("notice", f"{self.model} takes no pictures and is shown none")

    def _say_without_tools(self, vendor: str) -> None:
        self._said_without_tools = True
        said = f" (the provider says: {vendor})" if vendor else ""
        self._events.send_status(
            "notice", f"{self.model} takes no tools and is asked without them{said}"
        )

    def _remind_without_tools(self, view: ContextView) -> None:
        """Says once in a conversation that the model takes no tools, also where that was learned
        in another one, or that its window has no room for them."""
        if not view.call_budget.offer.descriptions and self._context.begins_without_tools(
            self.model
        ):
            self._events.send_status(
                "notice",
                f"{self.model} is asked without tools: they would fill most of its window",
            )
        if self._said_without_tools or not self.route.is_listed:
            return
        form = self._router.learned.of(self.model)
        if form is None or not form.without_tools:
            return
        self._said_without_tools = True
        if not self._context.has_answered(self.model):
            self._say_without_tools("")

    def _announce_retry(self, why: str) -> None:
        """Drops the output of the call that failed, and announces the retry."""
        self.outcome = None
        self._events.begin_call(self._call)
        self._events.send_status("retrying", why)


_Remedy = Callable[[ModelCaller, ProviderError], Awaitable[bool]]
_REMEDIES: Final[tuple[tuple[tuple[type[ProviderError], ...], _Remedy], ...]] = (
    ((ProviderUnavailable,), ModelCaller._retry),
    ((ProviderError,), ModelCaller._fail_over),
    ((RequestTooLarge,), ModelCaller._shorten),
    ((ProviderRefused,), ModelCaller._drop_reasoning),
    ((ProviderRefused,), ModelCaller._repeat),
    ((ProviderRefused,), ModelCaller._quarantine),
)
