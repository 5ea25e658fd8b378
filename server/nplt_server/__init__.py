"""nplt-server: keeps conversations with language models and serves them to clients.

Reading order: `app`, which builds the server and accepts connections, `connections.session`,
`requests`, `dialects`; then `conversations` (session_manager, conversation, turn_queue, turn,
model_call); then `context`, `providers` and `tools`.
"""

from nplt_protocol.version import __version__

__all__ = ["__version__"]
