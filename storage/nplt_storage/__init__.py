"""What is remembered: conversations as append-only entries, and where they are kept.

The room's map, from values to disk:

    facts           entries, what they must be like, how they are written
    conversation    one conversation without a disk: history, turns, pages, rows
    store           the port: what is asked of whatever keeps conversations
    catalogue       rows and full text in SQLite, a servant of the files
    files           one JSON file each, the default
    redis_streams   one stream each
    memory          gone with the process
    opening         from a few words of configuration to one of these
    testing         the rules every store keeps, for your own as well
    care            doctor, repair, import, export, migrate
    copying         forks and moves, from any store to any other

`storage/FORMAT.md` is the normative text of what is on disk. Nothing here knows
about the wire, providers or clients.
"""
