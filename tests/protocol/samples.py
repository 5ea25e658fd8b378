"""Arbitrary well-formed requests, replies and events, built from their annotations."""

from __future__ import annotations

from hypothesis import strategies as st

from nplt_protocol import JsonObject, JsonValue, messages

text = st.text(max_size=12)
words = st.text("abcdefgh-_09", min_size=1, max_size=20).map(lambda tail: "s" + tail)
counts = st.integers(0, 2**40)
numbers = st.floats(0, 1e6)
names = st.none() | text

json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
json_objects: st.SearchStrategy[JsonObject] = st.dictionaries(text, json_values, max_size=4)
small_objects: st.SearchStrategy[JsonObject] = st.dictionaries(text, text, max_size=3)

REQUESTS: dict[type[messages.Request], st.SearchStrategy[messages.Request]] = {
    messages.Hello: st.builds(
        messages.Hello,
        versions=st.lists(st.integers(0, 9), max_size=3).map(tuple),
        client=names,
        token=names,
        keepalive=st.none() | numbers,
        features=st.lists(text, max_size=2).map(tuple),
    ),
    messages.Ping: st.builds(messages.Ping, data=st.binary(max_size=20)),
    messages.Cancel: st.builds(messages.Cancel, turn_id=names),
    messages.Prompt: st.builds(
        messages.Prompt,
        text=words,
        message_id=st.none() | words,
        session_id=st.none() | words,
        model=st.none() | words,
        role=names,
        metadata=small_objects,
        attachments=st.lists(text, max_size=2).map(tuple),
        options=small_objects,
        replace_from=st.none() | st.integers(1, 99),
    ),
    messages.Attach: st.builds(
        messages.Attach,
        session_id=words,
        after_seq=st.none() | counts,
        turn_id=names,
        call=st.none() | counts,
        offset=st.none() | counts,
        observer=st.booleans(),
    ),
    messages.Detach: st.builds(messages.Detach),
    messages.FileMetadata: st.builds(
        messages.FileMetadata,
        filename=words,
        size=counts,
        content_type=names,
        purpose=st.sampled_from(["attachment", "import"]),
    ),
    messages.ModelSwitch: st.builds(messages.ModelSwitch, model=st.none() | words),
    messages.HistoryRequest: st.builds(
        messages.HistoryRequest,
        session_id=st.none() | words,
        around=st.none() | counts,
        limit=st.integers(1, 500),
        max_bytes=st.none() | counts,
        view=st.sampled_from(["messages", "entries"]),
        detail=st.sampled_from(["live", "summary", "gist"]),
        roles=st.none() | st.lists(text, max_size=2).map(tuple),
        seq=st.none() | counts,
        offset=counts,
        length=st.none() | counts,
    ),
    messages.ClearRequest: st.builds(messages.ClearRequest),
    messages.SessionList: st.builds(
        messages.SessionList,
        limit=st.integers(1, 99),
        cursor=names,
        query=names,
        archived=st.booleans(),
    ),
    messages.SessionSwitch: st.builds(messages.SessionSwitch, session_id=words),
    messages.SessionNew: st.builds(
        messages.SessionNew, name=names, system=names, model=st.none() | words, history=names
    ),
    messages.SessionDelete: st.builds(messages.SessionDelete, session_id=words),
    messages.SessionUpdate: st.builds(
        messages.SessionUpdate,
        session_id=st.none() | words,
        name=names,
        system=names,
        archived=st.none() | st.booleans(),
        pinned=st.none() | st.booleans(),
        deleted=st.sampled_from([None, False]),
    ),
    messages.SessionFork: st.builds(
        messages.SessionFork, session_id=st.none() | words, at_seq=st.none() | counts, name=names
    ),
    messages.Search: st.builds(
        messages.Search, query=words, limit=st.integers(1, 99), cursor=names
    ),
    messages.ContextRequest: st.builds(
        messages.ContextRequest, session_id=st.none() | words, model=st.none() | words, text=names
    ),
    messages.Approval: st.builds(
        messages.Approval,
        approval_id=text,
        decision=st.sampled_from(["allow", "deny"]),
        remember=st.booleans(),
    ),
    messages.StatusRequest: st.builds(messages.StatusRequest),
    messages.Compact: st.builds(messages.Compact, session_id=st.none() | words),
    messages.Tools: st.builds(messages.Tools, session_id=st.none() | words),
    messages.Usage: st.builds(messages.Usage, session_id=st.none() | words),
    messages.FileGet: st.builds(
        messages.FileGet,
        file_id=text,
        session_id=st.none() | words,
        offset=counts,
        length=st.none() | counts,
    ),
    messages.Import: st.builds(messages.Import, document=st.none() | small_objects),
    messages.Rollback: st.builds(messages.Rollback, to_seq=counts, session_id=st.none() | words),
    messages.Repair: st.builds(messages.Repair, session_id=st.none() | words),
    messages.Redact: st.builds(
        messages.Redact, seq=st.integers(1, 99), session_id=st.none() | words
    ),
}
"""Every structured request but FILE_DATA, which belongs to an upload."""

