"""Calls the model of a turn and reads its output to the end.

A call that fails before a word of its answer was shown is recovered in one of these ways,
also if it had begun to think or to call a tool: nothing was said, and nothing ran.

    retry             the provider was unreachable or busy, or broke off; a few times, after
                      a wait
    fail over         another model is called; only at the first call of a turn, because
                      the model is fixed inside a turn
    shorten           the request and the room for output exceed the window; a few times
    quarantine        the provider refuses content: the entries are quarantined and the call
                      is repeated without them; a few times (`quarantine`)

Each is announced by a `retrying` event. A call that has produced any text is not
repeated; but an answer that does not fit the schema of its prompt is rejected, and the model
is asked to mend it, once. A request that is refused in one form and may be accepted in
another is sent again at once, before all this and without an event.
"""

from __future__ import annotations

from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Final

import anyio
from msgspec.structs import replace

from nplt_protocol import ErrorCode
from nplt_server import logs
from nplt_server.conversations.quarantine import RefusalRecovery
from nplt_server.errors import (
    AnswerCut,
    AnswerRejected,
    NoSuchModel,
    ProviderError,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestForm,
    RequestTooLarge,
    WindowTooSmall,
)
from nplt_server.providers import (
    CallRoom,
    ModelRequest,
    ReasoningPiece,
    TextPiece,
    UsageReport,
)
from nplt_server.providers.accumulator import ModelOutputAccumulator, cleaned
from nplt_server.providers.retries import RequestForms
from nplt_storage.entries import ModelOutputEntry

if TYPE_CHECKING:
    from nplt_server.conversations.turn import TurnRun


_SHORTENED: Final = (0.6, 0.3, 0.2)
"""Fractions by which a request is shortened when the provider does not say how much fits.
All three leave about a thirtieth; a provider that refuses that has another reason."""


