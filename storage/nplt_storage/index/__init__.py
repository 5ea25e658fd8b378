"""The index of all conversations: rows, prompts and words, in SQLite next to the files.

Updates return at once and never fail; queries see all updates made before them. No
append waits for the database, which belongs to a thread. Its tables are

    conversations   a row for each, and the stamp of the file it was made from
    users           a number for each user's name
    messages        the texts and their users, numbered by time: the newest come first
    said            the words of the messages; FTS5 without a copy of the text
    prompts         the number of each prompt, by its message_id
    prompts_known   up to which entry a conversation's prompts are complete
    leftovers       removed conversations whose messages are still here
    marks           by which version it was made; whether words are to be erased

A database that is broken or of another version is built again. Commits are not synced:
after a power cut the database is consistent and may lack the latest updates, which
the files' stamps show. Freed pages are zeroed.
"""