requests: st.SearchStrategy[messages.Request] = st.one_of(list(REQUESTS.values()))

row = st.builds(
    messages.SessionRow,
    session_id=words,
    name=text,
    message_count=counts,
    created_at=text,
    updated_at=text,
    last_accessed=text,
    is_current=st.booleans(),
    model=text,
    state=text,
    preview=text,
    pinned=st.booleans(),
    archived=st.booleans(),
    damaged=st.booleans(),
)
objects = st.lists(small_objects, max_size=2).map(tuple)
texts = st.lists(text, max_size=2).map(tuple)
attached = st.builds(
    messages.Attached,
    session_id=words,
    name=text,
    model=text,
    head_seq=counts,
    active_turn=st.none()
    | st.builds(messages.ActiveTurn, turn_id=words, call=counts, offset=counts, model=text),
    queue=texts,
    pending_approvals=objects,
    clients=objects,
)
created = st.builds(messages.SessionCreated, session_id=words, name=text)
receipt = st.builds(
    messages.Receipt,
    turn_id=words,
    session_id=words,
    seq=counts,
    message_id=names,
    position=counts,
    state=text,
    duplicate=st.none() | st.booleans(),
)
welcome = st.builds(
    messages.Welcome,
    version=st.just(3),
    server=text,
    user=text,
    session_id=words,
    model=text,
    models=texts,
    limits=st.just({"message_bytes_max": 1024 * 1024}),
    features=texts,
)

REPLIES: dict[type[messages.Request], st.SearchStrategy[messages.Reply | JsonObject]] = {
    messages.Ping: st.builds(messages.Pong, data=st.binary(max_size=20)),
    messages.Cancel: st.builds(messages.Cancelled, cancelled=st.booleans()),
    messages.Prompt: receipt,
    messages.Attach: attached,
    messages.Detach: st.builds(messages.Detached),
    messages.FileMetadata: st.builds(messages.FileStored, file_id=text, size=counts, sha256=text),
    messages.ModelSwitch: st.builds(
        messages.ModelChoice, model=text, previous_model=text, models=texts
    ),
    messages.HistoryRequest: st.builds(
        messages.HistoryPage,
        session_id=words,
        name=text,
        message_count=counts,
        head_seq=counts,
        messages=objects,
        page=st.builds(
            messages.PageEdges,
            has_more_before=st.booleans(),
            has_more_after=st.booleans(),
            before=counts,
            after=counts,
        ),
    )
    | st.builds(
        messages.MessageRange,
        session_id=words,
        seq=counts,
        offset=counts,
        content=text,
        size=counts,
    ),
    messages.ClearRequest: st.builds(
        messages.Cleared, session_id=words, cleared_through_seq=counts
    ),
    messages.SessionList: st.builds(
        messages.SessionRows, sessions=st.lists(row, max_size=2).map(tuple), next_cursor=names
    ),
    messages.SessionSwitch: attached,
    messages.SessionNew: created,
    messages.SessionDelete: st.builds(
        messages.SessionDeleted, session_id=words, current_session_id=words
    ),
    messages.SessionUpdate: row,
    messages.SessionFork: created,
    messages.StatusRequest: st.builds(
        messages.Status,
        server=text,
        uptime=numbers,
        connections=counts,
        conversations=small_objects,
        turns=small_objects,
        storage=small_objects,
        versions=small_objects,
    ),
    messages.ContextRequest: st.builds(
        messages.ContextAccount,
        session_id=words,
        model=words,
        epoch=counts,
        budget_tokens=counts,
        entries=st.lists(small_objects, max_size=2).map(tuple),
        totals=small_objects,
        begins_epoch=names,
    ),
    messages.Tools: st.builds(
        messages.ToolList, session_id=words, tools=st.lists(small_objects, max_size=2).map(tuple)
    ),
    messages.Usage: st.builds(
        messages.UsageAccount,
        session_id=words,
        model=words,
        billed=small_objects,
        occupancy=small_objects,
        estimate=small_objects,
        cost=st.none() | small_objects,
    ),
    messages.Compact: st.builds(
        messages.EpochBegun,
        session_id=words,
        epoch=counts,
        reason=text,
        tokens_before=counts,
        tokens_after=counts,
        compaction=st.none() | counts,
    ),
    messages.Approval: st.builds(
        messages.ApprovalDecided,
        approval_id=words,
        decision=st.sampled_from(["allow", "deny"]),
        decided_by=st.none() | text,
    ),
    messages.Rollback: st.builds(messages.RolledBack, session_id=words, head_seq=counts),
    messages.FileGet: st.builds(messages.FilePiece, data=st.binary(max_size=20)),
    messages.Search: st.builds(
        messages.SearchHits,
        hits=st.lists(
            st.builds(
                messages.SearchHit,
                session_id=words,
                name=text,
                seq=counts,
                role=text,
                snippet=text,
                timestamp=text,
            ),
            max_size=2,
        ).map(tuple),
        next_cursor=names,
    ),
    messages.Import: st.builds(messages.Imported, session_id=words, messages=counts),
    messages.Redact: st.builds(messages.Redacted, seq=counts),
    messages.Repair: st.builds(
        messages.Repaired,
        session_id=words,
        kept=counts,
        lost=st.lists(st.tuples(counts, counts), max_size=2).map(tuple),
        says=st.lists(words, max_size=2).map(tuple),
        original=st.none() | words,
    ),
}
"""By the request they answer; the requests not named here get any object."""


