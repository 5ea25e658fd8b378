"""Strict emulators of the APIs of OpenAI and Anthropic.

Real HTTP on loopback; `emulator.py` is the door, `answers.py` and `faults.py` are what a
test says, `*_rules.py` what the vendors say. Each file tells what of it is documented,
what users have reported, and what is assumed.

`python -m tests.support.vendors` runs them in a process of their own.
"""
