"""Marks: up to which entry the user of a conversation has seen it.

A mark is kept beside the record, because looking at a conversation must not change it. A
conversation gets its mark when it is created, or when it is opened for writing and has none: then
everything before counts as seen. So nothing is unread after an upgrade, an import, a fork or a
restored copy. A conversation without a mark is seen up to its head.
"""

from __future__ import annotations


def moved_mark(known: int | None, seq: int, head_seq: int, *, unread: bool) -> int:
    """The mark that holds after the user has seen `seq`."""
    known, seq = head_seq if known is None else min(known, head_seq), min(seq, head_seq)
    return seq if unread else max(known, seq)


def first_mark(known: int | None, head_seq: int) -> int:
    """The mark of a conversation that is opened for writing. A mark beyond the head belongs to
    entries that are gone: an older copy was restored."""
    return head_seq if known is None else min(known, head_seq)
