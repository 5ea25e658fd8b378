"""Where prompts come in: checked, written, given a receipt and a place among the turns.

A prompt that replaces an earlier one is two entries, the rollback and itself,
written in one go: nobody else's line comes between them, and if the prompt can't
be written the rollback is itself taken back.

What was sent before runs once. Who holds the pen asks what is in memory; of a long
conversation that is its end, so the store is asked before. Nothing is missed in
between: what is written meanwhile is in memory, as long as that is the same one.
"""

from __future__ import annotations

from collections.abc import Callable

from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Receipt
from nplt_protocol.requests import Prompt
from nplt_server.conversations.acceptance import (
    check_attachments,
    check_room,
    draft_of,
    first_receipt,
    held_before,
    second_receipt,
)
from nplt_server.conversations.agenda import Agenda
from nplt_server.conversations.chore import hand_over
from nplt_server.conversations.going_back import at_work, rollback_before
from nplt_server.conversations.household import Household
from nplt_server.conversations.ledger import Ledger
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.turn import Turn
from nplt_server.conversations.writer import Ahead, Writer
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.sent_before import SentBefore
from nplt_storage.facts.entries import Entry, ModelInputEntry, RollbackEntry


class Intake:
    """One prompt on its way in."""

    def __init__(
        self,
        prompt: Prompt,
        receipt: Callable[[Receipt], None],
        *,
        ledger: Ledger,
        agenda: Agenda,
        household: Household,
        mind: Callable[[], Mind],
    ) -> None:
        self._prompt = prompt
        self._model = household.router.wished(model=prompt.model, role=prompt.role)
        self._receipt = receipt
        self._ledger = ledger
        self._agenda = agenda
        self._house = household
        self._mind = mind
        self._stored_before: SentBefore | None = None
        self._looked_beyond: ConversationHistory | None = None
        """What was in memory when the store was asked."""

    async def take_in(
        self,
        writer: Writer,
        *,
        check_open: Callable[[], None],
        announce: Callable[[str, JsonObject], None],
        accepted: Callable[[ModelInputEntry], None],
    ) -> None:
        """Returns when it is on disk; the receipt is given before any event."""
        check_open()
        await self._agenda.pay_debts()
        await self._look_back()
        if self._known() is None:
            await check_attachments(self._prompt.attachments, self._ledger, self._house.files)
        ahead = await self._ahead(check_open)
        await self._look_back()

        def prepare() -> Entry | None:
            check_open()
            return self._draft()

        def stored(entry: Entry) -> None:
            assert isinstance(entry, ModelInputEntry)
            place = self._agenda.add(Turn(prompt=entry))
            receipt = first_receipt(self._ledger.session_id, entry, ahead=place)
            hand_over(self._receipt, receipt)
            if ahead is not None and isinstance(ahead.entry, RollbackEntry):
                writer.tell(ahead.entry)
                told = {"to_seq": ahead.entry.to_seq, "head_seq": ahead.entry.seq}
                announce("rolled_back", {**told})
            writer.tell(entry)
            self._agenda.advance()
            accepted(entry)

        await writer.write(prepare, stored, ahead=ahead)

    async def _look_back(self) -> None:
        """Asks the store what memory can't know, anew whenever that is another one."""
        message_id, ledger = self._prompt.message_id, self._ledger
        while message_id and self._looked_beyond is not ledger.history:
            history = self._looked_beyond = ledger.history
            if not history.holds_all and history.prompt_with(message_id) is None:
                store = ledger.profile.store
                self._stored_before = await store.prompt_with(ledger.session_id, message_id)

    def _known(self) -> SentBefore | None:
        message_id = self._prompt.message_id
        if not message_id:
            return None
        return held_before(self._ledger.history, message_id) or self._stored_before

    def _draft(self) -> Entry | None:
        """Called with the pen in hand."""
        known = self._known()
        if known is not None:
            again = second_receipt(
                self._prompt, known, session_id=self._ledger.session_id, agenda=self._agenda
            )
            hand_over(self._receipt, again)
            return None
        check_room(self._agenda, self._house.limits.waiting_prompts_max)
        draft = draft_of(self._prompt, turn_id=self._house.new_entry_id(), model=self._model)
        state = self._mind().state
        return state.draft_model_input(draft, waits=self._agenda.state != "idle")

    async def _ahead(self, check_open: Callable[[], None]) -> Ahead | None:
        replaced_seq = self._prompt.replace_from
        if replaced_seq is None or self._known() is not None:
            return None
        self._check_at_rest()
        rollback = await rollback_before(
            self._ledger.history, self._ledger.profile.store, replaced_seq
        )

        def prepare() -> Entry | None:
            check_open()
            if self._known() is not None:
                return None
            self._check_at_rest()
            return rollback

        return Ahead(prepare=prepare)

    def _check_at_rest(self) -> None:
        if self._agenda.is_busy:
            raise at_work()
