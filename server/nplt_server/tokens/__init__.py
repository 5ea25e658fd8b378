"""How much of a model's window a text takes, and what was used of it so far."""
