"""The messages of a context, and the files shown with them. They depend on no vendor's format.

There is one type for each role:

    system        the system instruction
    model_input   a prompt, and the live screen at that time
    model_output  a model's text and tool calls
    tool_result   the results of all tool calls of one output

A text file attached to a prompt is part of the message's text, fenced, under its name. An image
is a content block of its own, for models that accept images. A file that is not shown is named,
with a reason. Contents are read elsewhere, before the context is built: this module does no I/O.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar, assert_never, overload

from msgspec import Struct, field, structs

from nplt_storage.entries import (
    Entry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    OutputPart,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.json_values import JsonValue
from nplt_storage.turns import ContextEntry

AttachmentReason: TypeAlias = Literal[
    "attachment_missing",  # erased or deleted
    "attachment_unreadable",  # reading failed
    "attachment_not_taken",  # neither text nor an image that this model accepts
    "attachment_too_large",  # an image over the size limit
    "attachment_too_many",  # an older image; newer ones fill the limit
    "attachment_cut",  # a text of which only the beginning is shown
    "attachment_no_text",  # a PDF without text, for a model that is shown its text
    "attachment_encrypted",  # a PDF that needs a password
    "attachment_too_costly",  # a PDF whose text takes too much time or memory to find
    "attachment_no_reader",  # a PDF, and the library that reads it is not installed
    "attachment_no_room",  # its contents do not fit the model's window
    "attachment_less_detail",  # its turn is shown in less detail
]
IMAGE_TOKENS: Final = 1_600
"""The tokens that vendors count for a large image; the real number is known afterwards."""
PAGE_TOKENS: Final = 1_600
"""The same for the picture of a page of a PDF, which vendors send besides its text."""
_PAGE_TEXT_TOKENS: Final = 700
_PAGE_BYTES: Final = 64 * 1024
_FENCE: Final = re.compile(r"`{3,}")
_WHY: Final[Mapping[str, str]] = {
    "attachment_missing": "it is not there any more",
    "attachment_unreadable": "it could not be read",
    "attachment_not_taken": "you can't be shown files of this kind",
    "attachment_too_large": "it is too large",
    "attachment_too_many": "there are too many pictures",
    "attachment_no_text": "it holds no text, and you can't be shown its pages",
    "attachment_encrypted": "it is encrypted",
    "attachment_too_costly": "its text could not be found within the limits of time and memory",
    "attachment_no_reader": "the server can't read PDFs",
    "attachment_no_room": "there is no room for it",
    "attachment_less_detail": "it was shown with an earlier message",
}


_WHY_TO_PEOPLE: Final[Mapping[str, str]] = {
    **_WHY,
    "attachment_not_taken": "this model does not take files of this kind",
    "attachment_too_many": "there are too many pictures and PDFs; the newest are shown",
    "attachment_no_text": "it holds no text (scanned pages?), and this model does not take PDFs",
    "attachment_encrypted": "it is encrypted; attach a copy without a password",
    "attachment_no_reader": "reading PDFs needs `pip install 'nplt[pdf]'` on the server",
    "attachment_no_room": "it does not fit into the model's window",
}


class ContextAttachment(Struct, frozen=True, kw_only=True):
    name: str
    content_type: str | None = None
    text: str | None = None
    data_base64: str | None = None
    """The data of an image; `content_type` says of which kind."""
    pdf_base64: str | None = None
    """The data of a PDF, for models that read one themselves; for the others `text` is its
    text."""
    pages: int = 0
    """The pages of a PDF, if they were counted."""
    reason: AttachmentReason | None = None
    """Why the contents, or some of them, are missing."""

    def __repr__(self) -> str:
        """Leaves out the contents, so that logs do not repeat whole files."""
        return f"ContextAttachment({self.name!r}, {self.content_type!r}, reason={self.reason!r})"

    @property
    def is_image(self) -> bool:
        return self.data_base64 is not None

    @property
    def is_document(self) -> bool:
        """Whether it is shown as a PDF, and not as its text."""
        return self.pdf_base64 is not None

    def without_contents(self, reason: AttachmentReason) -> ContextAttachment:
        if self.text is None and not self.is_image and not self.is_document:
            return self
        return structs.replace(self, text=None, data_base64=None, pdf_base64=None, reason=reason)

    def for_model(self, *, takes_images: bool, takes_pdfs: bool) -> ContextAttachment:
        """The form in which the model takes it."""
        if self.is_image and not takes_images:
            return self.without_contents("attachment_not_taken")
        if self.is_document and takes_pdfs:
            return structs.replace(self, text=None, reason=None)
        return structs.replace(self, pdf_base64=None) if self.is_document else self

    @property
    def document_tokens(self) -> int:
        """The tokens of a PDF that a model reads itself: the text of its pages and their pictures.
        Pages that were not counted are guessed from the size."""
        pages = self.pages or 1 + len(self.pdf_base64 or "") // _PAGE_BYTES
        return pages * (PAGE_TOKENS + _PAGE_TEXT_TOKENS)

    @property
    def notice(self) -> str | None:
        """A sentence for the person who attached it, if the model is not shown all of it."""
        if self.reason == "attachment_cut":
            return f"{self.name}: the model is shown only the beginning of its text"
        if self.reason is None or self.text is not None:
            return None
        return f"{self.name}: the model is not shown it: {_WHY_TO_PEOPLE[self.reason]}"

    @property
    def as_text(self) -> str:
        """The attachment's place in the text of the message."""
        if self.text is not None:
            # Longer than any fence in the text.
            fence = "`" * (max((len(each) for each in _FENCE.findall(self.text)), default=2) + 1)
            more = "\n[… the rest is left out …]" if self.reason == "attachment_cut" else ""
            return f"File {self.name}:\n{fence}\n{self.text}{more}\n{fence}"
        if self.is_image:
            return f"[Picture {self.name}]"
        if self.is_document:
            return f"[Document {self.name}]"
        return f"[File {self.name}: {_WHY.get(self.reason or '', 'it is not shown')}]"


