"""nplt-server: holds conversations, runs their turns, speaks to every client.

Reading order: app (how it is put together), listener, session, registry,
conversation, turn; then presenters, providers and tools.
"""

from nplt_protocol.version import __version__

__all__ = ["__version__"]
