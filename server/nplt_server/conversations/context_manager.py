"""Prepares the context of each call of one conversation.

Holds the agent state, the attachments that are shown, and window sizes learned from
refusals. Before a call it writes an epoch entry if the context can't continue the last one.
Created when the first context is needed. It does not call models; the summarizer and the
namer, which do, run as separate tasks.

`AttachmentReader` reads the files attached to prompts. If there are more images than a
request may hold, a new epoch begins and the newest images are sent, up to half the limit.

What takes long because the conversation is long runs in a thread (`compute`).
"""

from __future__ import annotations

import base64
from codecs import utf_8_decode
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from msgspec.structs import replace

from nplt_server import logs
from nplt_server.context.messages import (
    AttachmentContents,
    AttachmentReason,
    ContextAttachment,
    file_ids_of,
)
from nplt_server.context.projection import EpochReason, Projection
from nplt_server.context.source import (
    CallBudget,
    ContextTooSmall,
    ContextView,
    Measure,
    PromptReference,
)
from nplt_server.conversations.agent_state import AgentState
from nplt_server.conversations.record_writer import QUICK_ENTRIES_MAX, RecordWriter
from nplt_server.conversations.summarizer import ConversationNamer, Summarizer
from nplt_server.errors import WindowTooSmall
from nplt_server.providers import CallRoom
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.entries import (
    AttachmentEntry,
    Entry,
    EpochEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolResultsEntry,
)
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.history import ConversationHistory
from nplt_storage.messages import model_name

if TYPE_CHECKING:
    from nplt_server.conversations.conversation import Conversation

_ENTRIES_SEARCHED_MAX: Final = 200
"""How many of the newest entries are searched for a model's last reported token count."""
_QUICK_CHARACTERS_MAX: Final = 64 * 1024
"""How many characters that were not counted before are counted without a thread."""
_QUICK_DIGEST_MAX: Final = 16 * 1024
"""How many characters are digested without a thread."""

_T = TypeVar("_T")


