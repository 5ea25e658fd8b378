"""Entries that a provider refuses are quarantined, so that the conversation can go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
from tests.server.conversations import Stage, staged

from nplt_protocol.messages import SessionEvent
from nplt_server.context.messages import ContextMessage, ToolResultsMessage
from nplt_server.context.steps import HIDDEN_RESULT
from nplt_server.errors import NoSuchModel, ProviderRefused
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece, ToolCallPiece
from nplt_storage.entries import EpochEntry, QuarantineEntry

REFUSED = "the provider refused the request (400)"


class Picky:
    """A model that does not take what holds one of its words, and says so, with the place
    or without; it calls a tool where it is told to."""

    def __init__(self, *words: str, names_place: bool = False) -> None:
        self.words = words
        self.names_place = names_place
        self.refusal: ProviderRefused | None = None
        self.refuses_once = False
        self.requests: list[LlmRequest] = []

    async def answer(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        self.requests.append(request)
        named = [message.seq for message in request.context[:] if self._minds(message)]
        if named:
            if self.refuses_once:
                self.words = ()
            if self.refusal is not None:
                raise self.refusal
            seqs = tuple(named[:1]) if self.names_place else ()
            raise ProviderRefused(REFUSED, entry_seqs=seqs, content_refused=True)
        last = request.context[-1]
        if "use a tool" in str(last):
            yield ToolCallPiece(index=0, tool_name="now", arguments="{}")
        elif isinstance(last, ToolResultsMessage):
            yield TextPiece(text="so late")
        else:
            yield TextPiece(text="fine")
        yield Stopped(reason="end")

    def _minds(self, message: ContextMessage) -> bool:
        return any(word in str(message) for word in self.words)


def put_aside(stage: Stage) -> list[int]:
    entries = stage.conversation.history.entries
    return [entry.target_seq for entry in entries if isinstance(entry, QuarantineEntry)]


async def test_a_prompt_refused_without_a_reason_is_quarantined_by_the_next_turn() -> None:
    model = Picky("poison")
    async with staged(model.answer) as stage:
        await stage.play("hello")
        assert (await stage.play("poison")).state == "failed"
        assert put_aside(stage) == []
        assert (await stage.play("go on")).state == "completed"
        assert put_aside(stage) == [3]
        assert len(model.requests) == 4


async def test_an_entry_that_was_answered_since_is_not_quarantined() -> None:
    model = Picky("go on")
    async with staged(model.answer) as stage:
        await stage.play("hello")
        assert (await stage.play("go on")).state == "failed"
        model.words = ()
        await stage.play("is all well?")
        model.words = ("once more",)
        assert (await stage.play("once more")).state == "failed"
        assert put_aside(stage) == []


async def test_an_empty_answer_causes_no_quarantine() -> None:
    async def silent(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        yield Stopped(reason="end")

    async with staged(silent) as stage:
        await stage.play("one")
        await stage.play("two")
        assert put_aside(stage) == []


async def test_a_refused_tool_result_is_quarantined_and_the_model_knows_the_tool_ran() -> None:
    for names_place in (True, False):
        model = Picky("+00:00", names_place=names_place)  # the tool says so
        async with staged(model.answer) as stage:
            assert (await stage.play("use a tool")).state == "completed"
            assert put_aside(stage) == [3]
            assert len(model.requests) == 3
            last = model.requests[-1].context[-1]
            assert isinstance(last, ToolResultsMessage)
            assert last.texts == (HIDDEN_RESULT,)
            assert (await stage.play("go on")).state == "completed"
            assert len(model.requests) == 4


async def test_several_refused_entries_are_quarantined_within_one_turn() -> None:
    model = Picky(names_place=True)
    async with staged(model.answer) as stage:
        await stage.play("alpha")
        await stage.play("beta")
        model.words = ("alpha", "beta")
        assert (await stage.play("gamma")).state == "completed"
        assert put_aside(stage) == [1, 3]
        assert len(model.requests) == 5
        reasons = [
            entry.reason
            for entry in stage.conversation.history.entries
            if isinstance(entry, EpochEntry)
        ]
        assert reasons == ["quarantine", "quarantine"]


async def test_a_wrong_guess_is_released_from_quarantine() -> None:
    model = Picky("alpha", "beta")
    async with staged(model.answer) as stage:
        await stage.play("alpha")
        assert (await stage.play("beta")).state == "failed"
        assert put_aside(stage) == [1, 1]
        assert stage.conversation.history.quarantined == {}
        lifted = [
            received.details["seq"]
            for received in stage.ear.received
            if isinstance(received, SessionEvent) and received.event == "released"
        ]
        assert lifted == [1]
        # The next one finds out that it was both.
        assert (await stage.play("gamma")).state == "completed"
        assert sorted(stage.conversation.history.quarantined) == [1, 3]


async def test_a_cancel_before_the_guess_is_tried_leaves_no_quarantine() -> None:
    model = Picky("poison")
    asked_without = anyio.Event()

    async def waits_when_asked_without(
        request: LlmRequest,
    ) -> AsyncGenerator[ModelOutputDelta, None]:
        async for delta in model.answer(request):
            if len(model.requests) == 3:
                asked_without.set()
                await anyio.sleep_forever()
            yield delta

    async with staged(waits_when_asked_without) as stage:
        await stage.play("poison")
        receipt = await stage.prompt("go on")
        with anyio.fail_after(60):
            await asked_without.wait()
        assert stage.conversation.history.quarantined
        stage.conversation.cancel(receipt.turn_id)
        await stage.conversation.activity.quiet()
        assert not stage.conversation.history.quarantined


async def test_a_provider_that_refuses_everything_ends_the_attempts_at_quarantine() -> None:
    model = Picky("o")
    async with staged(model.answer) as stage:
        for word in ("one", "two", "four", "noon", "oh"):
            assert (await stage.play(word)).state == "failed"
        assert stage.conversation.history.quarantined == {}
        assert put_aside(stage).count(1) == 4  # in and out, twice


async def test_a_missing_model_causes_no_quarantine() -> None:
    model = Picky("nobody home")
    async with staged(model.answer) as stage:
        model.refusal = NoSuchModel("not there")
        model.words = ("a",)
        await stage.play("Ada")
        model.refusal = None
        model.words = ("max",)
        assert (await stage.play("max")).state == "failed"
        assert put_aside(stage) == []


async def test_refused_sealed_reasoning_begins_an_epoch_without_it_and_no_quarantine() -> None:
    model = Picky()
    async with staged(model.answer) as stage:
        await stage.play("hello")
        model.refusal = ProviderRefused("no", content_refused=True, reasoning_refused=True)
        model.words = ("hello",)
        model.refuses_once = True
        assert (await stage.play("go on")).state == "completed"
        assert put_aside(stage) == []
        (epoch,) = [e for e in stage.conversation.history.entries if isinstance(e, EpochEntry)]
        assert epoch.reason == "reasoning"
