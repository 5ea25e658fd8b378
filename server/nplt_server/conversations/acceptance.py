"""What makes a prompt acceptable, and what its sender is told once it is on disk."""

from __future__ import annotations

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Receipt
from nplt_protocol.requests import Prompt
from nplt_server.conversations.agenda import Agenda
from nplt_server.conversations.ledger import Ledger
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.sent_before import SentBefore, sent_before
from nplt_storage.facts.entries import AttachmentEntry, ModelInputEntry

ATTACHMENTS_MAX = 32


def draft_of(prompt: Prompt, *, turn_id: str, model: str | None) -> ModelInputEntry:
    """`model`: the one that is asked for, by its name or by its role; written down, so
    that the same one answers if the prompt has to wait for another life."""
    role: JsonObject = {} if prompt.role is None else {"role": prompt.role}
    return ModelInputEntry(
        turn_id=turn_id,
        content=prompt.text,
        message_id=prompt.message_id,
        model=model,
        attachments=prompt.attachments,
        options=prompt.options,
        metadata={**prompt.metadata, **role},
    )


def check_room(agenda: Agenda, waiting_max: int) -> None:
    if len(agenda) >= waiting_max:
        raise RequestError(
            ErrorCode.BUSY,
            f"{waiting_max} requests wait here already; try again when one is answered",
            retry_after=1.0,
        )


async def check_attachments(
    wanted: tuple[str, ...], ledger: Ledger, files: AttachmentFiles
) -> None:
    if not wanted:
        return
    if len(wanted) > ATTACHMENTS_MAX:
        raise RequestError(
            ErrorCode.TOO_LARGE,
            f"a prompt takes at most {ATTACHMENTS_MAX} files",
            field="attachments",
        )
    held = (entry for entry in ledger.history.entries if isinstance(entry, AttachmentEntry))
    there = {entry.file_id for entry in held if entry.redacted_at is None}
    for file_id in wanted:
        # One that came long ago is not held any more, but its file is there.
        if file_id not in there and not await files.has(ledger.session_id, file_id):
            raise RequestError(
                ErrorCode.NOT_FOUND, f"no file {file_id!r} was uploaded here", field="attachments"
            )


def first_receipt(session_id: str, prompt: ModelInputEntry, *, ahead: int) -> Receipt:
    return Receipt(
        turn_id=prompt.turn_id or "",
        session_id=session_id,
        seq=prompt.seq,
        message_id=prompt.message_id,
        position=ahead,
        state="waiting" if ahead else "running",
    )


def held_before(history: ConversationHistory, message_id: str) -> SentBefore | None:
    """The prompt of that name, if it is in memory."""
    prompt = history.prompt_with(message_id)
    if prompt is None:
        return None
    turn_id = prompt.turn_id or ""
    state = history.turn_state(turn_id)
    if state is None:  # taken back: how it ended is still written there
        return sent_before(entry for entry in history.entries if entry.seq >= prompt.seq)
    return SentBefore(seq=prompt.seq, turn_id=turn_id, state=state, text=prompt.content)


def second_receipt(
    prompt: Prompt, known: SentBefore, *, session_id: str, agenda: Agenda
) -> Receipt:
    """The same receipt again, with the state the turn is in by now."""
    if known.text not in (None, prompt.text):
        raise RequestError(
            ErrorCode.CONFLICT,
            "this message_id was used before, with another text",
            field="message_id",
        )
    turn_id = known.turn_id
    is_running = agenda.running is not None and agenda.running.turn_id == turn_id
    waiting = agenda.waiting
    return Receipt(
        turn_id=turn_id,
        session_id=session_id,
        seq=known.seq,
        message_id=prompt.message_id,
        position=waiting.index(turn_id) + 1 if turn_id in waiting else 0,
        state="running" if is_running else known.state,
        duplicate=True,
    )
