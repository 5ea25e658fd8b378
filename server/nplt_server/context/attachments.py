"""Files that go with a prompt, as a model is shown them.

A text stands in the message, fenced, under its name; a picture is a block of its
own, for models that take pictures. Whatever is not shown is named, with a reason:

    attachment_missing       erased, or not there any more
    attachment_unreadable    it could not be read just now
    attachment_not_taken     neither text nor a picture this model takes
    attachment_too_large     a larger picture than is sent
    attachment_too_many      one of more pictures than are sent; newer ones are
    attachment_cut           a text of which only the beginning is shown
    attachment_no_room       its contents do not fit the model's window
    attachment_less_detail   an older turn, of which less is shown

Contents are read elsewhere, before a context is put together: here is no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

AttachmentReason: TypeAlias = Literal[
    "attachment_missing",
    "attachment_unreadable",
    "attachment_not_taken",
    "attachment_too_large",
    "attachment_too_many",
    "attachment_cut",
    "attachment_no_room",
    "attachment_less_detail",
]
IMAGE_TOKENS: Final = 1_600
"""What vendors count for a large one; nobody can be asked before it is sent."""
_FENCE: Final = re.compile(r"`{3,}")
_WHY: Final[Mapping[str, str]] = {
    "attachment_missing": "it is not there any more",
    "attachment_unreadable": "it could not be read",
    "attachment_not_taken": "you can't be shown files of this kind",
    "attachment_too_large": "it is too large",
    "attachment_too_many": "there are too many pictures",
    "attachment_no_room": "there is no room for it",
    "attachment_less_detail": "it was shown with an earlier message",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextAttachment:
    name: str
    content_type: str | None = None
    text: str | None = field(default=None, repr=False)
    data_base64: str | None = field(default=None, repr=False)
    """Of a picture; `content_type` says which kind."""
    reason: AttachmentReason | None = None
    """Why its contents are not here, or not all of them."""

    @property
    def is_image(self) -> bool:
        return self.data_base64 is not None

    @property
    def shown(self) -> str:
        """What stands for it in the text of the message."""
        if self.text is not None:
            fence = _fence_for(self.text)
            more = "\n[… the rest is left out …]" if self.reason == "attachment_cut" else ""
            return f"File {self.name}:\n{fence}\n{self.text}{more}\n{fence}"
        if self.is_image:
            return f"[Picture {self.name}]"
        return f"[File {self.name}: {_WHY.get(self.reason or '', 'it is not shown')}]"


_UNKNOWN: Final = ContextAttachment(name="(unknown)", reason="attachment_unreadable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The files that prompts name, as far as they were read."""

    files: Mapping[str, ContextAttachment] = field(default_factory=dict)
    """By their ids."""
    put_away: frozenset[tuple[int, str]] = frozenset()
    """Pictures there are too many of: the number of the prompt, and the id."""

    def of(self, seq: int, file_id: str) -> ContextAttachment:
        found = self.files.get(file_id, _UNKNOWN)
        if (seq, file_id) in self.put_away:
            return replace(found, data_base64=None, reason="attachment_too_many")
        return found


def attachments_of(
    seq: int, file_ids: Sequence[str], shelf: Shelf, *, is_live: bool, takes_images: bool
) -> tuple[ContextAttachment, ...]:
    """Of the prompt of that number."""
    found = (shelf.of(seq, file_id) for file_id in file_ids)
    return tuple(_as_shown(one, is_live=is_live, takes_images=takes_images) for one in found)


def without_contents(
    attachments: Sequence[ContextAttachment], reason: AttachmentReason
) -> tuple[ContextAttachment, ...]:
    return tuple(
        replace(one, text=None, data_base64=None, reason=reason)
        if one.text is not None or one.is_image
        else one
        for one in attachments
    )


def _as_shown(
    attachment: ContextAttachment, *, is_live: bool, takes_images: bool
) -> ContextAttachment:
    if not is_live:
        return without_contents([attachment], "attachment_less_detail")[0]
    if attachment.is_image and not takes_images:
        return without_contents([attachment], "attachment_not_taken")[0]
    return attachment


def _fence_for(text: str) -> str:
    """Longer than any in it."""
    longest = max((len(found) for found in _FENCE.findall(text)), default=2)
    return "`" * (longest + 1)
