"""Conversations kept in Redis: one stream each, and beside it what belongs to it.

    <prefix><id>:log           stream    one entry per line, id "<seq>-0", field "line"
    <prefix><id>:meta          hash      row, head, rev, place, user, origin, accessed, damaged,
                                         prompts (how many there are)
    <prefix><id>:checkpoint    string    the state before the first line, where lines were trimmed
    <prefix><id>:live          string    what the running call has said so far
    <prefix><id>:owner         string    who has it open; lapses by itself (`connection.Leases`)
    <prefix><id>:prompts       hash      each prompt's number, by its sender's own name for it
    <prefix><id>:blobs         set       the ids of its blobs
    <prefix><id>:blob:<sha>    string    one blob
    <prefix>@user:<user>       zset      that user's conversations, in the order of lists
    <prefix>@trash:<id>:…                a deleted conversation, for thirty days; its meta
                                         has the time (deleted) as well
    <prefix>@deleted:<user>    zset      that user's deleted conversations, by that time
    <prefix>@new:<token>:…               one being built or rewritten; goes by itself

A line is the same bytes as in a file (`codec`): what is read is verified.
An id begins with a letter or a digit, so no conversation is named like the last
four. Nothing is ever looked for by going through the keys of the database.

Several servers may share one Redis. Everybody reads; a conversation is open in
one server at a time, and another is refused (`ConversationReadOnly`) until that
one closes it, or died and its lease of fifteen seconds has lapsed. Should a lease
lapse though its owner lives, the record is sound all the same: every change is
one script, which Redis runs alone, and which compares the head (and `rev`, the
revision of what is before it) with what the writer believes, and changes
everything or nothing. So a writer that missed another's entry is refused, and
continues once it has reopened.

Redis may be set up to evict keys, and takes them one by one. A conversation that
lost its stream or its checkpoint is damaged, and said to be so by the next append
or opening; one that lost its `meta` is gone.

One Redis of version 6.2 or later, not a cluster: a conversation and its user's
list change together. Python talks to it from worker threads (`connection`),
because pages are walked by code that knows nothing of waiting.
"""
