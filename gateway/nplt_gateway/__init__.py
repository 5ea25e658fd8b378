"""The HTTP door: OpenAI's API, the page in the browser, health and metrics.

The gateway opens ordinary sessions in the server's process and is otherwise a client of theirs,
so users, limits, quotas and approvals are the same code for every door. Only the start of the
server (`nplt_server.start`) knows the gateway; nothing else in the server imports it.
"""
