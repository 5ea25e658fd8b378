"""Handles requests about the current conversation: prompts, history, approvals, context, files.

PROMPT, CANCEL, MODEL_SWITCH, CLEAR_REQUEST, HISTORY_REQUEST, APPROVAL, CONTEXT_REQUEST,
TOOLS, USAGE, COMPACT, ROLLBACK, FILE_METADATA, FILE_DATA, FILE_GET. A user reads only the files
of conversations that user may see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from msgspec import structs, to_builtins

from nplt_protocol import FRAME_PAYLOAD_BYTES_MAX, ErrorCode, JsonObject, RequestError, messages
from nplt_server.connections.session import Session
from nplt_server.conversations import operations
from nplt_server.conversations.approvals import no_such_question
from nplt_server.conversations.context_report import context_report, usage_report
from nplt_server.conversations.conversation import Conversation
from nplt_server.dialects import Answer, written_size
from nplt_server.digest import levels_of
from nplt_server.histories import FoundConversation
from nplt_server.providers import check_options
from nplt_server.tools import ToolFailed
from nplt_server.tools.mcp.results import McpFile
from nplt_storage.ids import is_file_id
from nplt_storage.pages import MessagePage, PageQuery
from nplt_storage.rows import NEW_NAME

_PIECE_BYTES_MAX = 1024 * 1024
"""Of a file, in one reply."""
_PAGE_MESSAGES_MAX = 200
_PAGE_BYTES_MIN = 4_096
"""Less would hold no message, however it is cut."""
_ENVELOPE_BYTES = 2_048
"""Room for what stands around the messages of a page: id, name, edges."""
_RANGE_CHARACTERS_MAX = 10_000
"""So that a range of a message fits one frame, whatever it is made of."""


async def prompt(session: Session, request: messages.Prompt, answer: Answer) -> None:
    await check_options(request.options)
    conversation = await session.meant(
        request.session_id, to_change=True, create=request.create, history=request.history
    )
    is_foreign = conversation is not session.conversation

    admission, services = session.server.admission, session.server.services
    if admission.users.need_tokens:  # else the one user may do as it likes
        if wait := admission.seconds_until_prompt(session.user):
            raise RequestError(
                ErrorCode.RATE_LIMITED,
                f"too many prompts in a short time; try again in {wait:.0f} s",
                retry_after=wait,
            )
        if (shared := services.histories.shared) is not None:
            services.spawn(partial(admission.count_prompt, session.user, shared))

    await services.quotas.check_conversations(session.user)

    def receipt(given: messages.Receipt) -> None:
        # A client that can't name its prompts has not sent it twice; its server has.
        if not is_foreign and not (given.duplicate and session.can_attach):
            session.my_turn(given)
        answer.give(given)

    await conversation.accept(request, receipt=receipt)


async def cancel(session: Session, request: messages.Cancel, answer: Answer) -> None:
    turn_id = request.turn_id or session.last_turn
    conversation = session.server.registry.turn_holder(turn_id, session.user) if turn_id else None
    if conversation is not None and conversation is session.conversation:
        session.check_may_speak()
    cancelled = bool(conversation and turn_id and conversation.cancel(turn_id))
    answer.give(messages.Cancelled(cancelled=cancelled))


async def model_switch(session: Session, request: messages.ModelSwitch, answer: Answer) -> None:
    conversation, router = session.here(), session.server.services.router
    previous = conversation.model
    wanted = router.wished(model=request.model, role=request.role)
    await check_options(request.options or {})
    if wanted is not None or request.options:
        session.check_may_speak()
    if wanted is not None:
        previous = await operations.switch_model(conversation, wanted)
    if request.options:
        await operations.set_options(conversation, request.options)
    if request.listed:
        await router.lists.load()
        # Beside this: nobody waits for a provider that is slow or gone.
        session.server.services.spawn(router.begin_lists())
    answer.give(
        messages.ModelChoice(
            model=conversation.model,
            previous_model=previous,
            models=router.models,
            roles={**router.roles},
            options={**conversation.writer.options} or None,
            listed=router.lists.as_json() if request.listed else None,
        )
    )


async def clear(session: Session, request: messages.ClearRequest, answer: Answer) -> None:
    session.check_may_speak()
    here = session.here()
    session.answer_later(here, partial(operations.clear, here), answer)


async def history(session: Session, request: messages.HistoryRequest, answer: Answer) -> None:
    session_id = await session.id_of(request.session_id)
    found = await session.server.registry.find(session_id, session.user)
    if request.seq is not None:
        answer.give(await _message_range(found, session_id, request))
        return
    if found is None:
        cursor = request.before or request.after or request.around or 0
        page = MessagePage(
            messages=(), has_more_before=False, has_more_after=False, before=cursor, after=cursor
        )
    else:
        query = _page_query(session, request, answer.bytes_max)
        page = await found.profile.store.page(session_id, query)
        found = await session.server.registry.find(session_id, session.user) or found
    row, here = found.row if found else None, session.conversation
    chosen = row.model if row else None
    if here is not None and here.session_id == session_id:
        chosen = here.model
    answer.give(
        messages.HistoryPage(
            session_id=session_id,
            name=row.name if row else NEW_NAME,
            message_count=row.message_count if row else 0,
            head_seq=row.head_seq if row else 0,
            messages=page.messages,
            page=messages.PageEdges(
                has_more_before=page.has_more_before,
                has_more_after=page.has_more_after,
                before=page.before,
                after=page.after,
            ),
            model=session.server.services.router.choose(chosen),
        )
    )


def _page_query(
    session: Session, request: messages.HistoryRequest, client_bytes_max: int | None
) -> PageQuery:
    asked = FRAME_PAYLOAD_BYTES_MAX
    if request.max_bytes is not None:
        asked = max(request.max_bytes, _PAGE_BYTES_MIN)
    server_bytes_max = session.server.services.limits.message_bytes_max
    bytes_max = min(asked, server_bytes_max, client_bytes_max or asked)
    return PageQuery(
        before=request.before,
        after=request.after,
        around=request.around,
        limit=min(request.limit, _PAGE_MESSAGES_MAX),
        bytes_max=max(1_024, bytes_max - _ENVELOPE_BYTES),
        roles=request.roles or ("user", "assistant"),
        view=request.view,
        order=request.order,
        detail=request.detail,
        levels=levels_of,
        size=written_size,
    )


async def _message_range(
    found: FoundConversation | None, session_id: str, request: messages.HistoryRequest
) -> messages.MessageRange:
    assert request.seq is not None
    text = await found.profile.store.text_of(session_id, request.seq) if found else None
    if text is None:
        raise RequestError(
            ErrorCode.NOT_FOUND, f"there is no message {request.seq} here", field="seq"
        )
    asked = _RANGE_CHARACTERS_MAX if request.length is None else request.length
    length = min(asked, _RANGE_CHARACTERS_MAX)
    return messages.MessageRange(
        session_id=session_id,
        seq=request.seq,
        offset=request.offset,
        content=text[request.offset : request.offset + length],
        size=len(text),
    )


async def approval(session: Session, request: messages.Approval, answer: Answer) -> None:
    conversation = _asked_in(session, request.approval_id)
    if conversation is session.conversation:
        session.check_may_speak()
    answer.give(await conversation.approvals.decide(request, by=session.user))


def _asked_in(session: Session, approval_id: str) -> Conversation:
    """The conversation of this session, or another one of the user's that waits for it."""
    here = session.conversation
    if here is not None and here.approvals.knows(approval_id):
        return here
    for conversation in session.server.registry:
        if conversation.user == session.user and conversation.approvals.holds(approval_id):
            return conversation
    raise no_such_question(approval_id)


