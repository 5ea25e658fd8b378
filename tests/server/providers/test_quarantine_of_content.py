"""Only content is quarantined: a complaint about the form of a request hides nothing."""

from __future__ import annotations

import pytest
from tests.server.providers.test_request_forms import talking, with_a_call
from tests.support.strict_server import Body, Refusal, refused, strict_server

from nplt_storage.entries import QuarantineEntry

COMPLAINTS = {
    "a shape": "messages[1].content must be a string",
    "a role": "messages[1]: Conversation roles must alternate user/assistant/user/assistant/...",
    "a parameter": "messages[1]: unknown field `name`",
    "the size": "messages[1].content: String should have at most 100 characters",
    "tools": "messages[1]: tool_calls are not supported",
    "pictures": "messages[1]: unknown variant `image_url`, expected `text`",
}


async def test_a_server_with_one_wrong_rule_hides_nothing_in_fifty_turns() -> None:
    """It refuses every second request for the shape of a message that has that shape."""
    for message in ("messages[0].content must be a string", "messages[1].content: not taken"):
        count = 0

        def rule(body: Body, message: str = message) -> Refusal | None:
            nonlocal count
            count += 1
            return refused(message) if count % 2 == 0 else None

        with strict_server(rule) as server:
            async with talking(server) as stage:
                states = [(await stage.play(f"turn {number}")).state for number in range(50)]
                entries = stage.conversation.history.entries
                assert not any(isinstance(each, QuarantineEntry) for each in entries)
                assert states == ["completed"] * 50
                prompts = [each["content"] for each in server.received[-1]["messages"][::2]]
                assert [f"turn {number}" for number in range(50)] == prompts


@pytest.mark.parametrize("about", COMPLAINTS)
async def test_a_complaint_about_the_form_of_a_message_hides_no_entry(about: str) -> None:
    def rule(body: Body) -> Refusal | None:
        return refused(COMPLAINTS[about]) if len(body["messages"]) > 2 else None

    with strict_server(rule) as server:
        async with talking(server) as stage:
            assert (await stage.play("one")).state == "completed"
            finished = await stage.play("two")
            assert finished.state == "failed"
            assert finished.error is not None
            assert COMPLAINTS[about][:20] in str(finished.error["message"])
            assert stage.conversation.history.quarantined == {}
            server.rule = lambda body: None
            assert (await stage.play("three")).state == "completed"
    prompts = [
        each["content"] for each in server.received[-1]["messages"] if each["role"] == "user"
    ]
    assert [text for prompt in prompts for text in prompt.split("\n\n")] == ["one", "two", "three"]


async def test_an_unclear_refusal_hides_an_entry_only_if_it_is_refused_twice() -> None:
    def rule(body: Body) -> Refusal | None:
        places = [n for n, each in enumerate(body["messages"]) if "poison" in each["content"]]
        return refused(f"messages[{places[0]}].content: no") if places else None

    with strict_server() as server:
        async with talking(server) as stage:
            assert (await stage.play("poison")).state == "completed"
            server.rule = rule
            assert (await stage.play("two")).state == "completed"
            assert [*stage.conversation.history.quarantined] == [1]
            assert len(server.received) == 4


ABOUT_CALLS = (
    (
        "https://github.com/google-gemini/gemini-cli/issues/26486",
        "Please ensure that function call turn comes immediately after a user turn or after a "
        "function response turn.",
    ),
    (
        "https://github.com/microsoft/vscode/issues/299295",
        "Please ensure that the number of function response parts is equal to the number of "
        "function call parts of the function call turn.",
    ),
    (
        "https://github.com/mistralai/client-ts/issues/106",
        "Not the same number of function calls and responses",
    ),
)


@pytest.mark.parametrize(("address", "words"), ABOUT_CALLS)
async def test_a_complaint_about_the_order_of_calls_hides_nothing_and_is_avoided(
    address: str, words: str
) -> None:
    def rule(body: Body) -> Refusal | None:
        has_calls = any("tool_calls" in each for each in body["messages"])
        return refused(words) if has_calls else None

    assert address.startswith("https://")
    with strict_server(rule) as server:
        async with talking(server, with_a_call()) as stage:
            assert (await stage.play("two")).state == "completed"
            assert stage.conversation.history.quarantined == {}
    assert len(server.received) == 2
