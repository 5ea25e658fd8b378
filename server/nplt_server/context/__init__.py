"""Builds the messages that a model is shown from the history.

The second of three stages (history, context, provider). Independent of vendors' formats;
writes nothing. `projection` is the entry point and decides when a new epoch begins; `source`
collects the parts of a context, and shortens it for one call; `messages` has the values.
"""
