"""What a model is shown, what it used, which tools it has: asked from the command line."""

from __future__ import annotations

from pathlib import Path

import orjson
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.client.hostile_bits import BITS, FORBIDDEN
from tests.client.nplt_process import run_nplt

from nplt_client import sync
from nplt_client.render.reports import (
    context_text,
    epoch_text,
    first_contact_text,
    model_words,
    tools_text,
    usage_text,
)
from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_protocol.messages import ContextAccount, EpochBegun, ModelChoice, ToolList, UsageAccount

ACCOUNT = ContextAccount(
    session_id="s",
    model="offline/echo",
    epoch=18,
    budget_tokens=6_000,
    entries=(
        {"seq": 0, "kind": "tools", "tokens": 799, "reason": "tools"},
        {"seq": 1, "kind": "", "through_seq": 8, "tokens": 0, "reason": "omitted"},
        {"seq": 9, "kind": "notebook", "tokens": 0, "reason": "not_for_models"},
        {
            "seq": 16,
            "kind": "model_input",
            "role": "user",
            "detail": "summary",
            "reason": "summary",
            "tokens": 602,
            "content": "What\nwas it?",
        },
        {
            "seq": 17,
            "kind": "model_output",
            "role": "assistant",
            "detail": "live",
            "tokens": 1_024,
            "content": "",
            "tool_calls": [{"tool_name": "now", "arguments": "{}"}],
        },
        {
            "seq": 19,
            "kind": "tool_results",
            "role": "tool",
            "detail": "live",
            "tokens": 7,
            "results": [{"tool_name": "now", "status": "failed", "result": "no clock"}],
        },
        {
            "seq": 0,
            "kind": "model_input",
            "role": "user",
            "detail": "live",
            "tokens": 3,
            "content": "go on",
        },
    ),
    totals={"tokens": 2_435, "tools": 799, "shown": 4, "left_out": 9},
)
USAGE = UsageAccount(
    session_id="s",
    model="a/one",
    billed={"input_tokens": 4_470, "output_tokens": 849, "cached_tokens": 0, "calls": 10},
    occupancy={"tokens": 1_716, "context_tokens": 4_096, "percent": 41.9, "source": "api"},
    estimate={"tokens": 1_643, "counter": "o200k"},
)
MADE = replace(
    ACCOUNT,
    call=17,
    totals={**ACCOUNT.totals, "trimmed": True, "sent_tokens": 2_400, "exact": False},
)
HOSTILE = st.lists(st.sampled_from(BITS) | st.text(max_size=4), max_size=8).map("".join)


def test_a_context_report_is_printed_as_a_table() -> None:
    assert context_text(ACCOUNT).splitlines()[:-1] == [
        "ENTRY  WHO        DETAIL   TOKENS  WHY             WHAT",
        "-      tools      -           799",
        "1-8    several    -             0  no room",
        "9      notebook   -             0  not for models",
        "16     user       summary     602                  What was it?",
        "17     assistant  live      1,024                  calls now {}",
        "19     tool       live          7                  now (failed): no clock",
        "next   user       live          3                  go on",
    ]


def test_a_context_report_is_summed_up_in_one_line() -> None:
    totals = "offline/echo · 2,435 of 6,000 tokens (40.6 %) · tools 799 · 9 left out · "
    assert context_text(ACCOUNT).endswith(f"\n{totals}epoch of entry 18")
    full = replace(ACCOUNT, epoch=0, begins_epoch="budget")
    assert context_text(full).endswith(
        f"\n{totals}no epoch yet · a new epoch would begin: there is no more room"
    )


def test_the_context_of_a_call_that_was_made_names_its_answer_and_whether_it_is_exact() -> None:
    last_line = context_text(MADE).splitlines()[-1]
    assert last_line.startswith("sent to offline/echo for entry 17 · ")
    assert last_line.endswith("built again, not exact: 2,400 tokens were counted then")


def test_a_range_of_entries_is_one_row_of_the_context_table() -> None:
    runs: tuple[JsonObject, ...] = (
        {"seq": 1, "through_seq": 4_000, "kind": "", "tokens": 9_000, "detail": "gist"},
        {"seq": 4_001, "through_seq": 4_008, "kind": "", "tokens": 7, "detail": "mixed"},
        {"seq": 4_009, "through_seq": 4_010, "kind": "", "tokens": 0, "reason": "mixed"},
    )
    assert context_text(replace(ACCOUNT, entries=runs)).splitlines()[1:-1] == [
        "1-4000     several  gist     9,000                   (4,000 entries)",
        "4001-4008  several  mixed        7                   (8 entries)",
        "4009-4010  several  -            0  several reasons",
    ]


