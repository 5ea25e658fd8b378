"""The messages of the wire: one frozen value per request, reply and event.

Both dialects are decoded into the same requests, so that a server handles each
request in one place. The classes are the schema: a field without a default is
required, and the types of a request's fields carry its limits (`Name`, `Count`).
Unknown fields are ignored; `null` and an absent field mean the same. `codec`
encodes and decodes the values, and checks the few limits that concern several
fields. The server checks whether a conversation or a model exists.

In JSON a field with its default value is left out, unless it is declared with
`sent`: then a reader always finds it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta, Raw, Struct, field

from nplt_protocol.codes import MessageType
from nplt_protocol.json_text import JsonObject

T = TypeVar("T")


class Message(Struct, frozen=True, omit_defaults=True):
    """The base of all messages."""


def sent(default: T) -> T:
    """Makes a default that is encoded too (msgspec omits only plain defaults)."""
    make: Any = default.copy if isinstance(default, dict) else lambda: default
    value: T = field(default_factory=make)
    return value


# Requests.


class Request(Message, frozen=True):
    """The base of all messages that a client sends."""


INT64_MAX = 2**63 - 1
NOT_BLANK = r"\S"

Count: TypeAlias = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=INT64_MAX)]
Seconds: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
Text: TypeAlias = Annotated[str, Meta(pattern=NOT_BLANK)]
Name: TypeAlias = Annotated[str, Meta(max_length=200)]
Word: TypeAlias = Annotated[str, Meta(pattern=NOT_BLANK, max_length=200)]
FileName: TypeAlias = Annotated[str, Meta(pattern=NOT_BLANK, max_length=255)]
SessionReference: TypeAlias = Word
"""The id of a conversation, or its name. The server decides which of the two it is."""
Cursor: TypeAlias = Annotated[str, Meta(max_length=1_000)]
SearchQuery: TypeAlias = Annotated[str, Meta(pattern=NOT_BLANK, max_length=1_000)]
Token: TypeAlias = Annotated[str, Meta(max_length=1_000)]


REDACTED = "redacted"
"""The feature of HELLO that asks for the ids of redacted prompts."""
LATER = "later"
"""The feature of HELLO that asks whether the server understands prompts for later. One that does
not would run them at once."""
WATCHING = "watch"
"""The feature of HELLO that asks whether the server understands WATCH and SEEN."""


class Hello(Request, frozen=True, kw_only=True):
    versions: tuple[int, ...] = sent((3,))
    client: Name | None = None
    token: Token | None = None
    keepalive: Seconds | None = None
    features: tuple[str, ...] = ()
    session_id: SessionReference | None = None
    create: bool | None = None
    """Makes the conversation if there is none; not given: the server's settings decide."""
    history: Name | None = None
    """The history of the server's settings that keeps a new conversation."""
    peer: Name | None = None
    """The nonce of a server of the same cluster that opens a link."""
    proof: Name | None = None
    """Proves that this server knows the cluster's secret (`link.peer_proof`)."""


class Ping(Request, frozen=True, kw_only=True):
    data: bytes = b""


class Cancel(Request, frozen=True, kw_only=True):
    turn_id: Name | None = None


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The values of `options.effort` of a prompt: how much a model should reason."""


def names_tool(pattern: str, tool_name: str) -> bool:
    """Whether the pattern names the tool: its name, `SERVER__` for all tools of an MCP server,
    `*` for all tools."""
    of_server = pattern.endswith("__") and tool_name.startswith(pattern)
    return pattern in (tool_name, "*") or of_server


ToolName: TypeAlias = Annotated[str, Meta(pattern=NOT_BLANK, max_length=128)]
ToolOffering: TypeAlias = Literal["client", "server", "both"]
Door: TypeAlias = Literal["nplt", "plain", "http", "web"]
"""How a prompt came: by the structured or the plain dialect, by HTTP, or from the page in the
browser."""


class TurnPlace(Message, frozen=True, kw_only=True):
    """A turn, and the seq of its prompt."""

    turn_id: Word
    seq: Annotated[int, Meta(ge=1)]


class OfferedTool(Message, frozen=True, kw_only=True):
    """A tool that the client offers with a prompt and runs itself."""

    name: ToolName
    description: str = ""
    parameters: JsonObject = {}
    """JSON Schema of the arguments."""


class ToolResult(Message, frozen=True, kw_only=True):
    """The result of a tool call that the client has run."""

    tool_call_id: Word
    result: str
    status: Literal["success", "failed"] = "success"


class GivenCall(Message, frozen=True, kw_only=True):
    """A tool call in a client's list of messages."""

    id: Word
    name: ToolName
    arguments: str = "{}"
    """The text that the model wrote."""


