"""Whichever pictures come, and when: what was sent changes only with an epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nplt_server.conversations.context_manager import PICTURES_BYTES_MAX, Picture, choose_pictures

MEBIBYTE = 1024 * 1024
prompts = st.lists(
    st.lists(st.integers(0, 5 * MEBIBYTE), min_size=1, max_size=6), min_size=1, max_size=12
)


@given(prompts)
def test_no_more_is_shown_than_is_taken_and_nothing_changes_without_an_epoch(
    prompts: list[list[int]],
) -> None:
    pictures: list[Picture] = []
    epoch_seq, shown = 0, frozenset[tuple[int, str]]()
    for number, sizes in enumerate(prompts):
        seq = 2 * number + 1
        pictures += [
            Picture(seq=seq, file_id=f"{number}.{place}", size=size)
            for place, size in enumerate(sizes)
        ]
        choice = choose_pictures(pictures, epoch_seq=epoch_seq)
        if choice.needs_epoch:
            epoch_seq = seq + 1
            with_epoch = choose_pictures(pictures, epoch_seq=epoch_seq)
            assert with_epoch.shown == choice.shown
            assert not with_epoch.needs_epoch
        else:
            assert {each for each in choice.shown if each[0] < seq} == shown
        shown = choice.shown
        assert sum(each.size for each in pictures if each.mention in shown) <= PICTURES_BYTES_MAX
        own = [each for each in pictures if each.seq == seq]
        if sum(each.size for each in own) <= PICTURES_BYTES_MAX:
            assert all(each.mention in shown for each in own), "a prompt's own are shown"
