"""The connection to a server: sessions, reconnecting, replay. No output, no files."""