class GivenMessage(Message, frozen=True, kw_only=True):
    """A message in a client's list of the whole conversation."""

    role: Literal["user", "assistant", "tool"]
    content: str = ""
    attachments: tuple[Name, ...] = ()
    tool_calls: tuple[GivenCall, ...] = ()
    tool_call_id: Name | None = None
    """The call of which a message with the role `tool` is the result."""


class Prompt(Request, frozen=True, kw_only=True):
    text: str
    """It may be blank only if the prompt `continues`, or has `results` or `messages`; `codec`
    checks that."""
    message_id: Word | None = None
    session_id: SessionReference | None = None
    model: Word | None = None
    role: Name | None = None
    metadata: JsonObject = {}
    attachments: tuple[Name, ...] = ()
    options: JsonObject = {}
    replace_from: Positive | None = None
    continues: bool = field(default=False, name="continue")
    """Asks the model to go on with its last answer, which is not whole. A blank `text` leaves
    the words to the server."""
    tools: tuple[OfferedTool, ...] = ()
    """Tools that the client runs. A call of one ends the turn, and the client brings the result
    with its next prompt."""
    offer: ToolOffering | None = None
    """The tools that the model is offered; not given: the server's, and those in `tools`."""
    results: tuple[ToolResult, ...] = ()
    """The results of the calls with which the last turn ended."""
    messages: tuple[GivenMessage, ...] = ()
    """The whole conversation as the client knows it, without instructions, instead of `text`,
    `results`, `attachments` and `replace_from`. The server compares it with the record and stores
    what is new, in one step. If the list leaves the record where the client may not roll back,
    the prompt goes to a fork, whose id is in the receipt: attach there to get its events."""
    system: str | None = None
    """The instruction from this prompt on; written only if it differs from the current one."""
    body_sha256: Name | None = None
    """The digest of the HTTP request that brought the prompt. Sent again with the same
    `message_id`, the prompt must have the same digest."""
    earlier_ids: tuple[Name, ...] = ()
    """Other ids by which this prompt may have been sent before."""
    after: TurnPlace | None = None
    """The turn that the prompt follows. If turns came after that one, the prompt goes to a fork
    that ends with it. All `messages` are new then."""
    door: Door | None = None
    client: Name | None = None
    """Set by the server, which ignores what a client says in these two."""
    create: bool | None = None
    """Makes the conversation if there is none; not given: the server's settings decide."""
    history: Name | None = None
    """The history of the server's settings that keeps a new conversation."""
    not_before: str | int | float | None = None
    """The time before which the prompt is not run, by RFC 3339, or the seconds until then."""


class Attach(Request, frozen=True, kw_only=True):
    session_id: SessionReference
    after_seq: Count | None = None
    turn_id: Name | None = None
    call: Count | None = None
    offset: Count | None = None
    observer: bool = False
    create: bool | None = None
    """Makes the conversation if there is none; not given: the server's settings decide."""
    history: Name | None = None
    """The history of the server's settings that keeps a new conversation."""


class Detach(Request, frozen=True, kw_only=True):
    pass


class FileMetadata(Request, frozen=True, kw_only=True):
    filename: FileName
    size: Count
    content_type: Name | None = None
    purpose: Literal["attachment", "import"] = "attachment"
    source: str | None = None
    """`mcp:SERVER/…`: the server fetches the file itself, and no FILE_DATA follows."""


class FileData(Request, frozen=True, kw_only=True):
    data: bytes


class ModelSwitch(Request, frozen=True, kw_only=True):
    model: Word | None = None
    role: Word | None = None
    """Switches to the model of that role, unless `model` names one."""
    options: JsonObject | None = None
    """The default options of prompts in this conversation; `null` resets an option."""
    listed: bool = False
    """Whether the reply includes the providers' own lists of models."""