def test_unknown_reason_codes_of_a_newer_server_are_shown_unchanged() -> None:
    row: JsonObject = {"seq": 1, "kind": "mood", "tokens": 1, "reason": "too_sad", "new": [1]}
    shown = context_text(replace(ACCOUNT, entries=(row,), begins_epoch="full_moon"))
    assert "1      mood  -            1  too sad" in shown
    assert "would begin: full_moon" in shown


def test_usage_keeps_billed_occupied_and_estimated_apart() -> None:
    assert usage_text(USAGE).splitlines() == [
        "model      a/one",
        "billed     4,470 tokens in, 849 out, 10 calls",
        "occupancy  1,716 of 4,096 tokens (41.9 %) in the last call, as the provider counts",
        "estimate   1,643 tokens in the next call (o200k)",
        "cost       unknown: these models have no prices in the settings",
    ]


def test_usage_has_a_line_per_model_and_marks_an_incomplete_cost() -> None:
    models: list[JsonValue] = [
        {"model": "a/one", "input_tokens": 1_000, "cached_tokens": 400, "calls": 1},
        {
            "model": "b/two",
            "input_tokens": 3_470,
            "output_tokens": 849,
            "calls": 9,
            "cost": "0.0035",
        },
    ]
    billed: JsonObject = {**USAGE.billed, "models": models}
    cost: JsonObject = {"amount": "0.0035", "currency": "USD", "partial": True}
    shown = usage_text(replace(USAGE, billed=billed, cost=cost))
    assert "  a/one    1,000 tokens in (400 cached), 0 out, 1 call, price unknown\n" in shown
    assert "  b/two    3,470 tokens in, 849 out, 9 calls, 0.0035 USD\n" in shown
    assert shown.endswith("cost       0.0035 USD and an unknown part: some models have no price")


def test_tools_are_listed_with_the_first_sentence_of_their_description() -> None:
    tool: JsonObject = {
        "name": "notebook",
        "class": "write",
        "policy": "ask",
        "description": "Changes your notebook. What stands\nin it stays in view.",
    }
    assert tools_text(ToolList(session_id="s", tools=(tool,))).splitlines() == [
        "NAME      CLASS  POLICY  DESCRIPTION",
        "notebook  write  ask     Changes your notebook.",
    ]
    assert tools_text(ToolList(session_id="s", tools=())) == "no tools"


def test_a_compaction_reports_freed_tokens_and_the_summary_entry() -> None:
    begun = EpochBegun(
        session_id="s", epoch=9, reason="asked", tokens_before=5_100, tokens_after=640, compaction=8
    )
    assert epoch_text(begun) == ("compacted: 5,100 tokens are now 640, with a summary (entry 8)")


@given(HOSTILE)
def test_context_and_usage_reports_are_sanitized(text: str) -> None:
    row: JsonObject = {"seq": 1, "kind": text, "detail": text, "reason": text, "content": text}
    call: JsonObject = {"seq": 2, "tool_calls": [{"tool_name": text, "arguments": text}]}
    result: JsonObject = {"seq": 3, "results": [{"tool_name": text, "status": text}]}
    bill: JsonObject = {"models": [{"model": text}, {"model": text}]}
    output: JsonObject = {"source": text, "counter": text, "amount": text, "currency": text}
    tool: JsonObject = {"name": text, "class": text, "policy": text, "description": text}
    context = replace(ACCOUNT, model=text, entries=(row, call, result), begins_epoch=text)
    usage = replace(USAGE, model=text, billed=bill, occupancy=output, estimate=output, cost=output)
    shown = [
        context_text(context),
        usage_text(usage),
        tools_text(ToolList(session_id=text, tools=(tool,))),
    ]
    assert not FORBIDDEN.search("\n".join(shown))
    assert [one.count("\n") for one in shown] == [4, 6, 1]


def test_the_introduction_says_where_a_server_on_another_port_listens() -> None:
    moved = first_contact_text("offline/echo", (), address="nplt://127.0.0.1:45479")
    assert "Your server listens at nplt://127.0.0.1:45479" in moved
    assert "listens at" not in first_contact_text("offline/echo", ())


