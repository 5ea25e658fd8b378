"""The request handlers, one function for each request, and the table of them.

A handler takes its place in the order of the connection's requests, has its effect and
returns. What must wait (a turn, a clear) is queued with the conversation, which answers
later.
"""

from __future__ import annotations

from nplt_protocol import messages
from nplt_server.connections.session import RequestHandler
from nplt_server.requests import conversation_list, handshake, prompts

HANDLERS: dict[type[messages.Request], RequestHandler] = {
    messages.Hello: handshake.hello,
    messages.Ping: handshake.ping,
    messages.ClientNote: handshake.client_note,
    messages.StatusRequest: handshake.status,
    messages.Prompt: prompts.prompt,
    messages.Cancel: prompts.cancel,
    messages.ModelSwitch: prompts.model_switch,
    messages.ClearRequest: prompts.clear,
    messages.HistoryRequest: prompts.history,
    messages.Attach: conversation_list.attach,
    messages.Detach: conversation_list.detach,
    messages.SessionList: conversation_list.list_sessions,
    messages.SessionSwitch: conversation_list.switch,
    messages.SessionNew: conversation_list.new,
    messages.SessionDelete: conversation_list.delete,
    messages.SessionUpdate: conversation_list.update,
    messages.SessionFork: conversation_list.fork,
    messages.Search: conversation_list.search,
    messages.Import: conversation_list.import_,
    messages.Redact: conversation_list.redact,
    messages.Repair: conversation_list.repair,
    messages.FileGet: prompts.file_get,
    messages.FileMetadata: prompts.file_metadata,
    messages.FileData: prompts.file_data,
    messages.ContextRequest: prompts.context,
    messages.Tools: prompts.tools,
    messages.Usage: prompts.usage,
    messages.Compact: prompts.compact_context,
    messages.Rollback: prompts.rollback,
    messages.Approval: prompts.approval,
}
