"""The logic that all chats share. Imports no terminal toolkit."""