class HistoryRequest(Request, frozen=True, kw_only=True):
    session_id: SessionReference | None = None
    before: Count | None = None
    after: Count | None = None
    around: Count | None = None
    limit: Positive = 20
    max_bytes: Count | None = None
    view: Literal["messages", "entries"] = "messages"
    order: Literal["turns", "log"] = "turns"
    detail: Literal["live", "summary", "gist"] = "live"
    roles: tuple[str, ...] | None = None
    seq: Count | None = None
    offset: Count = 0
    length: Count | None = None


class ClearRequest(Request, frozen=True, kw_only=True):
    pass


class SessionList(Request, frozen=True, kw_only=True):
    limit: Positive = 50
    cursor: Cursor | None = None
    query: Cursor | None = None
    archived: bool = False
    trash: bool = False
    """Lists deleted conversations instead, the last deleted first."""


class SessionSwitch(Request, frozen=True, kw_only=True):
    session_id: SessionReference
    create: bool | None = None
    """Makes the conversation if there is none; not given: the server's settings decide."""
    history: Name | None = None
    """The history of the server's settings that keeps a new conversation."""


class SessionNew(Request, frozen=True, kw_only=True):
    name: Name | None = None
    system: str | None = None
    model: Word | None = None
    history: Name | None = None


class SessionDelete(Request, frozen=True, kw_only=True):
    session_id: SessionReference


class ClientNote(Request, frozen=True, kw_only=True):
    """Type 0x18 of version 2: a client's UDP port. It is accepted and gets no reply."""

    udp_port: int | None = None


class SessionUpdate(Request, frozen=True, kw_only=True):
    session_id: SessionReference | None = None
    name: Name | None = None
    system: str | None = None
    archived: bool | None = None
    pinned: bool | None = None
    deleted: bool | None = None
    unhide: Count | None = None
    """The number of an entry that is shown again to models of providers that refused it."""
    release: bool | None = None
    """Releases the prompts for later that are held, because the conversation is a copy."""


class SessionFork(Request, frozen=True, kw_only=True):
    session_id: SessionReference | None = None
    at_seq: Count | None = None
    name: Name | None = None


class Search(Request, frozen=True, kw_only=True):
    query: SearchQuery
    limit: Positive = 20
    cursor: Cursor | None = None


class ContextRequest(Request, frozen=True, kw_only=True):
    session_id: SessionReference | None = None
    model: Word | None = None
    text: str | None = None
    call: Count | None = None
    """The number of a model's output: the context that was sent for it. 0: the last one."""


class Approval(Request, frozen=True, kw_only=True):
    approval_id: Name
    decision: Literal["allow", "deny"]
    remember: bool = False


class StatusRequest(Request, frozen=True, kw_only=True):
    pass


class Compact(Request, frozen=True, kw_only=True):
    session_id: SessionReference | None = None


class Tools(Request, frozen=True, kw_only=True):
    session_id: SessionReference | None = None


class Usage(Request, frozen=True, kw_only=True):
    session_id: SessionReference | None = None


class FileGet(Request, frozen=True, kw_only=True):
    file_id: Name
    session_id: SessionReference | None = None
    offset: Count = 0
    length: Count | None = None


class Import(Request, frozen=True, kw_only=True):
    file_id: Name | None = None
    document: JsonObject | None = None


class Rollback(Request, frozen=True, kw_only=True):
    """Needs one of `to_seq`, `turns` and `redo`."""

    to_seq: Count | None = None
    turns: tuple[Name, ...] = ()
    redo: bool = False
    session_id: SessionReference | None = None


class Redact(Request, frozen=True, kw_only=True):
    seq: Positive
    session_id: SessionReference | None = None


class Repair(Request, frozen=True, kw_only=True):
    session_id: SessionReference | None = None


class Watch(Request, frozen=True, kw_only=True):
    watch: bool = True
    limit: Positive = 50
    cursor: Cursor | None = None


class Seen(Request, frozen=True, kw_only=True):
    seq: Count
    """The last entry that the user has seen; a number beyond the head means the head."""
    session_id: SessionReference | None = None
    unread: bool = False
    """Whether the mark may move backward."""


# Replies. A reply carries the request's seq and, unless `codec.REPLY_CODES` names
# another, the request's type.


class Reply(Message, frozen=True):
    """The base of all replies."""


