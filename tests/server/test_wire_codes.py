"""Which error a client gets for what went wrong in the storage."""

from __future__ import annotations

from nplt_server.errors import as_request_error
from nplt_storage.errors import ConversationDamaged, ConversationHeld, ConversationReadOnly


def test_a_conversation_held_by_another_server_is_a_retryable_error() -> None:
    error = as_request_error(ConversationHeld("s1"))
    assert error is not None
    assert (error.code, error.retryable) == ("unavailable", True)
    for other in (ConversationReadOnly("s1", "no room"), ConversationDamaged("s1", "a flaw")):
        refused = as_request_error(other)
        assert refused is not None
        assert (refused.code, refused.retryable) == ("read_only", False)
