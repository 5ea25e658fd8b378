"""What is remembered: conversations as append-only entries, and where they are kept.

The room's map, from values to disk:

    entries, tool_calls     the facts themselves
    history                 one conversation in memory, and what may come next in it
    lines                   an entry as one line of a file
    views, paging, catalog  how a conversation is shown, page by page and in lists
    store                   the port; `memory` and `json_files` stand behind it

`storage/FORMAT.md` is the normative text of what is on disk. Nothing here knows
about the wire, providers or clients.
"""
