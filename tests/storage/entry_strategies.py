"""Hypothesis strategies for entries: everything that may be remembered, odd or not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from nplt_storage.codec import KNOWN_KINDS
from nplt_storage.entries import (
    LIVE_SCREEN,
    ApprovalEntry,
    ArchivedEntry,
    AttachmentEntry,
    BlobReference,
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    DebugEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    OutputPart,
    PinnedEntry,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    SentContext,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
    UnknownEntry,
    WidgetEntry,
)

texts = st.text(st.characters(codec="utf-8"), max_size=30)
words = st.text("abcdefghij_-0123456789", min_size=1, max_size=12)
keys = st.from_regex(r"[a-z]{1,6}(_[a-z0-9]{1,4})?", fullmatch=True)
integers = st.integers(min_value=-(2**63), max_value=2**64 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
metadata = st.dictionaries(keys, texts | integers | st.booleans(), max_size=3)

times = st.datetimes(
    min_value=datetime(1900, 1, 1),
    max_value=datetime(2900, 1, 1),
    timezones=st.sampled_from(
        [UTC, timezone(timedelta(hours=9)), timezone(timedelta(hours=-3, minutes=-30))]
    ),
)

unnumbered: dict[str, st.SearchStrategy[Any]] = {
    "id": words,
    "timestamp": times,
    "turn_id": st.none() | words,
    "metadata": metadata,
}
known = unnumbered | {
    "seq": st.integers(min_value=1, max_value=10**18),
    "redacted_at": st.none() | times,
}

levels = st.lists(st.tuples(st.sampled_from(["", LIVE_SCREEN]) | texts, texts), max_size=3)
sections = st.builds(
    LevelOfDetailSections,
    live=levels.map(tuple),
    summary=levels.map(tuple),
    gist=levels.map(tuple),
)
blobs = st.builds(
    BlobReference, blob_id=words, size=st.integers(min_value=0, max_value=2**63), sha256=words
)

invocations = st.builds(ModelInvocationDescriptor, provider=words, specification=texts, model=texts)
counts = st.integers(min_value=0, max_value=2**53)
parts = st.builds(
    OutputPart,
    kind=st.sampled_from(["text", "reasoning", "call", "opaque"]),
    size=st.integers(min_value=0, max_value=2**53),
    data=st.none() | json_objects,
)
sent = st.builds(
    SentContext,
    tokens=counts,
    budget_tokens=counts,
    tools_digest=words,
    epoch_seq=counts,
    head_seq=counts,
    trimmed=st.booleans(),
)
requests = st.builds(
    ToolCallRequest,
    tool_call_id=words,
    tool_name=words,
    raw_arguments=texts,
    arguments=st.none() | json_objects,
    parse_error=st.none() | texts,
    parse_warning=st.none() | texts,
)
results = st.builds(
    ToolCallResult,
    tool_call_id=words,
    tool_name=words,
    status=st.sampled_from(["success", "failed", "skipped"]),
    result=texts,
    duration=numbers,
    timestamp=times,
    blob=st.none() | blobs,
    sections=st.none() | sections,
)

unknown_fields = st.fixed_dictionaries(
    {"role": st.just("system"), "content": texts, "tool_calls": st.just([])},
    optional={"novelty": json_values, "another": json_values},
)


@st.composite
def references(draw: st.DrawFn) -> Entry:
    """Entries that speak of other entries: all of those come before them."""
    fields = {name: draw(strategy) for name, strategy in known.items()}
    fields["seq"] = seq = draw(st.integers(min_value=2, max_value=10**18))
    first, last = sorted(draw(st.tuples(*[st.integers(1, seq - 1)] * 2)))
    match draw(st.integers(0, 4)):
        case 0:
            return CompactionEntry(
                content=draw(texts),
                from_seq=first,
                through_seq=last,
                invocation=draw(st.none() | invocations),
                usage=draw(st.none() | json_objects),
                **fields,
            )
        case 1:
            return QuarantineEntry(
                target_seq=last,
                code=draw(words),
                content=draw(texts),
                lifted=draw(st.booleans()),
                provider=draw(st.sampled_from(("", "openai", "anthropic"))),
                part=draw(st.sampled_from(("", "pictures"))),
                **fields,
            )
        case 3:
            return EpochEntry(
                reason=draw(words),
                omitted_through=draw(st.integers(0, first)),
                gist_through=first,
                summary_through=last,
                budget_tokens=draw(counts),
                screen=draw(texts),
                **fields,
            )
        case 2:
            return ForkedEntry(from_session_id=draw(words), at_seq=last, **fields)
        case _:
            landmarks = st.integers(0, last)
            return RollbackEntry(
                to_seq=last,
                message_count=draw(landmarks),
                preview=draw(texts),
                system_seq=draw(landmarks),
                notebook_seq=draw(landmarks),
                compaction_seq=draw(landmarks),
                widget_seqs=tuple(draw(st.dictionaries(texts, landmarks, max_size=2)).items()),
                hidden=draw(st.sampled_from([None, (), ((first, last),)])),
                turns=draw(st.lists(texts, max_size=2).map(tuple)),
                redo=draw(st.booleans()),
                **fields,
            )


entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        ModelInputEntry,
        content=texts,
        message_id=st.none() | words,
        model=st.none() | texts,
        attachments=st.lists(words, max_size=2).map(tuple),
        options=json_objects,
        sections=st.none() | sections,
        **known,
    ),
    st.builds(
        ModelOutputEntry,
        content=texts,
        reasoning=texts,
        tool_calls=st.lists(requests, max_size=3).map(tuple),
        invocation=st.none() | invocations,
        usage=st.none() | json_objects,
        call=st.integers(min_value=0, max_value=99),
        state=st.sampled_from(["completed", "interrupted", "failed"]),
        stop_reason=st.none() | texts,
        error=st.none() | json_objects,
        sections=st.none() | sections,
        sent=st.none() | sent,
        parts=st.lists(parts, max_size=3).map(tuple),
        **known,
    ),
    st.builds(
        ToolResultsEntry,
        results=st.lists(results, max_size=3).map(tuple),
        call=st.integers(min_value=0, max_value=99),
        execute_error=st.none() | texts,
        **known,
    ),
    st.builds(
        FaultEntry,
        content=texts,
        code=words,
        state=st.sampled_from(["interrupted", "failed"]),
        invocation=st.none() | invocations,
        usage=st.none() | json_objects,
        of_request=st.booleans(),
        never_began=st.booleans(),
        **known,
    ),
    st.builds(SystemInstructionEntry, content=texts, **known),
    st.builds(NotebookEntry, content=texts, **known),
    st.builds(WidgetEntry, widget=texts, state=json_objects, **known),
    st.builds(EpochEntry, reason=texts, screen=texts, **known),
    st.builds(ClearEntry, **known),
    st.builds(DebugEntry, category=words, content=texts, **known),
    st.builds(RenamedEntry, name=texts, **known),
    st.builds(PinnedEntry, pinned=st.booleans(), **known),
    st.builds(ArchivedEntry, archived=st.booleans(), **known),
    st.builds(CheckpointEntry, state=json_objects, **known),
    references(),
    st.builds(ModelSwitchedEntry, model=texts, previous_model=st.none() | texts, **known),
    st.builds(
        AttachmentEntry,
        file_id=words,
        filename=texts,
        size=st.integers(min_value=0, max_value=2**63),
        sha256=words,
        content_type=st.none() | texts,
        **known,
    ),
    st.builds(
        ApprovalEntry,
        approval_id=words,
        tool_call_id=words,
        tool_name=texts,
        state=st.sampled_from(["asked", "allowed", "denied"]),
        expires_at=st.none() | times,
        decided_by=st.none() | texts,
        reason=st.none() | texts,
        remember=st.booleans(),
        **known,
    ),
    st.builds(
        UnknownEntry,
        kind=words.filter(lambda kind: kind not in KNOWN_KINDS),
        fields=unknown_fields,
        seq=st.integers(min_value=1, max_value=10**18),
        **unnumbered,
    ),
)
