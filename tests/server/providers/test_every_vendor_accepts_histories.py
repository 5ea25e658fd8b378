"""Whatever happened to a conversation, whoever answers next is sent what it accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from tests.support.vendor_conversation_plans import life_plans
from tests.support.vendor_conversations import MODELS, Break, Life, TurnPlan
from tests.vendors import Text, Thinking, ToolCall

from nplt_server.context.messages import ModelOutputMessage
from nplt_server.providers import compiler
from nplt_storage.entries import (
    EpochEntry,
    FaultEntry,
    ModelOutputEntry,
    ToolResultsEntry,
)

LOOKS = (Thinking("hm"), Text("let me see, " * 30), ToolCall("look", '{"at": "x"}'))


def lived(*plans: TurnPlan, context_tokens: int = 128_000) -> Life:
    life = Life(context_tokens=context_tokens)
    asyncio.run(life.live(plans))
    return life


@settings(max_examples=settings().max_examples // 2)  # each is several turns of several calls
@given(life_plans)
def test_no_vendor_refuses_any_history_of_any_models_and_faults(
    plan: tuple[Sequence[TurnPlan], int],
) -> None:
    turns, context_tokens = plan
    assert lived(*turns, context_tokens=context_tokens).rejections == []


def test_the_lives_are_full_of_what_they_are_about() -> None:
    """Deaths in mid-answer and in tools, cancels, failures, new epochs."""
    breaks = (
        Break("crash"),
        Break("crash", in_tool=True),
        Break("cancel", call=1),
        Break("cancel", in_tool=True),
        Break("fail"),
        Break("no_end", share=0.6),
        None,
    )
    life = lived(
        *(
            TurnPlan(model=model, prompt="tell " * 300, answers=(LOOKS, LOOKS), broken=each)
            for model, each in zip(MODELS * 2, breaks * 2, strict=False)
        ),
        context_tokens=4_000,
    )
    assert life.rejections == []
    assert life.deaths >= 3
    assert life.cancels >= 3
    assert any(isinstance(entry, EpochEntry) for entry in life.entries)
    states = {entry.state for entry in life.entries if isinstance(entry, ModelOutputEntry)}
    assert states == {"completed", "interrupted", "failed"}
    assert {"interrupted"} <= {e.state for e in life.entries if isinstance(e, FaultEntry)}
    given_back = [e.results for e in life.entries if isinstance(e, ToolResultsEntry)]
    assert {r.status for results in given_back for r in results} >= {"success", "failed"}


def as_it_is(name: str) -> str:
    return name


def always(self: compiler.Compilation, message: ModelOutputMessage) -> bool:
    return True


@pytest.mark.parametrize(
    ("where", "repair", "sabotage"),
    [
        (compiler, "fitting_tool_name", as_it_is),
        (compiler.Compilation, "_is_own", always),
    ],
)
def test_a_repair_that_is_left_out_is_noticed(
    where: object, repair: str, sabotage: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, repair, sabotage)
    made_up = (ToolCall("not/offered", "[]"),)
    plans = [TurnPlan(model=model, answers=(LOOKS, made_up)) for model in MODELS[-3:]]
    assert lived(*plans, *plans).rejections
