"""`on_limit: hold`: a prompt whose model is rate-limited waits, and runs when the limit ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    HISTORY_REQUEST,
    PROMPT,
    REDACT,
    SESSION_FORK,
    SESSION_LIST,
    TURN_FINISHED,
    RawClient,
)
from tests.support.scripted_vendor import (
    Reply,
    ScriptedVendor,
    chat,
    chat_calls,
    refusal,
    vendor,
)
from tests.support.server_thread import serving

SOON, MUCH_LATER = "2", "3600"


def limited(seconds: str) -> Reply:
    return refusal(429, "Rate limit reached for requests", headers={"Retry-After": seconds})


@contextmanager
def attached(
    tmp_path: Path, box: ScriptedVendor, *, on_limit: str = "hold", **settings: object
) -> Iterator[tuple[int, RawClient]]:
    """A client of a server that does not retry, so that no limit is waited for in the turn."""
    provider = box.provider(on_limit=on_limit)
    whole = {"providers": [provider], "limits": {"retries_max": 0}, **settings}
    with serving(tmp_path / "data", whole) as port, RawClient(port) as client:
        client.hello()
        yield port, client


def prompted(client: RawClient, text: str = "hello", **fields: object) -> Any:
    """The end of the prompt's turn."""
    client.request(PROMPT, {"text": text, **fields})
    return client.event(TURN_FINISHED).json


def row_of(client: RawClient, session_id: str) -> Any:
    rows = client.request(SESSION_LIST).json["sessions"]
    return next(row for row in rows if row["session_id"] == session_id)


def prompts_sent(box: ScriptedVendor) -> list[str]:
    """What the users' messages of the last request say."""
    return [each["content"] for each in box.requests[-1]["messages"] if each["role"] == "user"]


def test_a_rate_limited_prompt_is_held_and_answered_once_when_the_limit_ends(
    tmp_path: Path,
) -> None:
    with vendor(limited(SOON), chat("hi")) as box, attached(tmp_path, box) as (_, client):
        end = prompted(client)
        assert (end["state"], end["error"]["code"]) == ("interrupted", "rate_limited")
        assert "held until" in end["error"]["message"]
        turn_id, due_at = end["later"]["turn_id"], end["later"]["due_at"]
        attached_again = client.request(ATTACH, {"session_id": end["session_id"]}).json
        (waiting,) = attached_again["later"]
        assert (waiting["turn_id"], waiting["due_at"]) == (turn_id, due_at)
        assert (waiting["limited"], waiting["preview"]) == (True, "hello")
        row = row_of(client, end["session_id"])
        assert (row["state"], row["due_at"]) == ("idle", due_at)
        assert client.answer_of(turn_id) == "hi"
        assert prompts_sent(box) == ["hello"]
        assert len(box.requests) == 2
        assert "later" not in row_of(client, end["session_id"])


def test_a_prompt_held_twice_is_answered_once(tmp_path: Path) -> None:
    replies = limited("1"), limited("1"), chat("hi")
    with vendor(*replies) as box, attached(tmp_path, box) as (_, client):
        end = prompted(client)
        client.event(TURN_FINISHED)
        last = client.event(TURN_FINISHED).json
        assert last["state"] == "completed"
        assert prompts_sent(box) == ["hello"]
        page = client.request(HISTORY_REQUEST, {"session_id": end["session_id"]}).json
        assert [each["content"] for each in page["messages"]][-1] == "hi"


def test_other_prompts_do_not_wait_behind_a_held_one(tmp_path: Path) -> None:
    replies = limited(MUCH_LATER), chat("hi")
    with vendor(*replies) as box:
        other = box.provider("other")
        providers = [box.provider(on_limit="hold"), other]
        with attached(tmp_path, box, providers=providers, fallback=[]) as (_, client):
            prompted(client, "first")
            end = prompted(client, "second", model="other/m")
            assert end["state"] == "completed"
            assert prompts_sent(box) == ["second"]


def test_a_fallback_is_asked_before_a_prompt_is_held(tmp_path: Path) -> None:
    with vendor(limited(MUCH_LATER), chat("hi")) as box:
        providers = [box.provider(on_limit="hold"), box.provider("other")]
        with attached(tmp_path, box, providers=providers, fallback=["other/m"]) as (_, client):
            end = prompted(client)
            assert (end["state"], end["model"]) == ("completed", "other/m")