def replies_to(request: messages.Request) -> st.SearchStrategy[messages.Reply | JsonObject]:
    return REPLIES.get(type(request), json_objects)


known_to_error = {"code", "message", "field", "retryable", "retry_after", "session_id"}
EVENTS: dict[type[messages.Event], st.SearchStrategy[messages.Event]] = {
    messages.ErrorReport: st.builds(
        messages.ErrorReport,
        code=text,
        message=text,
        field=names,
        retryable=st.booleans(),
        retry_after=st.none() | numbers,
        session_id=names,
        details=st.none()
        | small_objects.filter(lambda found: found and not known_to_error & set(found)),
    ),
    messages.AgentThought: st.builds(
        messages.AgentThought,
        session_id=words,
        turn_id=words,
        type=text,
        content=names,
        call=st.none() | counts,
        offset=st.none() | counts,
        text=names,
    ),
    messages.TurnStarted: st.builds(
        messages.TurnStarted,
        session_id=words,
        turn_id=words,
        seq=counts,
        model=text,
        message_id=names,
    ),
    messages.TextDelta: st.builds(
        messages.TextDelta,
        session_id=words,
        turn_id=words,
        call=counts,
        offset=counts,
        text=text,
        replay_from=st.none() | counts,
    ),
    messages.ToolStarted: st.builds(
        messages.ToolStarted,
        session_id=words,
        turn_id=words,
        call=counts,
        tool_call_id=text,
        tool_name=text,
        arguments=small_objects,
    ),
    messages.ToolFinished: st.builds(
        messages.ToolFinished,
        session_id=words,
        turn_id=words,
        call=counts,
        tool_call_id=text,
        tool_name=text,
        status=text,
        duration=numbers,
        result=text,
        truncated=st.none() | st.booleans(),
        size=st.none() | counts,
    ),
    messages.TurnFinished: st.builds(
        messages.TurnFinished,
        session_id=words,
        turn_id=words,
        state=st.sampled_from(["completed", "interrupted", "failed"]),
        seq=counts,
        usage=small_objects,
        error=st.none() | small_objects,
    ),
    messages.SessionEvent: st.builds(
        messages.SessionEvent,
        session_id=words,
        event=text,
        details=small_objects.filter(lambda found: not {"session_id", "event"} & set(found)),
    ),
    messages.ApprovalRequest: st.builds(
        messages.ApprovalRequest,
        session_id=words,
        approval_id=text,
        turn_id=words,
        tool_name=text,
        arguments=small_objects,
        expires_at=text,
        tool_call_id=names,
        truncated=st.none() | st.just(True),
        size=st.none() | counts,
    ),
    messages.EntryAdded: st.builds(
        messages.EntryAdded,
        session_id=words,
        entry=small_objects,
        turn_id=names,
        call=st.none() | counts,
    ),
}
events: st.SearchStrategy[messages.Event] = st.one_of(list(EVENTS.values()))
