"""The chat in lines: with prompt_toolkit and rich on a terminal, plain anywhere else.

Only `composer` and `printer` import prompt_toolkit and rich.
"""