class Welcome(Reply, frozen=True, kw_only=True):
    version: int
    server: str
    user: str
    session_id: str
    model: str
    models: tuple[str, ...]
    limits: JsonObject
    features: tuple[str, ...] = sent(())
    instance: str | None = None
    """Names this run of the server, as its `server.json` does."""
    redacted: tuple[str, ...] = ()
    """The message ids of this user's prompts that were redacted, if HELLO asked for them with the
    feature `redacted`."""


class Pong(Reply, frozen=True, kw_only=True):
    data: bytes = b""


class Cancelled(Reply, frozen=True, kw_only=True):
    cancelled: bool


class Receipt(Reply, frozen=True, kw_only=True):
    """Confirms that the prompt is on disk. At `position` 0 its turn runs now; at n it waits
    behind n turns."""

    turn_id: str
    session_id: str
    seq: int
    message_id: str | None = None
    position: int
    state: str
    duplicate: bool | None = None
    model: str | None = None
    """The model that would answer it now; a switch before its turn changes that."""
    due_at: str | None = None
    """The time when the prompt for later runs; its `state` is `later`."""
    past: bool | None = None
    """The time given as `not_before` has passed, so the prompt runs now."""


class ActiveTurn(Message, frozen=True, kw_only=True):
    turn_id: str
    call: int
    offset: int
    model: str


class LaterTurn(Message, frozen=True, kw_only=True):
    turn_id: str
    seq: int
    due_at: str
    held: bool | None = None
    """The conversation is a copy, and nobody has released the prompt there."""
    limited: bool | None = None
    """It was sent before, and its model was rate-limited."""
    preview: str | None = None
    """The beginning of its text, in one line."""


class Attached(Reply, frozen=True, kw_only=True):
    session_id: str
    name: str
    model: str
    head_seq: int
    active_turn: ActiveTurn | None = sent(None)
    queue: tuple[str, ...]
    pending_approvals: tuple[JsonObject, ...] = sent(())
    clients: tuple[JsonObject, ...] = sent(())
    resync: bool | None = None
    """The server does not replay the entries: read them with HISTORY_REQUEST, up to
    `head_seq`."""
    later: tuple[LaterTurn, ...] = ()
    """The prompts whose time has not come."""


class Detached(Reply, frozen=True, kw_only=True):
    pass


class FileStored(Reply, frozen=True, kw_only=True):
    file_id: str
    size: int
    sha256: str


class FilePiece(Reply, frozen=True, kw_only=True):
    """The bytes that FILE_GET requested; the payload is raw, not JSON."""

    data: bytes


class ModelChoice(Reply, frozen=True, kw_only=True):
    model: str
    previous_model: str
    models: tuple[str, ...]
    roles: JsonObject = {}
    """The model of each role of the server's settings."""
    options: JsonObject | None = None
    """The default options of prompts in this conversation."""
    listed: JsonObject | None = None
    """The list of each provider: its `models`, the time `at` which it was read, and `asking`
    while it is being read."""
    learned: JsonObject | None = None
    """Maps models to what refusals have shown: the `form` of their requests in words, and the time
    `at` which it was learned."""
    facts: JsonObject | None = None
    """The facts about each model, by its whole name: its window in `context_tokens`, whether it
    takes `tools`, `images` and `pdfs`, its prices, and the `sources` of these."""


class PageEdges(Message, frozen=True, kw_only=True):
    has_more_before: bool
    has_more_after: bool
    before: int
    after: int


class HistoryPage(Reply, frozen=True, kw_only=True):
    session_id: str
    name: str
    message_count: int
    head_seq: int
    messages: tuple[JsonObject, ...]
    page: PageEdges
    model: str | None = None
    """The model that answers next in that conversation."""


class MessageRange(Reply, frozen=True, kw_only=True):
    """A part of one message's text: `offset` and `size` count code points."""

    session_id: str
    seq: int
    offset: int
    content: str
    size: int


class Cleared(Reply, frozen=True, kw_only=True):
    session_id: str
    cleared_through_seq: int


