"""Poison beside what is said in turns: on the live screen, in what a tool gave, and where
the blame can't be told at once."""

from __future__ import annotations

import pytest
from tests.server.providers.poison_stage import (
    APIS,
    MARKER,
    conversation_with,
    plain_turn,
    provider_for,
    refuses_the_marker,
)
from tests.server.services import model_of
from tests.server.test_quarantine import Picky
from tests.vendors.answers import Answer, ApiName, Call, ToolCall, say
from tests.vendors.emulator import emulator
from tests.vendors.rejections import Rejection

from nplt_server.conversations import operations
from nplt_server.conversations.agent_state import QUARANTINED_STATE
from nplt_server.conversations.services import ContextServices
from nplt_server.providers import ModelCatalog, ModelFacts
from nplt_server.settings import ContextSettings
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_server.tools.typed import typed_tool
from nplt_server.widgets import MemoryNotebookWidget
from nplt_storage.entries import NotebookEntry, SystemInstructionEntry

THINKING = {
    "epochs": ContextServices(counting=TokenCounting(CharacterCounter())),
    "newest live": ContextServices(
        counting=TokenCounting(CharacterCounter()), rules=ContextSettings(policy="newest_live")
    ),
    "a small window": ContextServices(
        counting=TokenCounting(CharacterCounter()),
        models=ModelCatalog({"test/model": ModelFacts(context_tokens=1_200, output_tokens=200)}),
    ),
}


@pytest.mark.parametrize("names_place", [True, False])
@pytest.mark.parametrize("rule", THINKING)
async def test_a_notebook_that_is_refused_is_hidden_until_it_is_changed(
    rule: str, names_place: bool
) -> None:
    model = Picky(MARKER, names_place=names_place)
    long = [entry for number in range(1, 9) for entry in plain_turn(number)]
    async with conversation_with(
        [*long, NotebookEntry(content=MARKER)],
        model_of(model.answer),
        context_services=THINKING[rule],
    ) as stage:
        for prompt in ("one", "two"):
            assert (await stage.play(prompt)).state == "completed"
        assert len(model.requests) == 3
        assert [*stage.conversation.history.quarantined] == [17]
        assert QUARANTINED_STATE in str(list(model.requests[-1].context))


async def test_a_first_prompt_need_not_be_given_up_for_the_screen_it_carries() -> None:
    model = Picky(MARKER, names_place=True)
    async with conversation_with([NotebookEntry(content=MARKER)], model_of(model.answer)) as stage:
        assert (await stage.play("hello")).state == "completed"
        assert [*stage.conversation.history.quarantined] == [1]


@pytest.mark.parametrize("api", APIS)
async def test_a_model_that_poisons_its_own_notebook_can_be_talked_to(api: ApiName) -> None:
    def script(call: Call) -> Answer:
        if not vendors.received:
            arguments = f'{{"action": "write", "text": "{MARKER}"}}'
            return Answer(parts=(ToolCall(name="notebook", arguments=arguments),))
        return refuses_the_marker(call)

    async with (
        emulator(script) as vendors,
        provider_for(api, vendors) as provider,
        conversation_with([], provider, tools=MemoryNotebookWidget().tools) as stage,
    ):
        # Both what it asked for and what stands in the notebook since.
        assert (await stage.play("note it")).state == "completed"
        assert len(vendors.received) == 4
        await operations.clear(stage.conversation)
        assert (await stage.play("go on")).state == "completed"
        assert len(vendors.received) == 5


@pytest.mark.parametrize("api", APIS)
async def test_what_a_tool_has_done_is_not_done_again_because_its_output_is_refused(
    api: ApiName,
) -> None:
    paid: list[int] = []

    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        return f"paid; receipt: {MARKER}"

    def script(call: Call) -> Answer:
        refuses_the_marker(call)
        if "this ran" in str(call.body):
            return say("it is paid")
        return Answer(parts=(ToolCall(name="pay", arguments='{"amount": 5}'),))

    async with (
        emulator(script) as vendors,
        provider_for(api, vendors) as provider,
        conversation_with([], provider, tools=(typed_tool(pay, name="pay"),)) as stage,
    ):
        for prompt in ("pay 5", "is it paid? if not, do it"):
            assert (await stage.play(prompt)).state == "completed"
        assert paid == [5]


@pytest.mark.parametrize("api", APIS)
async def test_an_innocent_prompt_next_to_a_poisoned_one_leaves_quarantine(api: ApiName) -> None:
    is_down = True

    def script(call: Call) -> Answer:
        if is_down:
            raise Rejection("The server had an error", status=503)
        return refuses_the_marker(call)

    async with (
        emulator(script) as vendors,
        provider_for(api, vendors) as provider,
        conversation_with(plain_turn(1), provider) as stage,
    ):
        await stage.play("my name is Ada")
        is_down = False
        assert (await stage.play(MARKER)).state == "failed"
        assert [*stage.conversation.history.quarantined] == [5]
        assert (await stage.play("who am I?")).state == "completed"
        assert "my name is Ada" in str(vendors.received[-1].body)


async def test_a_refused_system_instruction_quarantines_no_entry() -> None:
    async with (
        emulator(refuses_the_marker) as vendors,
        provider_for("chat", vendors) as provider,
        conversation_with([SystemInstructionEntry(content=MARKER)], provider) as stage,
    ):
        for prompt in ("one", "two", "three"):
            assert (await stage.play(prompt)).state == "failed"
        assert stage.conversation.history.quarantined == {}
        assert len(vendors.received) == 3
