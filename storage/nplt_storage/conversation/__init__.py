"""One conversation, thought of without a disk: pure bookkeeping over entries.

turns, rules              who waits, runs, has ended; what may come next
standing, choices         what follows from the entries that stand; what holds anyway
rollbacks                 where going back leads
windows, checkpoints      a conversation held in part, and what is known of the rest
timeline, history         append-only, and all that can be asked of it
views, cutting, paging    how it is shown: messages, page by page
rows, row_lists           its line in a list
searching                 finding what was said
"""
