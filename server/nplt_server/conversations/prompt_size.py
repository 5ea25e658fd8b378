"""Checks, before a prompt is stored, whether its model can be shown all of it.

The check builds the context that the prompt would get, so it agrees with the call. A prompt of a
few lines is not checked, and the older turns never count: they are shortened to make room.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_server.context.selection import ContextView
from nplt_server.conversations.context_manager import ContextManager
from nplt_server.conversations.services import Services
from nplt_server.errors import WindowTooSmall
from nplt_storage.entries import ModelInputEntry

SHORT_CHARACTERS_MAX: Final = 1_000
"""A prompt of this length without files is not checked."""
_MODELS_NAMED_MAX: Final = 5


async def check_fits(
    draft: ModelInputEntry, model: str, context: ContextManager, services: Services
) -> None:
    """Raises `too_large` if the middle of the prompt, or a file, would be cut."""
    await context.ready()
    await context.attachments.read(draft.attachments)
    view = await context.compute(
        partial(_view_of, draft, model, context), characters=len(draft.content)
    )
    if view is None or cut_prompt(view, context.record.history.head_seq + 1) is None:
        return
    files = context.attachments.contents.files
    texts = [draft.content, *(files[each].text or "" for each in draft.attachments)]
    tokens = sum(map(context.state.measure.text, texts))
    facts = services.context.models.facts
    room, window = facts(model).budget_tokens, facts(model).context_tokens
    others = [
        name
        for name in services.router.models
        if facts(name).counts_tokens
        and facts(name).budget_tokens >= max(tokens + view.call_budget.tools_tokens, room + 1)
    ]
    named: list[JsonValue] = [*others[:_MODELS_NAMED_MAX]]
    source = facts(model).sources.get("context_tokens", "assumed")
    larger = f"ask a larger model ({', '.join(map(str, named))}), " if named else ""
    details: JsonObject = {
        "tokens": tokens,
        "budget_tokens": room,
        "window_tokens": window,
        "models": named,
        "on_too_long": services.on_too_long,
    }
    raise RequestError(
        ErrorCode.TOO_LARGE,
        f"the prompt takes about {tokens:,} tokens, and {model} has a window of {window:,} "
        f"({source}), of which {room:,} are for input; send less, {larger}or have it cut in the "
        "middle (--cut, /cut, or the option cut)",
        field="text",
        details=details,
    )


def _view_of(draft: ModelInputEntry, model: str, context: ContextManager) -> ContextView | None:
    """`None` if not even the shortest prompt fits: the call says why."""
    prompt = context.state.draft_model_input(draft)
    try:
        return context.expected_projection().context(
            prompt, context.call_budget(model, prompt=draft)
        )
    except WindowTooSmall:
        return None


def cut_prompt(view: ContextView, seq: int) -> int | None:
    """The tokens that are shown of a prompt that was cut; `None` if all of it is shown."""
    if not view.is_trimmed:
        return None
    for message, tokens in zip(view.messages, view.sizes, strict=True):
        if message.seq == seq and message.role == "model_input":
            return tokens if message.level == "cut" else None
    return 0
