"""Conversations kept as JSON files: the default store.

    store           the port
    desk            who has which conversation in hand; where damage is noticed
    workshop        the data directory in use: lock, catalogue, threads
    starting        what changed on disk since the catalogue last saw it;
                    `indexing` reads it, `reading_order` says what comes first
    file            one conversation's file: opened by the rule, read anywhere
    opening         what of it is read to go on; `window` is its end
    record          its one writer; `live` holds what a running answer has said
    blobs           what is too large for a line
    building        a whole conversation on its way in
    redacting       the one rewrite there is; `writing` makes the new file
    trash           what was deleted, for a while
    free_space      whether there is room to write at all
    disk, names     what is asked of the system, and what is called how

`storage/FORMAT.md` is the normative text of all that is on disk.
"""
