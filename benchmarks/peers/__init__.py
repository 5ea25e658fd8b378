"""What the server is compared with: the least a program can do for the same job.

Each peer is a program of its own (`python -m benchmarks.peers.NAME`), picks a
free port and says `listening on 127.0.0.1:PORT`, as the server does.
"""
