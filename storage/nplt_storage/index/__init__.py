"""The index of all conversations: rows, prompts and words, in SQLite beside the files."""
