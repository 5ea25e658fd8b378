"""Replies as one readable text each, for clients that show nothing else."""

from __future__ import annotations

import orjson

from nplt_protocol.replies import (
    Attached,
    Cleared,
    ContextAccount,
    FileStored,
    HistoryPage,
    MessageRange,
    ModelChoice,
    Reply,
    SessionCreated,
    SessionDeleted,
    SessionRow,
    SessionRows,
)
from nplt_protocol.shapes import write
from nplt_server.presenters.markup import json_without_markup


def reply_text(reply: Reply) -> str:
    match reply:
        case HistoryPage() | MessageRange() | ContextAccount():
            return json_without_markup(orjson.dumps(write(reply)).decode())
        case SessionRows():
            return _list(reply)
        case Attached():
            return f"Switched to {reply.name} ({reply.session_id}), {reply.model}."
        case SessionCreated():
            return f"New conversation {reply.name} ({reply.session_id})."
        case SessionDeleted():
            return f"Deleted {reply.session_id}. You are in {reply.current_session_id} now."
        case ModelChoice():
            return _models(reply)
        case Cleared():
            return "Cleared: the model no longer sees what was said before. The record stays."
        case FileStored():
            return f"Stored {reply.size} bytes as {reply.file_id}."
        case _:
            return orjson.dumps(write(reply)).decode()


def _list(rows: SessionRows) -> str:
    if not rows.sessions:
        return "No conversations yet. Say something to begin one."
    lines = [f"Conversations, newest first ({len(rows.sessions)}):"]
    lines += [_row(row) for row in rows.sessions]
    if rows.next_cursor:
        lines.append("There are more; ask with a larger limit or a query.")
    return "\n".join(lines)


def _row(row: SessionRow) -> str:
    mark = "*" if row.is_current else " "
    when = row.updated_at[:16].replace("T", " ")
    state = "" if row.state == "idle" else f", {row.state}"
    damaged = ", damaged" if row.damaged else ""
    count = f"{row.message_count} message{'s' if row.message_count != 1 else ''}"
    return f"{mark} {row.session_id}  {row.name}  ({count}, {when}{state}{damaged})"


def _models(choice: ModelChoice) -> str:
    listed = ", ".join(choice.models)
    if choice.model == choice.previous_model:
        return f"The model is {choice.model}. There is: {listed}."
    return f"The model is {choice.model} now (it was {choice.previous_model}). There is: {listed}."
