"""What a provider made of a context is kept as long as the context only grows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.server.context.context_stage import Talk

from nplt_server.context.messages import Beginning, KeptRenderings
from nplt_storage.entries import (
    ClearEntry,
    QuarantineEntry,
    RollbackEntry,
    SystemInstructionEntry,
)


def renderings(talk: Talk) -> KeptRenderings:
    turn_id = talk.turn()
    assert talk.requests[-1].turn_id == turn_id
    return talk.requests[-1].view.renderings


def test_a_context_that_grows_keeps_them() -> None:
    talk = Talk()
    first = renderings(talk)
    talk.turn(steps=3)
    assert renderings(talk) is first


CHANGES: dict[str, Callable[[Talk], object]] = {
    "a clear": lambda talk: talk.write(ClearEntry()),
    "an instruction": lambda talk: talk.write(SystemInstructionEntry(content="be brief")),
    "a rollback": lambda talk: talk.write(RollbackEntry(to_seq=2)),
    "a quarantine": lambda talk: talk.write(
        QuarantineEntry(target_seq=2, code="refused", content="no")
    ),
    "another history": lambda talk: talk.__post_init__(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_context_that_begins_otherwise_has_none(change: Callable[[Talk], object]) -> None:
    talk = Talk()
    talk.turn()
    first = renderings(talk)
    change(talk)
    assert renderings(talk) is not first


def test_a_view_of_a_growing_list_stays_as_it_was() -> None:
    items = [1, 2, 3]
    view, with_last = Beginning(items, len(items)), Beginning(items, 3, (9,))
    items += [4, 5]
    longer = Beginning(items, len(items))
    assert list(view) == [1, 2, 3]
    assert list(with_last) == [1, 2, 3, 9]
    assert list(reversed(with_last)) == [9, 3, 2, 1]
    assert (with_last[-1], with_last[2], with_last[1:]) == (9, 3, (2, 3, 9))
    assert (len(view), len(with_last), len(longer)) == (3, 4, 5)
    assert longer.continues(view)
    assert longer.continues(with_last)
    assert not view.continues(longer)
    assert not longer.continues([1, 2, 3])
    assert not Beginning([1, 2, 3, 4], 4).continues(view)
    for place in (3, -4):
        with pytest.raises(IndexError):
            view[place]
