"""What all chats share. Imports no terminal toolkit."""