@pytest.mark.parametrize("on_limit", ["fail", "hold"])
def test_a_limit_after_the_first_call_or_without_hold_fails_the_turn(
    tmp_path: Path, on_limit: str
) -> None:
    calls = (chat_calls(("c1", "now", "{}")),) if on_limit == "hold" else ()
    settings: Any = {"tools": {"now": "allow"}}
    with (
        vendor(*calls, limited(MUCH_LATER)) as box,
        attached(tmp_path, box, on_limit=on_limit, **settings) as (_, client),
    ):
        end = prompted(client)
        assert (end["state"], end.get("later")) == ("failed", None)
        assert len(box.requests) == len(calls) + 1


def test_a_held_prompt_survives_a_restart_and_is_cancelled_like_any_for_later(
    tmp_path: Path,
) -> None:
    with vendor(limited(MUCH_LATER), chat("hi")) as box:
        with attached(tmp_path, box) as (_, client):
            turn_id = prompted(client)["later"]["turn_id"]
        with attached(tmp_path, box) as (_, client):
            assert client.request(CANCEL, {"turn_id": turn_id}).json == {"cancelled": True}
            (row,) = client.request(SESSION_LIST).json["sessions"]
            assert not {"later", "due_at"} & row.keys()
        assert len(box.requests) == 1


def test_a_copy_holds_a_prompt_that_waits_for_its_limit(tmp_path: Path) -> None:
    with vendor(limited(MUCH_LATER)) as box, attached(tmp_path, box) as (_, client):
        session_id = prompted(client)["session_id"]
        copy = client.request(SESSION_FORK, {"session_id": session_id}).json["session_id"]
        (waiting,) = client.request(ATTACH, {"session_id": copy}).json["later"]
        assert (waiting["held"], waiting["limited"]) == (True, True)


@pytest.mark.parametrize("which", ["first", "held", "run"])
def test_redacting_any_form_of_a_held_prompt_erases_all_of_them(tmp_path: Path, which: str) -> None:
    seconds = "1" if which == "run" else MUCH_LATER
    with (
        vendor(limited(seconds), chat("hi")) as box,
        attached(tmp_path, box) as (_, client),
    ):
        end = prompted(client, "my password is 12345678x")
        session_id = end["session_id"]
        client.request(
            PROMPT, {"text": "x", "not_before": 3_600, "session_id": session_id}
        )  # another one, which stays
        if which == "run":
            assert client.answer_of(end["later"]["turn_id"]) == "hi"
        whole = {"session_id": session_id, "view": "entries", "limit": 200}
        entries = client.request(HISTORY_REQUEST, whole).json["messages"]
        own = [each["seq"] for each in entries if "12345678x" in each["content"]]
        place = {"first": 0, "held": 1, "run": -1}[which]
        assert len(own) == (3 if which == "run" else 2)
        client.request(REDACT, {"session_id": session_id, "seq": own[place]})
        row = row_of(client, session_id)
        assert row["later"] == 1
    (path,) = (tmp_path / "data" / "history").glob("session_*.json")
    lines = [line for line in path.read_text().splitlines() if '"renamed"' not in line]
    assert not [line for line in lines if "12345678x" in line]


def test_nplt_ask_tells_when_its_prompt_runs_and_later_lists_it(tmp_path: Path) -> None:
    with vendor(limited(MUCH_LATER)) as box, attached(tmp_path, box) as (port, _):
        address = f"nplt://127.0.0.1:{port}"
        asked = run_nplt("ask", "hello", home=tmp_path, server=address)
        assert (asked.returncode, asked.stdout) == (9, "")
        assert "held until" in asked.stderr
        printed = json.loads(
            run_nplt("later", "@last", "--json", home=tmp_path, server=address).stdout
        )
        assert [each["limited"] for each in printed] == [True]
        assert "rate limit" in run_nplt("later", "@last", home=tmp_path, server=address).stdout
        asked = run_nplt("ask", "--json", "hello", home=tmp_path, server=address)
        assert json.loads(asked.stdout)["later"]["due_at"]
