"""Tools of MCP servers: programs beside this one, or elsewhere, that offer tools of their own.

`servers` is what the rest of the house sees: all of them, their tools, how they
are. `server` keeps one alive, in one task; `connection` is one of its lives;
`line` is how its words travel. `listing`, `names` and `results` are pure: what
comes from outside is data, and is cleaned and bounded before anything else.

The SDK costs a second to import: it is imported in a worker thread, and only
when a server is configured. It is an extra, `nplt[mcp]`.
"""
