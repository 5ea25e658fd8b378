"""What outlives every connection: conversations, their turns, their listeners.

`registry` opens and closes them; `conversation` is one; its `writer` is the only
one that writes, its `agenda` runs one `turn` at a time, its `audience` hears
everything once. Nothing here knows of sockets or dialects.
"""
