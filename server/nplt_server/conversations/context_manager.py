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
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from msgspec.structs import replace

from nplt_server import logs
from nplt_server.context.epochs import EpochReason
from nplt_server.context.fitting import ContextTooSmall
from nplt_server.context.messages import (
    AttachmentContents,
    AttachmentReason,
    ContextAttachment,
    file_ids_of,
)
from nplt_server.context.projection import Projection
from nplt_server.context.source import CallBudget, ContextView, Measure, PromptReference
from nplt_server.conversations.agent_state import AgentState
from nplt_server.conversations.record_writer import QUICK_ENTRIES_MAX, RecordWriter
from nplt_server.conversations.summarizer import ConversationNamer, Summarizer
from nplt_server.errors import WindowTooSmall
from nplt_server.providers import CallRoom, UsageReport
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
    __slots__ = (
        "_attachments",
        "_ceilings",
        "_computed",
        "_conversation",
        "_corrections_loaded",
        "_growing",
        "_is_computing",
        "_measured",
        "_searched",
        "_services",
        "namer",
        "state",
        "summarizer",
    )

    def __init__(self, conversation: Conversation) -> None:
        services = conversation.services.context
        self._conversation = conversation
        self._services = services
        self._ceilings: dict[str, CallRoom] = {}
        self._corrections_loaded: set[str] = set()
        """Models whose token correction was searched for in the record."""
        self._attachments: AttachmentReader | None = None
        self._searched: tuple[ConversationHistory | None, int] = (None, 0)
        """The history that was searched for prompts with files, and up to where."""
        self._computed: tuple[ConversationHistory | None, int] = (None, 0)
        """The history that was computed with last, and up to where."""
        self._growing: tuple[int, CallBudget | None] = (0, None)
        """The budget of a call whose context only grows; it is made anew for each call."""
        self._is_computing = False
        """A thread is using the projection."""
        self._measured: tuple[ConversationHistory, AttachmentContents | None] | None = None
        """The history and contents for which the state's measure was made."""
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
        again gets a new measure, because the old one may hold erased text."""
        history, attachments = self._conversation.writer.history, self.attachments
        contents = None if attachments is None else attachments.contents
        known = self._measured
        if known is None or known[0] is not history or known[1] is not contents:
            self._measured = (history, contents)
            self.state.measure = Measure(self._services.counting.now, attachments=contents)

    @property
    def attachments(self) -> AttachmentReader | None:
        """`None` while no prompt names a file."""
        writer = self._conversation.writer
        history = writer.history
        reader = self._attachments
        if reader is not None and reader.history is history:
            return reader
        head_seq = history.head_seq
        searched = self._searched[1] if self._searched[0] is history else 0
        if self._attachments is None and searched == head_seq:
            return None
        self._attachments = None
        for entry in history.newest_after(searched):
            if file_ids_of(entry):
                self._attachments = AttachmentReader(writer, self._conversation.services.files)
                break
        self._searched = (history, head_seq)
        return self._attachments

    async def ready(self) -> None:
        """Loads the token counter and the attached files. Awaited before a context is made."""
        await self._services.counting.counter()
        writer = self._conversation.writer
        history = writer.history
        if self._searched[0] is not history and len(history.entries) > QUICK_ENTRIES_MAX:
            async with writer.exclusive():
                await writer.in_thread(lambda: self.attachments)
        if (attachments := self.attachments) is not None:
            await attachments.gather()

    async def compute(self, work: Callable[[], _T], *, characters: int = 0) -> _T:
        """Runs work that uses the projection: at once if it is quick, else in a thread.
        Meanwhile nothing is written here, and nobody else uses the projection.
        `characters`: of texts that are not in the history."""
        history = self._conversation.writer.history
        is_quick = not self._is_computing and self._is_quick(history, characters)
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

    def _is_quick(self, history: ConversationHistory, characters: int) -> bool:
        """Whether all that is in memory is counted and digested quickly."""
        if len(history.entries) > QUICK_ENTRIES_MAX:
            return False
        return characters + sum(map(_characters_of, history.entries)) <= _QUICK_DIGEST_MAX

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
            tools_tokens=services.counting.tokens_of_tools(offer) if facts.takes_tools else 0,
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
        pictures = self.attachments
        if self._only_grows(turn_id, call_budget):
            needs_epoch = pictures is not None and pictures.needs_epoch
            return self._due_epoch(turn_id, call_budget) if needs_epoch else None
        return await self.compute(partial(self._due_epoch, turn_id, call_budget))

    def _due_epoch(self, turn_id: str, call_budget: CallBudget) -> EpochEntry | None:
        projection = self.projection
        due = projection.due_epoch(turn_id, call_budget, screen=self.state.screen)
        pictures = self.attachments
        if due is None and pictures and pictures.needs_epoch and projection.policy == "epochs":
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

    def learn_usage(self, model: str, view: ContextView, usage: UsageReport) -> None:
        """Compares the provider's token count with our own."""
        self._services.learn(model, counted=view.tokens, real=usage.input_tokens)
        if logs.tokens.on:
            logs.tokens("billed", model=model, counted=view.tokens, **usage.as_json())

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

    async def begin_asked_epoch(self, call_budget: CallBudget) -> EpochEntry:
        """Drafts and writes the epoch in one exclusive section: entries may have been written
        while a summary was made."""
        async with self._conversation.writer.exclusive():
            return await self.begin_epoch(await self.asked_epoch(call_budget))

    async def drop_sealed_reasoning(self, model: str) -> None:
        """Begins an epoch, which drops the reasoning that the model sealed before it."""
        await self.begin_epoch_for("reasoning", self.call_budget(model))

    async def begin_epoch_for(self, reason: EpochReason, call_budget: CallBudget) -> EpochEntry:
        """Begins an epoch for a change that is not an entry."""
        async with self._conversation.writer.exclusive():
            screen = self.state.screen()
            draft = await self.compute(
                lambda: self.projection.epoch_for(reason, call_budget, screen=screen)
            )
            return await self.begin_epoch(draft)

    async def asked_epoch(self, call_budget: CallBudget) -> EpochEntry:
        screen = self.state.screen()
        return await self.compute(lambda: self.projection.asked_epoch(call_budget, screen=screen))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    seq: int
    """The prompt it is attached to. A file attached to several prompts is sent several times."""
    file_id: str
    size: int

    @property
    def mention(self) -> Mention:
        return self.seq, self.file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    shown: frozenset[Mention]
    needs_epoch: bool


