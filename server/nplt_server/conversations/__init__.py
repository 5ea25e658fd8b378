"""Conversations and everything that runs in them, independent of connections.

`session_manager` opens and closes them; `conversation` is one. Its `record` is the only writer
of its stored record, its `turn_queue` runs one `turn` at a time, its `broadcast` sends each event
to all subscribers once. References point down (docs/architecture.md shows the layers). Nothing here
knows of sockets or dialects.
"""
