"""Conversations kept in Redis: one stream each, and beside it what belongs to it.

    <prefix><id>:log           stream    one entry per line, id "<seq>-0", field "line"
    <prefix><id>:meta          hash      row, head, rev, place, user, origin, accessed, damaged
    <prefix><id>:checkpoint    string    the state before the first line, where lines were trimmed
    <prefix><id>:live          string    what the running call has said so far
    <prefix><id>:blobs         set       the ids of its blobs
    <prefix><id>:blob:<sha>    string    one blob
    <prefix>@user:<user>       zset      that user's conversations, in the order of lists
    <prefix>@trash:<id>:…                a deleted conversation, for thirty days
    <prefix>@new:<token>:…               one being built or rewritten; goes by itself

A line is the same bytes as in a file (`facts.lines`): what is read is verified.
An id begins with a letter or a digit, so no conversation is named like the last
three. Nothing is ever looked for by going through the keys of the database.

Several servers may share one Redis. Every change is one script, which Redis
runs alone: it compares the head (and `rev`, the revision of what is before it)
with what the writer believes, and changes everything or nothing. So a writer
that missed another's entry is refused, and continues once it has reopened.

One Redis of version 6.2 or later, not a cluster: a conversation and its user's
list change together. Python talks to it from worker threads (`connection`),
because pages are walked by code that knows nothing of waiting.
"""
