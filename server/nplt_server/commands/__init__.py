"""What an operator does to the files themselves, one command each.

They say what they found or did on stdout, one line each, and why not on stderr.
Exit codes: 0 all is well · 1 something is wrong or was left undone · 2 misused ·
78 the settings have mistakes · 141 whoever read stdout has gone.
What they need is imported when they run, so that
`nplt-server --help` stays quick.
"""
