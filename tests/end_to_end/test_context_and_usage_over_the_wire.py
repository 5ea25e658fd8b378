"""What a model is shown, which tools it has, what it cost: asked over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    COMPACT,
    CONTEXT_REQUEST,
    HISTORY_REQUEST,
    ROLLBACK,
    TOOLS,
    USAGE,
    RawClient,
)
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


def test_a_context_report_accounts_for_every_entry(client: RawClient) -> None:
    client.ask("hello there")
    account = client.request(CONTEXT_REQUEST, {"text": "and now?"}).json
    shown = [row for row in account["entries"] if "detail" in row]
    assert [(row["role"], row["content"]) for row in shown] == [
        ("user", "hello there"),
        ("assistant", "hello there"),
        ("user", "and now?"),
    ]
    assert sum(row["tokens"] for row in account["entries"]) == account["totals"]["tokens"]
    assert account["budget_tokens"] > account["totals"]["tokens"]


def test_a_notebook_is_stored_shown_and_rolled_back(client: RawClient) -> None:
    client.ask('!tool notebook {"action": "write", "text": "milk"}')
    client.ask("what is in it?")
    account = client.request(CONTEXT_REQUEST).json
    results = next(row for row in account["entries"] if "results" in row)
    assert "## Notebook\nmilk" in results["results"][0]["result"]
    client.request(ROLLBACK, {"to_seq": 1})
    client.ask("and now?")
    account = client.request(CONTEXT_REQUEST).json
    assert "milk" not in str([row.get("content") for row in account["entries"]])


def test_a_rollback_hides_the_later_turns_from_the_model(client: RawClient) -> None:
    client.ask("one")
    client.ask("two")
    done = client.request(ROLLBACK, {"to_seq": 2}).json
    assert done["head_seq"] == 5
    account = client.request(CONTEXT_REQUEST).json
    assert [row["content"] for row in account["entries"] if "detail" in row] == ["one", "one"]
    page = client.request(HISTORY_REQUEST).json
    assert [message["content"] for message in page["messages"]] == ["one", "one"]


def test_tools_are_listed_with_schema_class_and_policy(client: RawClient) -> None:
    tools = {tool["name"]: tool for tool in client.request(TOOLS).json["tools"]}
    assert list(tools) == [
        "now",
        "sys_monitor",
        "read_result",
        "search_history",
        "notebook",
        "todo",
    ]
    assert (tools["notebook"]["class"], tools["notebook"]["policy"]) == ("write", "allow")
    assert tools["sys_monitor"]["schema"]["properties"]["metric"]["enum"] == [
        "cpu",
        "memory",
        "disk",
        "all",
    ]


def test_usage_separates_billed_occupancy_and_estimate(client: RawClient) -> None:
    client.ask("three small words")
    client.ask("again")
    usage = client.request(USAGE).json
    assert usage["billed"]["input_tokens"] == 3 + 7
    assert usage["billed"]["calls"] == 2
    assert usage["occupancy"]["tokens"] == 7 + 1
    assert usage["estimate"]["tokens"] > 7
    assert usage["cost"] == {"amount": "0", "currency": "USD"}


def test_compact_reports_the_tokens_it_freed_and_refuses_an_empty_conversation(
    client: RawClient,
) -> None:
    assert client.request(COMPACT).json["code"] == "conflict"
    for number in range(6):
        client.ask(f"{number} " + "word " * 100)
    done = client.request(COMPACT).json
    assert done["reason"] == "asked"
    assert done["tokens_after"] < done["tokens_before"]
    account = client.request(CONTEXT_REQUEST).json
    assert account["epoch"] == done["epoch"]
    assert "live" not in {row.get("detail") for row in account["entries"][:3]}


def test_a_context_is_identical_after_a_restart(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    small = {"offline/echo": {"context_tokens": 2048, "output_tokens": 512}}
    server = start_server(models=small)
    client = connect(server)
    session_id = client.hello()["session_id"]
    for number in range(14):
        client.ask(f"{number} " + "word " * 60)
    before = client.request(CONTEXT_REQUEST, {"text": "go on"}).json
    assert before["epoch"] > 0
    assert "begins_epoch" not in before
    server.kill()
    again = connect(server.start())
    again.hello()
    asked = {"text": "go on", "session_id": session_id}
    after = again.request(CONTEXT_REQUEST, asked).json
    assert after["entries"] == before["entries"]


def shown_texts(account: dict[str, Any]) -> list[str]:
    return [row["content"] for row in account["entries"] if "detail" in row]


def test_the_context_of_a_call_ends_with_its_prompt_and_has_the_tokens_noted_then(
    client: RawClient,
) -> None:
    for text in ("one", "two", "three"):
        client.ask(text)
    account = client.request(CONTEXT_REQUEST, {"call": 4}).json
    assert shown_texts(account) == ["one", "one", "two"]
    assert (account["call"], account["model"]) == (4, "offline/echo")
    totals = account["totals"]
    assert totals["exact"]
    assert totals["tokens"] == totals["sent_tokens"]
    assert sum(row["tokens"] for row in account["entries"]) == totals["tokens"]
    last = client.request(CONTEXT_REQUEST, {"call": 0}).json
    assert (last["call"], shown_texts(last)[-1]) == (6, "three")


def test_the_context_of_a_call_shows_turns_that_were_taken_back_since(client: RawClient) -> None:
    client.ask("one")
    client.ask("two")
    client.request(ROLLBACK, {"to_seq": 2})
    account = client.request(CONTEXT_REQUEST, {"call": 4}).json
    assert shown_texts(account) == ["one", "one", "two"]


def test_the_context_of_a_call_with_tools_shows_the_results_it_was_sent(client: RawClient) -> None:
    client.ask("!tool now {}")
    account = client.request(CONTEXT_REQUEST, {"call": 0}).json
    assert [row["role"] for row in account["entries"] if "detail" in row] == [
        "user",
        "assistant",
        "tool",
    ]
    assert account["totals"]["exact"]


@pytest.mark.parametrize("asked", [{"call": 1}, {"call": 99}])
def test_an_entry_that_is_no_output_has_no_context_of_a_call(
    client: RawClient, asked: dict[str, Any]
) -> None:
    client.ask("one")
    refused = client.request(CONTEXT_REQUEST, asked).json
    assert (refused["code"], refused["field"]) == ("not_found", "call")


def test_the_context_of_a_call_takes_no_text(client: RawClient) -> None:
    client.ask("one")
    refused = client.request(CONTEXT_REQUEST, {"call": 0, "text": "and now?"}).json
    assert (refused["code"], refused["field"]) == ("malformed", "call")
