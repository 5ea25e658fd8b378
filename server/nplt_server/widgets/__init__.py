"""Live state a model always has before its eyes, and the tools that change it."""
