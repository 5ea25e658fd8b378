"""What is left of an entry whose words were erased: the fact, and no word of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.storage.conversations import START, Pen, answer, answering, asking, call, prompt
from tests.storage.entry_strategies import entries

from nplt_storage import BadEntry, ConversationHistory, decode_line, encode_line
from nplt_storage.entries import (
    LIVE_SCREEN,
    ApprovalEntry,
    ArchivedEntry,
    AttachmentEntry,
    BlobReference,
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelOutputEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    PinnedEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.redaction import REDACTED, redacted, without_words_of
from nplt_storage.rows import Checkpoint, checkpoint_state, fold_all, new_row, read_checkpoint

LATER = START + timedelta(days=1)
SECRET = "hunter2"
SECTIONS = LevelOfDetailSections(live=(("", SECRET),), gist=((SECRET, SECRET),))
STAMP = {"seq": 9, "id": "e9", "timestamp": START, "turn_id": "t"}
REQUEST = ToolCallRequest(
    tool_call_id="c1",
    tool_name="look",
    raw_arguments=SECRET,
    arguments={SECRET: SECRET},
    parse_error=SECRET,
    parse_warning=SECRET,
)


def _result() -> ToolResultsEntry:
    (result,) = answering("t", call()).results
    blob = BlobReference(blob_id="b", size=7, sha256=SECRET)
    return ToolResultsEntry(
        results=(replace(result, result=SECRET, blob=blob, sections=SECTIONS),),
        **STAMP,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "entry",
    [
        ModelInputEntry(
            content=SECRET, attachments=(SECRET,), options={"a": SECRET}, sections=SECTIONS
        ),
        ModelOutputEntry(
            content=SECRET,
            reasoning=SECRET,
            tool_calls=(REQUEST,),
            error={"text": SECRET},
            sections=SECTIONS,
        ),
        FaultEntry(content=SECRET, code="x", state="failed"),
        SystemInstructionEntry(content=SECRET),
        WidgetEntry(widget="todo", state={SECRET: [SECRET]}),
        EpochEntry(reason="budget", screen=SECRET),
        RenamedEntry(name=SECRET),
        RollbackEntry(to_seq=3, preview=SECRET),
        AttachmentEntry(file_id="f", filename=SECRET, size=7, sha256=SECRET, content_type=SECRET),
        CheckpointEntry(state={"row": {"name": SECRET, "preview": SECRET}, "notebook": SECRET}),
        _result(),
    ],
    ids=lambda entry: entry.kind,
)
def test_no_word_is_left(entry: Entry) -> None:
    state_entries = replace(entry, **STAMP, metadata={"said": SECRET})
    assert SECRET.encode() in encode_line(state_entries)
    tombstone = redacted(state_entries, LATER)
    assert SECRET.encode() not in encode_line(tombstone)
    assert tombstone.redacted_at == LATER


@settings(max_examples=50)
@given(entries)
def test_a_tombstone_stands_where_its_entry_stood(entry: Entry) -> None:
    try:
        tombstone = redacted(entry, LATER)
    except BadEntry:
        return
    for field in ("seq", "id", "kind", "timestamp", "turn_id", "role"):
        assert getattr(tombstone, field) == getattr(entry, field)
    assert decode_line(encode_line(tombstone)) == tombstone
    assert redacted(tombstone, LATER + timedelta(1)) == tombstone, "once is enough"


@pytest.mark.parametrize(
    "entry",
    [
        ClearEntry(),
        EpochEntry(reason="budget"),
        PinnedEntry(pinned=True),
        ArchivedEntry(archived=True),
        ModelSwitchedEntry(model="a/b"),
        ForkedEntry(from_session_id="s", at_seq=1),
        RollbackEntry(to_seq=1),
        ApprovalEntry(approval_id="a", tool_call_id="c", tool_name="t", state="asked"),
    ],
    ids=lambda entry: entry.kind,
)
def test_redaction_of_an_entry_without_text_changes_nothing(entry: Entry) -> None:
    with pytest.raises(BadEntry, match="no words to erase"):
        redacted(entry, LATER)


def test_every_view_works_when_everything_was_erased() -> None:
    pen = Pen()
    pen.write_all([prompt("t1"), asking("t1", call()), answering("t1", call())])
    pen.write_all([answer("t1", call=1), prompt("t2"), answer("t2")])
    before = pen.history
    after = ConversationHistory("s1", [redacted(entry, LATER) for entry in before.entries])
    assert after.message_count == before.message_count
    assert after.turn_state("t1") == "completed"
    shown = after.get_context()
    assert [message["seq"] for message in shown] == [m["seq"] for m in before.get_context()]
    (tool_call,) = after.recent(4)[0].tool_calls
    assert (tool_call.tool_name, tool_call.result) == ("look", REDACTED)
    assert [message["content"] for message in shown] == [REDACTED, "", *[REDACTED] * 3]


def test_the_erased_state_of_a_widget_is_empty_not_the_one_before_it() -> None:
    state_entries = Pen().write_all(
        WidgetEntry(widget="todo", state={"items": [n]}) for n in (1, 2)
    )
    history = ConversationHistory("s1", [state_entries[0], redacted(state_entries[1], LATER)])
    assert history.widget_state("todo") == {}
    assert history.widget_states == {"todo": {}}


def test_a_checkpoint_goes_on_counting() -> None:
    row = fold_all(
        new_row("s1", user="u", created_at=START),
        Pen().write_all([prompt("t1", SECRET), answer("t1", SECRET)]),
    )
    row = replace(row, system_seq=1, compaction_seq=2, widget_seqs=(("todo", 2),))
    state_entries = (
        SystemInstructionEntry(seq=1, content=SECRET),
        CompactionEntry(seq=2, content=SECRET, from_seq=1, through_seq=1),
        WidgetEntry(seq=2, widget="todo", state={"items": [SECRET]}),
    )
    state = checkpoint_state(Checkpoint(row=row, state_entries=state_entries))
    tombstone = redacted(CheckpointEntry(state=state, seq=3), LATER)
    assert isinstance(tombstone, CheckpointEntry)
    checkpoint = read_checkpoint(tombstone)
    assert checkpoint is not None
    assert checkpoint.row == replace(row, name=REDACTED, preview=REDACTED)
    assert checkpoint.state_entries == (
        replace(state_entries[0], content=REDACTED),
        replace(state_entries[1], content=REDACTED),
        replace(state_entries[2], state={}),
    )


def test_an_erased_notebook_goes_from_every_live_screen_since() -> None:
    levels = LevelOfDetailSections(live=(("", "hello"), (LIVE_SCREEN, SECRET)))
    shown: list[Entry] = [
        EpochEntry(reason="asked", screen=SECRET),
        replace(prompt("t1"), sections=levels),
        asking("t1", call()),
        answering("t1", call()),
        answer("t1", call=1),
    ]
    screen_before, notebook, *others = Pen().write_all(
        [EpochEntry(reason="asked", screen="before"), NotebookEntry(content=SECRET), *shown]
    )
    results = others[3]
    assert isinstance(results, ToolResultsEntry)
    others[3] = replace(results, results=(replace(results.results[0], sections=levels),))
    tombstone = redacted(notebook, LATER)
    after = [without_words_of(notebook, tombstone, entry) for entry in (notebook, *others)]
    assert all(SECRET.encode() not in encode_line(entry) for entry in after)
    assert after[5] == others[4], "nothing else is touched"
    assert without_words_of(notebook, tombstone, screen_before) == screen_before
    prompted = after[2]
    assert isinstance(prompted, ModelInputEntry)
    assert prompted.sections is not None
    assert prompted.sections.without_live_screen() == (
        LevelOfDetailSections(live=(("", "hello"),)),
        REDACTED,
    )
