"""Two presenters of the same replies and events: the only place in the server
that knows there are two dialects."""