_UNKNOWN: Final = ContextAttachment(name="(unknown)", reason="attachment_unreadable")


class AttachmentContents(Struct, frozen=True, kw_only=True):
    """The files attached to prompts, as far as they were read."""

    files: Mapping[str, ContextAttachment] = field(default_factory=dict)
    """The attachments by file id."""
    put_away: frozenset[tuple[int, str]] = frozenset()
    """Images left out because there are too many: seq of the prompt, and file id."""

    def shown_with(
        self, entry: ContextEntry, *, is_live: bool, takes_images: bool, takes_pdfs: bool = False
    ) -> tuple[ContextAttachment, ...]:
        """The files of the entry, as they are shown at this level to this model."""
        shown: list[ContextAttachment] = []
        for file_id in file_ids_of(entry):
            one = self.files.get(file_id, _UNKNOWN)
            if (entry.seq, file_id) in self.put_away:
                one = one.without_contents("attachment_too_many")
            if is_live:
                one = one.for_model(takes_images=takes_images, takes_pdfs=takes_pdfs)
            else:
                one = one.without_contents("attachment_less_detail")
            shown.append(one)
        return tuple(shown)


def file_ids_of(entry: Entry) -> tuple[str, ...]:
    """The files that are shown with it."""
    if isinstance(entry, ToolResultsEntry):
        return tuple(file_id for result in entry.results for file_id in result.attachments)
    return entry.attachments if isinstance(entry, ModelInputEntry) else ()


ContextRole: TypeAlias = Literal["system", "model_input", "model_output", "tool_result"]
ShownLevel: TypeAlias = Literal["live", "summary", "gist", "cut"]
"""The levels of detail of an entry, and `cut`: live, but without its middle."""
LESS_DETAIL: Final = ("summary", "gist")
_SCHEMA_REQUEST: Final = (
    "Answer this with one JSON value that fits the following JSON schema, and with nothing else:"
)


