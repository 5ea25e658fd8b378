"""The request handlers, one function for each request, and the table of them.

Handlers run in the order of the connection's requests; each takes effect before it returns. Work
that must wait (a turn, a clear) is queued in the conversation, and its reply is sent later.
"""

from __future__ import annotations

from nplt_protocol import messages
from nplt_server.connections.session import RequestHandler
from nplt_server.requests import connection, conversations, files, history, prompts, watching

HANDLERS: dict[type[messages.Request], RequestHandler] = {
    messages.Hello: connection.hello,
    messages.Ping: connection.ping,
    messages.ClientNote: connection.client_note,
    messages.StatusRequest: connection.status,
    messages.Prompt: prompts.prompt,
    messages.Cancel: prompts.cancel,
    messages.ModelSwitch: prompts.model_switch,
    messages.ClearRequest: prompts.clear,
    messages.HistoryRequest: history.history,
    messages.Attach: conversations.attach,
    messages.Detach: conversations.detach,
    messages.SessionList: conversations.list_sessions,
    messages.SessionSwitch: conversations.switch,
    messages.SessionNew: conversations.new,
    messages.SessionDelete: conversations.delete,
    messages.SessionUpdate: conversations.update,
    messages.SessionFork: conversations.fork,
    messages.Search: conversations.search,
    messages.Import: conversations.import_,
    messages.Redact: conversations.redact,
    messages.Repair: conversations.repair,
    messages.Watch: watching.watch,
    messages.Seen: watching.seen,
    messages.FileGet: files.file_get,
    messages.FileMetadata: files.file_metadata,
    messages.FileData: files.file_data,
    messages.ContextRequest: history.context,
    messages.Tools: history.tools,
    messages.Usage: history.usage,
    messages.Compact: prompts.compact_context,
    messages.Rollback: prompts.rollback,
    messages.Approval: prompts.approval,
}
