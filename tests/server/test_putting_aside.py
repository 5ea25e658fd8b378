"""What a provider refuses is put aside, so that the conversation can go on without it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from tests.server.stage import Stage, staged

from nplt_server.context import ContextMessage, ToolResultsMessage
from nplt_server.deltas import ModelOutputDelta, Stopped, TextPiece, ToolCallPiece
from nplt_server.errors import ProviderRefused
from nplt_server.providers.base import ModelRequest
from nplt_storage.facts.entries import EpochEntry, QuarantineEntry

REFUSED = "the provider refused the request (400)"


class Picky:
    """A model that does not take what holds one of its words, and says so, with the place
    or without; it calls a tool where it is told to."""

    def __init__(self, *words: str, names_place: bool = False) -> None:
        self.words = words
        self.names_place = names_place
        self.requests: list[ModelRequest] = []

    async def answer(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        self.requests.append(request)
        named = [message.seq for message in request.context[:] if self._minds(message)]
        if named:
            seqs = tuple(named[:1]) if self.names_place else ()
            raise ProviderRefused(REFUSED, entry_seqs=seqs, is_of_request=True)
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


async def test_a_prompt_refused_without_a_word_why_is_put_aside_by_the_next_turn() -> None:
    model = Picky("poison")
    async with staged(model.answer) as stage:
        await stage.play("hello")
        assert (await stage.play("poison")).state == "failed"
        assert put_aside(stage) == []
        assert (await stage.play("go on")).state == "completed"
        assert put_aside(stage) == [3]
        assert len(model.requests) == 4


async def test_what_was_answered_since_is_above_suspicion() -> None:
    model = Picky("go on")
    async with staged(model.answer) as stage:
        await stage.play("hello")
        assert (await stage.play("go on")).state == "failed"
        model.words = ()
        await stage.play("is all well?")
        model.words = ("once more",)
        assert (await stage.play("once more")).state == "failed"
        assert put_aside(stage) == []


async def test_an_empty_answer_is_no_refusal() -> None:
    async def silent(request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        yield Stopped(reason="end")

    async with staged(silent) as stage:
        await stage.play("one")
        await stage.play("two")
        assert put_aside(stage) == []


async def test_if_what_a_tool_gave_is_refused_the_turn_fails_and_the_next_is_spared_it() -> None:
    for names_place in (True, False):
        model = Picky("+00:00", names_place=names_place)  # the tool says so
        async with staged(model.answer) as stage:
            finished = await stage.play("use a tool")
            assert finished.error is not None
            message = f"{REFUSED}: it is a part of this turn, and models are not shown it again"
            assert finished.error["message"] == message
            assert put_aside(stage) == [3]
            assert len(model.requests) == 2
            assert (await stage.play("go on")).state == "completed"
            assert len(model.requests) == 3


async def test_a_turn_asks_again_once_and_leaves_nothing_for_the_next() -> None:
    model = Picky(names_place=True)
    async with staged(model.answer) as stage:
        await stage.play("alpha")
        await stage.play("beta")
        model.words = ("alpha", "beta")
        assert (await stage.play("gamma")).state == "failed"
        assert put_aside(stage) == [1, 3]
        assert (await stage.play("delta")).state == "completed"
        reasons = [
            entry.reason
            for entry in stage.conversation.history.entries
            if isinstance(entry, EpochEntry)
        ]
        assert reasons == ["quarantine", "quarantine"]