class SourceEntry(tuple[()]):
    """Refers to the entry that a message shows, without copying it. It is not part of the message's
    value: messages that would be sent alike are equal. So it is an empty tuple, which equals any
    other; an `__eq__` of its own would be called for each message that is compared."""

    entry: ContextEntry | None = None


_NO_SOURCE: Final = SourceEntry()
_NO_METADATA: Final[Mapping[str, JsonValue]] = MappingProxyType({})


class _Message(Struct, frozen=True, kw_only=True, gc=False):
    seq: int = 0
    """The entry that the message shows; 0 if there is none."""
    level: ShownLevel = "live"
    source: SourceEntry = _NO_SOURCE

    @property
    def timestamp(self) -> datetime | None:
        """The time of its entry; `None` if it shows no entry."""
        entry = self.source.entry
        return None if entry is None else entry.timestamp

    @property
    def metadata(self) -> Mapping[str, JsonValue]:
        entry = self.source.entry
        return _NO_METADATA if entry is None else entry.metadata


class SystemMessage(_Message, frozen=True, kw_only=True):
    role: ClassVar[ContextRole] = "system"

    instruction: str


class ModelInputMessage(_Message, frozen=True, kw_only=True):
    role: ClassVar[ContextRole] = "model_input"

    content: str
    live_screen: str | None = None
    attachments: tuple[ContextAttachment, ...] = ()
    schema: str = ""
    """The JSON schema that the answer has to fit; empty if there is none."""

    @property
    def sections(self) -> LevelOfDetailSections | None:
        """The sections of its entry at all levels, if it has any."""
        entry = self.source.entry
        return entry.sections if isinstance(entry, ModelInputEntry) else None

    @property
    def text(self) -> str:
        """The text that is sent: attachments, `content` (the prompt's own text), what the
        answer has to fit, and screen. It says if the turn is shown in less detail; on an
        answer a mark would be taken for a part of it, and imitated."""
        text = f"[{self.level}] {self.content}" if self.level in LESS_DETAIL else self.content
        if self.attachments:
            text = "\n\n".join((*(one.as_text for one in self.attachments), text))
        if self.schema:
            text = f"{text}\n\n{_SCHEMA_REQUEST}\n{self.schema}"
        return _with_screen(text, self.live_screen)

    @property
    def images(self) -> tuple[ContextAttachment, ...]:
        return tuple(one for one in self.attachments if one.is_image) if self.attachments else ()

    @property
    def documents(self) -> tuple[ContextAttachment, ...]:
        return tuple(one for one in self.attachments if one.is_document) if self.attachments else ()


class ModelOutputMessage(_Message, frozen=True, kw_only=True):
    role: ClassVar[ContextRole] = "model_output"

    content: str
    tool_calls: tuple[ToolCallRequest, ...] = ()
    invocation: ModelInvocationDescriptor | None = None
    reasoning: str = ""
    parts: tuple[OutputPart, ...] = ()
    """The provider's own parts, for the same model and an unchanged prefix; otherwise parts
    and reasoning are empty."""

    @property
    def usage(self) -> Mapping[str, JsonValue] | None:
        """The tokens of the call that gave it, if its provider reported them."""
        entry = self.source.entry
        return entry.usage if isinstance(entry, ModelOutputEntry) else None


class ToolResultsMessage(_Message, frozen=True, kw_only=True):
    role: ClassVar[ContextRole] = "tool_result"

    results: tuple[ToolCallResult, ...]
    live_screen: str | None = None
    images: tuple[ContextAttachment, ...] = ()
    """The images of all results, for a model that takes images."""

    @property
    def execute_error(self) -> str | None:
        """Why the tool calls could not be executed as a whole."""
        entry = self.source.entry
        return entry.execute_error if isinstance(entry, ToolResultsEntry) else None

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that are sent, one per result; the last one includes the live screen."""
        texts = [result.result for result in self.results]
        texts[-1:] = [_with_screen(text, self.live_screen) for text in texts[-1:]]
        return tuple(texts)


ContextMessage: TypeAlias = (
    SystemMessage | ModelInputMessage | ModelOutputMessage | ToolResultsMessage
)


def _with_screen(content: str, screen: str | None) -> str:
    """Appends the screen, which has its own heading."""
    if screen is None:
        return content
    return f"{content}\n\n{screen}" if content else screen


MESSAGE_TOKENS: Final = 4
"""The tokens of the format around a message."""
CALL_TOKENS: Final = 8
"""Counted for a tool call, and again for its result: both carry the call's id."""


