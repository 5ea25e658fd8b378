"""`continue`: the model goes on with an answer that was cut, and views join the parts."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import (
    CLEAR_REQUEST,
    ENTRY,
    HISTORY_REQUEST,
    PROMPT,
    Frame,
    RawClient,
)
from tests.support.scripted_vendor import Reply, chat, events, message, refusal, vendor
from tests.support.server_thread import serving

GO_ON = {"text": "", "continue": True}


def test_a_cut_answer_goes_on_and_views_join_its_parts(tmp_path: Path) -> None:
    parts = (chat("The quick bro", "length", tokens=9), chat("wn fox", "length"), chat(" jumps."))
    with (
        vendor(*parts) as server,
        serving(tmp_path / "data", {"providers": [server.provider()]}) as port,
        RawClient(port) as client,
    ):
        address = f"nplt://127.0.0.1:{port}"
        client.hello()
        client.request(PROMPT, {"text": "Say the sentence."})
        client.until_finished()
        seen: list[Frame] = []
        for message_id in ("m1", "m2"):
            receipt = client.request(PROMPT, {**GO_ON, "message_id": message_id}).json
            again = client.request(PROMPT, {**GO_ON, "message_id": message_id}).json
            assert (again["duplicate"], again["turn_id"]) == (True, receipt["turn_id"])
            seen = client.until_finished()
        prompt = next(e.json["entry"] for e in seen if e.type == ENTRY)
        assert (prompt["role"], prompt["continues"]) == ("user", 4)

        page = client.request(HISTORY_REQUEST, {}).json["messages"]
        assert [one.get("continues") for one in page] == [None, None, 2, None, 4, None]
        told = server.requests[1]["messages"]
        assert [one["role"] for one in told[-3:]] == ["user", "assistant", "user"]
        assert "Go on with it exactly where it stops" in told[-1]["content"]

        shown = run_nplt("history", "@last", home=tmp_path, server=address).stdout
        assert "The quick brown fox jumps." in shown
        assert "Go on with it" not in shown
        for form in ("md", "html"):
            exported = run_nplt("export", "--format", form, home=tmp_path, server=address).stdout
            assert "The quick brown fox jumps." in exported
        raw = run_nplt("export", "--format", "json", home=tmp_path, server=address).stdout
        assert len(json.loads(raw)["messages"]) == 6

        refused = client.request(PROMPT, GO_ON).json
        assert (refused["code"], refused["field"]) == ("conflict", "continue")


def test_there_is_nothing_to_go_on_with_in_a_new_or_cleared_conversation(tmp_path: Path) -> None:
    with (
        vendor(chat("The quick bro", "length")) as server,
        serving(tmp_path / "data", {"providers": [server.provider()]}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        assert client.request(PROMPT, GO_ON).json["code"] == "conflict"
        assert client.request(PROMPT, {"text": " "}).json["field"] == "text"
        client.request(PROMPT, {"text": "Say the sentence."})
        client.until_finished()
        client.request(CLEAR_REQUEST)
        assert client.request(PROMPT, GO_ON).json["code"] == "conflict"


def only_thinking() -> Reply:
    delta = {"role": "assistant", "reasoning_content": "hm"}
    choices = ({"delta": delta}, {"delta": {}, "finish_reason": "length"})
    chunks = [orjson.dumps({"choices": [{"index": 0, **choice}]}) for choice in choices]
    return events(*(b"data: " + chunk for chunk in chunks), b"data: [DONE]")


NO = refusal(400, "no")


# A refused request is sent again once, unchanged, before the turn fails.
@pytest.mark.parametrize("failures", [(NO, NO), (only_thinking(),)], ids=["refused", "thinking"])
def test_going_on_is_tried_again_after_a_failure(
    tmp_path: Path, failures: tuple[Reply, ...]
) -> None:
    parts = (chat("The quick bro", "length"), *failures, chat("wn fox"))
    with (
        vendor(*parts) as server,
        serving(tmp_path / "data", {"providers": [server.provider()]}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        client.request(PROMPT, {"text": "Say the sentence."})
        client.until_finished()
        states = []
        for _ in range(2):
            client.request(PROMPT, GO_ON)
            states.append(client.until_finished()[-1].json["state"])
        shown = run_nplt("history", "@last", home=tmp_path, server=f"nplt://127.0.0.1:{port}")
    assert states == ["failed", "completed"]
    assert "The quick brown fox" in shown.stdout


def test_claude_before_4_6_is_sent_the_beginning_of_its_answer_and_later_ones_are_asked(
    tmp_path: Path,
) -> None:
    # platform.claude.com/docs/en/about-claude/models/migration-guide: "Prefilling assistant
    # messages returns a 400 error on Sonnet 4.6"
    for model, roles in (
        ("claude-haiku-4-5", ["user", "assistant"]),
        ("claude-sonnet-4-6", ["user", "assistant", "user"]),
    ):
        cut, rest = message("The quick bro", "max_tokens"), message("wn fox")
        with vendor(cut, rest) as server:
            claude = server.claude(models=[model])
            with (
                serving(tmp_path / model, {"providers": [claude]}) as port,
                RawClient(port) as client,
            ):
                client.hello()
                for prompt in ({"text": "Say it.", "options": {"effort": "none"}}, GO_ON):
                    client.request(PROMPT, prompt)
                    assert client.until_finished()[-1].json["state"] == "completed"
            sent = server.requests[1]["messages"]
            assert [one["role"] for one in sent] == roles, model


@pytest.mark.parametrize(
    ("kind", "path", "rest"),
    [
        # github.com/vercel/ai/pull/3256, of Mistral: "automatically remove duplicated content"
        ("mistral", "/v1", "The quick brown fox"),
        ("mistral", "/v1", "wn fox"),
        # api-docs.deepseek.com/guides/chat_prefix_completion
        ("deepseek", "/beta", "wn fox"),
    ],
)
def test_a_vendor_that_documents_prefixes_is_sent_the_beginning_of_its_answer(
    tmp_path: Path, kind: str, path: str, rest: str
) -> None:
    with vendor(chat("The quick bro", "length"), chat(rest)) as server:
        base_url = server.url.removesuffix("/v1") + path
        box = server.provider(type=kind, base_url=base_url)
        with serving(tmp_path / "data", {"providers": [box]}) as port, RawClient(port) as client:
            client.hello()
            for prompt in ({"text": "Say it."}, GO_ON):
                client.request(PROMPT, prompt)
                assert client.until_finished()[-1].json["state"] == "completed"
            stored = client.request(HISTORY_REQUEST, {}).json["messages"][-1]["content"]
    last = server.requests[1]["messages"][-1]
    assert (last["role"], last["content"], last["prefix"]) == ("assistant", "The quick bro", True)
    assert stored == "wn fox"


@pytest.mark.parametrize("more", [{"type": "deepseek"}, {"type": "openai"}])
def test_a_model_is_asked_to_go_on_where_no_prefix_is_documented(
    tmp_path: Path, more: dict[str, str]
) -> None:
    with (
        vendor(chat("The quick bro", "length"), chat("wn fox")) as server,
        serving(tmp_path / "data", {"providers": [server.provider(**more)]}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        for prompt in ({"text": "Say it."}, GO_ON):
            client.request(PROMPT, prompt)
            client.until_finished()
    assert [one["role"] for one in server.requests[1]["messages"]][-2:] == ["assistant", "user"]
    assert "prefix" not in str(server.requests[1])


def test_a_model_that_refuses_prefixes_is_asked_to_go_on(tmp_path: Path) -> None:
    # github.com/vybestack/llxprt-code/pull/3695
    no = "This model does not support assistant message prefill. The conversation must end with a "
    replies = (chat("The quick bro", "length"), refusal(400, no + "user message."), chat("wn fox"))
    with (
        vendor(*replies) as server,
        serving(tmp_path / "data", {"providers": [server.provider(type="mistral")]}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        for prompt in ({"text": "Say it."}, GO_ON):
            client.request(PROMPT, prompt)
            assert client.until_finished()[-1].json["state"] == "completed"
    sent = [request["messages"][-1]["role"] for request in server.requests]
    assert sent == ["user", "assistant", "user"]


def test_an_answer_that_ends_with_white_space_is_no_prefill(tmp_path: Path) -> None:
    # github.com/anthropics/anthropic-sdk-python/issues/461: "final assistant content cannot end
    # with trailing whitespace"
    cut, rest = message("The quick ", "max_tokens"), message("brown fox")
    with (
        vendor(cut, rest) as server,
        serving(
            tmp_path / "data", {"providers": [server.claude(models=["claude-haiku-4-5"])]}
        ) as port,
        RawClient(port) as client,
    ):
        client.hello()
        for prompt in ({"text": "Say it.", "options": {"effort": "none"}}, GO_ON):
            client.request(PROMPT, prompt)
            client.until_finished()
    assert [one["role"] for one in server.requests[1]["messages"]] == ["user", "assistant", "user"]


def test_a_paused_turn_goes_on_by_itself_within_bounds(tmp_path: Path) -> None:
    # platform.claude.com/docs/en/build-with-claude/handling-stop-reasons: "pause_turn": the
    # response may be sent back as it is to let the model go on
    paused = message("One, ", "pause_turn", tokens=5)
    with (
        vendor(paused, paused, message("three.", tokens=5)) as server,
        serving(tmp_path / "data", {"providers": [server.claude()]}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        client.request(PROMPT, {"text": "Count."})
        finished = client.until_finished()[-1].json
        stored = client.request(HISTORY_REQUEST, {}).json["messages"][-1]
        assert (stored["content"], stored["stop_reason"]) == ("One, One, three.", "end")
        assert finished["usage"] == {"input_tokens": 60, "output_tokens": 15}
        assert len(server.requests) == 3

        server.replies[:] = [paused]
        client.request(PROMPT, {"text": "Count."})
        finished = client.until_finished()[-1].json
        assert (finished["state"], finished["stop_reason"]) == ("completed", "pause")
        assert len(server.requests) == 3 + 6
