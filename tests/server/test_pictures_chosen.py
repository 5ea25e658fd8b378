"""Whichever pictures come, and when: what was sent changes only with an epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nplt_server.conversations.attachments_shown import PICTURES_BYTES_MAX, choose_pictures

MEBIBYTE = 1024 * 1024
prompts = st.lists(
    st.lists(st.integers(0, 5 * MEBIBYTE), min_size=1, max_size=6), min_size=1, max_size=12
)


@given(prompts)
def test_no_more_is_shown_than_is_taken_and_nothing_changes_without_an_epoch(
    prompts: list[list[int]],
) -> None:
    pictures: dict[tuple[int, str], int] = {}
    epoch_seq, shown = 0, frozenset[tuple[int, str]]()
    for number, sizes in enumerate(prompts):
        seq = 2 * number + 1
        own = {(seq, f"{number}.{place}"): size for place, size in enumerate(sizes)}
        pictures |= own
        before = shown
        shown, needs_epoch = choose_pictures(pictures, epoch_seq=epoch_seq)
        if needs_epoch:
            epoch_seq = seq + 1
            assert choose_pictures(pictures, epoch_seq=epoch_seq) == (shown, False)
        else:
            assert {each for each in shown if each[0] < seq} == before
        assert sum(pictures[each] for each in shown) <= PICTURES_BYTES_MAX
        if sum(own.values()) <= PICTURES_BYTES_MAX:
            assert shown >= own.keys(), "a prompt's own are shown"
