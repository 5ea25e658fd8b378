"""An answer fits the schema of its prompt, or the turn says that it does not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import orjson
from tests.server.conversations import Stage, staged

from nplt_protocol import JsonObject
from nplt_protocol.messages import AgentThought, Prompt, Receipt, TurnFinished
from nplt_server.context.messages import ModelInputMessage, ModelOutputMessage
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece, ToolCallPiece
from nplt_server.tools.typed import typed_tool
from nplt_storage.entries import ModelInputEntry, ModelOutputEntry
from nplt_storage.files.examination import TurnPairing

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


class Model:
    """Gives these answers, one after the other; `None`: it never ends. Keeps the requests."""

    def __init__(self, *answers: str | None, reason: str = "end") -> None:
        self.requests: list[LlmRequest] = []
        self.has_begun = anyio.Event()
        self._answers = list(answers)
        self._reason = reason

    async def __call__(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        self.requests.append(request)
        answer = self._answers.pop(0)
        if answer is None:
            yield TextPiece(text='{"n"')
            self.has_begun.set()
            await anyio.sleep_forever()
        elif answer.startswith("!"):
            yield ToolCallPiece(index=0, tool_name=answer[1:], arguments="{}")
            yield Stopped(reason="tool_calls")
        else:
            yield TextPiece(text=answer)
            yield Stopped(reason=self._reason)


async def prompt(stage: Stage, text: str = "a number", **options: Any) -> Receipt:
    receipts: list[Receipt] = []
    asked = Prompt(text=text, options={"schema": SCHEMA, **options})
    await stage.conversation.accept(asked, receipt=receipts.append)
    return receipts[0]


async def play(stage: Stage) -> TurnFinished:
    await prompt(stage)
    await stage.conversation.activity.quiet()
    return stage.finished[-1]


def outputs(stage: Stage) -> list[ModelOutputEntry]:
    entries = stage.conversation.history.entries
    return [entry for entry in entries if isinstance(entry, ModelOutputEntry)]


async def test_an_answer_that_fits_is_the_answer() -> None:
    model = Model('{"n": 1}')
    async with staged(model) as stage:
        assert (await play(stage)).state == "completed"
        (answer,) = outputs(stage)
        assert answer.rejected is None
    (request,) = model.requests
    assert (request.schema, request.answer_only) == (SCHEMA, False)
    (asked,) = [each for each in request.context if isinstance(each, ModelInputMessage)]
    assert asked.content == "a number"
    assert asked.text.endswith(orjson.dumps(SCHEMA).decode())


async def test_an_answer_that_does_not_fit_is_kept_as_rejected_and_asked_for_once_more() -> None:
    model = Model("about three", '{"n": 3}')
    async with staged(model) as stage:
        finished = await play(stage)
        first, second = outputs(stage)
        assert (finished.state, finished.seq) == ("completed", second.seq)
        assert (first.content, first.state, first.call) == ("about three", "completed", 0)
        assert (first.rejected or "").startswith("the answer is not JSON: ")
        assert (second.content, second.rejected, second.call) == ('{"n": 3}', None, 1)
        thoughts = [each for each in stage.ear.received if isinstance(each, AgentThought)]
        assert any(
            "the model is asked once to mend it" in (each.content or "") for each in thoughts
        )
        pairing = TurnPairing()
        for entry in stage.conversation.history.entries:
            pairing.add(entry)
        assert (pairing.unfinished, pairing.unpaired()) == ({}, [])
    again = model.requests[1]
    assert again.answer_only
    rejected, request = again.context[-2:]
    assert isinstance(rejected, ModelOutputMessage)
    assert isinstance(request, ModelInputMessage)
    assert rejected.content == "about three"
    assert (first.rejected or "?") in request.text


async def test_what_the_model_was_shown_stays_the_beginning_of_what_it_is_shown_later() -> None:
    model = Model("no", '{"n": 3}', '{"n": 4}')
    async with staged(model) as stage:
        await play(stage)
        await play(stage)
    texts = [list(request.context) for request in model.requests]
    assert texts[1][: len(texts[0])] == texts[0]
    assert texts[2][: len(texts[1])] == texts[1]


async def test_a_second_answer_that_does_not_fit_fails_the_turn_and_is_kept() -> None:
    model = Model("no", '{"n": "three"}')
    async with staged(model) as stage:
        finished = await play(stage)
        assert finished.state == "failed"
        assert finished.error is not None
        assert finished.error["code"] == "schema_mismatch"
        assert "'three' is not of type 'integer' (at /n)" in str(finished.error["message"])
        last = outputs(stage)[-1]
        assert (last.content, last.state, last.rejected) == ('{"n": "three"}', "failed", None)
        assert last.error == finished.error
    assert len(model.requests) == 2


async def test_a_model_that_declines_is_not_asked_again() -> None:
    model = Model("I would rather not.", reason="refusal")
    async with staged(model) as stage:
        finished = await play(stage)
        assert finished.error is not None
        assert (finished.state, finished.error["code"]) == ("failed", "schema_mismatch")
    assert len(model.requests) == 1


async def look() -> str:
    """Looks."""
    return "three"


async def test_a_schema_turn_may_call_tools_and_text_with_a_tool_call_need_not_fit() -> None:
    model = Model("!look", "it is three", '{"n": 3}')
    async with staged(model, tools=(typed_tool(look),), allowed=("look",)) as stage:
        assert (await play(stage)).state == "completed"
        called, rejected, answer = outputs(stage)
        assert (bool(called.tool_calls), called.rejected) == (True, None)
        assert (rejected.rejected is None, answer.rejected) == (False, None)
    assert [request.answer_only for request in model.requests] == [False, False, True]


async def test_a_turn_can_be_cancelled_while_the_answer_is_mended() -> None:
    model = Model("no", None)
    async with staged(model) as stage:
        receipt = await prompt(stage)
        await model.has_begun.wait()
        assert stage.conversation.cancel(receipt.turn_id)
        await stage.conversation.activity.quiet()
        assert stage.finished[-1].state == "interrupted"
        assert [entry.state for entry in outputs(stage)] == ["completed", "interrupted"]


async def test_a_prompt_that_replaces_another_brings_a_schema_of_its_own() -> None:
    model = Model('{"n": 1}', '"two"')
    async with staged(model) as stage:
        first = await prompt(stage)
        await stage.conversation.activity.quiet()
        again = Prompt(
            text="a word", options={"schema": {"type": "string"}}, replace_from=first.seq
        )
        await stage.conversation.accept(again, receipt=lambda receipt: None)
        await stage.conversation.activity.quiet()
        assert [each.state for each in stage.finished] == ["completed", "completed"]
        prompts = [
            entry.options["schema"]
            for entry in stage.conversation.history.entries
            if isinstance(entry, ModelInputEntry)
        ]
        assert prompts == [SCHEMA, {"type": "string"}]


async def test_an_answer_to_a_prompt_without_a_schema_is_not_checked() -> None:
    model = Model('{"n": 1}', "anything")
    async with staged(model) as stage:
        await play(stage)
        assert (await stage.play("more")).state == "completed"
