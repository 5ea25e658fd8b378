"""nplt-server: holds conversations, runs their turns, speaks to every client.

Reading order: connections (session), answers, presenters; conversations
(registry, conversation, turn); providers and tools; app puts it together.
"""

from nplt_protocol.version import __version__

__all__ = ["__version__"]
