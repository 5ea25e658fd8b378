"""When to try again and when to give up: delays, silence, and what may be repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_client.errors import (
    AuthenticationFailed,
    CannotConnect,
    ConnectionLost,
    NpltError,
    ProtocolViolation,
    TimedOut,
)
from nplt_client.wire.reconnect_policy import (
    STEADY_SECONDS,
    Backoff,
    Liveness,
    Patience,
    is_retryable,
)
from nplt_client.wire.wire_session import may_repeat
from nplt_protocol.messages import (
    Cancel,
    HistoryRequest,
    ModelSwitch,
    Prompt,
    Request,
    SessionDelete,
    SessionNew,
)


@given(draws=st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_backoff_delays_stay_between_half_a_second_and_half_a_minute(draws: list[float]) -> None:
    dice = iter(draws)
    backoff = Backoff(Patience(), chance=lambda low, high: low + next(dice) * (high - low))
    backoff.lost(0.0)
    delays = [backoff.next_delay(float(number)) for number in range(len(draws))]
    assert all(delay is not None and 0.5 <= delay <= 30.0 for delay in delays)


def test_backoff_delays_grow_and_reset_only_after_a_steady_connection() -> None:
    backoff = Backoff(Patience(), chance=lambda low, high: high)
    backoff.lost(0.0)
    assert [backoff.next_delay(0.0) for _ in range(6)] == [0.5, 1.5, 4.5, 13.5, 30.0, 30.0]
    backoff.found(100.0)
    backoff.lost(100.1)
    assert backoff.next_delay(100.1) == 30.0
    backoff.found(200.0)
    backoff.lost(200.0 + STEADY_SECONDS)
    assert backoff.next_delay(200.0 + STEADY_SECONDS) == 0.5


def test_backoff_gives_up_after_give_up_seconds_and_not_later() -> None:
    backoff = Backoff(Patience(give_up_seconds=3), chance=lambda low, high: high)
    backoff.lost(10.0)
    assert [backoff.next_delay(now) for now in (10.0, 10.5, 12.0, 13.0)] == [0.5, 1.5, 1.0, None]


@pytest.mark.parametrize(
    ("error", "is_worth_it"),
    [
        (CannotConnect("nobody there"), True),
        (ConnectionLost("gone"), True),
        (TimedOut("silent"), True),
        (AuthenticationFailed("not you"), False),
        (ProtocolViolation("version 9"), False),
    ],
)
def test_a_refused_connection_is_not_retryable(error: NpltError, is_worth_it: bool) -> None:
    assert is_retryable(error) is is_worth_it


@pytest.mark.parametrize(
    ("request_", "may_be"),
    [
        (Prompt(text="x", message_id="m"), True),
        (Prompt(text="x"), False),
        (HistoryRequest(), True),
        (ModelSwitch(), True),
        (ModelSwitch(model="m"), False),
        (Cancel(turn_id="t"), True),
        (Cancel(), False),
        (SessionNew(), False),
        (SessionDelete(session_id="s"), False),
    ],
)
def test_only_idempotent_requests_may_be_repeated(request_: Request, may_be: bool) -> None:
    assert may_repeat(request_) is may_be


def test_liveness_pings_a_silent_server_and_then_gives_up() -> None:
    liveness = Liveness(30, now=0)
    assert liveness.check(29.9) == "wait"
    assert liveness.check(30) == "ping"
    assert liveness.check(59.9) == "wait"
    assert liveness.check(60) == "lost"


def test_liveness_restarts_when_bytes_are_received() -> None:
    liveness = Liveness(30, now=0)
    assert liveness.check(30) == "ping"
    liveness.bytes_received(40)
    assert liveness.check(69) == "wait"
    assert liveness.check(70) == "ping"


@given(st.lists(st.floats(0.1, 29), min_size=1, max_size=50))
def test_liveness_never_pings_a_server_that_sends_often_enough(pauses: list[float]) -> None:
    liveness = Liveness(30, now=0)
    now = 0.0
    for pause in pauses:
        now += pause
        assert liveness.check(now) == "wait"
        liveness.bytes_received(now)


@given(st.lists(st.floats(0, 100), max_size=30), st.floats(1, 60))
def test_liveness_always_decides_at_its_due_time(receipts: list[float], silence: float) -> None:
    liveness = Liveness(silence, now=0)
    for when in receipts:
        liveness.bytes_received(when)
    now = max([0.0, *receipts])
    verdicts = []
    for _ in range(2):
        now = liveness.due
        verdicts.append(liveness.check(now))
    assert verdicts == ["ping", "lost"]
