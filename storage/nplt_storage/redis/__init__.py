"""Conversations kept in Redis or Valkey: a stream for each, and further keys.

    <prefix>{<id>}:meta         hash      row, head, token (of the last owner), released (the
                                          last token that was given up), user, origin,
                                          checkpoint (the state before the first line, where
                                          lines were trimmed), accessed, damaged, prompts (how
                                          many there are), seen (the entry up to which its
                                          user has seen it)
    <prefix>{<id>}:log          stream    one entry per line, id "<seq>-0", field "line"
    <prefix>{<id>}:live         string    what the running call has said so far
    <prefix>{<id>}:prompts      hash      each prompt's number, by its sender's own name for it
    <prefix>{<id>}:blobs        hash      blobs by id
    <prefix>{<id>}:owner        hash      token and server of the owner; expires (`ownership`)
    <prefix>@trash:{<id>}:…               a deleted conversation, for thirty days; its meta
                                          has the time (deleted) as well
    <prefix>@new:<token>:{<id>}:…         one being built or rewritten; goes by itself
    <prefix>@user:<user>        zset      that user's conversations, in the order of lists
    <prefix>@attention:<user>   set       those that may run, have failed or be unread
    <prefix>@changes:<user>     channel   "<change> <id>" for each change of a row (`changes`)
    <prefix>@deleted:<user>     zset      that user's deleted conversations, by that time
    <prefix>@id_key             string    the secret of the servers that share it, for ids that
                                          users choose

A line is the same bytes as in a file (`codec`): what is read is verified.
Nothing is ever looked for by going through the keys of the database.

All keys of a conversation have its id as hash tag, so in a cluster they are in one slot, and
one script can change them together. A user's two are indexes in slots of their own: they are
written after the conversation, and put right by whoever reads them (`user_lists`).

Several servers may share one Redis. Everybody reads; a conversation is written by one server
at a time, its owner (`ownership`). Every change is one script, which compares the owner's
token and the head with what the writer believes, and changes everything or nothing.

Redis may be set up to evict keys, and takes them one by one. A conversation that
lost its stream is damaged, and said to be so by the next append or opening; one that lost
its `meta` is gone.

docs/cluster.md has the whole of it. Python talks to Redis from worker threads
(`connection`), because pages are walked by code that knows nothing of waiting.
"""
