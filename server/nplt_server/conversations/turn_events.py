"""That a turn has begun and how it ended, as everyone is told."""

from __future__ import annotations

from nplt_protocol.events import TurnFinished, TurnStarted
from nplt_server.conversations.turn import Turn, TurnOutcome


def turn_started(session_id: str, turn: Turn) -> TurnStarted:
    return TurnStarted(
        session_id=session_id,
        turn_id=turn.turn_id,
        seq=turn.prompt.seq,
        model=turn.model,
        message_id=turn.prompt.message_id,
    )


def turn_finished(session_id: str, turn: Turn, outcome: TurnOutcome) -> TurnFinished:
    return TurnFinished(
        session_id=session_id,
        turn_id=turn.turn_id,
        state=outcome.state,
        seq=outcome.seq,
        usage=outcome.usage,
        error=outcome.error,
    )
