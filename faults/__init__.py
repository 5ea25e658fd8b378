"""Fault injection: `make faults`, `python -m faults`.

Each check starts the real server in a directory of its own, has clients prompt, injects a fault,
restarts the server, and compares what the clients were acknowledged with what the server replies
and with its files. A check knows the server only as a program, a port and a directory. It imports
nothing of the server's, so it does not depend on how the server is built. Linux only.
"""
