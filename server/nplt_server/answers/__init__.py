"""How each request is answered: one function per request, and this table.

A function takes its place in the order of the connection's requests, has its
effect, and returns; what must wait (a turn, a clear) is left with the
conversation, which answers later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nplt_protocol import requests
from nplt_server.answers import (
    arranging,
    conversing,
    deciding,
    files,
    greeting,
    searching,
    thinking,
    uploading,
    visiting,
)
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.presenters.base import Answer

Answering = Callable[[Premises, Session, Any, Answer], Awaitable[None]]

ANSWERS: dict[type[requests.Request], Answering] = {
    requests.Hello: greeting.hello,
    requests.Ping: greeting.ping,
    requests.ClientNote: greeting.client_note,
    requests.StatusRequest: greeting.status,
    requests.Prompt: conversing.prompt,
    requests.Cancel: conversing.cancel,
    requests.ModelSwitch: conversing.model_switch,
    requests.ClearRequest: conversing.clear,
    requests.HistoryRequest: conversing.history,
    requests.Attach: visiting.attach,
    requests.Detach: visiting.detach,
    requests.SessionList: visiting.list_sessions,
    requests.SessionSwitch: visiting.switch,
    requests.SessionNew: visiting.new,
    requests.SessionDelete: visiting.delete,
    requests.SessionUpdate: arranging.update,
    requests.SessionFork: arranging.fork,
    requests.Search: searching.search,
    requests.Import: arranging.import_,
    requests.Redact: arranging.redact,
    requests.FileGet: files.file_get,
    requests.FileMetadata: uploading.file_metadata,
    requests.FileData: uploading.file_data,
    requests.ContextRequest: thinking.context,
    requests.Tools: thinking.tools,
    requests.Usage: thinking.usage,
    requests.Compact: thinking.compact_context,
    requests.Rollback: thinking.rollback,
    requests.Approval: deciding.approval,
}


async def answer_request(
    premises: Premises, session: Session, request: requests.Request, answer: Answer
) -> None:
    await ANSWERS[type(request)](premises, session, request, answer)
