"""Levels of detail: what a long text says, in a paragraph and in a line.

Made when an entry is written, by pure functions and without a model, so that a
context that fits can always be put together. `levels` is the door; behind it
`kinds` says what sort of text it is, one file for each sort names the passages
worth keeping, and `passages` fits them into the characters there are.
"""