def choose_pictures(pictures: Sequence[Picture], *, epoch_seq: int) -> Choice:
    """Chooses which of the images, given oldest first, are sent."""
    kept = _newest([each for each in pictures if each.seq < epoch_seq])
    kept += [each for each in pictures if each.seq > epoch_seq]
    is_full = _size(kept) > PICTURES_BYTES_MAX
    shown = _newest(pictures) if is_full else kept
    return Choice(shown=frozenset(each.mention for each in shown), needs_epoch=is_full)


def _newest(pictures: Sequence[Picture]) -> list[Picture]:
    if _size(pictures) <= PICTURES_BYTES_MAX:
        return list(pictures)
    newest_seq = pictures[-1].seq
    kept: list[Picture] = []
    # Newest prompt first; the images of one prompt in the order in which they are attached.
    for picture in sorted(pictures, key=lambda each: each.seq, reverse=True):
        # The newest prompt may use the whole limit, because it is about all of its images.
        share = 1 if picture.seq == newest_seq else 2
        if _size(kept) + picture.size <= PICTURES_BYTES_MAX // share:
            kept.append(picture)
    return kept


def _size(pictures: Sequence[Picture]) -> int:
    return sum(picture.size for picture in pictures)


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
        self.contents = AttachmentContents(files=self._read_files)
        """Replaced by a new object when the shown contents of a prompt change."""
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
        prompts: list[ModelInputEntry | ToolResultsEntry] = []
        for entry in reversed(self.history.entries):
            if entry.seq <= self._read_through:
                break
            if isinstance(entry, ModelInputEntry | ToolResultsEntry) and file_ids_of(entry):
                prompts.append(entry)
        self._read_through = self.history.head_seq
        self._prompts += reversed(prompts)
        wanted = dict.fromkeys(file_id for each in prompts for file_id in file_ids_of(each))
        missing = [file_id for file_id in wanted if file_id not in self._read_files]
        if missing:
            described = await self._described(missing)
            for file_id in missing:
                self._read_files[file_id] = await self._read(described.get(file_id))
        if self._pictures:
            await self._choose_pictures()

    async def _choose_pictures(self) -> None:
        epoch_seq = self.history.epoch.seq if self.history.epoch is not None else 0
        pictures = tuple(self._pictures_in_reach())
        choice = choose_pictures(pictures, epoch_seq=epoch_seq)
        in_reach = frozenset(each.mention for each in pictures)
        put_away, before = in_reach - choice.shown, self.contents.put_away
        if put_away != before:
            self.contents = AttachmentContents(files=self._read_files, put_away=put_away)
        is_other = not self._in_reach.isdisjoint(put_away ^ before)
        is_same_epoch, self._chosen_in = self._chosen_in == epoch_seq, epoch_seq
        self.needs_epoch = choice.needs_epoch or (is_same_epoch and (is_other or self.needs_epoch))
        self._in_reach = in_reach
        await self._hold({file_id for _, file_id in choice.shown})

    def _pictures_in_reach(self) -> Iterator[Picture]:
        """The images that may be shown: those of live turns, up to the running turn."""
        history = self.history
        begins_after = history.epoch.summary_through if history.epoch is not None else 0
        running = [prompt.turn_id for prompt in history.unfinished_turns()[:1]]
        for prompt in self._prompts:
            turn = history.turn(prompt.turn_id) if prompt.turn_id is not None else None
            is_waiting = turn is not None and not turn.is_over and prompt.turn_id not in running
            if turn is None or is_waiting or prompt.seq <= begins_after:
                continue
            for file_id in file_ids_of(prompt):
                if file_id in self._pictures:
                    size = self._pictures[file_id].size
                    yield Picture(seq=prompt.seq, file_id=file_id, size=size)

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
        found = {
            entry.file_id: entry
            for entry in history.entries
            if isinstance(entry, AttachmentEntry) and entry.file_id in wanted
        }
        if history.first_seq > 1 and len(found) < len(wanted):
            store = self._writer.profile.store
            async for batch in store.entries(history.session_id, through=history.first_seq):
                found |= {
                    entry.file_id: entry
                    for entry in batch
                    if isinstance(entry, AttachmentEntry) and entry.file_id in wanted
                }
        return found

    async def _read(self, entry: AttachmentEntry | None) -> ContextAttachment:
        """Reads a text, or recognizes an image. The contents of an image are read later, if
        it is chosen."""
        if entry is None or entry.redacted_at is not None:
            return ContextAttachment(name="(erased)", reason="attachment_missing")
        try:
            image_type = _image_type(await self._bytes(entry, _MAGIC_BYTES))
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


def _image_type(start: bytes) -> str | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if start.startswith(magic)), None)


def _text(entry: AttachmentEntry, data: bytes) -> ContextAttachment:
    is_cut = len(data) > TEXT_BYTES_MAX
    data = data[:TEXT_BYTES_MAX]
    try:
        # A text that was cut may end inside a character.

        text = data.decode(errors="strict") if not is_cut else _decoded_beginning(data)
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


def _decoded_beginning(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:
            raise
        return data[: error.start].decode()


def _put_away(picture: ContextAttachment) -> ContextAttachment:
    return replace(picture, data_base64=None, reason="attachment_too_many")


def _unread(entry: AttachmentEntry, error: StorageError) -> ContextAttachment:
    is_gone = isinstance(error, BadEntry)
    return _left_out(entry, "attachment_missing" if is_gone else "attachment_unreadable")


def _left_out(entry: AttachmentEntry, reason: AttachmentReason) -> ContextAttachment:
    return ContextAttachment(name=entry.filename, content_type=entry.content_type, reason=reason)