class ContextManager:
    def __init__(self, conversation: Conversation) -> None:
        services = conversation.services.context
        self._conversation = conversation
        self._services = services
        self._ceilings: dict[str, CallRoom] = {}
        self._corrections_loaded: set[str] = set()
        """Models whose token correction was searched for in the record."""
        self._attachments = AttachmentReader(conversation.writer, conversation.services.files)
        self._computed: tuple[ConversationHistory | None, int] = (None, 0)
        """The history that was computed with last, and up to where."""
        self._growing: tuple[int, CallBudget | None] = (0, None)
        """The budget of a call whose context only grows; it is made anew for each call."""
        self._is_computing = False
        """A thread is using the projection."""
        self.summarizer = Summarizer(conversation)
        self.namer = ConversationNamer(conversation)
        self.state = AgentState(
            conversation.writer, widgets=services.widgets(), policy=services.rules.policy
        )

    @property
    def projection(self) -> Projection:
        """Available after `ready`."""
        self._update_measure()
        return self.state.projection

    def _update_measure(self) -> None:
        """Uses the loaded token counter and the current attachments. A history that was read
        again gets a new measure with them, because the old one may hold erased text."""
        contents = self.attachments.contents
        if self.state.measure.attachments is not contents:
            self.state.measure = Measure(self._services.counting.now, attachments=contents)

    @property
    def attachments(self) -> AttachmentReader:
        conversation = self._conversation
        if self._attachments.history is not conversation.writer.history:
            self._attachments = AttachmentReader(conversation.writer, conversation.services.files)
        return self._attachments

    async def ready(self) -> None:
        """Loads the token counter and the attached files. Awaited before a context is made."""
        await self._services.counting.counter()
        await self.attachments.gather()

    async def compute(self, work: Callable[[], _T], *, characters: int = 0) -> _T:
        """Runs work that uses the projection: at once if it is quick, else in a thread.
        Meanwhile nothing is written here, and nobody else uses the projection.
        `characters`: of texts that are not in the history."""
        history = self._conversation.writer.history
        is_quick = not self._is_computing and len(history.entries) <= QUICK_ENTRIES_MAX
        if is_quick:  # whether all that is in memory is counted and digested quickly
            characters += sum(map(_characters_of, history.entries))
            is_quick = characters <= _QUICK_DIGEST_MAX
        self._computed = (history, history.head_seq)
        if is_quick:
            return work()
        async with self._conversation.writer.exclusive():
            self._is_computing = True
            try:
                return await self._conversation.writer.in_thread(work)
            finally:
                self._is_computing = False

    def _only_grows(self, prompt_ref: PromptReference, call_budget: CallBudget) -> bool:
        """Whether the context of that call is the last one and a little more, however long
        that is, so that neither an epoch is due nor a thread is needed. Found out once for
        each call."""
        history = self._conversation.writer.history
        if self._is_computing:
            return False
        head_seq, budget = self._growing
        if budget is call_budget and head_seq == history.head_seq:
            return True
        through = self._computed[1] if self._computed[0] is history else 0
        if not through:
            return False
        new = 0
        for entry in history.newest_after(through):
            new += _characters_of(entry)
            if new > _QUICK_CHARACTERS_MAX:
                break
        grows = new <= _QUICK_CHARACTERS_MAX and self.projection.only_grows(
            prompt_ref, call_budget, characters=new
        )
        self._growing = (history.head_seq, call_budget if grows else None)
        return grows

    # Before a call

    def call_budget(self, model: str, *, tokens_max: int | None = None) -> CallBudget:
        services = self._services
        self._load_correction(model)
        offer = self._conversation.services.tools.offer
        facts = services.facts(model)
        budget = facts.budget_tokens
        corrected = services.counting.correction.budget_in_counted(model, budget)
        ceiling = self._ceilings.get(model)
        learned = None if ceiling is None else ceiling.context_tokens
        ceilings = [each for each in (tokens_max, learned) if each is not None]
        return CallBudget(
            # Counting too many tokens only makes epochs begin a little early.
            budget_tokens=min(budget, corrected, *ceilings),
            tools_tokens=services.counting.tokens_of_tools(offer.digest, offer.texts)
            if facts.takes_tools
            else 0,
            offer=offer,
            threshold=services.rules.threshold,
            keep=services.rules.keep,
            takes_images=facts.takes_images,
        )

    async def prepare(
        self, turn_id: str, model: str, *, tokens_max: int | None = None
    ) -> ContextView:
        """The context of the turn's next call. Writes an epoch entry first if one is due."""
        await self.ready()
        call_budget = self.call_budget(model, tokens_max=tokens_max)
        view: ContextView | None = None
        head_seq = 0
        while view is None or view.head_seq != head_seq:  # somebody wrote something meanwhile
            is_new_epoch = await self._conversation.check_tokens(turn_id, call_budget)
            head_seq = self._conversation.history.head_seq
            if is_new_epoch:
                await self.ready()  # which images are shown depends on the epoch
            view = await self.view(turn_id, call_budget)
        if logs.context.on:
            logs.context(
                "context of a call",
                session=self._conversation.session_id,
                turn=turn_id,
                messages=len(view.messages),
                tokens=view.tokens,
                budget=call_budget.budget_tokens,
                epoch=view.selection.epoch_seq,
                trimmed=view.is_trimmed,
            )
        return view

    async def due_epoch(self, turn_id: str, call_budget: CallBudget) -> EpochEntry | None:
        if self._only_grows(turn_id, call_budget):
            needs_epoch = self.attachments.needs_epoch
            return self._due_epoch(turn_id, call_budget) if needs_epoch else None
        return await self.compute(partial(self._due_epoch, turn_id, call_budget))

    def _due_epoch(self, turn_id: str, call_budget: CallBudget) -> EpochEntry | None:
        projection = self.projection
        due = projection.due_epoch(turn_id, call_budget, screen=self.state.screen)
        if due is None and self.attachments.needs_epoch and projection.policy == "epochs":
            return projection.epoch_for("pictures", call_budget, screen=self.state.screen())
        return due

    async def view(self, prompt_ref: PromptReference, call_budget: CallBudget) -> ContextView:
        if self._only_grows(prompt_ref, call_budget):
            history = self._conversation.writer.history
            self._computed = (history, history.head_seq)
            return self._view(prompt_ref, call_budget)
        return await self.compute(partial(self._view, prompt_ref, call_budget))

    def _view(self, prompt_ref: PromptReference, call_budget: CallBudget) -> ContextView:
        self._update_measure()
        try:
            return self.state.render_live_context(prompt_ref, call_budget)
        except ContextTooSmall as error:
            raise WindowTooSmall(str(error)) from None

    def answer_tokens_max(self, model: str, context_tokens: int) -> int:
        most = self._services.facts(model).room_for_answer(context_tokens)
        ceiling = self._ceilings.get(model)
        return most if ceiling is None else min(most, ceiling.answer_tokens)

    # Learning from the results of calls

    def learn_ceiling(self, model: str, room: CallRoom) -> None:
        """Remembers that the provider refused more than this, whatever its documented window.
        Not stored: after a restart it is learned again, since the provider may have changed."""
        self._ceilings[model] = room.within(self._ceilings.get(model))

    def _load_correction(self, model: str) -> None:
        """Takes the model's token correction from the record after a restart. Without it the
        model's budget would differ from before, and a new epoch would be due."""
        if model in self._corrections_loaded or model in self._services.counting.correction.ratios:
            return
        self._corrections_loaded.add(model)
        for entry in islice(reversed(self._conversation.history.entries), _ENTRIES_SEARCHED_MAX):
            if not isinstance(entry, ModelOutputEntry) or not (entry.sent and entry.usage):
                continue
            real = entry.usage.get("input_tokens")
            if entry.invocation and model_name(entry.invocation) == model and isinstance(real, int):
                self._services.learn(model, counted=entry.sent.tokens, real=real)
                return

    # Epochs and summaries

    async def begin_epoch(self, draft: EpochEntry) -> EpochEntry:
        epoch = await self._conversation.writer.append(draft)
        self._conversation.announce("epoch", {"epoch": epoch.seq, "reason": epoch.reason})
        return epoch

    async def begin_epoch_for(self, reason: EpochReason, call_budget: CallBudget) -> EpochEntry:
        """Begins an epoch for a change that is not an entry. It is drafted and written in one
        exclusive section: entries may have been written meanwhile."""
        async with self._conversation.writer.exclusive():
            return await self.begin_epoch(await self.draft_epoch(reason, call_budget))

    async def draft_epoch(self, reason: EpochReason, call_budget: CallBudget) -> EpochEntry:
        screen = self.state.screen()

        def draft() -> EpochEntry:
            if reason == "asked":
                return self.projection.asked_epoch(call_budget, screen=screen)
            return self.projection.epoch_for(reason, call_budget, screen=screen)

        return await self.compute(draft)

    def summarize_beside(self, prompt_ref: PromptReference, epoch: EpochEntry) -> None:
        """Starts a summary in a separate task. The next turn after it is finished begins an
        epoch that shows it."""
        self.summarizer.begin(prompt_ref, epoch)

    @property
    def is_summarizing(self) -> bool:
        return self.summarizer.is_running or self.namer.is_running

    def stop_summarizing(self) -> None:
        self.summarizer.stop()
        self.namer.stop()