class ModelCall:
    """Makes the model calls of one turn, one after the other."""

    def __init__(self, turn: TurnRun) -> None:
        self.turn = turn
        self._context = turn.conversation.context
        self._router = turn.conversation.services.router
        self._tried = [turn.model]
        self._too_large: list[RequestTooLarge] = []
        self._room: CallRoom | None = None
        self._recovery = RefusalRecovery(turn)

    async def run(self) -> ModelOutputAccumulator:
        """Makes one call, with retries. Returns the complete output, also in `turn.output`."""
        turn, retries, forms = self.turn, 0, RequestForms()
        try:
            while True:
                try:
                    output = await self._ask(forms.form)
                    self._recovery.confirm_quarantined()
                    return output
                except ProviderError as failure:
                    if turn.output is not None and turn.output.text_length:
                        raise
                    error = forms.after(failure)
                    if error is not None:
                        retries = await self._recover_from(error, retries)
        except anyio.get_cancelled_exc_class():
            self._estimate_usage()
            if turn.output is None or not turn.output.has_begun:
                with anyio.CancelScope(shield=True):
                    await self._recovery.turn_cancelled()
            raise
        finally:
            if turn.output is not None and turn.output.has_begun:
                self._estimate_usage()
            turn.conversation.update_token_usage(turn)

    def _estimate_usage(self) -> None:
        """Of a call that was cut off: providers charge for what was sent and for what was
        written until then, and mostly don't say how much that is."""
        turn, services = self.turn, self.turn.conversation.services.context
        output = turn.output
        if output is None or output.stop_reason is not None or turn.view is None:
            return
        if not services.facts(turn.model).counts_tokens:
            return
        written = services.counting.estimate(output.text + output.reasoning)
        if output.usage is None:
            sent = services.counting.correction.corrected(turn.model, turn.view.tokens)
            output.usage = UsageReport(input_tokens=sent, output_tokens=written, estimated=True)
        elif written > output.usage.output_tokens:
            output.usage = replace(output.usage, output_tokens=written, estimated=True)

    # One call

    async def _ask(self, form: RequestForm | None) -> ModelOutputAccumulator:
        turn, limits = self.turn, self.turn.conversation.services.limits
        room = self._room
        view = turn.view = await self._context.prepare(
            turn.turn_id, turn.model, tokens_max=None if room is None else room.context_tokens
        )
        facts = turn.conversation.services.context.facts(turn.model)
        answer_tokens_max = self._context.answer_tokens_max(turn.model, view.tokens)
        if room is not None:
            answer_tokens_max = min(answer_tokens_max, room.answer_tokens)
        output = turn.output = ModelOutputAccumulator(answer_bytes_max=limits.answer_bytes_max)
        request = ModelRequest(
            invocation=turn.invocation,
            context=view.messages,
            tools=view.call_budget.offer.descriptions,
            options={
                **facts.options,
                **turn.conversation.writer.options,
                **turn.prompt.options,
            },
            answer_tokens_max=answer_tokens_max,
            answer_only=turn.has_rejected,
            # The id itself may be a name that somebody chose.
            cache_key=sha256(f"nplt {turn.conversation.session_id}".encode()).hexdigest()[:32],
            form=form,
        )
        await turn.conversation.writer.check_owned()
        try:
            with anyio.CancelScope(deadline=monotonic() + limits.call_seconds_max) as in_time:
                async with turn.route.call_model(request) as deltas:
                    async for delta in deltas:
                        clean = cleaned(delta)
                        # Applied before it is sent: a replay covers all that was sent.
                        output.apply(clean)
                        if isinstance(clean, TextPiece):
                            turn.events.add("text", clean.text)
                        elif isinstance(clean, ReasoningPiece):
                            turn.events.add("reasoning", clean.text)
        finally:
            turn.events.flush()
            if logs.provider.on:
                logs.provider(
                    "call ended",
                    turn=turn.turn_id,
                    call=turn.call,
                    provider=turn.invocation.provider,
                    model=turn.invocation.model,
                    stop=output.stop_reason,
                    characters=output.text_length,
                    **(output.usage.as_json() if output.usage else {}),
                )
        if in_time.cancelled_caught:
            turn.route.metrics.failures["timed_out"] += 1
            late = f"the model did not finish within {limits.call_seconds_max:g} s"
            raise ProviderUnavailable(late, timed_out=True)
        if output.stop_reason is None:
            raise AnswerCut
        if output.is_empty:
            raise ProviderRefused(
                "the model gave an empty answer; ask again, or choose another model"
            )
        if room is not None:
            self._context.learn_ceiling(turn.model, room)
        return output

    async def check_answer(self, answer: ModelOutputEntry) -> str | None:
        """Why the answer does not fit the schema of the prompt, if the model is to be asked
        for another one; that is done once in a turn."""
        turn, schema = self.turn, self.turn.prompt.options.get("schema")
        if not isinstance(schema, dict):
            return None
        from nplt_server.providers.schemas import fault_of_answer

        fault = await fault_of_answer(schema, answer.content)
        if fault is not None and (turn.has_rejected or answer.stop_reason == "refusal"):
            tries = ", and neither did the one before it" if turn.has_rejected else ""
            raise AnswerRejected(
                ErrorCode.SCHEMA_MISMATCH,
                f"the model's answer does not fit the schema{tries}: {fault}; "
                "ask again, or choose another model",
            )
        return fault

    # Recovery of a call that failed before its first words

    async def _recover_from(self, error: ProviderError, retries: int) -> int:
        """Returns the new number of retries; raises the error if nothing helps."""
        turn, policy = self.turn, self._router.retries
        seconds = policy.wait_before_retry(error, retries=retries)
        if seconds is not None:
            self._announce_retry(
                f"{error}; {turn.model} is asked again in {seconds:.1f} s "
                f"(attempt {retries + 2} of {policy.retries_max + 1})"
            )
            turn.route.metrics.retries += 1
            await policy.sleep(seconds)
            return retries + 1
        if self._fail_over(error):
            return 0
        if self._shorten(error):
            return retries
        if (why := await self._recovery.recover_from(error)) is not None:
            self._announce_retry(why)
            return retries
        await self._recovery.turn_failed(error)
        if self._too_large and isinstance(error, WindowTooSmall):
            error = self._too_large[-1]  # the request can't be shortened further
        if isinstance(error, RequestTooLarge):
            setting = f"models.{turn.model}.context_tokens"
            sentence = f"{error.sentence}; how much it takes can be set: {setting}"
            raise RequestTooLarge(sentence, vendor=error.vendor) from None
        raise error

    def _fail_over(self, error: ProviderError) -> bool:
        turn = self.turn
        is_too_small = isinstance(error, WindowTooSmall) and len(self._tried) > 1
        is_down = isinstance(error, ProviderUnavailable | ProviderUnauthorized | NoSuchModel)
        if turn.call != 0 or not (is_down or is_too_small):
            return False
        affects_all_models = error.of_provider or isinstance(error, ProviderUnauthorized)
        avoided = turn.invocation.provider if affects_all_models else None
        other = self._router.instead_of(self._tried, avoid=avoided)
        if other is None:
            return False
        turn.route.metrics.fail_overs += 1
        self._announce_retry(f"{turn.model}: {error}; {other} is asked instead")
        self._tried.append(other)
        self._room = None
        self._too_large = []
        turn.use_model(other)
        return True

    def _shorten(self, error: ProviderError) -> bool:
        """Shortens the next request to the window the provider named, if that is smaller
        than the known one; otherwise by a fixed fraction."""
        turn, tries = self.turn, len(self._too_large)
        if not isinstance(error, RequestTooLarge) or turn.view is None:
            return False
        if tries == len(_SHORTENED):
            return False
        self._too_large.append(error)
        window, services = error.window_tokens, turn.conversation.services.context
        if window is None or not services.learn_window(turn.model, window):
            sent = CallRoom(
                context_tokens=turn.view.tokens,
                answer_tokens=self._context.answer_tokens_max(turn.model, turn.view.tokens),
            ).within(self._room)
            self._room = sent.shortened(_SHORTENED[tries])
        self._announce_retry(
            f"{error}; {turn.model} is asked again and shown less of what came before"
        )
        return True

    def _announce_retry(self, why: str) -> None:
        """Drops the output of the call that failed, and announces the retry."""
        self.turn.output = None
        self.turn.events.begin_call(self.turn.call)
        self.turn.events.thought("retrying", why)
