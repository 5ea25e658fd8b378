"""nplt-server: keeps conversations with language models and serves them to clients.

Reading order: `listener`, `connections.session`, `requests`, `dialects`; then
`conversations` (registry, conversation, turn_queue, turn, model_call); then `context`,
`providers` and `tools`. `app` builds the server from its settings.
"""

from nplt_protocol.version import __version__

__all__ = ["__version__"]
