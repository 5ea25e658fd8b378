"""Builds the messages that a model is shown from the history.

The second of three stages (history, context, provider). Independent of vendors' formats;
writes nothing. `projection` is the entry point. `selection` chooses the turns and their levels,
`epochs` decides when a new epoch begins, `fit` shortens what exceeds the window. `steps` turns
entries into `messages`, and `screens` finds the current live screen.
"""
