"""Client connections: admission, the session of each, and uploads in progress.

Nothing here outlives a connection. Accepting sockets is the job of `app`.
"""
