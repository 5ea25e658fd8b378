"""Arbitrary well-formed requests, replies and events, built from their annotations."""

from __future__ import annotations

from hypothesis import strategies as st

from nplt_protocol import events as told
from nplt_protocol import replies as say
from nplt_protocol import requests as ask
from nplt_protocol.json_values import JsonObject, JsonValue

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

REQUESTS: dict[type[ask.Request], st.SearchStrategy[ask.Request]] = {
    ask.Hello: st.builds(
        ask.Hello,
        versions=st.lists(st.integers(0, 9), max_size=3).map(tuple),
        client=names,
        token=names,
        keepalive=st.none() | numbers,
        features=st.lists(text, max_size=2).map(tuple),
    ),
    ask.Ping: st.builds(ask.Ping, data=st.binary(max_size=20)),
    ask.Cancel: st.builds(ask.Cancel, turn_id=names),
    ask.Prompt: st.builds(
        ask.Prompt,
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
    ask.Attach: st.builds(
        ask.Attach,
        session_id=words,
        after_seq=st.none() | counts,
        turn_id=names,
        call=st.none() | counts,
        offset=st.none() | counts,
        observer=st.booleans(),
    ),
    ask.Detach: st.builds(ask.Detach),
    ask.FileMetadata: st.builds(
        ask.FileMetadata,
        filename=words,
        size=counts,
        content_type=names,
        purpose=st.sampled_from(["attachment", "import"]),
    ),
    ask.ModelSwitch: st.builds(ask.ModelSwitch, model=st.none() | words),
    ask.HistoryRequest: st.builds(
        ask.HistoryRequest,
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
    ask.ClearRequest: st.builds(ask.ClearRequest),
    ask.SessionList: st.builds(
        ask.SessionList, limit=st.integers(1, 99), cursor=names, query=names, archived=st.booleans()
    ),
    ask.SessionSwitch: st.builds(ask.SessionSwitch, session_id=words),
    ask.SessionNew: st.builds(
        ask.SessionNew, name=names, system=names, model=st.none() | words, history=names
    ),
    ask.SessionDelete: st.builds(ask.SessionDelete, session_id=words),
    ask.SessionUpdate: st.builds(
        ask.SessionUpdate,
        session_id=st.none() | words,
        name=names,
        system=names,
        archived=st.none() | st.booleans(),
        pinned=st.none() | st.booleans(),
        deleted=st.sampled_from([None, False]),
    ),
    ask.SessionFork: st.builds(
        ask.SessionFork, session_id=st.none() | words, at_seq=st.none() | counts, name=names
    ),
    ask.Search: st.builds(ask.Search, query=words, limit=st.integers(1, 99), cursor=names),
    ask.ContextRequest: st.builds(
        ask.ContextRequest, session_id=st.none() | words, model=st.none() | words, text=names
    ),
    ask.Approval: st.builds(
        ask.Approval,
        approval_id=text,
        decision=st.sampled_from(["allow", "deny"]),
        remember=st.booleans(),
    ),
    ask.StatusRequest: st.builds(ask.StatusRequest),
    ask.Compact: st.builds(ask.Compact, session_id=st.none() | words),
    ask.Tools: st.builds(ask.Tools, session_id=st.none() | words),
    ask.Usage: st.builds(ask.Usage, session_id=st.none() | words),
    ask.FileGet: st.builds(
        ask.FileGet,
        file_id=text,
        session_id=st.none() | words,
        offset=counts,
        length=st.none() | counts,
    ),
    ask.Import: st.builds(ask.Import, document=st.none() | small_objects),
    ask.Rollback: st.builds(ask.Rollback, to_seq=counts, session_id=st.none() | words),
    ask.Redact: st.builds(ask.Redact, seq=st.integers(1, 99), session_id=st.none() | words),
}
"""Every structured request but FILE_DATA, which belongs to an upload."""

requests: st.SearchStrategy[ask.Request] = st.one_of(list(REQUESTS.values()))

row = st.builds(
    say.SessionRow,
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
    say.Attached,
    session_id=words,
    name=text,
    model=text,
    head_seq=counts,
    active_turn=st.none()
    | st.builds(say.ActiveTurn, turn_id=words, call=counts, offset=counts, model=text),
    queue=texts,
    pending_approvals=objects,
    clients=objects,
)
created = st.builds(say.SessionCreated, session_id=words, name=text)
receipt = st.builds(
    say.Receipt,
    turn_id=words,
    session_id=words,
    seq=counts,
    message_id=names,
    position=counts,
    state=text,
    duplicate=st.none() | st.booleans(),
)
welcome = st.builds(
    say.Welcome,
    version=st.just(3),
    server=text,
    user=text,
    session_id=words,
    model=text,
    models=texts,
    limits=st.just({"message_bytes_max": 1024 * 1024}),
    features=texts,
)

REPLIES: dict[type[ask.Request], st.SearchStrategy[say.Reply | JsonObject]] = {
    ask.Ping: st.builds(say.Pong, data=st.binary(max_size=20)),
    ask.Cancel: st.builds(say.Cancelled, cancelled=st.booleans()),
    ask.Prompt: receipt,
    ask.Attach: attached,
    ask.Detach: st.builds(say.Detached),
    ask.FileMetadata: st.builds(say.FileStored, file_id=text, size=counts, sha256=text),
    ask.ModelSwitch: st.builds(say.ModelChoice, model=text, previous_model=text, models=texts),
    ask.HistoryRequest: st.builds(
        say.HistoryPage,
        session_id=words,
        name=text,
        message_count=counts,
        head_seq=counts,
        messages=objects,
        page=st.builds(
            say.PageEdges,
            has_more_before=st.booleans(),
            has_more_after=st.booleans(),
            before=counts,
            after=counts,
        ),
    )
    | st.builds(
        say.MessageRange, session_id=words, seq=counts, offset=counts, content=text, size=counts
    ),
    ask.ClearRequest: st.builds(say.Cleared, session_id=words, cleared_through_seq=counts),
    ask.SessionList: st.builds(
        say.SessionRows, sessions=st.lists(row, max_size=2).map(tuple), next_cursor=names
    ),
    ask.SessionSwitch: attached,
    ask.SessionNew: created,
    ask.SessionDelete: st.builds(say.SessionDeleted, session_id=words, current_session_id=words),
    ask.SessionUpdate: row,
    ask.SessionFork: created,
    ask.StatusRequest: st.builds(
        say.Status,
        server=text,
        uptime=numbers,
        connections=counts,
        conversations=small_objects,
        turns=small_objects,
        storage=small_objects,
        versions=small_objects,
    ),
    ask.ContextRequest: st.builds(
        say.ContextAccount,
        session_id=words,
        model=words,
        epoch=counts,
        budget_tokens=counts,
        entries=st.lists(small_objects, max_size=2).map(tuple),
        totals=small_objects,
        begins_epoch=names,
    ),
    ask.Tools: st.builds(
        say.ToolList, session_id=words, tools=st.lists(small_objects, max_size=2).map(tuple)
    ),
    ask.Usage: st.builds(
        say.UsageAccount,
        session_id=words,
        model=words,
        billed=small_objects,
        occupancy=small_objects,
        estimate=small_objects,
        cost=st.none() | small_objects,
    ),
    ask.Compact: st.builds(
        say.EpochBegun,
        session_id=words,
        epoch=counts,
        reason=text,
        tokens_before=counts,
        tokens_after=counts,
        compaction=st.none() | counts,
    ),
    ask.Approval: st.builds(
        say.ApprovalDecided,
        approval_id=words,
        decision=st.sampled_from(["allow", "deny"]),
        decided_by=st.none() | text,
    ),
    ask.Rollback: st.builds(say.RolledBack, session_id=words, head_seq=counts),
    ask.FileGet: st.builds(say.FilePiece, data=st.binary(max_size=20)),
    ask.Search: st.builds(
        say.SearchHits,
        hits=st.lists(
            st.builds(
                say.SearchHit,
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
    ask.Import: st.builds(say.Imported, session_id=words, messages=counts),
    ask.Redact: st.builds(say.Redacted, seq=counts),
}
"""By the request they answer; the requests not named here get any object."""


def replies_to(request: ask.Request) -> st.SearchStrategy[say.Reply | JsonObject]:
    return REPLIES.get(type(request), json_objects)


known_to_error = {"code", "message", "field", "retryable", "retry_after", "session_id"}
EVENTS: dict[type[told.Event], st.SearchStrategy[told.Event]] = {
    told.ErrorReport: st.builds(
        told.ErrorReport,
        code=text,
        message=text,
        field=names,
        retryable=st.booleans(),
        retry_after=st.none() | numbers,
        session_id=names,
        details=st.none()
        | small_objects.filter(lambda found: found and not known_to_error & set(found)),
    ),
    told.AgentThought: st.builds(
        told.AgentThought,
        session_id=words,
        turn_id=words,
        type=text,
        content=names,
        call=st.none() | counts,
        offset=st.none() | counts,
        text=names,
    ),
    told.TurnStarted: st.builds(
        told.TurnStarted, session_id=words, turn_id=words, seq=counts, model=text, message_id=names
    ),
    told.TextDelta: st.builds(
        told.TextDelta,
        session_id=words,
        turn_id=words,
        call=counts,
        offset=counts,
        text=text,
        replay_from=st.none() | counts,
    ),
    told.ToolStarted: st.builds(
        told.ToolStarted,
        session_id=words,
        turn_id=words,
        call=counts,
        tool_call_id=text,
        tool_name=text,
        arguments=small_objects,
    ),
    told.ToolFinished: st.builds(
        told.ToolFinished,
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
    told.TurnFinished: st.builds(
        told.TurnFinished,
        session_id=words,
        turn_id=words,
        state=st.sampled_from(["completed", "interrupted", "failed"]),
        seq=counts,
        usage=small_objects,
        error=st.none() | small_objects,
    ),
    told.SessionEvent: st.builds(
        told.SessionEvent,
        session_id=words,
        event=text,
        details=small_objects.filter(lambda found: not {"session_id", "event"} & set(found)),
    ),
    told.ApprovalRequest: st.builds(
        told.ApprovalRequest,
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
    told.EntryAdded: st.builds(
        told.EntryAdded,
        session_id=words,
        entry=small_objects,
        turn_id=names,
        call=st.none() | counts,
    ),
}
events: st.SearchStrategy[told.Event] = st.one_of(list(EVENTS.values()))
