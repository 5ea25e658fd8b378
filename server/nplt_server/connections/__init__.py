"""Who is connected, and what they are told.

`listener` accepts, `front_desk` knows who is there, `session` is one
connection's view, `uploads` are the files on their way in over it. Nothing
here must outlive a connection.
"""
