"""However much there is to tell of a context, its account fits one message."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.conversations import staged
from tests.server.test_turns import two_words

from nplt_protocol.codec import encode_reply
from nplt_protocol.codes import MessageType
from nplt_protocol.messages import ContextAccount
from nplt_server.context.messages import ContextMessage, ModelInputMessage, SystemMessage
from nplt_server.context.selection import CallBudget, ContextView, EpochPlan, Selection
from nplt_server.conversations.context_report import EntryReport, context_report, rows_within
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.services import ContextServices
from nplt_server.dialects import reply_text, without_markup
from nplt_server.providers import ModelCatalog, ModelFacts
from nplt_server.settings import ContextSettings
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_storage.entries import ModelInputEntry, ModelOutputEntry

FRAME = 65_535
INSTRUCTION = "You are a pirate."
TOOLS = EntryReport(seq=0, kind="tools", tokens=7, reason="tools")
SYSTEM = EntryReport(
    seq=1, kind="system_instruction", role="system", level="live", tokens=5, reason="system"
)


def _rows(texts: list[str | None]) -> list[EntryReport]:
    """Tools, an instruction, and for each text an entry that is shown; for `None` one
    that is not."""
    return [TOOLS, SYSTEM] + [
        EntryReport(seq=seq, kind="notebook", reason="not_for_models")
        if text is None
        else EntryReport(
            seq=seq, kind="model_input", role="user", level="live", tokens=3, reason="live"
        )
        for seq, text in enumerate(texts, 2)
    ]


def _row_texts(texts: list[str | None], bytes_max: int) -> list[dict[str, Any]]:
    messages: list[ContextMessage] = [SystemMessage(instruction=INSTRUCTION)]
    messages += [
        ModelInputMessage(seq=seq, content=text)
        for seq, text in enumerate(texts, 2)
        if text is not None
    ]
    selection = Selection(plan=EpochPlan())
    view = ContextView(
        messages=tuple(messages),
        sizes=[],
        tokens=0,
        call_budget=CallBudget(),
        selection=selection,
    )
    return list(rows_within(_rows(texts), view, bytes_max=bytes_max))


says = st.text(st.sampled_from('ab[é語🙂\n\x01"'), max_size=30).map(lambda text: text * 9)


@given(
    st.lists(st.none() | says, min_size=1, max_size=8),
    st.integers(1, 80),
    st.integers(2_000, 30_000),
)
def test_every_entry_is_accounted_for_within_the_room_there_is(
    texts: list[str | None], times: int, bytes_max: int
) -> None:
    texts = texts * times
    rows = _row_texts(texts, bytes_max)
    assert len(orjson.dumps(rows)) <= bytes_max
    assert sum(row["tokens"] for row in rows) == sum(row.tokens for row in _rows(texts))
    spans = [range(row["seq"], row.get("through_seq", row["seq"]) + 1) for row in rows]
    assert [seq for span in spans for seq in span] == list(range(len(texts) + 2))
    for row in rows:
        if "content" in row:
            text = INSTRUCTION if row["seq"] == 1 else texts[row["seq"] - 2]
            assert text is not None
            assert text.startswith(row["content"])
            assert row.get("truncated", False) == (row["content"] != text)


def test_a_context_report_cuts_long_texts_to_the_same_size_and_leaves_short_ones() -> None:
    assert [row.get("content") for row in _row_texts(["one", None, "two"], 1_000)] == [
        None,
        INSTRUCTION,
        "one",
        None,
        "two",
    ]
    *_, short, long, longer = _row_texts(["short", "x" * 5_000, "x" * 9_000], 6_000)
    assert short["content"] == "short"
    assert len(long["content"]) == len(longer["content"]) > 2_000
    assert (longer["truncated"], longer["size"]) == (True, 9_000)


def test_the_newest_keep_their_words_and_rows_when_older_ones_lose_them() -> None:
    rows = _row_texts(["word " * 30] * 400, 20_000)
    assert rows[-1]["content"] == "word " * 30
    run = rows[2]
    assert (run["seq"], run["detail"]) == (2, "live")
    assert run["tokens"] == 3 * (run["through_seq"] - 1)
    assert "content" not in run
    assert all("through_seq" not in row for row in rows[3:])


def test_alternating_shown_and_omitted_rows_are_reported_as_mixed() -> None:
    run = _row_texts(["a", None] * 400, 10_000)[2]
    assert (run["kind"], run["detail"], run["reason"]) == ("", "mixed", "mixed")
    assert run["tokens"] == 3 * (run["through_seq"] // 2)


@pytest.mark.parametrize("policy", ["epochs", "newest_live"])
async def test_a_conversation_of_a_thousand_turns_can_be_accounted_for(policy: Any) -> None:
    context_services = ContextServices(
        counting=TokenCounting(CharacterCounter()),
        models=ModelCatalog({"test/model": ModelFacts(context_tokens=16_000_000)}),
        rules=ContextSettings(policy=policy),
    )
    async with staged(two_words, context_services=context_services) as stage:
        conversation = stage.conversation
        _talk(conversation, turns=1_000)
        given = await context_report(
            conversation.context, model="test/model", text="hi", bytes_max=FRAME
        )
    encode_reply(MessageType.CONTEXT_REQUEST, 1, given, message_bytes_max=FRAME)
    rows: list[Any] = list(given.entries)
    assert sum(row["tokens"] for row in rows) == given.totals["tokens"]
    lines = int(policy == "newest_live")  # that older turns are shortened
    assert (given.totals["shown"], rows[-1]["content"]) == (2_001 + lines, "hi")


def _talk(conversation: Conversation, *, turns: int) -> None:
    history, now = conversation.history, datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(turns):
        for draft in (
            ModelInputEntry(turn_id=f"t{number}", content=f"prompt {number} [x]"),
            ModelOutputEntry(turn_id=f"t{number}", content="an answer " * 20),
        ):
            history.add(history.stamp(draft, id=f"e{history.head_seq}", timestamp=now))


def test_a_plain_client_gets_texts_that_look_like_markup_unchanged() -> None:
    rows = _row_texts(["[bold]"], 1_000)
    account = ContextAccount(
        session_id="s", model="m", epoch=0, budget_tokens=1, entries=tuple(rows), totals={}
    )
    sent = without_markup(reply_text(account))
    assert "[bold]" not in sent
    assert json.loads(sent)["entries"] == rows
