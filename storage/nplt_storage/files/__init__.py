"""Conversations kept as JSON files: the default backend.

    store       `JsonFileStore`: the interface, and which conversations are open; the writer
                of each, and redaction
    append      commits: the write, the sync, the acknowledgement
    commit_threads      the threads in which commits and all other disk work run
    conversation_file   one conversation's file: opening, reading, blobs
    live_journal        the text of a running answer
    format      the bytes: header, lines, closing line, recovery, file names
    foreign     converts documents of older programs
    json_document       reads a JSON document of any length, piece by piece
    reformatted         reads a document of ours that another program reformatted
    repair      says what is wrong with a file, and keeps the sound lines of a damaged one
    directory   the data directory in use: lock, index, threads, free space, catching up
    trash       deleted conversations

`storage/FORMAT.md` specifies what is on disk.
"""
