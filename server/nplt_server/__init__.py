"""nplt-server: keeps conversations with language models and serves them to clients.

Reading order: `app`, which builds the server and accepts connections, `connections.session`,
`requests`, `dialects`; then `conversations` (session_manager, conversation, turn_queue, turn,
model_call); then `context`, `providers` and `tools`.
"""

import os
from typing import Final

from nplt_protocol.version import __version__

__all__ = ["INSTANCE_ID", "__version__"]

INSTANCE_ID: Final = os.urandom(8).hex()
"""Names this run of the server, its workers included, in WELCOME and in `server.json`: a client
that read the file knows whether it reached that server."""
