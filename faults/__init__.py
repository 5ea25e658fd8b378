"""What it survives, tried out: `make faults`, `python -m faults`.

Each check starts the real server on a directory of its own, lets clients talk,
does something terrible, starts the server again and compares what the clients
were promised with what is there: over the wire and in the files. The server is
known here as a program, a port and a directory of files; nothing is imported
from it, so that the checks stand whatever it looks like inside. Linux only.
"""
