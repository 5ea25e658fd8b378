"""What whoever builds on nplt can test with: the vendors' APIs, emulated strictly.

The server itself never imports this room, and this room nothing of the server:
`vendors` stands on `orjson` and the standard library, and real HTTP is spoken to it.
"""
