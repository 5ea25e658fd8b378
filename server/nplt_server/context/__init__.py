"""Builds the messages that a model is shown from the history.

The second of three stages (history, context, provider). Independent of vendors' formats;
writes nothing. `projection` is the entry point; `source` collects the parts of a context,
`messages` has the values, `epochs` decides when a new epoch begins, `fitting` shortens a
context for one call.
"""
