"""Fragments: long messages in several frames, and what may go wrong between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_protocol import (
    MORE,
    BrokenMessage,
    ErrorCode,
    FragmentJoiner,
    Frame,
    FrameDecoder,
    Joined,
    MessageType,
    encode_message,
)
from nplt_protocol.frames import ByteBudget

FULL = 65_535
PROMPT = int(MessageType.PROMPT)
PING = int(MessageType.PING)


def join(joiner: FragmentJoiner, frames: list[Frame]) -> list[Joined]:
    return [joined for frame in frames for joined in joiner.receive_frame(frame)]


def part(seq: int = 1, payload: bytes = bytes(FULL), code: int = PROMPT) -> Frame:
    return Frame(code | MORE, seq, payload)


def complaint(joined: Joined) -> tuple[ErrorCode, int]:
    assert isinstance(joined, BrokenMessage)
    return joined.error.code, joined.seq


@pytest.mark.parametrize("size", [0, 1, FULL - 1, FULL, FULL + 1, 2 * FULL, 2 * FULL + 1])
def test_a_message_of_any_size_comes_back_whole(size: int) -> None:
    payload = (bytes(range(256)) * 600)[:size]
    frames = FrameDecoder().receive_data(encode_message(PROMPT, 9, payload))
    assert join(FragmentJoiner(1024 * 1024), frames) == [Frame(PROMPT, 9, payload)]


def test_all_frames_but_the_last_are_full_and_say_more() -> None:
    frames = FrameDecoder().receive_data(encode_message(PROMPT, 9, bytes(2 * FULL)))
    assert [(frame.type, len(frame.payload)) for frame in frames] == [
        (PROMPT | MORE, FULL),
        (PROMPT, FULL),
    ]


def test_a_foreign_frame_drops_the_part_and_is_heard_itself() -> None:
    joiner = FragmentJoiner(1024 * 1024)
    broken, ping = join(joiner, [part(seq=3), Frame(PING, 4, b"")])
    assert complaint(broken) == (ErrorCode.MALFORMED, 3)
    assert ping == Frame(PING, 4, b"")
    assert not joiner.is_open


def test_another_seq_is_foreign_and_may_begin_its_own_message() -> None:
    joiner = FragmentJoiner(1024 * 1024)
    broken, whole = join(joiner, [part(seq=3), part(seq=4), Frame(PROMPT, 4, b"end")])
    assert complaint(broken) == (ErrorCode.MALFORMED, 3)
    assert whole == Frame(PROMPT, 4, bytes(FULL) + b"end")


def test_a_part_that_is_not_full_is_refused_once_and_the_rest_swallowed() -> None:
    joiner = FragmentJoiner(1024 * 1024)
    (broken,) = join(joiner, [part(payload=b"short"), part(), Frame(PROMPT, 1, b"end")])
    assert complaint(broken) == (ErrorCode.MALFORMED, 1)
    assert not joiner.is_open


def test_a_message_may_be_exactly_as_large_as_allowed() -> None:
    frames = [part(), Frame(PROMPT, 1, b"12345")]
    assert join(FragmentJoiner(FULL + 5), frames) == [Frame(PROMPT, 1, bytes(FULL) + b"12345")]
    (broken,) = join(FragmentJoiner(FULL + 4), frames)
    assert complaint(broken) == (ErrorCode.TOO_LARGE, 1)


def test_too_large_a_message_is_refused_once_and_its_rest_is_not_kept() -> None:
    joiner = FragmentJoiner(2 * FULL)
    (broken,) = join(joiner, [part() for _ in range(200)])
    assert complaint(broken) == (ErrorCode.TOO_LARGE, 1)
    assert joiner.is_open
    after = join(joiner, [Frame(PROMPT, 1, b"end"), Frame(PROMPT, 2, b"{}")])
    assert after == [Frame(PROMPT, 2, b"{}")]


def test_an_interrupted_message_that_was_already_refused_is_not_refused_again() -> None:
    joiner = FragmentJoiner(FULL)
    refused_once = join(joiner, [part(), part(), Frame(PING, 2, b"")])
    assert [type(item) for item in refused_once] == [BrokenMessage, Frame]


def test_hello_is_never_fragmented() -> None:
    joiner = FragmentJoiner(1024 * 1024)
    (broken,) = join(joiner, [part(code=MessageType.HELLO), Frame(MessageType.HELLO, 1, b"")])
    assert complaint(broken) == (ErrorCode.MALFORMED, 1)


def test_each_piece_of_a_file_stands_by_itself_whatever_its_bit_says() -> None:
    joiner = FragmentJoiner(10)
    data = int(MessageType.FILE_DATA)
    assert join(joiner, [Frame(data | MORE, 5, b"abc"), Frame(data, 5, bytes(FULL))]) == [
        Frame(data, 5, b"abc"),
        Frame(data, 5, bytes(FULL)),
    ]


some_frames = st.lists(
    st.builds(
        Frame,
        st.sampled_from([PROMPT, PROMPT | MORE, PING, PING | MORE, 0x0D | MORE, 0x82]),
        st.integers(0, 2),
        st.sampled_from([b"", b"x", bytes(FULL)]),
    ),
    max_size=12,
)


@given(some_frames)
def test_whatever_comes_every_message_without_the_bit_is_heard_or_reported(
    frames: list[Frame],
) -> None:
    joiner = FragmentJoiner(3 * FULL)
    for frame in frames:
        joined = joiner.receive_frame(frame)
        whole = [item for item in joined if isinstance(item, Frame)]
        assert all(not item.type & MORE for item in whole)
        assert all(len(item.payload) <= 3 * FULL for item in whole)
        if frame.type & MORE and frame.type & ~MORE != MessageType.FILE_DATA:
            assert joiner.is_open
        else:
            assert not joiner.is_open


def test_unfinished_messages_of_all_connections_share_a_budget_and_give_it_back() -> None:
    server = ByteBudget(4 * FULL)
    user = ByteBudget(3 * FULL, server)
    one, two, other = (FragmentJoiner(10**6) for _ in range(3))
    for joiner, budget in ((one, user), (two, user), (other, server)):
        joiner.move_to(budget)
    assert join(one, [part()]) == join(two, [part(), part()]) == []
    (refused,) = join(one, [part()])  # the user's share is used up
    assert complaint(refused) == (ErrorCode.BUSY, 1)
    assert user.used == server.used == 2 * FULL
    assert join(other, [part(), part()]) == []
    (refused,) = join(two, [part()])  # there is room for this user, but not in all
    assert complaint(refused) == (ErrorCode.BUSY, 1)
    (whole,) = join(other, [Frame(PROMPT, 1, b".")])
    assert isinstance(whole, Frame)
    assert user.used == server.used == 0


def test_what_came_before_its_sender_was_known_counts_for_the_sender() -> None:
    server = ByteBudget(10**6)
    user = ByteBudget(10**6, server)
    joiner = FragmentJoiner(10**6)
    joiner.move_to(server)
    join(joiner, [part()])
    joiner.move_to(user)
    assert user.used == server.used == FULL
    joiner.reset()
    assert user.used == server.used == 0