class SessionRow(Reply, frozen=True, kw_only=True):
    session_id: str
    name: str
    message_count: int
    created_at: str
    updated_at: str
    last_accessed: str
    is_current: bool
    model: str
    state: str
    preview: str
    pinned: bool = sent(False)
    archived: bool = sent(False)
    damaged: bool = sent(False)
    door: Door | None = None
    """How its last prompt came."""
    repair: str | None = None
    """The command that repairs the conversation if it is damaged."""
    warning: str | None = None
    """A problem that does not prevent the conversation from being used."""
    deleted_at: str | None = None
    """Set for a conversation in the trash."""
    head_seq: int = sent(0)
    seen_seq: int = sent(0)
    """The last entry that the user has seen; the head, if there is no mark."""
    unread: int = sent(0)
    """The number of answers after it; 100 means 100 or more."""
    running_since: str | None = None
    """The time when the unfinished turn could begin."""
    due_at: str | None = None
    """The time when the first of its prompts for later runs."""
    later: int | None = None
    """The number of its prompts for later, with those that are held."""


class SessionRows(Reply, frozen=True, kw_only=True):
    sessions: tuple[SessionRow, ...]
    next_cursor: str | None = sent(None)
    incomplete: bool = False
    """The server is still reading its files: there may be more conversations."""


class Watching(Reply, frozen=True, kw_only=True):
    """The rows that are not at rest or have unread answers."""

    watching: bool
    sessions: tuple[SessionRow, ...] = sent(())
    next_cursor: str | None = sent(None)
    incomplete: bool = False
    """The server is still reading its files: there may be more conversations."""


class SeenMark(Reply, frozen=True, kw_only=True):
    session_id: str
    seen_seq: int
    unread: int


class SessionCreated(Reply, frozen=True, kw_only=True):
    session_id: str
    name: str
    model: str | None = None
    """The model that answers next in the new conversation."""


class SessionDeleted(Reply, frozen=True, kw_only=True):
    session_id: str
    current_session_id: str
    model: str | None = None
    """The model that answers next in the current conversation."""


class Status(Reply, frozen=True, kw_only=True):
    server: str
    uptime: int | float
    connections: int
    conversations: JsonObject
    turns: JsonObject
    storage: JsonObject
    versions: JsonObject = sent({})
    providers: JsonObject | None = None
    mcp_servers: JsonObject | None = None
    cluster: JsonObject | None = None
    """The servers that share a store, and which of them sent this reply."""
    conversation: JsonObject | None = None
    """The attached conversation: `session_id`, `model`, and `options` if there are any."""
    http: str | None = None
    """The address at which the same server can be reached by HTTP."""


class SearchHit(Message, frozen=True, kw_only=True):
    """A message that matches, or a conversation whose name matches: it has the role `name`,
    seq 0, and its preview as the snippet."""

    session_id: str
    name: str
    seq: int
    role: str
    snippet: str
    timestamp: str


class SearchHits(Reply, frozen=True, kw_only=True):
    hits: tuple[SearchHit, ...]
    next_cursor: str | None = sent(None)
    incomplete: bool = False


class ContextAccount(Reply, frozen=True, kw_only=True):
    """Lists what a call would be shown, entry by entry."""

    session_id: str
    model: str
    epoch: int
    budget_tokens: int
    entries: tuple[JsonObject, ...]
    totals: JsonObject
    begins_epoch: str | None = None
    """Why a new epoch would begin with this call."""
    call: int | None = None
    """The number of the output, if the call was made already."""


class ApprovalDecided(Reply, frozen=True, kw_only=True):
    """The decision that counts: the first one. `decided_by` is None if the request expired."""

    approval_id: str
    decision: str
    decided_by: str | None = sent(None)


class ToolList(Reply, frozen=True, kw_only=True):
    session_id: str
    tools: tuple[JsonObject, ...]
    mcp_servers: JsonObject | None = None


class UsageAccount(Reply, frozen=True, kw_only=True):
    session_id: str
    model: str
    billed: JsonObject
    occupancy: JsonObject
    estimate: JsonObject
    cost: JsonObject | None = None


class EpochBegun(Reply, frozen=True, kw_only=True):
    session_id: str
    epoch: int
    reason: str
    tokens_before: int
    tokens_after: int
    compaction: int | None = None
    """The entry that holds a model's summary, if one was written."""


class RolledBack(Reply, frozen=True, kw_only=True):
    session_id: str
    head_seq: int
    turns: tuple[str, ...] = ()
    """The turns that the request named."""


