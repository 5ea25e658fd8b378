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
def test_a_message_of_any_size_is_joined_from_its_fragments(size: int) -> None:
    payload = (bytes(range(256)) * 600)[:size]
    frames = FrameDecoder().receive_data(encode_message(PROMPT, 9, payload))
    assert join(FragmentJoiner(1024 * 1024), frames) == [Frame(PROMPT, 9, payload)]


def test_all_fragments_but_the_last_are_full_and_have_the_more_bit() -> None:
    frames = FrameDecoder().receive_data(encode_message(PROMPT, 9, bytes(2 * FULL)))
    assert [(frame.type, len(frame.payload)) for frame in frames] == [
        (PROMPT | MORE, FULL),
        (PROMPT, FULL),
    ]


def test_a_frame_between_fragments_drops_them_and_is_received_itself() -> None:
    joiner = FragmentJoiner(1024 * 1024)
    broken, ping = join(joiner, [part(seq=3), Frame(PING, 4, b"")])
    assert complaint(broken) == (ErrorCode.MALFORMED, 3)
    assert ping == Frame(PING, 4, b"")
    assert not joiner.is_open


def test_a_fragment_with_another_seq_begins_another_message() -> None:
    joiner = FragmentJoiner(1024 * 1024)
    broken, whole = join(joiner, [part(seq=3), part(seq=4), Frame(PROMPT, 4, b"end")])
    assert complaint(broken) == (ErrorCode.MALFORMED, 3)
    assert whole == Frame(PROMPT, 4, bytes(FULL) + b"end")


def test_a_short_fragment_is_refused_once_and_the_rest_is_dropped() -> None:
    joiner = FragmentJoiner(1024 * 1024)
    (broken,) = join(joiner, [part(payload=b"short"), part(), Frame(PROMPT, 1, b"end")])
    assert complaint(broken) == (ErrorCode.MALFORMED, 1)
    assert not joiner.is_open


def test_a_fragmented_message_may_be_exactly_message_bytes_max_long() -> None:
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


def test_a_refused_message_whose_fragments_are_interrupted_is_not_refused_again() -> None:
    joiner = FragmentJoiner(FULL)
    refused_once = join(joiner, [part(), part(), Frame(PING, 2, b"")])
    assert [type(item) for item in refused_once] == [BrokenMessage, Frame]


def test_hello_is_never_fragmented() -> None:
    joiner = FragmentJoiner(1024 * 1024)
    (broken,) = join(joiner, [part(code=MessageType.HELLO), Frame(MessageType.HELLO, 1, b"")])
    assert complaint(broken) == (ErrorCode.MALFORMED, 1)


def test_each_file_data_frame_is_a_message_whatever_its_more_bit_is() -> None:
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
def test_every_message_without_the_more_bit_is_received_or_reported(
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


def test_fragments_of_all_connections_share_a_byte_budget_and_give_it_back() -> None:
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


def test_fragments_received_before_the_user_is_known_count_in_the_users_budget() -> None:
    server = ByteBudget(10**6)
    user = ByteBudget(10**6, server)
    joiner = FragmentJoiner(10**6)
    joiner.move_to(server)
    join(joiner, [part()])
    joiner.move_to(user)
    assert user.used == server.used == FULL
    joiner.reset()
    assert user.used == server.used == 0