def _characters_of(entry: Entry) -> int:
    if isinstance(entry, ToolResultsEntry):
        return sum(len(result.result) for result in entry.results)
    return len(entry.content) if isinstance(entry, ModelInputEntry | ModelOutputEntry) else 0


PICTURES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of all images in one call. Vendors accept about 30 MB, and base64 adds a third."""

Mention: TypeAlias = tuple[int, str]
"""The seq of a prompt, and the id of a file attached to it."""


Pictures: TypeAlias = Mapping[Mention, int]
"""The bytes of images, oldest first. A file attached to several prompts is sent several
times."""


def choose_pictures(pictures: Pictures, *, epoch_seq: int) -> tuple[frozenset[Mention], bool]:
    """Chooses which of the images are sent, and says whether that needs a new epoch."""
    old = _newest({each: size for each, size in pictures.items() if each[0] < epoch_seq})
    new = {each: size for each, size in pictures.items() if each[0] > epoch_seq}
    is_full = sum(old.values()) + sum(new.values()) > PICTURES_BYTES_MAX
    return frozenset(_newest(pictures) if is_full else (*old, *new)), is_full


def _newest(pictures: Pictures) -> Pictures:
    if sum(pictures.values()) <= PICTURES_BYTES_MAX:
        return pictures
    newest_seq, used = max(seq for seq, _ in pictures), 0
    kept: dict[Mention, int] = {}
    # Newest prompt first; the images of one prompt in the order in which they are attached.
    for each, size in sorted(pictures.items(), key=lambda item: item[0][0], reverse=True):
        # The newest prompt may use the whole limit, because it is about all of its images.
        share = 1 if each[0] == newest_seq else 2
        if used + size <= PICTURES_BYTES_MAX // share:
            kept[each] = size
            used += size
    return kept


TEXT_BYTES_MAX: Final = 64 * 1024
IMAGE_BYTES_MAX: Final = 5 * 1024 * 1024
_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_MAGIC_BYTES: Final = 16


class AttachmentReader:
    """Reads the files attached to prompts, before a context is built.

    Each file is read once: the beginning of a text, images up to a size. The type is taken
    from the first bytes, never from the name. A file that can't be read is shown with a
    reason; no error is raised. Belongs to one history object, and is replaced with it.
    """

    def __init__(self, writer: RecordWriter, files: AttachmentFiles) -> None:
        self._read_files: dict[str, ContextAttachment] = {}
        self.contents = AttachmentContents()
        """Replaced by a new object with the first file, and when the shown contents of a
        prompt change."""
        self.needs_epoch = False
        """The contents differ from those sent in the current epoch."""
        self.history = writer.history
        self._writer = writer
        self._files = files
        self._pictures: dict[str, AttachmentEntry] = {}
        self._prompts: list[ModelInputEntry | ToolResultsEntry] = []
        """Prompts and results with files, oldest first."""
        self._in_reach: frozenset[Mention] = frozenset()
        self._chosen_in: int | None = None
        self._read_through = 0

    async def gather(self) -> None:
        """Reads the files of prompts that were added since the last call."""
        if not self._read_through and len(self.history.entries) > QUICK_ENTRIES_MAX:
            async with self._writer.exclusive():
                prompts = await self._writer.in_thread(self._new_prompts)
        else:
            prompts = self._new_prompts()
        wanted = dict.fromkeys(file_id for each in prompts for file_id in file_ids_of(each))
        missing = [file_id for file_id in wanted if file_id not in self._read_files]
        if missing:
            if not self._read_files:
                self.contents = AttachmentContents(files=self._read_files)
            described = await self._described(missing)
            for file_id in missing:
                self._read_files[file_id] = await self._read(described.get(file_id))
        if self._pictures:
            await self._choose_pictures()

    def _new_prompts(self) -> list[ModelInputEntry | ToolResultsEntry]:
        """Newest first."""
        prompts = [
            entry
            for entry in self.history.newest_after(self._read_through)
            if isinstance(entry, ModelInputEntry | ToolResultsEntry) and file_ids_of(entry)
        ]
        self._read_through = self.history.head_seq
        self._prompts += reversed(prompts)
        return prompts

    async def _choose_pictures(self) -> None:
        epoch_seq = self.history.epoch.seq if self.history.epoch is not None else 0
        pictures = self._pictures_in_reach()
        shown, needs_epoch = choose_pictures(pictures, epoch_seq=epoch_seq)
        in_reach = frozenset(pictures)
        put_away, before = in_reach - shown, self.contents.put_away
        if put_away != before:
            self.contents = AttachmentContents(files=self._read_files, put_away=put_away)
        is_other = not self._in_reach.isdisjoint(put_away ^ before)
        is_same_epoch, self._chosen_in = self._chosen_in == epoch_seq, epoch_seq
        self.needs_epoch = needs_epoch or (is_same_epoch and (is_other or self.needs_epoch))
        self._in_reach = in_reach
        await self._hold({file_id for _, file_id in shown})

    def _pictures_in_reach(self) -> Pictures:
        """The images that may be shown: those of live turns, up to the running turn."""
        history = self.history
        begins_after = history.epoch.summary_through if history.epoch is not None else 0
        running = [prompt.turn_id for prompt in history.unfinished_turns()[:1]]
        found: dict[Mention, int] = {}
        for prompt in self._prompts:
            turn = history.turn(prompt.turn_id) if prompt.turn_id is not None else None
            is_waiting = turn is not None and not turn.is_over and prompt.turn_id not in running
            if turn is None or is_waiting or prompt.seq <= begins_after:
                continue
            for file_id in file_ids_of(prompt):
                if file_id in self._pictures:
                    mention = prompt.seq, file_id  # maybe twice in the same prompt
                    found[mention] = found.get(mention, 0) + self._pictures[file_id].size
        return found

    async def _hold(self, file_ids: Container[str]) -> None:
        """Keeps the contents of these images in memory, and drops those of the others."""
        for file_id, entry in list(self._pictures.items()):
            known = self._read_files[file_id]
            if file_id not in file_ids:
                self._read_files[file_id] = _put_away(known)
            elif not known.is_image:
                try:
                    data = await self._bytes(entry, IMAGE_BYTES_MAX)
                except StorageError as error:
                    del self._pictures[file_id]
                    self._read_files[file_id] = _unread(entry, error)
                else:
                    shown = base64.b64encode(data).decode()
                    self._read_files[file_id] = replace(known, data_base64=shown, reason=None)

    async def _described(self, file_ids: Iterable[str]) -> dict[str, AttachmentEntry]:
        """The attachment entries of the files; older ones are read from the store."""
        wanted, history = set(file_ids), self.history

        def find(entries: Iterable[Entry]) -> dict[str, AttachmentEntry]:
            described = (entry for entry in entries if isinstance(entry, AttachmentEntry))
            return {entry.file_id: entry for entry in described if entry.file_id in wanted}

        found = find(history.entries)
        if history.first_seq > 1 and len(found) < len(wanted):
            store = self._writer.profile.store
            async for batch in store.entries(history.session_id, through=history.first_seq):
                found |= find(batch)
        return found

    async def _read(self, entry: AttachmentEntry | None) -> ContextAttachment:
        """Reads a text, or recognizes an image. The contents of an image are read later, if
        it is chosen."""
        if entry is None or entry.redacted_at is not None:
            return ContextAttachment(name="(erased)", reason="attachment_missing")
        try:
            start = await self._bytes(entry, _MAGIC_BYTES)
            is_webp = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
            types = (kind for magic, kind in _IMAGES.items() if start.startswith(magic))
            image_type = "image/webp" if is_webp else next(types, None)
            if image_type is None:
                return _text(entry, await self._bytes(entry, TEXT_BYTES_MAX + 1))
        except StorageError as error:
            return _unread(entry, error)
        if entry.size > IMAGE_BYTES_MAX:
            return _left_out(entry, "attachment_too_large")
        self._pictures[entry.file_id] = entry
        return _put_away(ContextAttachment(name=entry.filename, content_type=image_type))

    async def _bytes(self, entry: AttachmentEntry, length: int) -> bytes:
        session_id = self._writer.session_id
        return await self._files.read(session_id, entry.file_id, offset=0, length=length)


def _text(entry: AttachmentEntry, data: bytes) -> ContextAttachment:
    is_cut = len(data) > TEXT_BYTES_MAX
    try:
        # A text that was cut may end inside a character.
        text, _ = utf_8_decode(data[:TEXT_BYTES_MAX], "strict", not is_cut)
    except UnicodeDecodeError:
        return _left_out(entry, "attachment_not_taken")
    if "\x00" in text:
        return _left_out(entry, "attachment_not_taken")
    return ContextAttachment(
        name=entry.filename,
        content_type=entry.content_type,
        text=text,
        reason="attachment_cut" if is_cut else None,
    )


def _put_away(picture: ContextAttachment) -> ContextAttachment:
    return replace(picture, data_base64=None, reason="attachment_too_many")


def _unread(entry: AttachmentEntry, error: StorageError) -> ContextAttachment:
    is_gone = isinstance(error, BadEntry)
    return _left_out(entry, "attachment_missing" if is_gone else "attachment_unreadable")


def _left_out(entry: AttachmentEntry, reason: AttachmentReason) -> ContextAttachment:
    return ContextAttachment(name=entry.filename, content_type=entry.content_type, reason=reason)