class RedactedCopy(Struct, frozen=True, kw_only=True):
    """An entry that holds the erased text, or a word of it that looks like a secret."""

    session_id: str
    name: str
    seq: int
    kind: str


class Remaining(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place that may still hold the erased text, and that no request reaches."""

    what: str
    """`providers`, `trash`, `backups`, `exports`, or another word to come."""
    message: str
    names: tuple[str, ...] = ()


class Redacted(Reply, frozen=True, kw_only=True):
    seq: int
    seqs: tuple[int, ...] = ()
    """All entries that were erased: summaries and names that were made from this one too."""
    message_ids: tuple[str, ...] = ()
    """The ids of the prompts among them, for clients that keep what was typed."""
    copies: tuple[RedactedCopy, ...] = ()
    """Entries of this user that hold the same text; they are not erased."""
    searched_all: bool = True
    """Whether all conversations were searched for copies."""
    remains: tuple[Remaining, ...] = ()


class Repaired(Reply, frozen=True, kw_only=True):
    session_id: str
    kept: int
    """The number of unchanged entries."""
    lost: tuple[tuple[int, int], ...] = sent(())
    """Ranges (first, last) of entries that were replaced by a tombstone."""
    says: tuple[str, ...] = sent(())
    """One sentence for each thing that was done; empty if there was nothing to repair."""
    original: str | None = None
    """The file, in the same directory, that holds the conversation as it was."""


class Imported(Reply, frozen=True, kw_only=True):
    session_id: str
    messages: int


_EXCHANGES: dict[MessageType, tuple[type[Request] | None, type[Reply] | None]] = {
    MessageType.CHAT_TEXT: (None, Receipt),
    MessageType.HELLO: (Hello, Welcome),
    MessageType.PING: (Ping, Pong),
    MessageType.CANCEL: (Cancel, Cancelled),
    MessageType.PROMPT: (Prompt, Receipt),
    MessageType.ATTACH: (Attach, Attached),
    MessageType.DETACH: (Detach, Detached),
    MessageType.FILE_DATA: (FileData, None),
    MessageType.FILE_METADATA: (FileMetadata, FileStored),
    MessageType.MODEL_SWITCH: (ModelSwitch, ModelChoice),
    # A request with `seq` gets a MessageRange instead.
    MessageType.HISTORY_REQUEST: (HistoryRequest, HistoryPage),
    MessageType.CLEAR_REQUEST: (ClearRequest, Cleared),
    MessageType.SESSION_LIST: (SessionList, SessionRows),
    MessageType.SESSION_SWITCH: (SessionSwitch, Attached),
    MessageType.SESSION_NEW: (SessionNew, SessionCreated),
    MessageType.SESSION_DELETE: (SessionDelete, SessionDeleted),
    MessageType.CLIENT_NOTE: (ClientNote, None),
    MessageType.SESSION_UPDATE: (SessionUpdate, SessionRow),
    MessageType.SESSION_FORK: (SessionFork, SessionCreated),
    MessageType.SEARCH: (Search, SearchHits),
    MessageType.CONTEXT_REQUEST: (ContextRequest, ContextAccount),
    MessageType.APPROVAL: (Approval, ApprovalDecided),
    MessageType.STATUS: (StatusRequest, Status),
    MessageType.COMPACT: (Compact, EpochBegun),
    MessageType.TOOLS: (Tools, ToolList),
    MessageType.USAGE: (Usage, UsageAccount),
    MessageType.FILE_GET: (FileGet, FilePiece),
    MessageType.IMPORT: (Import, Imported),
    MessageType.ROLLBACK: (Rollback, RolledBack),
    MessageType.REDACT: (Redact, Redacted),
    MessageType.REPAIR: (Repair, Repaired),
    MessageType.WATCH: (Watch, Watching),
    MessageType.SEEN: (Seen, SeenMark),
}
"""Each request and its reply. CHAT_TEXT is decoded as a Prompt."""

REQUEST_TYPES = {code: shape for code, (shape, _) in _EXCHANGES.items() if shape is not None}
REPLY_TYPES = {code: shape for code, (_, shape) in _EXCHANGES.items() if shape is not None}


# Events. The same bytes go to every attached client: seq 0, `session_id` inside.


class Event(Message, frozen=True):
    """The base of all messages that clients are sent without a request."""


class ErrorReport(Event, frozen=True, kw_only=True):
    """A reply when its seq is not 0, an event otherwise."""

    code: str
    message: str
    field: str | None = None
    retryable: bool = sent(False)
    retry_after: int | float | None = None
    session_id: str | None = None
    details: JsonObject | None = None


class AgentThought(Event, frozen=True, kw_only=True):
    session_id: str
    turn_id: str
    type: str
    content: str | None = None
    call: int | None = None
    offset: int | None = None
    text: str | None = None


class TurnStarted(Event, frozen=True, kw_only=True):
    session_id: str
    turn_id: str
    seq: int
    model: str
    message_id: str | None = None


class TextDelta(Event, frozen=True, kw_only=True):
    session_id: str
    turn_id: str
    call: int
    offset: int
    text: str
    replay_from: int | None = None


class ToolStarted(Event, frozen=True, kw_only=True):
    session_id: str
    turn_id: str
    call: int
    tool_call_id: str
    tool_name: str
    arguments: JsonObject


class ToolFinished(Event, frozen=True, kw_only=True):
    session_id: str
    turn_id: str
    call: int
    tool_call_id: str
    tool_name: str
    status: str
    duration: int | float
    result: str
    truncated: bool | None = None
    size: int | None = None


class TurnFinished(Event, frozen=True, kw_only=True):
    session_id: str
    turn_id: str
    state: str
    """`completed`, `interrupted` or `failed`; a newer server may have more."""
    seq: int
    usage: JsonObject = sent({})
    error: JsonObject | None = None
    model: str | None = None
    """The model that answered. It differs from the one in TURN_STARTED after a failover."""
    stop_reason: str | None = None
    """Why the last answer ended: `end`, `length`, `window`, `filter`, `refusal`, `pause`,
    `cancelled`, or the provider's own word."""
    fallback_from: JsonObject | None = None
    """The `model` that another one answered for, and why: `reason`, `message`."""
    cut: JsonObject | None = None
    """The `tokens` of a prompt that was cut, and how many the `model` was shown: `shown_tokens`."""
    later: JsonObject | None = None
    """The model was rate-limited, and the prompt is held: it runs as turn `turn_id` at `due_at`."""


class SessionEvent(Event, frozen=True, kw_only=True):
    session_id: str
    event: str
    details: JsonObject = {}
    """Further fields of this event; the JSON has them next to `event`."""


class ApprovalRequest(Event, frozen=True, kw_only=True):
    session_id: str
    approval_id: str
    turn_id: str
    tool_name: str
    arguments: JsonObject
    expires_at: str
    tool_call_id: str | None = None
    truncated: bool | None = None
    """Whether the arguments were truncated; `size` is their length in characters."""
    size: int | None = None


class EntryAdded(Event, frozen=True, kw_only=True):
    session_id: str
    entry: JsonObject
    turn_id: str | None = None
    call: int | None = None


class EncodedEntryAdded(Event, frozen=True, kw_only=True):
    """An `EntryAdded` as a server sends it: the entry is already encoded as JSON."""

    session_id: str
    entry: Raw
    turn_id: str | None = None
    call: int | None = None


class SessionChanged(Event, frozen=True, kw_only=True):
    """Sent to clients that watch: the row of a conversation has changed."""

    session_id: str
    what: str
    """`new`, `deleted`, `message`, `state`, `renamed`, `model`, `pinned`, `archived`, `damaged`,
    `seen` or `entry`; of several changes the first of these."""
    row: SessionRow | None = sent(None)
    """None if the conversation was deleted. `is_current` is always false here."""


EVENT_TYPES: dict[MessageType, type[Event]] = {
    MessageType.ERROR: ErrorReport,
    MessageType.AGENT_THOUGHT: AgentThought,
    MessageType.TURN_STARTED: TurnStarted,
    MessageType.TEXT_DELTA: TextDelta,
    MessageType.TOOL_STARTED: ToolStarted,
    MessageType.TOOL_FINISHED: ToolFinished,
    MessageType.TURN_FINISHED: TurnFinished,
    MessageType.SESSION_EVENT: SessionEvent,
    MessageType.APPROVAL_REQUEST: ApprovalRequest,
    MessageType.ENTRY: EntryAdded,
    MessageType.SESSION_CHANGED: SessionChanged,
}