def tokens_in(message: ContextMessage, count: Callable[[str], int]) -> int:
    """`count`: the tokens of a text."""
    tokens = MESSAGE_TOKENS
    match message:
        case SystemMessage():
            tokens += count(message.instruction)
        case ModelInputMessage():
            tokens += count(message.text) + IMAGE_TOKENS * len(message.images)
            tokens += sum(one.document_tokens for one in message.documents)
        case ModelOutputMessage():
            tokens += count(message.content) + count(message.reasoning)
            for call in message.tool_calls:
                tokens += CALL_TOKENS + count(call.tool_name) + count(call.raw_arguments)
            tokens += sum(len(str(part.data)) for part in message.parts if part.data) // 4
        case ToolResultsMessage():
            tokens += sum(CALL_TOKENS + count(text) for text in message.texts)
            tokens += IMAGE_TOKENS * len(message.images)
        case _:
            assert_never(message)
    return tokens


# ------------------------------------------------------------------------------
# Contexts that grow

_T = TypeVar("_T")


@dataclass(slots=True, eq=False, repr=False)
class Beginning(Sequence[_T]):
    """The first items of a list to which only others are appended, and perhaps one item after
    them. Making it costs the same however long the list is."""

    _items: list[_T]
    _length: int
    _last: tuple[_T, ...] = ()

    def continues(self, earlier: Sequence[_T]) -> bool:
        """Whether it is known to begin with the earlier one, without its last item."""
        return (
            isinstance(earlier, Beginning)
            and earlier._items is self._items
            and earlier._length <= self._length
        )

    def __len__(self) -> int:
        return self._length + len(self._last)

    def __iter__(self) -> Iterator[_T]:
        return chain(islice(self._items, self._length), self._last)

    def __reversed__(self) -> Iterator[_T]:
        newer = len(self._items) - self._length
        return chain(reversed(self._last), islice(reversed(self._items), newer, None))

    @overload
    def __getitem__(self, place: int) -> _T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[_T, ...]: ...
    def __getitem__(self, place: int | slice) -> _T | tuple[_T, ...]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                return tuple(self)[place]
            length = self._length
            found = self._items[start : min(stop, length)]
            return (*found, *self._last[max(start - length, 0) : max(stop - length, 0)])
        if place < 0:
            place += len(self)
        if 0 <= place < self._length:
            return self._items[place]
        if place < 0:
            raise IndexError(place)
        return self._last[place - self._length]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Beginning({list(self)!r})"


_RENDERINGS_MAX: Final = 2


@dataclass(slots=True)
class KeptRenderings:
    """The messages of a context as providers rendered them for earlier calls, so that each call
    only renders what is new. It belongs to the context: an epoch, a rollback, a redaction or a
    quarantine begins another one."""

    _kept: dict[Hashable, Any] = dataclasses.field(default_factory=dict)

    def take(self, key: Hashable) -> Any:
        """Removes and returns what was kept under the key, or returns `None`. Whoever has it is the
        only one to change it."""
        return self._kept.pop(key, None)

    def keep(self, key: Hashable, rendering: object) -> None:
        """Keeps it, and drops the one that was kept longest if there are too many."""
        self._kept.pop(key, None)
        self._kept[key] = rendering
        if len(self._kept) > _RENDERINGS_MAX:
            del self._kept[next(iter(self._kept))]
