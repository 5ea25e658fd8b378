"""A prompt on its way: sent as soon as there is a connection to send it on.

The same `message_id` every time, so that however often it had to be sent, it
runs once. What the server refuses is the sender's to see.
"""

from __future__ import annotations

from nplt_client.connection_states import Offline
from nplt_client.errors import ConnectionLost, TimedOut
from nplt_client.fullscreen.visit import Visit
from nplt_protocol.replies import Receipt


async def send_when_possible(visit: Visit, text: str, message_id: str) -> Receipt:
    attachments, visit.attachments = tuple(visit.attachments), []
    replace_from, visit.replace_from = visit.replace_from, None
    while True:
        try:
            return await visit.send(
                text, message_id=message_id, attachments=attachments, replace_from=replace_from
            )
        except (ConnectionLost, TimedOut):
            if isinstance(visit.client.connection, Offline):
                raise
