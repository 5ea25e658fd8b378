"""What is known about all conversations, in SQLite beside their files.

The files are the truth, `catalog.sqlite` is a servant: rows for the lists, an
index of what was said. Lost, stale, damaged or another version's, it is made
anew from the files; only last-access times are its own.

    freshness   is what we know of a file still so? stamps, and their comparison
    learned     what the catalogue is told: pieces of conversations, and their end
    database    the SQLite file: opened, or made anew
    row_table   rows and stamps; lists by keyset
    text_index  messages and their words; search, newest first
    prompts     which entry a prompt is, by its sender's own name for it
    books       what notes do to the tables; tidying up, erasing for good
    ledger      transactions, and what becomes of it all when the disk or SQLite fails
    clerk       the one thread that works on them
    catalogue   all of it, as its owner sees it
"""
