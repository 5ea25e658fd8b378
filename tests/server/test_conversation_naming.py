"""A conversation is called by its first words, and by a better name once there is one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.conversations import Stage, conversation_of
from tests.server.services import make_services

from nplt_protocol.messages import SessionEvent
from nplt_server.conversations import operations
from nplt_server.conversations.redaction import redact
from nplt_server.conversations.services import ContextServices
from nplt_server.conversations.summarizer import NAME_CHARACTERS_MAX, clean_name
from nplt_server.errors import ProviderRefused
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece
from nplt_server.providers.offline import ScriptedProvider
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_storage.entries import RenamedEntry


class Naming:
    """A stage with a namer that answers when it is let go."""

    def __init__(self, name: str) -> None:
        self.asked: list[LlmRequest] = []
        self.go = anyio.Event()
        self.stage: Stage
        self._name = name

    async def answer(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        if request.invocation.model == "namer":
            self.asked.append(request)
            await self.go.wait()
            if not self._name:
                raise ProviderRefused("no names today")
            yield TextPiece(text=self._name)
        else:
            yield TextPiece(text="an answer")
        yield Stopped(reason="end")

    async def let_go(self) -> None:
        self.go.set()
        await anyio.wait_all_tasks_blocked()

    @property
    def renamed(self) -> list[object]:
        received = [e for e in self.stage.ear.received if isinstance(e, SessionEvent)]
        return [event.details["name"] for event in received if event.event == "renamed"]

    @property
    def name(self) -> str:
        return self.stage.conversation.name


@asynccontextmanager
async def naming(name: str) -> AsyncIterator[Naming]:
    play = Naming(name)
    provider = ScriptedProvider(play.answer, provider_id="test", models=("model", "namer"))
    context_services = ContextServices(
        counting=TokenCounting(CharacterCounter()), namer="test/namer"
    )
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, provider, context_services=context_services)
        play.stage = Stage(
            conversation_of(
                "s1", user="local", services=services, profile=services.histories.default
            )
        )
        yield play
        tasks.cancel_scope.cancel()


async def test_the_first_words_are_its_name_until_there_is_a_better_one() -> None:
    async with naming('"Ants and their queens."\nand a remark') as play:
        await play.stage.play("Tell me about ants, please, and where their queens live.")
        assert play.name == "Tell me about ants, please, and where…"
        await play.let_go()
        assert play.name == "Ants and their queens"
        assert play.renamed == ["Ants and their queens"]
        shown = str(play.asked[0].context)
        assert "where their queens live" in shown
        assert "an answer" in shown


async def test_naming_a_conversation_delays_no_turn_and_is_requested_once() -> None:
    async with naming("Ants") as play:
        await play.stage.play("one")
        await play.stage.play("two")
        await play.let_go()
        await play.stage.play("three")
        assert len(play.asked) == 1
        assert play.name == "Ants"


async def test_the_name_a_person_gave_stays() -> None:
    async with naming("Ants") as play:
        await play.stage.play("one")
        await operations.rename(play.stage.conversation, "mine")
        await play.let_go()
        assert (play.name, play.renamed) == ("mine", ["mine"])


@pytest.mark.parametrize("name", ["", "  \n", '""'])
async def test_without_a_usable_name_the_first_words_stay(name: str) -> None:
    async with naming(name) as play:
        await play.stage.play("one")
        await play.let_go()
        assert (play.name, play.renamed) == ("one", [])


async def test_a_name_found_for_a_secret_goes_with_it() -> None:
    async with naming("The key sk-1234") as play:
        await play.stage.play("my key is sk-1234")
        await play.let_go()
        conversation = play.stage.conversation
        await redact(conversation, 1)
        assert "sk-1234" not in play.name
        renamed = [e for e in conversation.history.entries if isinstance(e, RenamedEntry)]
        assert [entry.redacted_at is not None for entry in renamed] == [True]


async def test_what_a_model_is_shown_stays_when_a_name_is_erased() -> None:
    async with naming("The key sk-1234") as play:
        await play.stage.play("one")
        await play.let_go()
        conversation = play.stage.conversation
        (renamed,) = (e for e in conversation.history.entries if isinstance(e, RenamedEntry))
        kinds = [entry.kind for entry in conversation.history.entries]
        await redact(conversation, renamed.seq)
        assert "sk-1234" not in play.name
        assert [entry.kind for entry in conversation.history.entries] == kinds


@given(st.text(max_size=200))
def test_a_name_is_one_short_printable_line(text: str) -> None:
    name = clean_name(text)
    assert name.isprintable()
    assert len(name) <= NAME_CHARACTERS_MAX
    assert clean_name(name) == name or name.endswith("…")
