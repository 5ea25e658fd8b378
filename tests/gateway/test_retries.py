"""A request that an SDK sends again joins its turn only if it is certain which one that is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from nplt_gateway.retries import JOIN_SECONDS_MAX, SentRequest, SentRequests, ids_of_key
from nplt_protocol.messages import Receipt


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Sender:
    def __init__(self) -> None:
        self.clock = Clock()
        self.sent = SentRequests(clock=self.clock)
        self._turns = count(1)

    def send(self, body: str = "body", *, user: str = "ada", session: str = "s1") -> SentRequest:
        turn_id = f"t{next(self._turns)}"
        receipt = Receipt(turn_id=turn_id, session_id=session, seq=1, position=0, state="running")
        return self.sent.add(user, body, receipt, f"m-{turn_id}")


def test_a_request_whose_connection_broke_is_joined() -> None:
    sender = Sender()
    first = sender.send()
    assert sender.sent.to_join("ada", "body") is None  # it is still connected
    first.lose()
    assert sender.sent.to_join("ada", "body") is first
    assert first.message_id == "m-t1"


def test_a_request_whose_client_has_the_final_event_is_not_joined() -> None:
    sender = Sender()
    first = sender.send()
    first.finish()
    first.lose()  # closing the connection afterwards changes nothing
    assert sender.sent.to_join("ada", "body") is None


def test_two_turns_with_the_same_body_are_not_joined() -> None:
    sender = Sender()
    for session in ("s1", "s2"):
        sender.send(session=session).lose()
    assert sender.sent.to_join("ada", "body") is None


def test_a_turn_that_is_not_the_newest_of_its_conversation_is_not_joined() -> None:
    sender = Sender()
    sender.send().lose()
    sender.send("another body")
    assert sender.sent.to_join("ada", "body") is None


def test_another_users_request_is_not_joined() -> None:
    sender = Sender()
    sender.send().lose()
    assert sender.sent.to_join("bob", "body") is None


def test_a_request_is_forgotten_after_ten_minutes() -> None:
    sender = Sender()
    sender.send().lose()
    sender.clock.now = JOIN_SECONDS_MAX
    assert sender.sent.to_join("ada", "body") is not None
    sender.clock.now += 1
    assert sender.sent.to_join("ada", "body") is None


def test_a_joined_request_can_be_joined_again() -> None:
    sender = Sender()
    sender.send().lose()
    receipt = Receipt(turn_id="t1", session_id="s1", seq=1, position=0, state="running")
    second = sender.sent.add("ada", "body", receipt, "m-t1")
    assert sender.sent.to_join("ada", "body") is None
    second.lose()
    assert sender.sent.to_join("ada", "body") is second


def test_the_oldest_requests_are_forgotten_when_there_are_too_many() -> None:
    sender = Sender()
    for number in range(10_001):
        sender.send(f"body {number}", session=f"s{number}").lose()
    assert sender.sent.to_join("ada", "body 0") is None
    assert sender.sent.to_join("ada", "body 1") is not None


@given(st.integers(0, 10**9), st.integers(0, 72 * 3_600))
def test_a_key_holds_for_24_hours_and_not_after_48(began: int, later: int) -> None:
    first = datetime.fromtimestamp(began, UTC)
    then = first + timedelta(seconds=later)
    sent_as, _ = ids_of_key("order", first)
    is_known = sent_as in ids_of_key("order", then)
    assert is_known or later > 24 * 3_600
    assert not is_known or later < 48 * 3_600
