"""Who is there: told to the others when someone comes or goes. Nothing of it is kept.

Whoever comes in finds the others, and itself, in the reply; whoever goes hears
nothing of its going. Of a listener that is nobody, nobody is told.
"""

from __future__ import annotations

from typing import Final

from nplt_protocol.json_values import JsonObject
from nplt_server.conversations.audience import NOBODY, Guest, Listener
from nplt_server.conversations.conversation import Conversation

_NAME_CHARACTERS_MAX: Final = 64
_CLIENTS_MAX: Final = 100
"""Of a crowd, the first to come are named; `count` says how many there are."""


def come_in(conversation: Conversation, listener: Listener, guest: Guest) -> None:
    if conversation.audience and guest is not NOBODY:
        there = (*conversation.audience.guests, guest)
        conversation.announce("presence", {**_crowd(there), "joined": described(guest)})
    conversation.audience.join(listener, guest)


def go_out(conversation: Conversation, listener: Listener, guest: Guest) -> None:
    conversation.audience.leave(listener)
    if conversation.audience and guest is not NOBODY:
        there = conversation.audience.guests
        conversation.announce("presence", {**_crowd(there), "left": described(guest)})


def step_back(conversation: Conversation, listener: Listener, guest: Guest) -> None:
    """It goes on to hear, and is not there any more for others."""
    go_out(conversation, listener, guest)
    conversation.audience.join(listener)


def clients_with(conversation: Conversation, newcomer: Guest) -> tuple[JsonObject, ...]:
    others = conversation.audience.guests[: _CLIENTS_MAX - 1]
    return tuple(described(guest) for guest in (*others, newcomer))


def described(guest: Guest) -> JsonObject:
    return {
        "client_id": guest.client_id,
        "user": guest.user,
        "client": guest.client[:_NAME_CHARACTERS_MAX],
        "observer": guest.observer,
    }


def _crowd(guests: tuple[Guest, ...]) -> JsonObject:
    named: list[JsonObject] = [described(guest) for guest in guests[:_CLIENTS_MAX]]
    return {"clients": [*named], "count": len(guests)}