def test_context_usage_and_tools_commands_print_text_and_json(server: str, tmp_path: Path) -> None:
    with sync.connect(server) as client:
        client.ask_text("!tool now {}")
        session_id = client.session_id
        account, usage, tools = client.context(text="and?"), client.usage(), client.tools()
    shown = run_nplt("context", session_id[:12], "--text", "and?", home=tmp_path, server=server)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == context_text(account) + "\n"
    assert "calls now {}" in shown.stdout
    output = run_nplt("usage", session_id, "--json", home=tmp_path, server=server)
    assert orjson.loads(output.stdout)["billed"] == usage.billed
    listed = run_nplt("tools", home=tmp_path, server=server)
    assert listed.stdout == tools_text(tools) + "\n"


def test_an_unknown_conversation_is_wrong_usage(server: str, tmp_path: Path) -> None:
    done = run_nplt("context", "nowhere to be found", home=tmp_path, server=server)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere to be found" in done.stderr


def test_a_chat_shows_its_context_and_undoes_turns(server: str, tmp_path: Path) -> None:
    output = "/undo\noops\n/undo\none\ntwo\n/undo\n/context three\n/usage\n/tools\n/compact"
    done = run_nplt("chat", home=tmp_path, server=server, stdin=output)
    assert (done.returncode, done.stdout) == (0, "oops\none\ntwo\n")
    nothing, first, taken, *rest = done.stderr.splitlines()
    assert nothing == "there is nothing to take back"
    assert first == "taken back: oops (/redo brings it back)"
    assert taken == "taken back: two (/redo brings it back)"
    assert rest[0].split() == ["ENTRY", "WHO", "DETAIL", "TOKENS", "WHY", "WHAT"]
    shown = rest[2:8]
    assert "rolled back" in shown[0]
    words = [line.split()[-1] for line in shown]
    assert [word for word in words if word in ("oops", "one", "two", "three")] == [
        "one",
        "one",
        "three",
    ]
    assert any(line.startswith("billed ") for line in rest)
    assert any(line.startswith("notebook ") for line in rest)
    assert "compacting would not make the context shorter" in rest[-1]


def test_usage_and_context_give_the_same_share_also_after_a_rollback(server: str) -> None:
    def shares(client: sync.Client) -> tuple[float, JsonValue]:
        account = client.context()
        tokens = account.totals["tokens"]
        assert isinstance(tokens, int)
        share = round(100 * tokens / account.budget_tokens, 1)
        return share, client.usage().estimate["percent"]

    with sync.connect(server) as client:
        client.ask_text(f"!slow 0.1 {'word ' * 60_000}")
        before = shares(client)
        client.roll_back(0)
        after = shares(client)
    assert before[0] == before[1] != after[0] == after[1]


def test_models_are_chosen_by_window_and_price() -> None:
    choice = ModelChoice(
        model="a/one",
        previous_model="a/one",
        models=("a/one", "local/two", "a/three"),
        facts={
            "a/one": {"context_tokens": 128_000, "price_in": 1.25, "price_out": 10.0},
            "local/two": {"context_tokens": 8_192, "price_in": 0.0, "price_out": 0.0},
            "a/three": {"context_tokens": 8_192},
        },
    )
    assert [model_words(choice, name) for name in (*choice.models, "unlisted")] == [
        "128,000 tokens · $1.25 in, $10 out per million",
        "8,192 tokens · free",
        "8,192 tokens · price unknown",
        "",
    ]


def test_the_blocking_client_compacts_and_rolls_back(server: str) -> None:
    with sync.connect(server) as client:
        for number in ("one", "two"):
            client.ask_text(f"!slow 0.1 {number} {'word ' * 300}")
        begun = client.compact()
        assert (begun.reason, begun.epoch) == ("asked", 5)
        assert client.roll_back(2).head_seq == 6
        assert client.redo().head_seq == 7
        turn_id = str(client.history().messages[0]["turn_id"])
        assert client.roll_back(turns=[turn_id]).turns == (turn_id,)
        assert [message["seq"] for message in client.history().messages] == [3, 4]
        assert client.roll_back(2).head_seq == 9
        assert [message["seq"] for message in client.history().messages] == [1, 2]
