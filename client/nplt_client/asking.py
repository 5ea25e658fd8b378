"""Requests that outlive the line they went out on.

While there is no line they wait, each for its own timeout; a prompt waits as
long as it takes. One that was on its way when the line broke is sent again if
that can't do anything twice (`repeating`), and fails with `ConnectionLost` if
it might.
"""

from __future__ import annotations

from nplt_client.errors import ConnectionLost, ProtocolViolation
from nplt_client.line import Line
from nplt_client.mailbox import Mailbox
from nplt_client.repeating import may_repeat
from nplt_client.resuming import tell_again, tell_end
from nplt_client.retelling import ENDED
from nplt_client.switchboard import Switchboard
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Receipt, Reply
from nplt_protocol.requests import Attach, Cancel, Prompt, Request


async def ask(board: Switchboard, request: Request, *, timeout: float | None) -> Reply | JsonObject:
    while True:
        line = await board.line(timeout=timeout)
        try:
            return await line.request(request, timeout=timeout)
        except ConnectionLost as error:
            again = _again(request, board)
            if again is None:
                raise _perhaps_done(error) from None
            await board.outlive(line, error)
            request = again


async def ask_for_turn(
    board: Switchboard, prompt: Prompt, mailbox: Mailbox, *, timeout: float
) -> Receipt:
    """Its events go into the mailbox, also those that were said before it is known
    that the prompt had arrived."""
    target = prompt.session_id or board.session_id
    if prompt.message_id is not None:
        board.listeners.expect(prompt.message_id, mailbox)
    try:
        while True:
            line = await board.line(timeout=None)
            try:
                await _go_to(board, line, target, timeout=timeout)
                return await _receipt(board, line, prompt, mailbox, timeout=timeout)
            except ConnectionLost as error:
                if not may_repeat(prompt):
                    raise _perhaps_done(error) from None
                await board.outlive(line, error)
    finally:
        if prompt.message_id is not None:
            board.listeners.expect_no_more(prompt.message_id)


async def _go_to(board: Switchboard, line: Line, target: str, *, timeout: float) -> None:
    """Events come only for the attached conversation, so we go there first."""
    if board.was_never_stored(target):
        target = board.session_id
    if target != board.session_id or not board.attached:
        await line.request(Attach(session_id=target), timeout=timeout)


async def _receipt(
    board: Switchboard, line: Line, prompt: Prompt, mailbox: Mailbox, *, timeout: float
) -> Receipt:
    receipt = await line.request(prompt, timeout=timeout, turn=mailbox)
    if not isinstance(receipt, Receipt):
        raise ProtocolViolation(
            f"the server answered with {type(receipt).__name__} instead of Receipt"
        )
    turn = board.listeners.followed(receipt.turn_id)
    if receipt.duplicate and turn is not None:
        # It ran before we listened: what was said until then won't be said again.
        if receipt.state in ENDED:
            await tell_end(line, turn, timeout=timeout)
        else:
            await tell_again(line, turn, is_over=False, timeout=timeout)
    return receipt


def _again(request: Request, board: Switchboard) -> Request | None:
    if isinstance(request, Cancel) and request.turn_id is None:
        request = Cancel(turn_id=board.listeners.newest_own_turn)
    return request if may_repeat(request) else None


def _perhaps_done(error: ConnectionLost) -> ConnectionLost:
    return ConnectionLost(
        f"{error.message}; whether the server did what was asked is not known", code=error.code
    )
