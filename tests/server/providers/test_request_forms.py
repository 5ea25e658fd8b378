"""The form of a request changes with what a server refuses, in the words that servers use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.conversations import Stage
from tests.server.providers.poison_stage import conversation_with
from tests.support.strict_server import Body, Refusal, Rule, StrictServer, refused, strict_server

from nplt_protocol.messages import AgentThought
from nplt_server.conversations.services import ContextServices
from nplt_server.providers import ModelCatalog, Patience
from nplt_server.providers.build import ProviderBuilder
from nplt_server.providers.learned_forms import LEARNED_FOR, LearnedForms
from nplt_server.providers.model_lists import ModelLister
from nplt_server.providers.models import KnownModels
from nplt_server.providers.refusal_rules import FORM_RULES, change_for
from nplt_server.providers.vendor_api import without_fields
from nplt_server.request_form import RequestForm
from nplt_server.settings import ModelSettings, OpenAISettings, Settings
from nplt_server.tools.typed import typed_tool
from nplt_storage.entries import (
    Entry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ELSEWHERE = ModelInvocationDescriptor(provider="openai", specification="openai-chat", model="gpt")


def look(at: str = "") -> str:
    """Looks."""
    return f"blue {at}"


LOOK = typed_tool(look)


def provider_at(
    server: StrictServer,
    learned: LearnedForms | None = None,
    *,
    models: dict[str, ModelSettings] | None = None,
    **more: Any,
) -> ModelLister:
    kind = more.pop("type", "openai")
    given = {"id": "box", "type": kind, "base_url": server.url, "models": ("model",), **more}
    given.setdefault("api", "chat")
    settings = OpenAISettings.model_validate(given)
    builder = ProviderBuilder(environ={}, models=models or {}, patience=Patience(), learned=learned)
    return builder.build_vendor(settings)


@asynccontextmanager
async def talking(
    server: StrictServer,
    entries: list[Entry] | None = None,
    *,
    learned: LearnedForms | None = None,
    models: dict[str, ModelSettings] | None = None,
    **more: Any,
) -> AsyncIterator[Stage]:
    learned = learned or LearnedForms()
    provider = provider_at(server, learned, models=models, **more)
    known = KnownModels(Settings(models=models or {}))
    known.use(learned)
    context = ContextServices(models=ModelCatalog(known))
    try:
        async with conversation_with(
            entries or [], provider, tools=(LOOK,), context_services=context
        ) as stage:
            stage.conversation.services.router.learned = learned
            yield stage
    finally:
        await provider.aclose()


def notices(stage: Stage) -> list[str]:
    thoughts = [each for each in stage.ear.received if isinstance(each, AgentThought)]
    return [each.content or "" for each in thoughts if each.type == "notice"]


def with_a_call(call_id: str = "call_0198c2", *, number: int = 1) -> list[Entry]:
    """A turn in which another model called a tool."""
    turn_id = f"old-{number}"
    call = ToolCallRequest(
        tool_call_id=call_id,
        tool_name="look",
        raw_arguments='{"at":"sky"}',
        arguments={"at": "sky"},
    )
    result = ToolCallResult(
        tool_call_id=call_id,
        tool_name="look",
        status="success",
        result="blue sky",
        duration=0.1,
        timestamp=NOW,
    )
    return [
        ModelInputEntry(turn_id=turn_id, content="look up"),
        ModelOutputEntry(
            turn_id=turn_id, content="I look.", tool_calls=(call,), invocation=ELSEWHERE
        ),
        ToolResultsEntry(turn_id=turn_id, results=(result,)),
        ModelOutputEntry(turn_id=turn_id, call=1, content="It is blue.", invocation=ELSEWHERE),
    ]


NO_TOOLS: dict[str, Refusal] = {
    # https://github.com/pydantic/pydantic-ai/issues/703
    "Ollama": refused(
        "registry.ollama.ai/library/gemma3:4b does not support tools", type="api_error"
    ),
    # https://github.com/vllm-project/vllm/issues/9986
    "vLLM": (
        400,
        {
            "object": "error",
            "message": '"auto" tool choice requires --enable-auto-tool-choice and '
            "--tool-call-parser to be set",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    # https://github.com/evalstate/fast-agent/issues/122
    "OpenRouter": (
        404,
        {
            "error": {
                "message": "No endpoints found that support tool use. To learn more about "
                "provider routing, visit: https://openrouter.ai/docs/provider-routing",
                "code": 404,
            }
        },
    ),
    # https://github.com/containers/ramalama/issues/988
    "llama.cpp": (
        500,
        {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"},
    ),
}


def without_tools_only(refusal: Refusal) -> Rule:
    return lambda body: refusal if "tools" in body else None


@pytest.mark.parametrize("server_name", NO_TOOLS)
async def test_a_model_that_refuses_tools_answers_without_them(server_name: str) -> None:
    with strict_server(without_tools_only(NO_TOOLS[server_name])) as server:
        async with talking(server) as stage:
            assert (await stage.play("hello")).state == "completed"
            assert (await stage.play("again")).state == "completed"
            (notice,) = notices(stage)
    assert ["tools" in body for body in server.received] == [True, False, False]
    assert notice.startswith("box/model takes no tools")


async def test_earlier_calls_are_text_for_a_model_without_tools() -> None:
    with strict_server(without_tools_only(NO_TOOLS["Ollama"])) as server:
        async with talking(server, with_a_call()) as stage:
            assert (await stage.play("and now?")).state == "completed"
    messages = server.received[-1]["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert all(isinstance(each["content"], str) for each in messages)
    assert not any("tool_calls" in each for each in messages)
    assert messages[2]["content"] == (
        '[The tool look was called with {"at":"sky"}. Result, success:]\nblue sky'
    )


async def test_the_settings_say_that_a_model_takes_no_tools() -> None:
    models = {"box/model": ModelSettings(tools=False)}
    with strict_server() as server:
        async with talking(server, with_a_call(), models=models) as stage:
            assert (await stage.play("and now?")).state == "completed"
            assert notices(stage) == []
    (body,) = server.received
    assert "tools" not in body
    assert not any(each["role"] == "tool" for each in body["messages"])


async def test_another_conversation_gets_one_notice_that_its_model_takes_no_tools() -> None:
    learned = LearnedForms()
    with strict_server(without_tools_only(NO_TOOLS["vLLM"])) as server:
        async with talking(server, learned=learned) as stage:
            await stage.play("hello")
        async with talking(server, learned=learned) as stage:
            for text in ("one", "two"):
                await stage.play(text)
            assert len(notices(stage)) == 1
    assert ["tools" in body for body in server.received] == [True, False, False, False]


def mistral_rule(body: Body) -> Refusal | None:
    """https://github.com/nearai/ironclaw/issues/1241"""
    for message in body["messages"]:
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        ids += [message["tool_call_id"]] if "tool_call_id" in message else []
        for each in ids:
            if not (len(each) == 9 and each.isalnum() and each.isascii()):
                return 400, {
                    "object": "error",
                    "message": f"Tool call id was {each} but must be a-z, A-Z, 0-9, with a length "
                    "of 9.",
                    "type": "invalid_function_call",
                    "param": None,
                    "code": "3280",
                    "raw_status_code": 400,
                }
    if "stream_options" in body:
        # https://github.com/dnakov/anon-kode/issues/53
        what = {"type": "extra_forbidden", "loc": ["body", "stream_options", "include_usage"]}
        detail = [{**what, "msg": "Extra inputs are not permitted", "input": True}]
        return 422, {
            "object": "error",
            "message": {"detail": detail},
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    return None


async def test_mistral_keeps_its_own_ids_and_gets_fitting_ones_for_other_calls() -> None:
    history = [*with_a_call(), *with_a_call("toolu_01A-b", number=2)]
    with strict_server(mistral_rule) as server:
        server.calls_tool = "D681PevKs"
        async with talking(server, history, type="mistral") as stage:
            assert (await stage.play("and now?")).state == "completed"
            server.calls_tool = None
            assert (await stage.play("thanks")).state == "completed"
    ids = [_call_ids(body) for body in server.received]
    assert len(ids) == 3  # nothing was refused
    assert ids[0] == ids[1][:2]
    assert ids[1][2] == "D681PevKs"
    assert ids[2] == ids[1]
    assert len(set(ids[2])) == 3


def _call_ids(body: Body) -> list[str]:
    return [call["id"] for each in body["messages"] for call in each.get("tool_calls") or ()]


async def test_an_unknown_server_with_mistrals_rules_is_learned() -> None:
    with strict_server(mistral_rule) as server:
        async with talking(server, with_a_call()) as stage:
            assert (await stage.play("one")).state == "completed"
            assert (await stage.play("two")).state == "completed"
    assert len(server.received) == 4  # the ids, the parameter, and then no more


STRINGS = {
    # https://github.com/OpenHands/OpenHands/issues/4643
    "Groq": "'messages.0' : for 'role:system' the following must be satisfied"
    "[('messages.0.content' : value must be a string)]",
    # https://github.com/browser-use/browser-use/issues/54
    "Groq, older": "message[4].content must be a string",
    # https://github.com/chatboxai/chatbox/issues/1740
    "DeepSeek": "Failed to deserialize the JSON body into the target type: messages[2]: invalid "
    "type: sequence, expected a string at line 1 column 2901",
}


@pytest.mark.parametrize("server_name", STRINGS)
async def test_a_server_that_wants_strings_gets_strings(server_name: str) -> None:
    def rule(body: Body) -> Refusal | None:
        is_string = all(isinstance(each["content"], str) for each in body["messages"])
        return None if is_string else refused(STRINGS[server_name])

    only_a_call = with_a_call()
    only_a_call[1] = ModelOutputEntry(
        turn_id="old-1",
        content="",
        tool_calls=only_a_call[1].tool_calls,  # type: ignore[union-attr]
        invocation=ELSEWHERE,
    )
    with strict_server(rule) as server:
        async with talking(server, only_a_call) as stage:
            assert (await stage.play("and now?")).state == "completed"
            assert stage.conversation.history.quarantined == {}
    assert [len(server.received), server.received[-1]["messages"][1]["content"]] == [2, ""]


OPTIONS = {"box/model": ModelSettings(effort="high", temperature=0.5, output_tokens=100)}
PARAMETERS = {
    # https://github.com/vercel/ai/pull/1578
    "stream_options": "property 'stream_options' is unsupported, did you mean 'stream'?",
    # https://github.com/MinLL/SkyrimNet-GamePlugin/issues/77
    "reasoning_effort": 'Invalid JSON payload received. Unknown name "reasoning_effort": Cannot '
    "find field.",
    # https://github.com/microsoft/clarity-agent/issues/59, the other way round
    "max_completion_tokens": "Unsupported parameter: 'max_completion_tokens' is not supported "
    "with this model. Use 'max_tokens' instead.",
    # https://github.com/cline/cline/issues/2764
    "temperature": "Argument not supported: temperature",
}


@pytest.mark.parametrize("name", PARAMETERS)
async def test_a_refused_parameter_is_left_out_from_then_on(name: str) -> None:
    def rule(body: Body) -> Refusal | None:
        return refused(PARAMETERS[name]) if name in body else None

    with strict_server(rule) as server:
        async with talking(server, models=OPTIONS) as stage:
            for text in ("one", "two"):
                assert (await stage.play(text)).state == "completed"
    first, second, third = server.received
    assert second.keys() == third.keys()
    assert set(first) - set(second) == {name}
    assert set(second) - set(first) == ({"max_tokens"} if name.startswith("max") else set())


@pytest.mark.parametrize(
    "sentence",
    [
        # https://github.com/camel-ai/owl/issues/532
        "litellm.UnsupportedParamsError: Anthropic doesn't support tool calling without `tools=` "
        "param specified.",
        # https://github.com/BerriAI/litellm/issues/11665
        'litellm.BadRequestError: PerplexityException - ["At body -> messages -> 0 -> content: '
        "Field required\", \"At body -> messages -> 1 -> role: Input should be 'system', 'user' or "
        "'assistant'\"].",
    ],
)
async def test_earlier_calls_become_text_for_a_call_if_their_shape_is_refused(
    sentence: str,
) -> None:
    def rule(body: Body) -> Refusal | None:
        if not any("tool_calls" in each for each in body["messages"]):
            return None
        return refused(sentence)

    learned = LearnedForms()
    with strict_server(rule) as server:
        async with talking(server, with_a_call(), learned=learned) as stage:
            assert (await stage.play("and now?")).state == "completed"
            assert stage.conversation.history.quarantined == {}
    assert ["tools" in body for body in server.received] == [True, True]
    assert learned.as_json() == {}


def test_strict_is_left_out_of_tools_and_schemas() -> None:
    body: Body = {
        "model": "m",
        "tools": [{"type": "function", "name": "look", "strict": False}],
        "text": {"format": {"type": "json_schema", "strict": True, "schema": {}}},
    }
    change = change_for("Unknown parameter: 'tools[0].strict'.", "tools[0].strict", body)
    assert change == RequestForm(without=("strict",))
    assert "strict" not in str(without_fields(body, ("strict",)))


async def test_one_call_is_tried_in_three_forms_and_what_was_learned_is_kept() -> None:
    """Each refusal of this server names one field; it refuses three."""
    wrong = ["stream_options", "temperature", "reasoning_effort"]

    def rule(body: Body) -> Refusal | None:
        named = [name for name in wrong if name in body]
        return refused(f"Unknown parameter: '{named[0]}'.", param=named[0]) if named else None

    with strict_server(rule) as server:
        async with talking(server, models=OPTIONS) as stage:
            assert (await stage.play("one")).state == "failed"
            assert len(server.received) == 3
            assert (await stage.play("two")).state == "completed"
            assert len(server.received) == 5
            assert stage.conversation.history.quarantined == {}


async def test_what_was_learned_is_kept_over_restarts_and_expires(tmp_path: Path) -> None:
    path, times = tmp_path / "forms.json", [NOW]
    with strict_server(without_tools_only(NO_TOOLS["Ollama"])) as server:
        async with talking(server, learned=LearnedForms(path, clock=lambda: times[-1])) as stage:
            await stage.play("one")
        again = LearnedForms(path, clock=lambda: times[-1])
        assert again.as_json() == {"box/model": {"form": "no tools", "at": NOW.isoformat()}}
        async with talking(server, learned=again) as stage:
            await stage.play("two")
        assert ["tools" in body for body in server.received] == [True, False, False]
        times.append(NOW + LEARNED_FOR + timedelta(seconds=1))
        assert again.of("box/model") is None
        assert LearnedForms(path, clock=lambda: times[-1]).as_json() == {}


async def test_workers_keep_what_each_of_them_learns(tmp_path: Path) -> None:
    path = tmp_path / "forms.json"
    workers = [LearnedForms(path) for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for number in range(40):
            form = RequestForm(without_tools=True)
            tasks.start_soon(workers[number % 4].learn, f"box/m{number}", "there", form)
    assert len(LearnedForms(path).as_json()) == 40
    newer = RequestForm(without_images=True)
    await workers[0].learn("box/m1", "there", newer)
    await workers[1].learn("box/m2", "there", newer)
    assert workers[1].of("box/m1") == RequestForm(without_tools=True, without_images=True)


async def test_what_was_learned_at_one_address_does_not_hold_at_another() -> None:
    forms = LearnedForms()
    await forms.learn("box/model", "http://127.0.0.1:1/v1", RequestForm(without_tools=True))
    assert forms.at("box/model", "http://127.0.0.1:2/v1") == RequestForm()
    assert forms.of("box/model") is None


def test_a_broken_file_of_forms_counts_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "forms.json"
    path.write_text("{broken")
    assert LearnedForms(path).as_json() == {}


@pytest.mark.parametrize("rule", FORM_RULES, ids=lambda rule: rule.change.in_words())
def test_each_rule_matches_the_sentences_it_quotes(rule: Any) -> None:
    assert rule.sources
    for address, sentence in rule.sources:
        assert address.startswith("https://")
        assert rule.words.search(sentence)
