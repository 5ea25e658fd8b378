"""Which conversation a request belongs to, and whether it is recorded at all.

A client names it by its base URL (`/c/NAME/v1`) or by `X-Nplt-Conversation`, which take an id or a
name and create the conversation if it does not exist; by `conversation` or `previous_response_id`
of the API; or by the id of its own chat, which some clients send in a header. The first of these
counts. Texts are never compared to find a conversation, because two people may begin with the same
words.

The id of a foreign chat belongs to the header that it came in. It is never looked up as an id or a
name of this server, so a client can't reach a conversation by naming its own chat after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final
from urllib.parse import unquote

from msgspec import Struct
from starlette.types import Scope

from nplt_gateway.api_request import ApiRequest
from nplt_gateway.errors import ApiError
from nplt_gateway.request_bodies import PromptBody

CONVERSATION_HEADER: Final = "x-nplt-conversation"
RECORDED_HEADER: Final = "x-nplt-recorded"
_NAME_CHARACTERS_MAX: Final = 200
_PATH_NAME: Final = "conversation_in_path"

_CHAT_HEADERS: Final[Mapping[str, str]] = {
    # https://docs.openwebui.com, ENABLE_FORWARD_USER_INFO_HEADERS
    "x-openwebui-chat-id": "openwebui",
    # https://www.librechat.ai/docs/configuration/librechat_yaml, headers of a custom endpoint:
    # X-Conversation-Id: '{{LIBRECHAT_BODY_CONVERSATIONID}}'
    "x-conversation-id": "conversation",
    # opencode sends it with every call, as it sends x-session-affinity.
    "x-session-id": "session",
    # Codex; its body has the same id in prompt_cache_key.
    "thread-id": "thread",
}
"""The headers in which clients send the id of their chat, each with its namespace."""
_TASK_HEADER: Final = "x-nplt-task"
"""Marks calls for titles, tags and the like. Open WebUI fills `{{TASK}}` in for it."""
_TITLE_PROMPTS: Final = ("You are a title generator",)
"""How the instruction of opencode's calls for titles begins."""


class Named(Struct, frozen=True, kw_only=True):
    """A conversation that the client names."""

    reference: str
    """Its id or name."""
    may_create: bool


def take_name_from_path(scope: Scope) -> None:
    """Makes `/v1/…` of `/c/NAME/v1/…`, and keeps the name. It is read from the bytes that were
    sent, because a name may have a slash, as `%2F`."""
    raw = scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "replace")
    parts = raw.split("/", 3)
    if len(parts) == 4 and parts[:2] == ["", "c"] and parts[2] and parts[3].startswith("v1/"):
        scope["state"][_PATH_NAME] = unquote(parts[2])
        scope["path"] = "/" + unquote(parts[3])


def named_conversation(call: ApiRequest, *, conversation: str | None = None) -> Named | None:
    """The conversation that the request names, except by `previous_response_id`."""
    in_path = call.request.scope["state"].get(_PATH_NAME)
    in_header = unquote(call.header(CONVERSATION_HEADER)) or None
    if in_path and in_header and in_path != in_header:
        raise ApiError(
            400,
            f"the address names the conversation {in_path[:80]!r}, and X-Nplt-Conversation "
            f"{in_header[:80]!r}",
            code="ambiguous_conversation",
            param=CONVERSATION_HEADER,
        )
    if reference := in_path or in_header:
        if len(reference) > _NAME_CHARACTERS_MAX:
            most = f"a conversation's name has at most {_NAME_CHARACTERS_MAX} characters"
            raise ApiError(400, most, code="invalid_value", param=CONVERSATION_HEADER)
        return Named(reference=reference, may_create=True)
    if conversation is not None:
        return Named(reference=conversation, may_create=False)
    return None


def foreign_chat(call: ApiRequest, *, cache_key: str | None = None) -> Named | None:
    """The conversation of the client's own chat."""
    for header, namespace in _CHAT_HEADERS.items():
        if chat_id := call.header(header):
            return _of_chat(namespace, chat_id)
    if cache_key and call.client.startswith("codex"):
        return _of_chat("thread", cache_key)
    return None


def _of_chat(namespace: str, chat_id: str) -> Named:
    digest = sha256(f"{namespace}\n{chat_id}".encode()).hexdigest()[:32]
    return Named(reference=f"{namespace}-{digest}", may_create=True)


def is_recorded(call: ApiRequest, body: PromptBody, system: str) -> bool:
    """Whether what the client asks for belongs to a conversation at all."""
    if body.store is False and not call.server.settings.http.store_unstored:
        return False
    return not _is_task(call, system, has_tools=bool(body.client_tools))


def _is_task(call: ApiRequest, system: str, *, has_tools: bool) -> bool:
    """Whether the client asks for something outside its conversation, such as a title."""
    if call.header(_TASK_HEADER):
        return True
    is_opencode = "opencode" in call.header("user-agent").lower()
    return is_opencode and not has_tools and system.lstrip().startswith(_TITLE_PROMPTS)