async def context(session: Session, request: messages.ContextRequest, answer: Answer) -> None:
    conversation = await session.meant(request.session_id)
    model = conversation.model
    if request.model is not None:
        model = session.server.services.router.check(request.model)
    bytes_max = answer.bytes_max or session.server.services.limits.message_bytes_max
    answer.give(
        await context_report(conversation, model=model, text=request.text, bytes_max=bytes_max)
    )


async def tools(session: Session, request: messages.Tools, answer: Answer) -> None:
    conversation = await session.meant(request.session_id)
    services = session.server.services
    every = services.tools.every
    offered = {tool.name for tool in services.tools.offer.descriptions}
    asks = any(policy == "ask" for _, policy in every)
    remembered = await conversation.approvals.remembered() if asks else {}
    listed: list[JsonObject] = [
        {
            "name": tool.name,
            "description": tool.description,
            "schema": tool.parameters,
            "class": tool.tool_class,
            "policy": remembered.get(tool.name, policy) if policy == "ask" else policy,
            "offered": tool.name in offered,
        }
        for tool, policy in every
    ]
    servers: JsonObject = {
        name: {**server.described, "sources": [to_builtins(one) for one in server.sources]}
        for name, server in services.mcp_servers.by_name.items()
    }
    answer.give(
        messages.ToolList(
            session_id=conversation.session_id, tools=tuple(listed), mcp_servers=servers or None
        )
    )


async def usage(session: Session, request: messages.Usage, answer: Answer) -> None:
    conversation = await session.meant(request.session_id)
    answer.give(await usage_report(conversation))


async def compact_context(session: Session, request: messages.Compact, answer: Answer) -> None:
    conversation = await session.meant(request.session_id, to_change=True)
    session.answer_later(conversation, partial(operations.compact, conversation), answer)


async def rollback(session: Session, request: messages.Rollback, answer: Answer) -> None:
    conversation = await session.meant(request.session_id, to_change=True)
    given = (request.to_seq is not None, bool(request.turns), request.redo)
    if given.count(True) != 1:
        raise RequestError(
            ErrorCode.MALFORMED,
            "say what to take back: to_seq, or turns, or redo to bring it back",
            field="turns",
        )
    answer.give(
        await operations.roll_back(
            conversation, request.to_seq or 0, turns=request.turns, redo=request.redo
        )
    )


async def file_get(session: Session, request: messages.FileGet, answer: Answer) -> None:
    session_id = await _session_with_file(session, request.file_id, request.session_id)
    most = min(_PIECE_BYTES_MAX, session.server.services.limits.message_bytes_max)
    length = most if request.length is None else min(request.length, most)
    data = await session.server.services.files.read(
        session_id, request.file_id, offset=request.offset, length=length
    )
    answer.give(messages.FilePiece(data=data))


async def path_of_upload(session: Session, file_id: str) -> Path:
    """Of one that came over this connection to be imported, or of any attachment."""
    upload = await session.uploads.import_named(file_id)
    if upload is not None:
        return upload
    return session.server.services.files.path_of(
        await _session_with_file(session, file_id, None), file_id
    )


async def _session_with_file(session: Session, file_id: str, session_id: str | None) -> str:
    """The conversation of this user that has the file."""
    files = session.server.services.files
    async for candidate in _candidates(session, file_id, session_id):
        if is_file_id(file_id) and await files.has(candidate, file_id):
            return candidate
    raise RequestError(ErrorCode.NOT_FOUND, f"there is no file {file_id!r}", field="file_id")


async def _candidates(session: Session, file_id: str, session_id: str | None) -> AsyncIterator[str]:
    if session_id is not None:
        yield await session.id_of(session_id)
        return
    if session.conversation is not None:
        yield session.conversation.session_id
    for holder in await session.server.services.files.sessions_with(file_id):
        found = await session.server.services.histories.find(holder)
        if found is not None and found.row.user == session.user:
            yield holder


async def file_metadata(session: Session, request: messages.FileMetadata, answer: Answer) -> None:
    session_id = ""
    if request.purpose != "import":  # that belongs nowhere yet
        try:
            session.check_may_speak()
            session_id = session.here().session_id
        except RequestError:
            session.uploads.swallow(answer.seq)
            raise
    data = b""
    if request.source is not None:
        found = await _fetched(session, request.source)
        data = found.data
        request = structs.replace(
            request, filename=found.filename, size=len(data), content_type=found.content_type
        )
    await session.uploads.begin(request, answer, session_id=session_id, user=session.user)
    if data:
        await session.uploads.add(messages.FileData(data=data), answer)


async def _fetched(session: Session, source: str) -> McpFile:
    services = session.server.services
    server, slash, _ = source.removeprefix("mcp:").partition("/")
    if not source.startswith("mcp:") or not slash:
        raise RequestError(
            ErrorCode.MALFORMED, "a source is mcp:SERVER/RESOURCE; TOOLS lists them", field="source"
        )
    if services.tools.denies_server(server):
        raise RequestError(ErrorCode.FORBIDDEN, f"{server} is denied by the server's settings")
    try:
        return await services.mcp_servers.read(source)
    except ToolFailed as error:
        raise RequestError(ErrorCode.NOT_FOUND, str(error), field="source") from error


async def file_data(session: Session, request: messages.FileData, answer: Answer) -> None:
    await session.uploads.add(request, answer)
